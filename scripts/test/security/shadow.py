#!/usr/bin/python3
"""shadow.py TARGET DIRECTORY CONTENT: prints what a cache of DIRECTORY would keep of TARGET with CONTENT not written back.

Run by root, for a stranger who has guessed the handle."""
import ctypes
import json
import struct
import sys

target, directory, content = sys.argv[1:4]
libc = ctypes.CDLL(None, use_errno=True)
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"


class Handle(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def times(path):
    """Size, birth, ctime and mtime, in ns."""
    buffer = ctypes.create_string_buffer(256)
    if libc.syscall(332, -100, path.encode(), 0x100, 0xFFF, buffer):
        raise OSError(ctypes.get_errno(), "statx")
    stamp = lambda at: (lambda s, n: s * 10**9 + n)(*struct.unpack_from("<qI", buffer.raw, at))
    size, = struct.unpack_from("<Q", buffer.raw, 40)
    return size, stamp(80), stamp(96), stamp(112)


def identity(path):
    handle, mount = Handle(128, 0), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    data = bytes(handle.data[: handle.length])
    return b"\x01" + struct.pack("<i", handle.kind) + data + struct.pack("<q", times(path)[1])


def name_of(data):
    out = ""
    for at in range(0, len(data), 3):
        part = data[at : at + 3]
        bits = int.from_bytes(part, "big") << 8 * (3 - len(part))
        out += "".join(DIGITS[bits >> (18 - 6 * i) & 63] for i in range(len(part) + 1))
    return out


own, (size, _, ctime, mtime) = identity(target), times(target)
record = struct.pack("<IIQqqQQQ", 1, 0, size, mtime, ctime, 0, 0, len(own)) + own + b"x"
mark = dict(version=1, directory=directory, root=identity(directory).hex())
print(json.dumps(dict(name=name_of(own), record=record.hex(), content=content, mark=json.dumps(mark))))
