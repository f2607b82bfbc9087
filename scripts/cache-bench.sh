#!/bin/bash
# Measures a cache over ext4 beside the same ext4 without it, and a BPFS pool through its mount, in turn, ROUNDS times.
#
#   cache-bench.sh          rows: osync (2000 writes of 4 KiB, O_SYNC), async (the same without), sqlite (300 autocommits),
#                           reread (64 MiB in pieces of 4 KiB that were read before), create (500 files of 16 KiB, each fsynced)
#
# Prints the best wall time of each in seconds, and the ratio of ext4's to it: above 1 is faster than ext4. ext4 lies in an image
# on the disk of /var/tmp, so its fsync is that disk's. Needs root. Environment: KEEPSTONE (default: target/release/keepstone),
# ROUNDS (5), MODE (journal).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
keepstone=${KEEPSTONE:-$root/target/release/keepstone}
rounds=${ROUNDS:-5}
"$root/scripts/lib-packages.sh" e2fsprogs python3 >/dev/null

work=$(mktemp -d /dev/shm/cache-bench.XXXXXX)
disk=$(mktemp -d /var/tmp/cache-bench.XXXXXX)
clean_up() {
    cd /
    "$keepstone" umount "$work/cached" 2>/dev/null || true
    "$keepstone" umount "$work/bpfs" 2>/dev/null || true
    umount "$work/ext4" 2>/dev/null || true
    rm -rf "$work" "$disk"
}
trap clean_up EXIT

mkdir "$work/ext4" "$work/cached" "$work/bpfs"
truncate -s 2G "$disk/image"
mkfs.ext4 -q "$disk/image"
mount -o loop "$disk/image" "$work/ext4"
mkdir "$work/ext4/plain" "$work/ext4/behind"
for pool in cache bpfs; do "$keepstone" mkfs "$work/$pool.pool" --size 1G >/dev/null; done
"$keepstone" attach "$work/cache.pool" "$work/ext4/behind" "$work/cached" --data "${MODE:-journal}" >/dev/null
"$keepstone" mount "$work/bpfs.pool" "$work/bpfs" >/dev/null

python3 - "$rounds" "ext4=$work/ext4/plain" "cache=$work/cached" "bpfs=$work/bpfs" <<'PYTHON'
import os, sqlite3, sys, time

rounds = int(sys.argv[1])
places = dict(word.split("=", 1) for word in sys.argv[2:])
block = os.urandom(4096)


def writes(place, flags):
    fd = os.open(f"{place}/file", os.O_RDWR | os.O_CREAT | flags, 0o644)
    for i in range(2000):
        os.pwrite(fd, block, i * 7919 % 2000 * 4096)
    os.close(fd)


def osync(place):
    writes(place, os.O_SYNC)


def asynchronous(place):
    writes(place, 0)


def sqlite(place):
    db = sqlite3.connect(f"{place}/db", isolation_level=None)
    db.execute("create table if not exists t(a, b)")
    for i in range(300):
        db.execute("insert into t values(?, ?)", (i, "x" * 100))
    db.close()


def reread(place):
    path = f"{place}/big"
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(os.urandom(64 << 20))
        os.system(f"cat {path} > /dev/null")
    fd = os.open(path, os.O_RDONLY)
    for i in range(16384):
        os.pread(fd, 4096, i * 7919 % 16384 * 4096)
    os.close(fd)


def create(place):
    top = f"{place}/files"
    os.makedirs(top, exist_ok=True)
    for i in range(500):
        fd = os.open(f"{top}/{i}", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(fd, block * 4)
        os.fsync(fd)
        os.close(fd)
    for i in range(500):
        os.unlink(f"{top}/{i}")


rows = {"osync": osync, "async": asynchronous, "sqlite": sqlite, "reread": reread, "create": create}
best = {}
for _ in range(rounds):
    for row, run in rows.items():
        for name, place in places.items():
            begun = time.perf_counter()
            run(place)
            took = time.perf_counter() - begun
            best[row, name] = min(took, best.get((row, name), took))
print(f"{'':8}" + "".join(f"{name:>10}" for name in places) + "   ext4/cache  ext4/bpfs")
for row in rows:
    times = [best[row, name] for name in places]
    print(f"{row:8}" + "".join(f"{t:10.3f}" for t in times) + f"{times[0] / times[1]:13.2f}{times[0] / times[2]:11.2f}")
PYTHON
"$keepstone" attach status "$work/cached" | grep -E "not written back|hits|written back per byte"
