#!/usr/bin/python3
"""squat.py KIND PATH TARGET: takes a name that another user's shared state could have. KIND: file, link, fifo, directory."""
import os
import sys

kind, path, target = sys.argv[1:4]
try:
    if kind == "link":
        os.symlink(target, path)
    elif kind == "fifo":
        os.mkfifo(path, 0o666)
    elif kind == "directory":
        os.mkdir(path, 0o777)
    else:
        with open(path, "wb") as file:
            file.write(b"KSTN" * 1024)
        os.chmod(path, 0o666)
except (FileExistsError, PermissionError, FileNotFoundError, NotADirectoryError):
    # A directory of root's keeps strangers out, which is a refusal as well.
    pass
