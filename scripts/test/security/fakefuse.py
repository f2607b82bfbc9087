#!/usr/bin/python3
"""A user's own FUSE server, mounted by fusermount3 as type fuse.keepstone with any source.

fakefuse.py MOUNTPOINT SOURCE OPTION MODE. It answers for an empty directory and claims statistics of a server.
MODE: ok; hang (extended attributes are never answered); mute (after INIT, nothing is answered)."""
import array
import errno
import os
import socket
import struct
import subprocess
import sys

mountpoint, source, option, mode = sys.argv[1:5]
STATS = b'{"pid": 1, "panics": 0, "calls": 0, "pool": "%s", "dir": "%s", "mount": "%s"}' % (
    source.encode(), mountpoint.encode(), mountpoint.encode())
INIT, LOOKUP, GETATTR, STATFS, GETXATTR, OPENDIR, READDIR, READDIRPLUS, RELEASEDIR = 26, 1, 3, 17, 22, 27, 28, 44, 29
FORGETS = (2, 42)

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
options = f"fsname={source},subtype=keepstone,default_permissions" + (f",{option}" if option else "")
mounter = subprocess.Popen(["fusermount3", "-o", options, "--", mountpoint], pass_fds=[theirs.fileno()],
                           env=dict(os.environ, _FUSE_COMMFD=str(theirs.fileno())))
_, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
if mounter.wait() != 0 or not ancillary:
    sys.exit("fusermount3 refused")
device = array.array("i", ancillary[0][2])[0]
if os.fork():
    os._exit(0)
os.setsid()


def reply(unique, error, data=b""):
    try:
        os.write(device, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)
    except OSError:
        pass


def attributes():
    return struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, os.getuid(), os.getgid(), 0, 4096, 0)


while True:
    try:
        request = os.read(device, (1 << 20) + 4096)
    except OSError as error:
        if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
            continue
        break
    operation, unique = struct.unpack_from("<IQ", request, 4)
    body = request[40:]
    if operation == INIT:
        reply(unique, 0, struct.pack("<IIIIHHIIHHI", 7, 31, 65536, 0, 16, 12, 1 << 17, 1, 32, 0, 0) + b"\0" * 28)
    elif operation in FORGETS or mode == "mute" or (mode == "hang" and operation == GETXATTR):
        continue
    elif operation == GETATTR:
        reply(unique, 0, struct.pack("<QII", 1, 0, 0) + attributes())
    elif operation == LOOKUP:
        reply(unique, errno.ENOENT)
    elif operation == STATFS:
        reply(unique, 0, struct.pack("<QQQQQIIII", 1, 1, 1, 1, 1, 4096, 255, 4096, 0) + b"\0" * 24)
    elif operation == OPENDIR:
        reply(unique, 0, struct.pack("<QII", 0, 0, 0))
    elif operation in (READDIR, READDIRPLUS, RELEASEDIR):
        reply(unique, 0)
    elif operation == GETXATTR:
        size, = struct.unpack_from("<I", body)
        if body[8:].split(b"\0")[0] == b"user.keepstone.stats":
            reply(unique, 0, STATS if size else struct.pack("<II", len(STATS), 0))
        else:
            reply(unique, errno.ENODATA)
    else:
        reply(unique, errno.ENOSYS)
