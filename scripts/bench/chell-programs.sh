#!/usr/bin/env bash
# Measures whole programs on tmpfs, alternating with and without `keepstone run --direct` (Chell
# §3.3): Berkeley DB's btree and SQLite. Prints the median of the ratios, and the share of the
# kernel in the time without it, which is the most that can be saved.
#
#   scripts/bench/chell-programs.sh [ROUNDS]          default: 7 rounds, about two minutes
#
# Environment: KEEPSTONE, the program under test (default: target/dist/keepstone). Installs what
# it needs by apt-get, as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
keepstone=${KEEPSTONE:-$root/target/dist/keepstone}
rounds=${1:-7}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured "scripts/bench/chell-programs.sh $rounds"
"$root/scripts/lib/packages.sh" gcc libdb5.3-dev python3
scratch=$(mktemp -d /dev/shm/chell-programs.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
gcc -O2 -o "$scratch/btree" "$root/scripts/bench/chell-programs/btree.c" -ldb-5.3

# once COMMAND…: runs it in a fresh directory, which it gets as its argument $dir.
once() {
    local dir
    dir=$(mktemp -d "$scratch/run.XXXXXX")
    case $1 in
        btree) set -- "$scratch/btree" "$dir" 150000 ;;
        sqlite) set -- python3 "$root/scripts/bench/chell-programs/table.py" "$dir" 400 ;;
    esac
    "${prefix[@]}" "$@"
    rm -rf "$dir"
}

# median: prints the median of numbers, one a line.
median() {
    sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

for program in btree sqlite; do
    for _ in $(seq "$rounds"); do
        prefix=(env) && once $program
        prefix=("$keepstone" run --direct "$scratch" --) && once $program
    done | paste - - | awk '{print $1 / $3, $2 / $1, $1, $3}' >"$scratch/ratios"
    ratio=$(cut -d' ' -f1 "$scratch/ratios" | median)
    share=$(cut -d' ' -f2 "$scratch/ratios" | median)
    echo "$program: x$ratio as fast with --direct; $(awk "BEGIN {printf \"%.0f\", 100 * $share}") % of the time in the kernel without"
done
