#!/bin/bash
# Measures the cost of the library to a process: its start, the first use of a pool, and forks.
#
#   scripts/bench/start.sh [LIBRARY…]
#       libkeepstone.so files to compare (default: the one in the directory of KEEPSTONE)
#
# Prints medians of ROUNDS rounds, with all cases in each round: CPU time (user and system) of a
# process in microseconds, its page faults, and wall time of fork, _exit and waitpid in
# microseconds, with the 10th percentile behind it. Needs root, gcc and python3. Environment:
# KEEPSTONE (default: target/dist/keepstone), ROUNDS (300).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
keepstone=$(realpath "${KEEPSTONE:-$root/target/dist/keepstone}")
rounds=${ROUNDS:-300}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured "ROUNDS=$rounds scripts/bench/start.sh${*:+ $*}" bpfs
[ $# -gt 0 ] || set -- "$(dirname "$keepstone")/libkeepstone.so"

work=$(mktemp -d /dev/shm/bench-start.XXXXXX)
clean_up() {
    cd /
    mountpoint -q "$work/pool" && { "$keepstone" umount "$work/pool" || true; }
    rm -rf "$work"
}
trap clean_up EXIT

mkdir "$work/pool" "$work/tmpfs"
"$keepstone" mkfs "$work/pool.img" --size 256M >/dev/null
"$keepstone" mount -o direct "$work/pool.img" "$work/pool" >/dev/null
echo content >"$work/pool/file"
echo content >"$work/tmpfs/file"

# forks FILE KEEP BEFORE COUNT: makes COUNT forks after BEFORE others, with FILE read before, and
# kept open if KEEP is 1.
cat >"$work/forks.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double one(void) {
    double start = now();
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    return now() - start;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int keep = atoi(argv[2]), before = atoi(argv[3]), count = atoi(argv[4]);
    char buf[16];
    int fd = open(argv[1], O_RDONLY);
    if (fd < 0 || read(fd, buf, sizeof buf) < 0) return 1;
    if (!keep) close(fd);
    for (int i = 0; i < before; i++) one();
    double *took = calloc(count, sizeof *took);
    for (int i = 0; i < count; i++) took[i] = one();
    qsort(took, count, sizeof *took, by_value);
    printf("%.0f %.0f\n", took[count / 2], took[count / 10]);
    return 0;
}
C
gcc -O2 -o "$work/forks" "$work/forks.c"

python3 - "$work" "$keepstone" "$rounds" "$@" <<'PYTHON'
import os, statistics, subprocess, sys

work, keepstone, rounds, libraries = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
plain = {k: v for k, v in os.environ.items() if not k.startswith("KEEPSTONE_") and k != "LD_PRELOAD"}


def under(library):
    """Returns the environment that `keepstone run` makes, with this library."""
    text = subprocess.run([keepstone, "run", "--quiet", "--", "env", "-0"], env=plain, capture_output=True).stdout
    made = dict(entry.split("=", 1) for entry in text.decode().split("\0") if entry)
    return made | {"LD_PRELOAD": library, "KEEPSTONE_RUN": library}


of_tmpfs, of_pool = f"{work}/tmpfs/file", f"{work}/pool/file"
sides = [("plain", plain, False)] + [(library, under(library), True) for library in libraries]
starts = [(f"{name}: {label}", argv, env) for name, env, run in sides for label, argv, wanted in [
    ("true", ["/bin/true"], True), ("cat, tmpfs", ["/bin/cat", of_tmpfs], True), ("cat, pool", ["/bin/cat", of_pool], run),
] if wanted]
took, faults = {case[0]: [] for case in starts}, {case[0]: [] for case in starts}
null = os.open("/dev/null", os.O_WRONLY)
for _ in range(rounds):
    for name, argv, env in starts:
        child = os.posix_spawn(argv[0], argv, env, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
        _, status, usage = os.wait4(child, 0)
        assert status == 0, name
        took[name].append((usage.ru_utime + usage.ru_stime) * 1e6)
        faults[name].append(usage.ru_minflt)
for name, _, _ in starts:
    low = statistics.quantiles(took[name], n=10)[0]
    print(f"{name:70} {statistics.median(took[name]):6.0f} ({low:.0f}) us, {statistics.median(faults[name]):4.0f} faults")

kinds = [("file closed", 0, 0), ("file open", 1, 0), ("file open, after 600 forks", 1, 600)]
forks = [(f"{name}: fork, {label}", env, [of_pool if run else of_tmpfs, str(keep), str(before)])
         for name, env, run in sides for label, keep, before in kinds]
results = {case[0]: [] for case in forks}
for _ in range(5):
    for name, env, args in forks:
        out = subprocess.run([f"{work}/forks", *args, str(rounds)], env=env, capture_output=True, check=True).stdout
        results[name].append(tuple(map(int, out.split())))
for name, _, _ in forks:
    middle, low = (statistics.median(column) for column in zip(*results[name]))
    print(f"{name:70} {middle:6.0f} ({low:.0f}) us")
PYTHON
