#!/usr/bin/python3
"""work.py DIRECTORY SECONDS: makes, writes, renames and removes files. Ignores errors, and dies of signals."""
import os
import sys
import time

directory, end = sys.argv[1], time.time() + float(sys.argv[2])
n = 0
while time.time() < end:
    n += 1
    path = f"{directory}/{n % 50}"
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        os.pwrite(fd, b"x" * 6000, 0)
        os.pread(fd, 6000, 0)
        os.close(fd)
        os.rename(path, path + "r")
        os.listdir(directory)
        os.unlink(path + "r")
    except OSError:
        time.sleep(0.001)
