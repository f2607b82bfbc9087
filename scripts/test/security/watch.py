#!/usr/bin/python3
"""watch.py SECONDS DIRECTORY…: watches directories by inotify, and opens every name that shows up."""
import ctypes
import os
import select
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
queue = libc.inotify_init1(0)
end = time.time() + float(sys.argv[1])
watched = {}
for directory in sys.argv[2:]:
    number = libc.inotify_add_watch(queue, directory.encode(), 0xFFF)
    if number >= 0:
        watched[number] = directory
print("watching", len(watched), flush=True)
seen = set()


def attempt(path):
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK):
        try:
            fd = os.open(path, flags, 0o600)
            content = os.pread(fd, 40, 0)
        except OSError:
            continue
        print("opened", path, content, flush=True)


while time.time() < end:
    if not select.select([queue], [], [], 0.2)[0]:
        continue
    events = os.read(queue, 65536)
    at = 0
    while at < len(events):
        number, _, _, length = struct.unpack_from("iIII", events, at)
        name = events[at + 16 : at + 16 + length].split(b"\0")[0].decode(errors="replace")
        at += 16 + length
        path = os.path.join(watched.get(number, ""), name)
        if "keepstone" in name:
            attempt(path)
        if path not in seen:
            seen.add(path)
            print("saw", repr(path), flush=True)
