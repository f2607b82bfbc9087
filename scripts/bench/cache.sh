#!/bin/bash
# Measures programs on a cache over ext4 (`keepstone attach`), on ext4 without it and on a BPFS
# pool, alternating for ROUNDS rounds.
#
#   scripts/bench/cache.sh [ROW…]     columns:
#     ext4    a directory of ext4, its page cache
#     run     the cache over another ext4, by a program under `keepstone run`
#     mount   the same cache, by the same program without it
#     bpfs    a BPFS pool, under `keepstone run`
#     bare    as many requests as `run` makes to the cache's server, to a server that does nothing
#             (bench/c/requests.c): the least that any server of FUSE takes
#
# Rows (default: all): osync (2000 writes of 4 KiB, O_SYNC), async (20 000 without it),
# sqlite-delete and sqlite-wal (300 and 1000 autocommits, synchronous=full), reread (64 MiB four
# times in pieces of 4 KiB that were read before), create (500 files of 16 KiB, each fsynced, and
# removed), bdb-1 to bdb-8 (Chell's Figure 11: Berkeley DB with 1 to 8 threads, 35 % reads, each
# write a durable transaction), ycsb-a and forestdb (PMAL's mixes on the same: zipfian, 5 threads,
# half and two thirds reads), copy (64 MiB by copy_file_range of 1 MiB), copy-rw (the same by read
# and write), mmap (100 000 stores of 64 bytes to pages of a mapped file) and msync (2000, each made
# durable by msync).
#
# Rows that have to be named, or `filebench` for all of them: the personalities of Filebench
# (bench/c/personalities.c), fileserver-128K, webserver, webproxy, varmail-16K and oltp as in PMAL's
# Table IV, fileserver-512K, fileserver-2M, webserver-2M, varmail-128K and varmail-512K for Chell's
# Figure 12, and
# fileserver-100, -1000 and -5000 (files of 64 MiB together) for PMAL's Figure 5. Scaled to this
# machine: a 250th of Table IV's files (oltp: of their size), and 8 threads for its 50 (oltp: 1, 2
# and 5 for its log writer, 10 writers and 200 readers). Chell's have 64 MiB, too. These rows have
# one more system, `sync`: ext4 whose files are all opened with O_SYNC.
#
# Prints the best time of each in seconds, of the same work everywhere, without the start of the
# program and what it prepares (bench/c/*.c, cache/calls.py), and ratios: above 1, the cache is
# faster. Nothing waits to be written back when a program starts. ext4 lies in an image on the disk
# of /var/tmp, so its fsync is that disk's; its time is printed, too. The cached ext4 lies in
# another image, because the cache receives fanotify events of it, and each event slows its cause.
#
# Needs root. Environment: KEEPSTONE (default: target/dist/keepstone), ROUNDS (5), JSON (a file
# that gets the results, too).
set -euo pipefail
# A program that fails has no time.
shopt -s inherit_errexit
root=$(cd "$(dirname "$0")/../.." && pwd)
keepstone=$(realpath "${KEEPSTONE:-$root/target/dist/keepstone}")
rounds=${ROUNDS:-5}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured "ROUNDS=$rounds scripts/bench/cache.sh${*:+ $*}" bpfs
transactions=4000
# shellcheck source=../lib/ext4.sh
source "$root/scripts/lib/ext4.sh"
"$root/scripts/lib/packages.sh" e2fsprogs python3 gcc libc6-dev libdb5.3-dev liburing-dev >/dev/null
# Debian's, by path: another python3 may be a script that starts one, and the script would be
# served.
calls=(/usr/bin/python3 "$root/scripts/bench/cache/calls.py")

rows=(osync async sqlite-delete sqlite-wal reread create bdb-1 bdb-2 bdb-4 bdb-8 ycsb-a forestdb copy copy-rw mmap msync)
filebench=(fileserver-128K webserver webproxy varmail-16K oltp fileserver-512K fileserver-2M webserver-2M varmail-128K varmail-512K
    fileserver-100 fileserver-1000 fileserver-5000)
[ $# -eq 0 ] || rows=()
for row; do
    case $row in
        filebench) rows+=("${filebench[@]}") ;;
        *) rows+=("$row") ;;
    esac
done

work=$(mktemp -d /dev/shm/bench-cache.XXXXXX)
disk=$(mktemp -d /var/tmp/bench-cache.XXXXXX)
# Copies, so that a build meanwhile does not change the measured library.
install -m 755 "${KEEPSTONE_LIBRARY:-$(dirname "$keepstone")/libkeepstone.so}" "$work/libkeepstone.so"
export KEEPSTONE_LIBRARY=$work/libkeepstone.so
clean_up() {
    cd /
    "$keepstone" umount "$work/cached" 2>/dev/null || true
    "$keepstone" umount "$work/bpfs" 2>/dev/null || true
    for place in ext4 below; do umount "$work/$place" 2>/dev/null || true; done
    rm -rf "$work" "$disk"
}
trap clean_up EXIT

gcc -O2 -pthread -o "$work/btree" "$root/bench/c/btree.c" -ldb-5.3 -lm
gcc -O2 -Wall -Wextra -Werror -pthread -o "$work/personalities" "$root/bench/c/personalities.c" -lm
gcc -O2 -Wall -Wextra -Werror -pthread -o "$work/requests" "$root/bench/c/requests.c" -luring
mkdir "$work/ext4" "$work/below" "$work/cached" "$work/bpfs"
for image in ext4 below; do
    ext4_in "$disk/$image" 2G "$work/$image"
    mkdir "$work/$image/data"
done
"$keepstone" mkfs "$work/bpfs.pool" --size 1G >/dev/null
"$keepstone" mkfs "$work/cache.pool" --cache --size 1G >/dev/null
"$keepstone" attach "$work/cache.pool" "$work/below/data" "$work/cached" >/dev/null
"$keepstone" mount -o direct "$work/bpfs.pool" "$work/bpfs" >/dev/null

# Prints the personality of a row of Filebench, its mean size, files, threads and loops; nothing for
# other rows.
personality() {
    case $1 in
        fileserver-128K) echo fileserver 131072 400 8 800 ;;
        fileserver-512K) echo fileserver 524288 128 8 200 ;;
        fileserver-2M) echo fileserver 2097152 32 8 50 ;;
        fileserver-100) echo fileserver 671088 100 8 160 ;;
        fileserver-1000) echo fileserver 67108 1000 8 1600 ;;
        fileserver-5000) echo fileserver 13421 5000 8 4000 ;;
        webserver) echo webserver 32768 2000 8 500 ;;
        webserver-2M) echo webserver 2097152 32 8 100 ;;
        webproxy) echo webproxy 32768 1600 8 500 ;;
        varmail-16K) echo varmail 16384 3200 8 400 ;;
        varmail-128K) echo varmail 131072 512 8 300 ;;
        varmail-512K) echo varmail 524288 128 8 150 ;;
        oltp) echo oltp 6291456 10 8 600 ;;
    esac
}

is_personality() { [ -n "$(personality "$1")" ]; }

# personalities ROW MODE [COMMAND…]: runs the row in `dir` by COMMAND.
personalities() {
    local arguments
    read -ra arguments <<<"$(personality "$1")"
    "${@:3}" "$work/personalities" "$dir" "${arguments[@]}" "$2"
}

# Prints the threads of a row of Berkeley DB, its percentage of reads, and how keys are drawn;
# nothing for other rows.
mix() {
    case $1 in
        bdb-*) echo "${1#bdb-} 35 uniform" ;;
        ycsb-a) echo 5 50 zipf ;;
        forestdb) echo 5 67 zipf ;;
    esac
}

# Runs the program of a row by the command `run`, in `dir`, in the mode `mode`, all set by the
# caller; prints seconds.
btree() { "${run[@]}" "$work/btree" "$dir" "$1" "$transactions" "$2" "$3"; }
program() {
    local arguments
    read -ra arguments <<<"$(mix "$1")"
    if [ ${#arguments[@]} -gt 0 ]; then
        btree "${arguments[@]}"
    elif is_personality "$1"; then
        personalities "$1" "$mode" "${run[@]}"
    else
        "${run[@]}" "${calls[@]}" run "$1" "$dir"
    fi
}

# Prints the number of requests to the cache's server so far.
asked() {
    "$keepstone" stats --json "$work/cached" |
        /usr/bin/python3 -c 'import json, sys; print(sum(json.load(sys.stdin)["requests"].values()))'
}

# Prints the number of threads that make the calls of a row.
threads() {
    local arguments
    read -ra arguments <<<"$(mix "$1") $(personality "$1" | cut -d ' ' -f 4)"
    echo "${arguments[0]:-1}"
}

# once ROW SYSTEM: prints microseconds.
once() {
    local dir run=() mode=run seconds before
    if [ "$2" = bare ]; then
        "$work/requests" device "$(threads "$1")" |
            awk -v n="$(cat "$work/asked")" '{ printf "%d\n", n * $(NF - 2) }'
        return
    fi
    case $2 in
        ext4) dir=$work/ext4/data/dir ;;
        sync) dir=$work/ext4/data/dir mode=sync ;;
        run) dir=$work/cached/dir run=("$keepstone" run --quiet --) ;;
        mount) dir=$work/cached/dir ;;
        bpfs) dir=$work/bpfs/dir run=("$keepstone" run --quiet --) ;;
    esac
    mkdir "$dir"
    case $1 in
        bdb-* | ycsb-a | forestdb) ;;
        *) if is_personality "$1"; then personalities "$1" prepare; else "${calls[@]}" prepare "$1" "$dir"; fi ;;
    esac
    "$keepstone" attach flush "$work/cached" >/dev/null
    sync
    [ "$2" != run ] || before=$(asked)
    seconds=$(program "$1")
    [ "$2" != run ] || echo $(($(asked) - before)) >"$work/asked"
    rm -rf "$dir"
    awk -v s="$seconds" 'BEGIN { printf "%d\n", s * 1e6 }'
}

results=$work/results
printf '%-15s %8s %8s %8s %8s %8s   %s\n' row ext4 run mount bpfs bare 'ext4/run ext4/mount bpfs/run ext4/bare (sync sync/run)'
declare -A best
for row in "${rows[@]}"; do
    systems=(ext4 run mount bpfs bare)
    ! is_personality "$row" || systems+=(sync)
    for ((round = 0; round < rounds; round++)); do
        for system in "${systems[@]}"; do
            took=$(once "$row" "$system")
            [ "$took" -ge "${best[$row,$system]:-999999999}" ] || best[$row,$system]=$took
        done
    done
    "${calls[@]}" fdatasync "$work/ext4/data/synced" >>"$work/fdatasync"
    awk -v name="$row" -v e="${best[$row,ext4]}" -v r="${best[$row,run]}" -v m="${best[$row,mount]}" -v b="${best[$row,bpfs]}" \
        -v n="${best[$row,bare]}" -v s="${best[$row,sync]:-}" -v json="$results" 'BEGIN {
        printf "%-15s %8.3f %8.3f %8.3f %8.3f %8.3f", name, e / 1e6, r / 1e6, m / 1e6, b / 1e6, n / 1e6
        printf "   %8.2f %10.2f %8.2f %9.2f", e / r, e / m, b / r, (n > 0 ? e / n : 0)
        if (s != "") printf " %8.3f %8.2f", s / 1e6, s / r
        printf "\n"
        printf "{\"program\":\"%s\",\"ext4_us\":%d,\"run_us\":%d,\"mount_us\":%d,\"bpfs_us\":%d,\"bare_us\":%d", name, e, r, m, b, n >>json
        if (s != "") printf ",\"sync_us\":%d", s >>json
        print "}" >>json
    }'
done
if [ -n "${best[copy,run]:-}" ] && [ -n "${best[copy-rw,run]:-}" ]; then
    printf 'copy-rw/copy   '
    for system in ext4 run mount bpfs; do
        awk -v c="${best[copy,$system]}" -v rw="${best[copy-rw,$system]}" 'BEGIN { printf " %10.2f", rw / c }'
    done
    echo
fi
sort -n "$work/fdatasync" | awk -v json="$results" '{ us[NR] = $1 } END {
    m = us[int((NR + 1) / 2)]
    printf "4 KiB and fdatasync on ext4: %d us (medians beside the rows: %d to %d)\n", m, us[1], us[NR]
    printf "{\"program\":\"fdatasync\",\"ext4_us\":%d}\n", m >>json
}'
"$keepstone" attach status "$work/cached" | grep -E "not written back|_bytes|failures"
[ -z "${JSON:-}" ] || { echo '['; sed '$!s/$/,/' "$results"; echo ']'; } >"$JSON"
