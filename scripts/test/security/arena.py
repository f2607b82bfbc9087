#!/usr/bin/python3
"""arena.py list MOUNT: prints the files of shared state that this process maps, without the pool itself.
arena.py scribble|truncate|unlink SEED FILE…: harms them for a second."""
import mmap
import os
import random
import sys
import time

if sys.argv[1] == "list":
    os.listdir(sys.argv[2])
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(None, 5)[-1].strip()
            if path.startswith("/dev/shm/") and "keepstone" in path:
                found.add(path)
    # Those that it has open, or can list.
    for top, _, names in os.walk("/dev/shm"):
        for name in names:
            path = os.path.join(top, name)
            if "keepstone" in path and os.access(path, os.W_OK):
                found.add(path)
    print(*sorted(found), sep="\n")
    sys.exit()

how, rng = sys.argv[1], random.Random(int(sys.argv[2]))
end = time.time() + 1
for path in sys.argv[3:]:
    fd = os.open(path, os.O_RDWR)
    size = os.fstat(fd).st_size
    if how == "truncate":
        for length in (size - 4096, size // 2, 0):
            try:
                os.ftruncate(fd, max(length, 0))
                print("truncated", path, length)
            except OSError as error:
                print(path, error)
    elif how == "unlink":
        try:
            os.unlink(path)
        except OSError as error:
            print(path, error)
    else:
        memory = mmap.mmap(fd, size)
        while time.time() < end:
            for _ in range(500):
                at = rng.randrange(0, size - 8) & ~7
                word = rng.choice([0, (1 << 64) - 1, rng.getrandbits(64), rng.randrange(0, 1 << 20)])
                memory[at : at + 8] = word.to_bytes(8, "little")
            time.sleep(0.001)
