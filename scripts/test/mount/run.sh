#!/bin/bash
# Runs test suites of the field against a mounted pool.
#
#   scripts/test/mount/run.sh SUITE [DIR]     SUITE: pjdfstest, fsx, test_syscalls, fio, smoke, or all
#
# DIR is an empty directory of the mount under test. Without DIR, a pool is made in memory, mounted
# for each suite, unmounted and checked. Needs root. Installs what it lacks by apt-get and cargo
# (into .work); nothing is skipped silently. Environment: KEEPSTONE, the program under test
# (default: target/release/keepstone, then the one in PATH); POOL_SIZE, default 2G; LAYOUT, default
# bpfs; MOUNT_OPTIONS, as for `keepstone mount -o`.
set -eEuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$root/.work
source "$here/lib.sh"

suites=(pjdfstest fsx test_syscalls fio smoke)
suite=${1:?usage: run.sh SUITE [DIR]; suites: ${suites[*]} all}
dir=${2:-}

run_suite() (
    # shellcheck source=/dev/null  # each is checked by itself
    source "$here/$1.sh"
    echo "== $1 on $2 ($(stat -f -c %T "$2"))"
    suite_"$1" "$2"
    echo "== $1: passed ($SECONDS s)"
)

if [ "$suite" = all ]; then
    # shellcheck disable=SC2317  # each calls it
    on_dir() { "$0" "$1" ${dir:+"$dir"}; }
    each on_dir -- "${suites[@]}"
    exit 0
fi
[ -f "$here/$suite.sh" ] || die "no suite $suite; there are: ${suites[*]}"
if [ -n "$dir" ]; then
    run_suite "$suite" "$(realpath "$dir")"
else
    with_pool run_suite "$suite"
fi
