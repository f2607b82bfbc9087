#!/bin/bash
# Measures how long it takes to attach a cache again, and to mount a BPFS pool that has as much,
# alternating for ROUNDS rounds.
#
#   scripts/bench/attach.sh     rows:
#     clean    FILES files of 1 KiB, all loaded, all written back; both unmounted before
#     dirty    1 GiB in 64 files that is not written back; both servers killed before
#
# Prints the best time of each in milliseconds, and the ratio: the cache's time to the pool's. Pools
# are in /dev/shm, the directory below is on ext4 in an image on the disk of /var/tmp. Needs root.
# Environment: KEEPSTONE (default: target/dist/keepstone), FILES (60000), ROUNDS (5), JSON (a
# file that gets the results, too).
set -euo pipefail
shopt -s inherit_errexit
root=$(cd "$(dirname "$0")/../.." && pwd)
keepstone=$(realpath "${KEEPSTONE:-$root/target/dist/keepstone}")
files=${FILES:-60000}
rounds=${ROUNDS:-5}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured "FILES=$files ROUNDS=$rounds scripts/bench/attach.sh" bpfs
# shellcheck source=../lib/ext4.sh
source "$root/scripts/lib/ext4.sh"
"$root/scripts/lib/packages.sh" e2fsprogs python3 >/dev/null

work=$(mktemp -d /dev/shm/bench-attach.XXXXXX)
disk=$(mktemp -d /var/tmp/bench-attach.XXXXXX)
clean_up() {
    cd /
    for dir in cache pool; do "$keepstone" umount "$work/$dir" 2>/dev/null || true; done
    umount "$work/below" 2>/dev/null || true
    rm -rf "$work" "$disk"
}
trap clean_up EXIT
mkdir "$work/below" "$work/cache" "$work/pool"
ext4_in "$disk/image" 4G "$work/below"
mkdir "$work/below/data"

# enter SYSTEM: attaches the cache or mounts the pool.
enter() {
    case $1 in
        cache) "$keepstone" attach --max-age 3600 --watch off "$work/cache.pool" "$work/below/data" "$work/cache" ;;
        pool) "$keepstone" mount "$work/pool.pool" "$work/pool" ;;
    esac >/dev/null
}
leave() { "$keepstone" umount "$work/$1" >/dev/null; }
# Kills the server of a mount, as a crash would.
kill_server() {
    local pid
    pid=$("$keepstone" stats --json "$work/$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
    kill -KILL "$pid"
    while [ -e "/proc/$pid" ]; do sleep 0.01; done
    umount --lazy "$work/$1" 2>/dev/null || true
}

# fill_clean DIR, fill_dirty DIR: make the files of a row.
fill_clean() {
    python3 - "$1" "$files" <<'PYTHON'
import os, sys
top, files = sys.argv[1], int(sys.argv[2])
for i in range(files):
    directory = f"{top}/d{i // 500}"
    if i % 500 == 0:
        os.mkdir(directory)
    with open(f"{directory}/file{i}", "wb") as file:
        file.write(b"k" * 1024)
PYTHON
}
fill_dirty() {
    for i in {0..63}; do head -c 16M /dev/urandom >"$1/large$i"; done
}

# once SYSTEM: prints microseconds until the command returns and the mount answers.
once() {
    local start end
    start=$(date +%s%N)
    enter "$1"
    stat "$work/$1" >/dev/null
    end=$(date +%s%N)
    echo $(((end - start) / 1000))
}

results=$work/results
printf '%-8s %10s %10s   %s\n' row 'cache, ms' 'pool, ms' cache/pool
for row in clean dirty; do
    "$keepstone" mkfs "$work/cache.pool" --cache --size 4G --force >/dev/null
    "$keepstone" mkfs "$work/pool.pool" --size 4G --force >/dev/null
    [ "$row" != clean ] || fill_clean "$work/below/data"
    for system in cache pool; do
        enter "$system"
        case $row,$system in
            # The cache loads what the directory below has.
            clean,cache) find "$work/cache" -type f -print0 | xargs -0 cat >/dev/null ;;
            *) "fill_$row" "$work/$system" ;;
        esac
    done
    best=()
    for ((round = 0; round < rounds; round++)); do
        for system in cache pool; do
            case $row in clean) leave "$system" ;; dirty) kill_server "$system" ;; esac
            took=$(once "$system")
            [ "$system" = cache ] && i=0 || i=1
            [ "$took" -ge "${best[i]:-999999999}" ] || best[i]=$took
        done
    done
    awk -v row="$row" -v c="${best[0]}" -v p="${best[1]}" -v json="$results" 'BEGIN {
        printf "%-8s %10.1f %10.1f   %10.2f\n", row, c / 1e3, p / 1e3, c / p
        printf "{\"program\":\"%s\",\"cache_us\":%d,\"pool_us\":%d}\n", row, c, p >>json
    }'
    "$keepstone" attach status "$work/cache" | grep -E '^(not written back|files)' || true
    for system in cache pool; do leave "$system"; done
    rm -rf "$work/cache.pool" "$work/pool.pool" "$work/below/data"/*
done
[ -z "${JSON:-}" ] || { echo '['; sed '$!s/$/,/' "$results"; echo ']'; } >"$JSON"
