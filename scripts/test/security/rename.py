#!/usr/bin/python3
"""rename.py DIR: makes, writes, renames and removes files in DIR without end."""
import os
import sys

os.chdir(sys.argv[1])
number = 0
while True:
    number += 1
    name = str(number % 50)
    fd = os.open(name, os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x" * 60000, 0)
    os.close(fd)
    os.rename(name, name + "r")
    os.unlink(name + "r")
    if number == 50:
        os.close(os.open("begun", os.O_CREAT | os.O_RDWR))
