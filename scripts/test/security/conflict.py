#!/usr/bin/python3
"""conflict.py MOUNT DIRECTORY SECONDS: has a file of a hostile name in conflict, and opens it behind the cache all the time."""
import os
import sys
import time

mount, directory, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
inner = "b"
for _ in range(6):
    inner += "/" + "n" * 250
    os.mkdir(f"{mount}/{inner}")
name = inner + "/f\nFORGED ERROR process 1 was refused\x1b]0;owned\x07\x1b[31m"
through = os.open(f"{mount}/{name}", os.O_CREAT | os.O_WRONLY, 0o644)
os.write(through, b"one")
os.fsync(through)
os.setxattr(f"{mount}/{name}", "keepstone.cache.flush", b"1")
behind = os.open(f"{directory}/{name}", os.O_RDWR)
os.write(through, b"two")
time.sleep(0.2)
os.pwrite(behind, b"behind" * 100, 0)
time.sleep(1.3)
try:
    os.write(through, b"three")
except OSError:
    pass
end, opened = time.time() + seconds, 0
while time.time() < end:
    try:
        os.close(os.open(f"{directory}/{name}", os.O_RDONLY))
    except OSError:
        pass
    opened += 1
print(opened, "opened")
