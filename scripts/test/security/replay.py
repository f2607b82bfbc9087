#!/usr/bin/python3
"""replay.py MOUNT: opens each name with `keepstone` in the lines of its standard input again."""
import os
import re
import sys

mount, tried = sys.argv[1], 0
names = set()
for line in sys.stdin:
    # The path of the shared state has a name of the kind, but is no name of the mount.
    names.update(re.findall(r"/\S*/\.keepstone-\S*", line))
    # Below the mount, too: a description may lack where it is mounted.
    names.update(mount + name for name in re.findall(r"(/\.keepstone-\S*)", line))
for name in names | {mount + "/.keepstone-0000000000000000"}:
    for path in (name, f"{name}/2-1-1", name.removesuffix(" (deleted)")):
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK, os.O_PATH):
            tried += 1
            try:
                fd = os.open(path, flags, 0o600)
            except OSError:
                continue
            try:
                os.listdir(fd)
            except NotADirectoryError:
                print("opened", path, flush=True)
            except OSError:
                pass
print("tried", tried)
