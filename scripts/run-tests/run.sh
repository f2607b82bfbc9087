#!/bin/bash
# Runs real programs under `keepstone run` on a pool, and the same without it on tmpfs, and compares
# what they print and what they leave.
#
#   run.sh PROGRAM [DIR]     PROGRAM: coreutils, shells, tar, git, python, sqlite, build, together, or all
#
# DIR is an empty directory of a mount made with `-o direct`. Without DIR, a pool is made in memory,
# mounted, unmounted and checked. Needs root. Installs what it lacks by apt-get. Environment: KEEPSTONE,
# the program under test (default: target/release/keepstone, then the one in PATH), with libkeepstone.so
# beside it; POOL_SIZE, default 2G.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck disable=SC2034  # lib.sh uses it
work=$root/.work
source "$here/../mount-tests/lib.sh"
export MOUNT_OPTIONS=direct

programs=(coreutils shells tar git python sqlite build)
program=${1:?usage: run.sh PROGRAM [DIR]; programs: ${programs[*]} together all}
dir=${2:-}
keepstone=$(keepstone_path)

# remains DIR: everything about what is there that does not depend on the file system.
remains() (
    cd "$1"
    find . -type d -printf '%y %m %U %G %p\n' -o -printf '%y %m %U %G %n %s %p -> %l\n' | sort
    find . -type f -print0 | sort -z | xargs -0r sha256sum
)

# on DIR PROGRAM COMMAND…: runs the program's script in DIR by COMMAND; prints what it prints and leaves.
on() {
    local dir=$1 script=$here/$2.sh
    shift 2
    (cd "$dir" && "$@" bash -euo pipefail "$script" 2>&1 </dev/null) && remains "$dir"
}

# compare PROGRAM DIR: fails with the difference.
compare() (
    scratch=$(mktemp -d /dev/shm/run-tests.XXXXXX)
    # shellcheck disable=SC2064  # as it is now
    trap "rm -rf $scratch" EXIT
    mkdir "$scratch/tmpfs" "$2/$1"
    chmod 755 "$scratch/tmpfs" "$2/$1"
    on "$scratch/tmpfs" "$1" env >"$scratch/expected" || {
        cat "$scratch/expected"
        die "$1 fails without Keepstone"
    }
    on "$2/$1" "$1" "$keepstone" run -- >"$scratch/got" || echo failed >>"$scratch/got"
    # Paths appear in messages.
    sed -i "s|$scratch/tmpfs|DIR|g" "$scratch/expected"
    sed -i "s|$2/$1|DIR|g" "$scratch/got"
    diff "$scratch/expected" "$scratch/got" >"$scratch/diff" || {
        head -40 "$scratch/diff"
        die "$1: differs from tmpfs"
    }
    rm -rf "${2:?}/$1"
)

run_program() {
    echo "== $1 under keepstone run on $2"
    case $1 in
        together) run_together "$2" ;;
        *) compare "$1" "$2" ;;
    esac || return 1
    echo "== $1: passed"
}

# All at once, in one pool.
run_together() {
    local one pids=() failed=()
    for one in "${programs[@]}"; do
        mkdir "$1/$one-of-many"
        compare "$one" "$1/$one-of-many" &
        pids+=($!)
    done
    for one in "${!pids[@]}"; do
        wait "${pids[$one]}" || failed+=("${programs[$one]}")
    done
    [ ${#failed[@]} -eq 0 ] || die "failed together: ${failed[*]}"
}

for package in git sqlite3 gcc make python3; do
    need_apt "$package" "$package"
done
if [ "$program" = all ]; then
    failed=()
    for one in "${programs[@]}" together; do
        "$0" "$one" ${dir:+"$dir"} || failed+=("$one")
    done
    [ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
    exit 0
fi
[ "$program" = together ] || [ -f "$here/$program.sh" ] || die "no program $program"
if [ -n "$dir" ]; then
    run_program "$program" "$(realpath "$dir")"
else
    with_pool run_program "$program"
fi
