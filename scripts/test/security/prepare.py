#!/usr/bin/python3
"""prepare.py MOUNT FILE: writes what shadow.py printed into a mounted pool, as a cache would."""
import json
import os
import struct
import sys

mount = sys.argv[1]
with open(sys.argv[2]) as file:
    given = json.load(file)
for directory in ("nodes", "dirty"):
    os.makedirs(f"{mount}/{directory}", 0o700, exist_ok=True)
shadow = f"{mount}/nodes/{given['name']}"
with open(shadow, "w") as file:
    file.write(given["content"])
os.setxattr(shadow, b"user.keepstone.cnode", bytes.fromhex(given["record"]))
with open(f"{mount}/dirty/{given['name']}", "wb") as file:
    file.write(struct.pack("<Q", 1))
with open(f"{mount}/cache", "w") as file:
    file.write(given["mark"])
