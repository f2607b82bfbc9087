#!/usr/bin/python3
"""identity.py POOL FROM TO: in each inode of a pool whose backing object is the file FROM, names TO instead, by a store into the
pool's file. Such an inode is dirty, and being written back: no difference of TO counts as a change by others.

Run by root, for a stranger who has guessed the handles. Prints the number of inodes; fails if there is none."""
import ctypes
import mmap
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
# Bits of the word of state, which precedes the length of the identity (docs/format/bpfs.md).
CLEAN, BUSY = 1, 4


class Handle(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def birth(path):
    """The birth time of a file, in ns."""
    buffer = ctypes.create_string_buffer(256)
    if libc.syscall(332, -100, path.encode(), 0x100, 0xFFF, buffer):
        raise OSError(ctypes.get_errno(), "statx")
    seconds, nanoseconds = struct.unpack_from("<qI", buffer.raw, 80)
    return seconds * 10**9 + nanoseconds


def identity(path):
    """The length of a file's identity, and the identity."""
    handle, mount = Handle(128, 0), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    own = b"\x01" + struct.pack("<i", handle.kind) + bytes(handle.data[: handle.length]) + struct.pack("<q", birth(path))
    return bytes([len(own)]) + own


old, new = identity(sys.argv[2]), identity(sys.argv[3])
assert len(old) == len(new), "handles of one file system have one length"
pool = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
changed, at = 0, pool.find(old)
while at >= 0:
    pool[at : at + len(new)] = new
    pool[at - 8] = pool[at - 8] & ~CLEAN | BUSY
    changed += 1
    at = pool.find(old, at + 1)
print(changed, "inodes changed")
sys.exit(changed == 0)
