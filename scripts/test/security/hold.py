#!/usr/bin/python3
"""hold.py DIRECTORY N: makes up to N files by several processes, keeps them open, removes each second name, and waits."""
import os
import resource
import sys
import time

directory, count = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
parent = os.getpid()
per_process = min(count, max(hard - 50, 100))
children = []
for first in range(0, count, per_process):
    reader, writer = os.pipe()
    if os.fork() == 0:
        held = []
        for n in range(first, min(first + per_process, count)):
            path = f"{directory}/{n}"
            try:
                fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
                os.write(fd, b"x")
                held.append(fd)
                if n % 2:
                    os.unlink(path)
            except OSError:
                break
        os.write(writer, b"%d" % len(held))
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(0)
    children.append(reader)
print("holds", sum(int(os.read(reader, 20)) for reader in children), flush=True)
time.sleep(60)
