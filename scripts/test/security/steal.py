#!/usr/bin/python3
"""steal.py MOUNT REPORT: takes the name of its standard output, and opens other files of the mount by what that shows."""
import itertools
import os
import re
import sys

mount, report = sys.argv[1], open(sys.argv[2], "a")
print("standard output works", flush=True)
name = os.readlink("/proc/self/fd/1")
print("looked at", name, file=report)


def attempt(path):
    """Opens a path in each way that a promotion does."""
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY, os.O_RDONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT):
        try:
            fd = os.open(path, flags | os.O_NONBLOCK, 0o600)
        except OSError:
            continue
        try:
            content = os.pread(fd, 40, 0) if flags & os.O_ACCMODE != os.O_WRONLY else b"?"
            # A name that the stranger made itself would be an empty file.
            if content:
                print("opened", path, content, file=report)
        except OSError:
            pass
        if flags & os.O_ACCMODE != os.O_RDONLY:
            try:
                os.pwrite(fd, b"stolen", 0)
                print("opened and wrote", path, file=report)
            except OSError:
                pass
        os.close(fd)


numbers = [int(n) for n in re.findall(r"(?<![0-9a-f])\d+(?![0-9a-f])", name)]
words = re.findall(r"[0-9a-f]{16,}", name)
last = os.path.basename(name)
roots = [mount, os.path.dirname(name)] + [f"{mount}/.keepstone-{word}" for word in words] + [f"{mount}/.keepstone"]
# The name itself, its inode and generation counted up and down, other nonces.
if "keepstone" in name:
    attempt(name)
    attempt(f"{mount}/{last}")
for top, ino, generation in itertools.product(roots, range(1, 12), range(0, 4)):
    for nonce in {1, 77, *numbers[-1:], *(n + 1 for n in numbers[-1:])}:
        attempt(f"{top}/{ino}-{generation}-{nonce}")
    for word in words:
        attempt(f"{mount}/.keepstone-{word}-{ino}-{generation}")
        attempt(f"{top}/{word}-{ino}-{generation}")
for change in range(1, 4):
    for number in re.findall(r"\d+", last):
        attempt(os.path.join(os.path.dirname(name), last.replace(number, str(int(number) + change), 1)))
# Through the descriptor itself, not by its name.
attempt("/proc/self/fd/1/../secret")
