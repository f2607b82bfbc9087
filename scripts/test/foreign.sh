#!/bin/bash
# Runs the test suites of other projects, from Debian's sources, on tmpfs and under `keepstone run`
# on a pool, and compares the verdict of every test. With --cache, on a directory of the disk and
# under `keepstone run` on a cache of another one.
#
#   scripts/test/foreign.sh [--cache] [git|coreutils|cpython|sqlite] [UNIT…]
#                                                     default: all suites (nightly: hours)
#
# UNIT: for git a script (t0001-init), for coreutils a path (tests/cp/reflink-perm.sh), for cpython
# a module (test_os), for sqlite a script (wal2). Each unit runs on the peer and then on the pool;
# units about file systems come first. Prints each unit as it ends. Units with differing verdicts run once more at the end, one at
# a time. A test that differs both times is printed and fails, unless foreign.known lists it. A test
# that differs once is printed only: the cause may be load of other tests, chance, or a race in
# Keepstone.
#
# Installs what it lacks by apt-get. Keeps sources, builds, and verdicts and output by suite, side
# and unit in .work/foreign. Environment: KEEPSTONE (default: target/release/keepstone); JOBS, units
# at a time (default: the number of CPUs); RESUME=1 keeps the verdicts of a run that was
# interrupted; AS, the user that runs the tests (default: root; as another user, tests of
# permissions run that are skipped as root); LAYOUT, the layout of the pool (bpfs, scmfs; default
# bpfs); POOL_SIZE (default 7G, 2G for a cache).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck disable=SC2034  # lib.sh uses it
work=$root/.work
source "$root/scripts/lib/source.sh"
source "$root/scripts/test/mount/lib.sh"
export MOUNT_OPTIONS=direct
# Where the peer's files are, and what makes the pool.
peer=/dev/shm with=with_pool
[ "${1:-}" != --cache ] || {
    peer=/var/tmp with=with_cache
    shift
}
# test_largefile wants 6 GB. A cache needs no room for all files.
[ $with = with_cache ] || export POOL_SIZE=${POOL_SIZE:-7G}
keepstone=$(keepstone_path)
jobs=${JOBS:-$(nproc)}
foreign=$root/.work/foreign
known=$root/scripts/test/foreign.known
unit_seconds=900
as=()
[ -z "${AS:-}" ] || as=(setpriv --reuid "$AS" --regid "$(id -g "$AS")" --clear-groups env HOME=/nonexistent USER="$AS")

# A suite has four functions:
#   prepare_SUITE               gets and builds it
#   list_SUITE                  prints its units, by value
#   begin_SUITE DIR             makes DIR, on the peer or on the pool, ready
#   run_SUITE DIR UNIT COMMAND… runs a unit in DIR by COMMAND, which prints to the file $log; prints
#                               lines "TEST VERDICT" to descriptor 3

# make_dir DIR: makes a directory for the tests.
make_dir() {
    mkdir "$1"
    [ -z "${AS:-}" ] || chown "$AS": "$1"
}

# --- git: the built tree lies outside, the repositories of the tests in DIR.

prepare_git() {
    "$root/scripts/lib/packages.sh" gcc make libc6-dev zlib1g-dev libcurl4-openssl-dev libexpat1-dev gettext perl
    [ -e "$foreign/git/built" ] && return
    rm -rf "$foreign/git"
    fetch_source git "$foreign/git"
    make -C "$foreign/git" -j"$jobs" NO_TCLTK=1 NO_PYTHON=1 >"$foreign/git.log" 2>&1 || die "git: see $foreign/git.log"
    touch "$foreign/git/built"
}

# Left out: tests that need a server, or a language that is not built.
list_git() {
    (cd "$foreign/git/t" && printf '%s\n' t[0-9]*.sh) | sed 's/\.sh$//' | grep -vE '^t(5[57]|91|92|94|95|96|98)' |
        awk '{ print (/^t([012]|53)/ ? 0 : /^t(7|6|30|41|5[01])/ ? 1 : 2) "\t" $0 }' | sort -s -k 1,1 | cut -f 2
}

begin_git() {
    mkdir -p "$1"
}

run_git() {
    local dir=$1/$2 unit=$2
    shift 2
    make_dir "$dir"
    cd "$foreign/git/t"
    TEST_OUTPUT_DIRECTORY=$dir GIT_TEST_DEFAULT_HASH=sha1 "$@" "./$unit.sh" --root="$dir" 3>&- || true
    sed -nE 's/^ok ([0-9]+) # skip.*/\1 skip/p; t
             s/^ok ([0-9]+) .*/\1 ok/p; s/^not ok ([0-9]+) .*/\1 not-ok/p' "$log" >&3
    rm -rf "$dir"
    end_agents "$dir"
}

# end_agents DIR: ends each gpg-agent of DIR. On tmpfs, inotify ends forgotten agents when their
# home is removed.
end_agents() {
    local process
    for process in /proc/[0-9]*; do
        case $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") in
        gpg-agent\ --homedir\ "$1"/*) kill "${process#/proc/}" 2>/dev/null || true ;;
        esac
    done
}

# --- coreutils: the built tree lies in DIR, as its tests work beside their programs.

prepare_coreutils() {
    "$root/scripts/lib/packages.sh" gcc make libc6-dev libacl1-dev libattr1-dev libselinux1-dev perl strace
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

# Left out: the arithmetic of factor, of some thirty scripts with ranges of numbers.
list_coreutils() {
    # shellcheck disable=SC2016  # make expands it
    make -s -C "$foreign/coreutils" --no-print-directory --eval 'foreign-list:;@printf "%s\n" $(all_tests)' foreign-list |
        awk '!seen[$0]++ { print (/^tests\/(cp|mv|rm|ln|ls|mkdir|touch|chmod|chown|dd|du|df|install|readlink|rmdir|truncate|tail)/ ? 0 : 1) "\t" $0 }' |
        sort -s -k 1,1 | cut -f 2
}

# Also writes a script of make's commands for a test, because make itself, on the pool for each
# test, would take most of the time.
begin_coreutils() {
    [ ! -e "$1/coreutils" ] || return 0
    cp -a "$foreign/coreutils" "$1/coreutils"
    # shellcheck disable=SC2016  # make expands it
    make -s -C "$1/coreutils" --no-print-directory --eval 'define foreign_run
tst=$$1 f=$$1
case $$1 in
*.sh) $(TESTS_ENVIRONMENT) $(SH_LOG_COMPILER) $$1 ;;
*.pl) $(TESTS_ENVIRONMENT) $(PL_LOG_COMPILER) $$1 ;;
*.xpl) $(TESTS_ENVIRONMENT) $(XPL_LOG_COMPILER) $$1 ;;
esac
endef' --eval 'print-run:;@:$(info $(foreign_run))' print-run >"$1/coreutils/foreign-run"
}

run_coreutils() {
    local unit=$2 status=0
    cd "$1/coreutils"
    shift 2
    "$@" bash ./foreign-run "./$unit" 3>&- || status=$?
    echo "whole $status" >&3
}

# --- CPython: Debian's interpreter and its own suite, whose files lie in DIR.

# Left out: VSOCK, which waits for a host that answers.
prepare_cpython() {
    "$root/scripts/lib/packages.sh" python3
    local python
    python=$(realpath /usr/bin/python3)
    "$root/scripts/lib/packages.sh" "lib${python##*/}-testsuite"
}

list_cpython() {
    (cd /tmp && /usr/bin/python3 -m test --list-tests) | awk '{
        print (/^test_(os|posix|posixpath|genericpath|pathlib|shutil|tempfile|file|fileio|io|bufio|largefile|mmap|fcntl|flock|glob|fnmatch|stat|tarfile|zipfile|zipfile64|gzip|bz2|lzma|dbm.*|sqlite3|shelve|mailbox|subprocess|fork1|wait[34]|threading|multiprocessing.*|concurrent_futures|asyncio|socket|select|selectors|epoll|poll|signal|faulthandler|import|importlib|py_compile|compileall|zipimport|venv|ensurepip|unicode_file.*|pty|resource|lockfile|netrc|fileinput|filecmp|linecache|tracemalloc|eintr|exceptions|capi|gdb|logging|robotparser|unicodedata|httpservers|ftplib|support|regrtest|cmd_line.*|runpy|site|sysconfig)$/ ? 0 : 1) "\t" $0
    }' | sort -s -k 1,1 | cut -f 2
}

begin_cpython() {
    mkdir -p "$1"
}

run_cpython() {
    local dir=$1/$2 unit=$2 status=0
    shift 2
    make_dir "$dir"
    cd "$dir"
    TMPDIR=$dir PYTHONDONTWRITEBYTECODE=1 "$@" /usr/bin/python3 -m test --tempdir "$dir" --timeout "$unit_seconds" \
        --junit-xml "$dir/foreign.xml" -v -uall,-network,-urlfetch,-gui,-audio --ignore '*VSOCK*' "$unit" 3>&- || status=$?
    echo "whole exit-$status" >&3
    # shellcheck disable=SC2016
    [ ! -e "$dir/foreign.xml" ] || /usr/bin/python3 - "$dir/foreign.xml" >&3 <<'PYTHON'
import re, sys, xml.etree.ElementTree
for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
    verdict = next((child.tag for child in case if child.tag in ("error", "failure", "skipped")), "passed")
    # Names of subtests hold addresses, numbers of processes and paths.
    print(re.split(r"[\s(\[]", case.get("name"))[0], verdict)
PYTHON
    cd /
    rm -rf "$dir"
}

# --- SQLite: its own interpreter of tests (testfixture) lies outside; the databases in DIR.

prepare_sqlite() {
    "$root/scripts/lib/packages.sh" gcc make libc6-dev tcl-dev zlib1g-dev
    [ -e "$foreign/sqlite/built" ] && return
    rm -rf "$foreign/sqlite"
    fetch_source sqlite3 "$foreign/sqlite"
    (
        cd "$foreign/sqlite"
        ./configure --with-tcl=/usr/lib/tcl8.6
        make -j"$jobs" testfixture
    ) >"$foreign/sqlite.log" 2>&1 || die "sqlite: see $foreign/sqlite.log"
    touch "$foreign/sqlite/built"
}

# Left out: scripts that run others, and those that take minutes for every permutation.
list_sqlite() {
    (cd "$foreign/sqlite/test" && printf '%s\n' *.test) | sed 's/\.test$//' |
        grep -vE '^(all|quick|veryquick|full|mallocAll|memleak|permutations|soak|valgrind|extraquick|async|async2|fuzz.*|thread.*stress|crash[0-9]*|vacuumfault|malloc.*|.*malloc|.*fault[0-9]*|zipfilefault|speed.*|walslow|sort3|sort4|bigfile.*|big)$' |
        awk '{ print (/^(wal|lock|pager|journal|sync|io|shared|superlock|tempdb|tempfault|unix|attach|backup|mmap|nolock|exclusive|misc7|temp|diskfull|rollback|savepoint|vacuum|incrvacuum|autovacuum|cksum|avtrans|trans)/ ? 0 : 1) "\t" $0 }' |
        sort -s -k 1,1 | cut -f 2
}

begin_sqlite() {
    mkdir -p "$1"
}

run_sqlite() {
    local dir=$1/$2 unit=$2 status=0
    shift 2
    make_dir "$dir"
    cd "$dir"
    "$@" "$foreign/sqlite/testfixture" "$foreign/sqlite/test/$unit.test" 3>&- || status=$?
    echo "whole $status" >&3
    # Left out: tests whose names depend on the length of the path, or on chance.
    sed -nE '/^!? ?(pager1-16|avtrans-9)/d; s/^([[:alnum:]_.:,-]+)\.\.\. Ok$/\1 ok/p; s/^! ([[:alnum:]_.:,-]+) (expected|got).*/\1 not-ok/p' "$log" >&3
    cd /
    rm -rf "$dir"
}

# --- All suites.

# verdicts SIDE UNIT: the file of the sorted verdicts of a unit; its output is in the file with
# .log.
verdicts() {
    echo "$results/$1/${2//\//,}"
}

# run_on SIDE DIR UNIT COMMAND…: runs the unit, unless it has run.
run_on() {
    local file log dir=$2 unit=$3
    file=$(verdicts "$1" "$unit")
    [ ! -e "$file" ] || return 0
    log=$file.log
    shift 3
    ("run_$suite" "$dir" "$unit" timeout --kill-after 30 $((unit_seconds + 60)) "${as[@]}" "$@") \
        3>"$file.new" >"$log" 2>&1 </dev/null || true
    sort -u "$file.new" | sed "s|^|$unit: |" >"$file.sorted"
    rm "$file.new"
    mv "$file.sorted" "$file"
}

# differences UNIT: prints the verdicts that only one side has.
differences() {
    diff "$(verdicts peer "$1")" "$(verdicts pool "$1")" | grep '^[<>]' || true
}

# run_unit MOUNT PEER UNIT NUMBER
run_unit() {
    local before=$SECONDS between differs=''
    run_on peer "$2" "$3" env
    between=$SECONDS
    run_on pool "$1" "$3" "$keepstone" run --
    [ -z "$(differences "$3")" ] || differs=', differs'
    echo "$4 $suite $3: $((between - before)) s on the peer, $((SECONDS - between)) s on the pool$differs"
}

# run_units JOBS MOUNT PEER UNIT…
run_units() {
    local limit=$1 mount=$2 beside=$3 number=0
    shift 3
    for unit; do
        while (($(jobs -rp | wc -l) >= limit)); do wait -n || true; done
        number=$((number + 1))
        run_unit "$mount" "$beside" "$unit" "[$number/$#]" &
    done
    wait
}

# compare_units PEER UNIT… MOUNT, for with_pool: writes the tests that differ twice.
compare_units() {
    local beside=$1 mount=${*: -1} unit side again=()
    local units=("${@:2:$#-2}")
    mkdir -m 755 "$beside/work" "$mount/work"
    "begin_$suite" "$beside/work" && "begin_$suite" "$mount/work" || return
    [ -z "${AS:-}" ] || chown -R "$AS": "$beside/work" "$mount/work"
    run_units "$jobs" "$mount/work" "$beside/work" "${units[@]}"
    for unit in "${units[@]}"; do
        [ -n "$(differences "$unit")" ] || continue
        again+=("$unit")
        differences "$unit" >"$(verdicts first "$unit")"
        for side in peer pool; do
            mv "$(verdicts $side "$unit")" "$(verdicts $side "$unit").first"
            mv "$(verdicts $side "$unit").log" "$(verdicts $side "$unit").first.log"
        done
    done
    echo "$suite: ${#again[@]} of ${#units[@]} units differ, and run again"
    run_units 1 "$mount/work" "$beside/work" "${again[@]}"
    for unit in "${again[@]}"; do
        comm -23 <(sort "$(verdicts first "$unit")") <(differences "$unit" | sort) | sed "s/^/differed once: /" >&2
        comm -12 <(sort "$(verdicts first "$unit")") <(differences "$unit" | sort)
    done | grep -vFf <(sed -nE "s/^$suite ([^#]*[^# ]) *#.*/ \1 /p" "$known") >"$results.differences" || true
    rm -rf "$mount/work"
}

compare() {
    local units=("$@") results=$foreign/verdicts/$suite-${with#with_}${AS:+-$AS}${LAYOUT:+-$LAYOUT} beside unit side status=0
    echo "== $suite"
    "prepare_$suite"
    [ ${#units[@]} -gt 0 ] || mapfile -t units < <("list_$suite")
    [ -n "${RESUME:-}" ] || rm -rf "$results"
    mkdir -p "$results"/{peer,pool,first}
    : >"$results.differences"
    beside=$(mktemp -d "$peer/test-foreign.XXXXXX")
    # shellcheck disable=SC2064  # as it is now
    trap "rm -rf $beside" EXIT
    # For tests that become another user, which may not be able to read the checkout.
    install -m 755 "$(dirname "$keepstone")/libkeepstone.so" "$beside/"
    export KEEPSTONE_LIBRARY=$beside/libkeepstone.so
    chmod 755 "$beside"
    $with compare_units "$beside" "${units[@]}" || status=$?
    for side in peer pool; do
        for unit in "${units[@]}"; do
            cat "$(verdicts $side "$unit")"
        done >"$results.$side"
    done
    [ -s "$results.peer" ] || die "$suite: nothing has run"
    echo "$suite: ${#units[@]} units, $(wc -l <"$results.peer") verdicts on the peer," \
        "$(wc -l <"$results.pool") on a pool, $((SECONDS / 60)) minutes"
    cat "$results.differences"
    [ ! -s "$results.differences" ] || die "$suite: verdicts differ (< peer, > pool)"
    [ $status -eq 0 ] || die "$suite: see what the pool's check said above"
    echo "== $suite: passed"
}

mkdir -p "$foreign"
suites=(git coreutils cpython sqlite)
units=()
if [ $# -gt 0 ]; then
    [[ " ${suites[*]} " == *" $1 "* ]] || die "no suite $1; suites: ${suites[*]}"
    suites=("$1")
    shift
    units=("$@")
fi
failed=()
for suite in "${suites[@]}"; do
    (compare "${units[@]}") || failed+=("$suite")
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
