#!/usr/bin/python3
"""shrink.py SECONDS NAME…: makes files of these names in /dev/shm alternately large and small, and copies of them elsewhere there."""
import os
import sys
import time

end = time.time() + float(sys.argv[1])
names = sys.argv[2:] + [f"keepstone-{n:032x}-{n:x}" for n in range(4)]
while time.time() < end:
    for name in names:
        path = "/dev/shm/" + os.path.basename(name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:
            continue
        try:
            os.ftruncate(fd, 1 << 20)
            os.pwrite(fd, b"\1" * 4096, 0)
            os.ftruncate(fd, 0)
        except OSError:
            pass
        os.close(fd)
