#!/usr/bin/python3
"""Rows of cache.sh that are calls on files.

`calls.py prepare ROW DIR` makes the files of a row in an empty directory. `calls.py run ROW DIR` does the row there and prints
the seconds that it took. Two processes, so that the measured one finds files that another program has made. `calls.py fdatasync
FILE` prints the median time of a write of 4 KiB and fdatasync, in us.
"""

import mmap, os, sqlite3, statistics, sys, time

KIB, MIB = 1 << 10, 1 << 20
BLOCK = os.urandom(4 * KIB)
BLOCKS = 2000
BIG = 64 * MIB


def make(path, size):
    """Makes a file whose bytes are durable, and reads it."""
    with open(path, "wb") as file:
        for _ in range(size // len(BLOCK)):
            file.write(BLOCK)
        file.flush()
        os.fsync(file.fileno())
    with open(path, "rb") as file:
        while file.read(MIB):
            pass


def overwrite(place, flags, times):
    """Overwrites blocks of an existing file at random."""
    fd = os.open(f"{place}/file", os.O_RDWR | flags)
    for i in range(times * BLOCKS):
        os.pwrite(fd, BLOCK, i * 7919 % BLOCKS * len(BLOCK))
    os.close(fd)


def sqlite(place, mode, commits):
    db = sqlite3.connect(f"{place}/db", isolation_level=None)
    db.execute(f"pragma journal_mode={mode}")
    db.execute("pragma synchronous=full")
    db.execute("create table t(a, b)")
    for i in range(commits):
        db.execute("insert into t values(?, ?)", (i, "x" * 100))
    db.close()


def reread(place):
    fd, blocks = os.open(f"{place}/file", os.O_RDONLY), BIG // len(BLOCK)
    for i in range(4 * blocks):
        os.pread(fd, len(BLOCK), i * 7919 % blocks * len(BLOCK))
    os.close(fd)


def create(place):
    for i in range(500):
        fd = os.open(f"{place}/{i}", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(fd, BLOCK * 4)
        os.fsync(fd)
        os.close(fd)
    for i in range(500):
        os.unlink(f"{place}/{i}")


def mapped(place, times, syncs):
    """Stores to random pages of a mapped file, and makes each store durable if it `syncs`."""
    fd = os.open(f"{place}/file", os.O_RDWR)
    with mmap.mmap(fd, BLOCKS * len(BLOCK)) as memory:
        for i in range(times * BLOCKS):
            at = i * 7919 % BLOCKS * len(BLOCK)
            memory[at : at + 64] = BLOCK[:64]
            if syncs:
                memory.flush(at, len(BLOCK))
    os.close(fd)


def copy(place, piece):
    """Calls `piece` with both descriptors until it has copied nothing."""
    source = os.open(f"{place}/file", os.O_RDONLY)
    target = os.open(f"{place}/copy", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    while piece(source, target):
        pass
    copied = os.fstat(target).st_size
    os.close(source)
    os.close(target)
    assert copied == BIG


# The bytes of the file that a row starts with, and its calls.
ROWS = {
    "osync": (BLOCKS * len(BLOCK), lambda place: overwrite(place, os.O_SYNC, 1)),
    "async": (BLOCKS * len(BLOCK), lambda place: overwrite(place, 0, 10)),
    "sqlite-delete": (None, lambda place: sqlite(place, "delete", 300)),
    "sqlite-wal": (None, lambda place: sqlite(place, "wal", 1000)),
    "reread": (BIG, reread),
    "create": (None, create),
    "mmap": (BLOCKS * len(BLOCK), lambda place: mapped(place, 50, False)),
    "msync": (BLOCKS * len(BLOCK), lambda place: mapped(place, 1, True)),
    "copy": (BIG, lambda place: copy(place, lambda a, b: os.copy_file_range(a, b, MIB))),
    "copy-rw": (BIG, lambda place: copy(place, lambda a, b: os.write(b, os.read(a, MIB)))),
}


def fdatasync(path):
    make(path, len(BLOCK))
    fd, took = os.open(path, os.O_RDWR), []
    for _ in range(100):
        begun = time.perf_counter()
        os.pwrite(fd, BLOCK, 0)
        os.fdatasync(fd)
        took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1e6


match sys.argv[1:]:
    case ["prepare", row, place]:
        size, _ = ROWS[row]
        if size is not None:
            make(f"{place}/file", size)
    case ["run", row, place]:
        _, run = ROWS[row]
        begun = time.perf_counter()
        run(place)
        print(f"{time.perf_counter() - begun:.6f}")
    case ["fdatasync", path]:
        print(f"{fdatasync(path):.0f}")
    case _:
        sys.exit(__doc__)
