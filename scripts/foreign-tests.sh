#!/bin/bash
# Runs the test suites of other projects, from Debian's sources, on tmpfs and under `keepstone run` on a pool, and
# compares the verdict of every test.
#
#   foreign-tests.sh [git|coreutils|cpython] [TEST…]     default: all suites, whole (nightly: hours)
#
# TEST: for git names of scripts (t0001-init), for coreutils paths (tests/cp/reflink-perm), for cpython modules
# (test_os). Both sides run as root, one after the other. Prints what differs, and fails if anything does.
# Installs what it lacks by apt-get; keeps sources, builds and verdicts in .work/foreign. Environment: KEEPSTONE
# (default: target/release/keepstone), JOBS (default: the number of CPUs).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck disable=SC2034  # lib.sh uses it
work=$root/.work
source "$root/scripts/lib-source.sh"
source "$root/scripts/mount-tests/lib.sh"
export MOUNT_OPTIONS=direct POOL_SIZE=${POOL_SIZE:-4G}
keepstone=$(keepstone_path)
jobs=${JOBS:-$(nproc)}
foreign=$root/.work/foreign

# --- git: the built tree lies outside, the repositories of the tests in DIR.

prepare_git() {
    "$root/scripts/lib-packages.sh" gcc make libc6-dev zlib1g-dev libcurl4-openssl-dev libexpat1-dev gettext perl
    [ -e "$foreign/git/built" ] && return
    rm -rf "$foreign/git"
    fetch_source git "$foreign/git"
    make -C "$foreign/git" -j"$jobs" NO_TCLTK=1 NO_PYTHON=1 >"$foreign/git.log" 2>&1 || die "git: see $foreign/git.log"
    touch "$foreign/git/built"
}

# run_git DIR COMMAND…: prints a line for each test.
run_git() {
    local dir=$1 scripts=("${tests[@]/%/.sh}")
    shift
    cd "$foreign/git/t"
    [ ${#tests[@]} -gt 0 ] || scripts=(t[0-9]*.sh)
    # Left out: those that need a server, or a language that is not built.
    # shellcheck disable=SC2016  # the inner shell expands it
    printf '%s\n' "${scripts[@]}" | grep -vE '^t(5[57]|91|92|94|95|96|98)' |
        xargs -P "$jobs" -I SCRIPT "$@" bash -c '
            script=$1 dir=$2/${1%.sh}
            mkdir "$dir"
            GIT_TEST_DEFAULT_HASH=sha1 timeout 900 ./"$script" --root="$dir" </dev/null 2>/dev/null |
                sed -nE "s/^((not )?ok [0-9]+) .*/$script: \1/p"
            rm -rf "$dir"' git SCRIPT "$dir"
}

# --- coreutils: the built tree lies in DIR, as its tests work beside their programs.

prepare_coreutils() {
    "$root/scripts/lib-packages.sh" gcc make libc6-dev libacl1-dev libattr1-dev libselinux1-dev perl strace
    [ -e "$foreign/coreutils/built" ] && return
    rm -rf "$foreign/coreutils"
    fetch_source coreutils "$foreign/coreutils"
    (
        cd "$foreign/coreutils"
        FORCE_UNSAFE_CONFIGURE=1 ./configure --disable-nls
        make -j"$jobs"
    ) >"$foreign/coreutils.log" 2>&1 || die "coreutils: see $foreign/coreutils.log"
    touch "$foreign/coreutils/built"
}

run_coreutils() {
    local dir=$1 only=()
    shift
    cp -a "$foreign/coreutils" "$dir/coreutils"
    [ ${#tests[@]} -eq 0 ] || only=(TESTS="${tests[*]/%/.sh}")
    (cd "$dir/coreutils" && "$@" make -j"$jobs" check-TESTS VERBOSE=no "${only[@]}" </dev/null >/dev/null 2>&1) || true
    (cd "$dir/coreutils" && find tests -name '*.trs' -exec sed -n "s|^:test-result:|{}:|p" {} \;)
    rm -rf "$dir/coreutils"
}

# --- CPython: Debian's interpreter and its own suite, whose files lie in DIR.

prepare_cpython() {
    "$root/scripts/lib-packages.sh" python3
    local python
    python=$(realpath /usr/bin/python3)
    "$root/scripts/lib-packages.sh" "lib${python##*/}-testsuite"
}

run_cpython() {
    local dir=$1
    shift
    mkdir "$dir/python"
    (
        cd "$dir/python"
        TMPDIR=$PWD PYTHONDONTWRITEBYTECODE=1 "$@" /usr/bin/python3 -m test --tempdir "$PWD" -j"$jobs" \
            --timeout 600 -uall,-network,-urlfetch,-gui,-audio "${tests[@]}" </dev/null 2>&1
    ) | sed -nE 's#^[0-9:]+ load avg: [0-9.]+ \[ *[0-9]+/[0-9/]+\] (test_[a-z0-9_]+) (passed|failed|skipped|crashed).*#\1: \2#p'
    rm -rf "$dir/python"
}

# on_pool SUITE DIR, for with_pool.
on_pool() {
    mkdir "$2/work"
    "run_$1" "$2/work" "$keepstone" run -- >"$foreign/$1.pool"
    rmdir "$2/work"
}

compare() {
    local suite=$1 tmpfs
    echo "== $suite"
    "prepare_$suite"
    tmpfs=$(mktemp -d /dev/shm/foreign-tests.XXXXXX)
    # shellcheck disable=SC2064  # as it is now
    trap "rm -rf $tmpfs" EXIT
    "run_$suite" "$tmpfs" env >"$foreign/$suite.tmpfs"
    with_pool on_pool "$suite" || die "$suite: see above"
    sort -o "$foreign/$suite.tmpfs" "$foreign/$suite.tmpfs"
    sort -o "$foreign/$suite.pool" "$foreign/$suite.pool"
    [ -s "$foreign/$suite.tmpfs" ] || die "$suite: nothing has run"
    echo "$suite: $(wc -l <"$foreign/$suite.tmpfs") verdicts on tmpfs, $(wc -l <"$foreign/$suite.pool") on a pool"
    diff "$foreign/$suite.tmpfs" "$foreign/$suite.pool" || die "$suite: verdicts differ (< tmpfs, > pool)"
    echo "== $suite: passed"
}

mkdir -p "$foreign"
suites=(git coreutils cpython)
tests=()
if [ $# -gt 0 ]; then
    [[ " ${suites[*]} " == *" $1 "* ]] || die "no suite $1; suites: ${suites[*]}"
    suites=("$1")
    shift
    tests=("$@")
fi
failed=()
for suite in "${suites[@]}"; do
    (compare "$suite") || failed+=("$suite")
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
