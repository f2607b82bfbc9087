#!/usr/bin/python3
"""inode.py POOL UID MODE: gives each inode of UID with MODE to root, by a store into the pool's file."""
import mmap
import os
import struct
import sys

uid, mode = int(sys.argv[2]), int(sys.argv[3], 8)
pool = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
pattern = struct.pack("<III", uid, uid, mode)
changed, at = 0, pool.find(pattern)
while at >= 0:
    pool[at : at + 8] = struct.pack("<II", 0, 0)
    changed += 1
    at = pool.find(pattern, at + 4)
print(changed, "inodes changed")
sys.exit(changed == 0)
