#!/bin/bash
# Runs real programs under `keepstone run` on a pool, and the same without it on tmpfs, and compares
# their output and files.
#
#   scripts/test/run/run.sh [--direct|--cache] PROGRAM [DIR]
#       PROGRAM: coreutils, shells, tar, git, python, python-modules, sqlite, build, rsync, copies,
#       backups, served, nginx, vim, fio, rocksdb, redis, postgres, mariadb, qemu, mapping, valgrind,
#       together, pairs, pjdfstest, or all
#
# DIR is an empty directory of a mount made with `-o direct`. Without DIR, a pool is made in memory,
# mounted, unmounted and checked. With --direct, no pool is made, but the files of a tmpfs (DIR, or
# a directory in /dev/shm) are served by `keepstone run --direct`, as soon as they are used. With
# --cache, DIR is the mount of a cache (`keepstone attach`); without DIR, a cache of a directory on
# the disk is made.
#
# Needs root. Installs packages by apt-get. Environment: KEEPSTONE, the program under test (default:
# target/release/keepstone, then the one in PATH), with libkeepstone.so in the same directory;
# POOL_SIZE, default 2G; LAYOUT, default bpfs (not with --cache).
set -eEuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck disable=SC2034  # lib.sh uses it
work=$root/.work
source "$here/../mount/lib.sh"
# shellcheck source=../../lib/servers.sh
source "$here/../../lib/servers.sh"
export MOUNT_OPTIONS=direct

programs=(coreutils shells tar git python python-modules sqlite build rsync copies backups served nginx vim fio rocksdb redis postgres mariadb qemu mapping valgrind)
# Programs of whose calls and bytes on pools at least 99 % are served in user space. (rsync makes
# links, by the kernel.)
nearly_all=(served nginx tar mariadb qemu)
# Pairs of programs: the first runs plainly on the mount, while the second runs under `run`. They
# take seconds.
paired=(copies tar rsync shells sqlite)
run_options=(--stats --quiet --json)
# Set while other programs run at the same time.
among_many=
# --direct or --cache, if one of them is given.
kind=
case ${1:-} in
--direct | --cache)
    kind=$1
    shift
    ;;
esac
# Serves files at once, whether it pays or not.
[ "$kind" != --direct ] || export KEEPSTONE_DIRECT_AFTER=0
program=${1:?usage: run.sh [--direct|--cache] PROGRAM [DIR]; programs: ${programs[*]} together pairs pjdfstest all}
dir=${2:-}
keepstone=$(keepstone_path)

# remains DIR: prints names, attributes and contents that do not depend on the file system.
remains() (
    cd "$1"
    find . -type d -printf '%y %m %U %G %p\n' -o -printf '%y %m %U %G %n %s %p -> %l\n' | sort
    find . -type f -print0 | sort -z | xargs -0r sha256sum
)

# on DIR PROGRAM OUTPUT COMMAND…: runs the program's script in DIR by COMMAND and prints COMMAND's
# own messages; OUTPUT gets the output and the files of the script.
on() {
    local dir=$1 script=$here/$2.sh output=$3
    shift 3
    # shellcheck disable=SC2016  # the inner shell expands it
    (cd "$dir" && "$@" bash -c 'exec bash -euo pipefail "$1" >"$0" 2>&1' "$output" "$script" </dev/null) &&
        remains "$dir" >>"$output"
}

# share PROGRAM: prints the share that user space served, from the report of `run --stats --json`;
# fails if it is too small.
share() {
    local report
    report=$(cat)
    jq -r --arg program "$1" '([.mounts[][]] | add // 0) as $mount
        | "\($program): served in user space: \(.served_percent[0] * 100 | floor / 100) % of \(.served.calls + .by_mount.calls) calls, \(
            (.served_percent[1] // 100) * 100 | floor / 100) % of \(.served.bytes + .by_mount.bytes) bytes; \($mount) requests to the mounts"' \
        <<<"$report"
    # While programs are killed, a pool cannot be attached at some moments, and an inherited
    # descriptor stays the kernel's.
    [[ -n "$among_many" || $kind = --direct || " ${nearly_all[*]} " != *" $1 "* ]] ||
        jq -e '.served_percent | map(. // 100) | min >= 99' <<<"$report" >/dev/null || {
        jq . <<<"$report"
        die "$1: less than 99 % was served in user space"
    }
}

# compare PROGRAM DIR [plainly]: fails with the difference. Plainly: not under `keepstone run`.
compare() (
    scratch=$(mktemp -d /dev/shm/test-run.XXXXXX)
    # shellcheck disable=SC2064  # as it is now
    trap "rm -rf $scratch" EXIT
    mkdir "$scratch/tmpfs" "$2/$1"
    # Programs that become another user need access to all of it.
    chmod 755 "$scratch" "$scratch/tmpfs" "$2/$1"
    install -m 755 "$(dirname "$keepstone")/libkeepstone.so" "$scratch/"
    export KEEPSTONE_LIBRARY=$scratch/libkeepstone.so
    on "$scratch/tmpfs" "$1" "$scratch/expected" env || {
        cat "$scratch/expected"
        die "$1 fails without Keepstone"
    }
    named=()
    [ "$kind" != --direct ] || named=(--direct "$2")
    way=("$keepstone" run "${run_options[@]}" "${named[@]}" --)
    [ -z "${3:-}" ] || way=(env)
    on "$2/$1" "$1" "$scratch/got" "${way[@]}" >"$scratch/report" || echo failed >>"$scratch/got"
    # Paths appear in messages.
    sed -i "s|$scratch/tmpfs|DIR|g" "$scratch/expected"
    sed -i "s|$2/$1|DIR|g" "$scratch/got"
    diff "$scratch/expected" "$scratch/got" >"$scratch/diff" || {
        head -40 "$scratch/diff"
        die "$1: differs from tmpfs"
    }
    [ -n "${3:-}" ] || share "$1" <"$scratch/report"
    rm -rf "${2:?}/$1"
)

run_program() {
    echo "== $1 under keepstone run on $2"
    case $1 in
        together) run_together "$2" ;;
        pairs) run_pairs "$2" ;;
        pjdfstest) run_pjdfstest "$2" ;;
        *) compare "$1" "$2" ;;
    esac || return 1
    echo "== $1: passed ($SECONDS s)"
}

# All at once, in one pool.
run_together() {
    local one pids=() failed=() among_many=1
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

# A program on the mount, while another uses the pool directly: less caching by the kernel changes
# no result.
run_pairs() {
    local i plain beside failed=() among_many=1
    for i in "${!paired[@]}"; do
        plain=${paired[i]} beside=${paired[(i + 1) % ${#paired[@]}]}
        mkdir "$1/beside"
        chmod 755 "$1/beside"
        compare "$beside" "$1/beside" &
        compare "$plain" "$1" plainly || failed+=("$plain, beside $beside")
        wait $! || failed+=("$beside, beside $plain")
        rmdir "$1/beside"
    done
    [ ${#failed[@]} -eq 0 ] || die "failed in pairs: ${failed[*]}"
}

# The suite of the mount, which remounts it and mounts over its directories, by one process under
# `run`.
run_pjdfstest() {
    # shellcheck source=/dev/null  # it is checked by itself
    source "$here/../mount/pjdfstest.sh"
    suite_pjdfstest "$1" "$keepstone" run "${run_options[@]}" -- || return 1
    sed -n '/^{/,$p' "$work/pjdfstest-run/dir.log" | share pjdfstest
}

"$root/scripts/lib/packages.sh" restic borgbackup git sqlite3 gcc libc6-dev make python3 jq rsync vim fio rocksdb-tools valgrind \
    python3-lmdb libpmem-dev curl qemu-utils
need_server redis-server redis-server
need_server nginx nginx-light
need_server pg_ctlcluster postgresql
need_server mariadbd mariadb-server
# The package has the version in its name.
python=$(realpath /usr/bin/python3)
"$root/scripts/lib/packages.sh" "lib${python##*/}-testsuite"
if [ "$program" = all ]; then
    # The kernel shares files that it keeps, so these need no test of programs together, nor of
    # names.
    [ "$kind" = --direct ] || programs+=(together pairs pjdfstest)
    # shellcheck disable=SC2317  # each calls it
    alone() { "$0" ${kind:+"$kind"} "$1" ${dir:+"$dir"}; }
    each alone -- "${programs[@]}"
    exit 0
fi
[[ $program == @(together|pairs|pjdfstest) || -f $here/$program.sh ]] || die "no program $program"
if [ -n "$dir" ]; then
    run_program "$program" "$(realpath "$dir")"
elif [ "$kind" = --direct ]; then
    dir=$(mktemp -d /dev/shm/test-run-direct.XXXXXX)
    chmod 755 "$dir"
    # shellcheck disable=SC2064  # as it is now
    trap "rm -rf $dir" EXIT
    run_program "$program" "$dir"
elif [ "$kind" = --cache ]; then
    with_cache run_program "$program"
else
    with_pool run_program "$program"
fi
