#!/bin/bash
# Measures the time of one write by component, as PMAL does in its Tables II and V: 4 KiB over
# existing data of a file of 1 MiB.
#
#   scripts/bench/components.sh [SYSTEM…]
#     ext4-async  ext4, its page cache
#     ext4-sync   ext4, O_SYNC
#     cache       a cache over ext4 (PMAL), by `keepstone run`
#     bpfs        a BPFS pool, by the same program
#
# Each program (bench/c/writes.c) first writes the file 16 times, so that first writes are not
# measured, and prints ns per call of the rest: the best of ROUNDS alternating rounds. perf samples
# another run of it, 5000 times a second, and the samples divide that time (components/classify.py).
# Time off the CPU is `waiting for the disk`. The paper has probes in the kernel instead, with names
# by file system. Here, rows are
#
#   system call gate       into the kernel and out of it
#   VFS                    files, time stamps, permissions, who is notified
#   page cache             finding and marking folios, buffer heads, writing back (PMAL: page cache
#                          flush, too)
#   memory copy            PMAL's memory I/O, wherever it is done
#   file system            ext4 and its journal (PMAL: FS consistency)
#   block layer            requests, and the scheduler, which runs others while the disk works
#   interposition          libkeepstone: finds that it serves the call, and its descriptor
#   pool's engine          bpfs, namespace, arena: claimed blocks, the tree, locks, time stamps
#   locked instructions    in both of them. The first after a copy takes longest: it waits until the copy's
#                          stores are done, which is the better part of a copy's cost. In the kernel, the
#                          next component after the copy pays that
#   medium                 pmem without its copies: flushes, fences, stores of words
#
# The two ext4 are two images on the disk of /var/tmp, because a cache receives fanotify events of
# its own, and each event slows its cause. Pools lie in /dev/shm, which is not persistent: flushes
# have the cost of DRAM. Needs root. Environment: KEEPSTONE (default: target/dist/keepstone),
# ROUNDS (5), JSON (a file that gets the results, too), SYMBOLS (a file that gets the functions of
# each component).
set -euo pipefail
# A program that fails has no time.
shopt -s inherit_errexit
root=$(cd "$(dirname "$0")/../.." && pwd)
keepstone=$(realpath "${KEEPSTONE:-$root/target/dist/keepstone}")
rounds=${ROUNDS:-5}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured "ROUNDS=$rounds scripts/bench/components.sh${*:+ $*}" bpfs
"$root/scripts/lib/packages.sh" e2fsprogs python3 gcc libc6-dev binutils linux-perf >/dev/null

systems=(ext4-async ext4-sync cache bpfs)
[ $# -eq 0 ] || systems=("$@")
for system in "${systems[@]}"; do
    case $system in
        ext4-async | ext4-sync | cache | bpfs) ;;
        *)
            echo "components.sh: no system is called $system" >&2
            exit 2
            ;;
    esac
done

# shellcheck source=../lib/ext4.sh
source "$root/scripts/lib/ext4.sh"
work=$(mktemp -d /dev/shm/components.XXXXXX)
disk=$(mktemp -d /var/tmp/components.XXXXXX)
# Copies, so that a build meanwhile does not change the measured programs.
install -m 755 "${KEEPSTONE_LIBRARY:-$(dirname "$keepstone")/libkeepstone.so}" "$work/libkeepstone.so"
install -m 755 "$keepstone" "$work/keepstone"
export KEEPSTONE_LIBRARY=$work/libkeepstone.so
keepstone=$work/keepstone
clean_up() {
    cd /
    for place in cache bpfs; do "$keepstone" umount "$work/$place" 2>/dev/null || true; done
    for place in ext4 below; do umount "$work/$place" 2>/dev/null || true; done
    rm -rf "$work" "$disk"
}
trap clean_up EXIT

gcc -O2 -Wall -Wextra -Werror -o "$work/writes" "$root/bench/c/writes.c"
mkfifo "$work/control" "$work/acknowledged"
mkdir "$work"/{ext4,below,cache,bpfs,results}
for image in ext4 below; do ext4_in "$disk/$image" 1G "$work/$image"; done
mkdir "$work/below/data"
"$keepstone" mkfs "$work/cache.pool" --cache --size 512M >/dev/null
"$keepstone" attach "$work/cache.pool" "$work/below/data" "$work/cache" >/dev/null
"$keepstone" mkfs "$work/bpfs.pool" --size 512M >/dev/null
"$keepstone" mount -o direct "$work/bpfs.pool" "$work/bpfs" >/dev/null

# writes SYSTEM [FIFO FIFO]: runs the program by the command `record`, set by the caller; prints ns
# per call, elapsed and on the CPU. Nothing waits to be written back when it starts.
writes() {
    local file=$work/$1/file run=() how=async count=4000000
    case $1 in
        ext4-async) file=$work/ext4/file count=1500000 ;;
        ext4-sync) file=$work/ext4/file how=sync count=20000 ;;
        *) run=("$keepstone" run --quiet --) ;;
    esac
    [ -e "$file" ] || head -c 1M /dev/urandom >"$file"
    [ "$1" != cache ] || "$keepstone" attach flush "$work/cache" >/dev/null
    sync
    "${record[@]}" "${run[@]}" "$work/writes" "$file" "$how" "$count" "${@:2}"
}

record=()
declare -A best
for ((round = 0; round < rounds; round++)); do
    for system in "${systems[@]}"; do
        took=$(writes "$system")
        best[$system]=$(printf '%s\n' "$took" ${best[$system]:+"${best[$system]}"} | sort -n | head -n 1)
    done
done
for system in "${systems[@]}"; do
    # Samples all processes: a clock that stops while this process sleeps is up to 10 us late when
    # it wakes (ext4-sync).
    record=(perf record --quiet --all-cpus -F 5000 -g -D -1 --control "fifo:$work/control,$work/acknowledged"
        --output "$work/samples" --)
    took=$(writes "$system" "$work/control" "$work/acknowledged")
    read -r elapsed running <<<"${best[$system]}"
    [ -z "${SYMBOLS:-}" ] || echo "$system: $elapsed ns, on the CPU $running, while sampled: $took" >>"$work/symbols"
    perf script --no-demangle --comm writes -F comm,ip,sym,symoff,dso --input "$work/samples" |
        /usr/bin/python3 "$root/scripts/bench/components/classify.py" "$work/libkeepstone.so" "$elapsed" "$running" \
            ${SYMBOLS:+"$work/symbols"} >"$work/results/$system"
done
[ -z "${SYMBOLS:-}" ] || cp "$work/symbols" "$SYMBOLS"

cd "$work/results"
awk -F '\t' -v json="$work/json" '
    FNR == 1 { system_of[++systems] = FILENAME }
    systems == 1 { component[++components] = $2 }
    { ns[$2, systems] = $1; ns["total", systems] += $1 }
    END {
        component[++components] = "total"
        printf "%-22s", "ns"
        for (s = 1; s <= systems; s++) printf " %13s", system_of[s]
        printf "\n"
        for (c = 1; c <= components; c++) {
            printf "%-22s", component[c]
            printf "%s{\"component\":\"%s\"", (c > 1 ? ",\n" : "[\n"), component[c] >json
            for (s = 1; s <= systems; s++) {
                key = system_of[s]
                gsub("-", "_", key)
                # A dash means no sample; 0 is less than a nanosecond.
                if (ns[component[c], s] > 0) printf " %13.0f", ns[component[c], s]
                else printf " %13s", "-"
                printf ",\"%s_ns\":%.1f", key, ns[component[c], s] >json
            }
            printf "\n"
            printf "}" >json
        }
        printf "\n]\n" >json
    }' "${systems[@]}"
[ -z "${JSON:-}" ] || cp "$work/json" "$JSON"
