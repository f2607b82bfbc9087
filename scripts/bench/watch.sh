#!/bin/bash
# Measures the cost of `attach --watch` to other processes, and the delay of its events.
#
#   scripts/bench/watch.sh
#
# Prints, with --watch off, notify and permission: the time of each call of an unrelated process on
# the same file system, and the server's CPU time for all of them; the delay until a reader of the
# mount sees a change behind the cache; the wait of a process that opens a file which is not written
# back.
#
# The directory is made in DIR (default: /dev/shm, where nothing else jitters). Needs root.
# Environment: KEEPSTONE (default: target/dist/keepstone).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
keepstone=${KEEPSTONE:-$root/target/dist/keepstone}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured scripts/bench/watch.sh bpfs
"$root/scripts/lib/packages.sh" python3 >/dev/null

memory=$(mktemp -d /dev/shm/bench-watch.XXXXXX)
base=$(mktemp -d "${DIR:-/dev/shm}/bench-watch.XXXXXX")
clean_up() {
    cd /
    "$keepstone" umount "$base/mount" 2>/dev/null || true
    rm -rf "$memory" "$base"
}
trap clean_up EXIT

mkdir "$base/data" "$base/mount" "$base/other"
for watch in off notify permission; do
    rm -f "$memory/pool" "$base/data/file"
    echo 000000 >"$base/data/file"
    "$keepstone" mkfs "$memory/pool" --cache --size 64M >/dev/null
    "$keepstone" attach "$memory/pool" "$base/data" "$base/mount" --watch "$watch" --max-age 3600 >/dev/null
    python3 - "$base" "$watch" "$("$keepstone" --json attach status "$base/mount")" <<'PYTHON'
import json, os, statistics, sys, time

base, watch, server = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])["pid"]


def cpu_ms():
    fields = open(f"/proc/{server}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")


def cost(name, calls, run):
    best = (float("inf"), 0)
    for _ in range(5):
        before, start = cpu_ms(), time.perf_counter()
        run(calls)
        took = time.perf_counter() - start
        time.sleep(0.2)
        best = min(best, (took / calls * 1e6, cpu_ms() - before))
    print(f"{watch:10} {name}: {best[0]:.2f} us each, {best[1]} ms of the server's CPU for {calls}")


def waits(name, times):
    print(f"{watch:10} {name}: median {statistics.median(times):.0f} us, longest {max(times):.0f} us of {len(times)}")


def write(calls):
    for _ in range(calls):
        os.pwrite(other, b"x" * 64, 0)


def create(calls):
    for i in range(calls):
        os.close(os.open(f"{base}/other/{i}", os.O_CREAT | os.O_WRONLY))
    for i in range(calls):
        os.unlink(f"{base}/other/{i}")


def reopen(calls):
    for _ in range(calls):
        os.close(os.open(f"{base}/other/file", os.O_RDONLY))


other = os.open(f"{base}/other/file", os.O_CREAT | os.O_RDWR)
cost("write of 64 B", 300_000, write)
cost("create and unlink", 30_000, create)
cost("open and close", 200_000, reopen)

below, mount = (os.open(f"{base}/{place}/file", os.O_RDWR) for place in ("data", "mount"))
times = []
for i in range(300 if watch != "off" else 0):
    time.sleep(0.003)
    text = b"%06d" % i
    start = time.perf_counter()
    os.pwrite(below, text, 0)
    while os.pread(mount, 6, 0) != text:
        pass
    times.append((time.perf_counter() - start) * 1e6)
if times:
    waits("change behind the cache, seen through it", times)
times = []
for i in range(300 if watch == "permission" else 0):
    text = b"%06d" % (i + 1000)
    os.pwrite(mount, text, 0)
    start = time.perf_counter()
    opened = os.open(f"{base}/data/file", os.O_RDONLY)
    times.append((time.perf_counter() - start) * 1e6)
    assert os.pread(opened, 6, 0) == text
    os.close(opened)
if times:
    waits("opening of a file that is not written back", times)
PYTHON
    "$keepstone" umount "$base/mount"
done
