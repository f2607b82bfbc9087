# shellcheck shell=bash
# The parts of the demonstration. demo.sh sources this and sets `here`.

: "${here:?is set by demo.sh}"
# Kills of the server of this demonstration; no other process is ever killed.
kills=0
# The lines of the summary.
facts=()
# The program in the background, while it runs.
helper=

step() {
    printf '\n== %s  (%d s)\n' "$1" "$SECONDS"
}

# progress WORDS: prints a line of progress.
progress() {
    printf '   %s\n' "$1"
}

# seen FACT: notes a claim that was shown and held.
seen() {
    printf '   %s\n' "$1"
    facts+=("$1")
}

die() {
    printf '\nThe demonstration failed: %s\n' "$1" >&2
    exit 1
}

indent() {
    sed 's/^/   /'
}

# timed WHAT COMMAND...: runs it and prints its time.
timed() {
    local what=$1 start=$EPOCHREALTIME
    shift
    "$@"
    progress "$what: $(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f s", b - a }')"
}

# count DIR: prints the number of its files.
count() {
    find "$1" -type f | wc -l
}

build_keepstone() {
    if [[ -z ${KEEPSTONE:-} || ! -x ${KEEPSTONE:-} ]]; then
        (cd "$here" && cargo build --release --package keepstone --package preload)
        KEEPSTONE=${CARGO_TARGET_DIR:-$here/target}/release/keepstone
    fi
    keepstone=$(realpath "$KEEPSTONE")
}

# Makes the files of the demonstration; all of them are removed when the script ends.
make_places() {
    base=$(mktemp -d /dev/shm/keepstone-demo.XXXXXX)
    pool=$base/pool
    mnt=$base/mnt
    outside=$base/outside
    mkdir "$mnt" "$outside" "$outside/copy"
    # git and sqlite must neither read nor change the user's settings.
    export HOME=$outside GIT_CONFIG_NOSYSTEM=1
    export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@example.org
    export GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@example.org
    trap clean_up EXIT
    trap 'exit 130' INT TERM
}

clean_up() {
    local status=$?
    trap - EXIT
    set +e
    cd /
    if ((status != 0)) && [[ -s $outside/log ]]; then
        echo "The last output of the program at work:" >&2
        tail -n 20 "$outside/log" | cut -c 1-200 >&2
    fi
    if mountpoint --quiet "$mnt" || grep -q " $mnt fuse" /proc/self/mounts; then
        "$keepstone" umount "$mnt" 2>/dev/null || "$keepstone" umount --lazy "$mnt"
    fi
    # It ends because its files are gone.
    [[ -z $helper ]] || await_until 60 has_ended "$helper"
    rm -rf "$base"
    exit "$status"
}

# The server of this demonstration's mount.
server_pid() {
    "$keepstone" stats "$mnt" --json | sed -nE 's/^ *"pid": *([0-9]+),?$/\1/p'
}

# kill_server WHEN: kills the server by kill -9.
kill_server() {
    local pid
    pid=$(server_pid)
    [[ -n $pid && $(readlink "/proc/$pid/exe") == "$keepstone" ]] || die "no server to kill"
    save_counters
    kill -KILL "$pid"
    # Waits until the kernel has ended it and cut the connection.
    await_until 10 has_ended "$pid" || die "the server does not end"
    # Its other threads may hold the pool a moment longer.
    flock --timeout 10 "$pool" true || die "the pool is still in use"
    kills=$((kills + 1))
    printf '   kill -9 of the server while %s\n' "$1"
}

# kill_program: kills by kill -9 the program that notes its process in $outside/program; fails if it
# has just ended.
kill_program() {
    local pid
    pid=$(cat "$outside/program") && [[ -n $pid ]] && kill -KILL "$pid" 2>/dev/null
}

# The counters of this life of the server.
save_counters() {
    "$keepstone" stats "$mnt" --json >"$outside/stats.$kills"
}

# The counters of all lives, added up.
sum_counters() {
    awk -F '[":, ]+' '
        /^  "(read_bytes|written_bytes|panics)"/ { sum[$2] += $3 }
        /^  "(requests|medium)"/ { section = $2 }
        /^  }/ { section = "" }
        section != "" && /^    / { sum[section ": " $2] += $3 }
        END { for (name in sum) if (sum[name] || name == "panics") printf "%-26s %15d\n", name, sum[name] }
    ' "$outside"/stats.* | sort
}

# Checks and mounts again, as a user does after a crash.
recover() {
    helper=
    "$keepstone" check "$pool" >"$outside/check" || die "check found damage: $(cat "$outside/check")"
    "$keepstone" mount "$pool" "$mnt" >/dev/null 2>&1
    progress "check: clean; mounted again, by server $(server_pid)"
}

# wait_for_lines N FILE: waits until a program in the background has logged N lines.
wait_for_lines() {
    local n=$1 file=$2
    for _ in {1..600}; do
        if [[ -f $file ]] && (($(wc -l <"$file") >= n)); then
            return
        fi
        sleep 0.05
    done
    die "$file did not reach $n lines in 30 s"
}

git_add_all() {
    git -C "$mnt/work" add --all --force 2>/dev/null
}

# load_database MODE: commits rows until it fails; logs each committed number outside of the mount.
load_database() {
    local mode=$1 n=0
    while ((n < 5000)); do
        n=$((n + 1))
        sqlite3 -bail "$mnt/$mode.db" "
            PRAGMA journal_mode=$mode;
            CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, body TEXT);
            BEGIN;
            INSERT INTO t SELECT $n * 100 + value, hex(randomblob(100)) FROM generate_series(0, 99);
            COMMIT;" >/dev/null 2>&1 || return 1
        echo "$n" >>"$outside/rows.$mode"
    done
}

# check_database MODE: checks that every logged commit is there, whole, and that the database is
# sound.
check_database() {
    local mode=$1 db=$mnt/$1.db
    local logged rows partial
    [[ $(sqlite3 "$db" "PRAGMA integrity_check") == ok ]] || die "integrity_check of $db failed"
    logged=$(wc -l <"$outside/rows.$mode")
    rows=$(sqlite3 "$db" "SELECT count(DISTINCT n / 100) FROM t")
    partial=$(sqlite3 "$db" "SELECT count(*) FROM (SELECT n / 100 FROM t GROUP BY 1 HAVING count(*) != 100)")
    ((rows == logged || rows == logged + 1)) || die "$rows transactions in $db, $logged were committed"
    ((partial == 0)) || die "$partial transactions in $db are incomplete"
    [[ $(sqlite3 "$db" "PRAGMA journal_mode") == "$mode" ]] || die "$db has lost its journal mode"
    sqlite3 "$db" "PRAGMA journal_mode=$mode; INSERT INTO t VALUES (0, 'after'); VACUUM;" >/dev/null
    [[ $(sqlite3 "$db" "PRAGMA integrity_check") == ok ]] || die "integrity_check of $db failed"
    seen "sqlite, $mode: all $logged transactions that were committed are there; integrity_check: ok"
}

# churn ROUND: writes, renames, appends and removes until it fails; logs each complete operation
# outside of the mount.
churn() {
    local round=$1 dir=$mnt/churn.$1 log=$outside/done.$1 n=0
    mkdir "$dir" || return 1
    while ((n < 100000)); do
        n=$((n + 1))
        { body "$round" "$n" >"$dir/new" && mv "$dir/new" "$dir/$n"; } 2>/dev/null || return 1
        echo "file $n" >>"$log"
        { echo "$n" >>"$dir/journal"; } 2>/dev/null || return 1
        echo "line $n" >>"$log"
        if ((n % 3 == 0)); then
            rm "$dir/$((n - 1))" 2>/dev/null || return 1
            echo "gone $((n - 1))" >>"$log"
        fi
    done
}

# body ROUND N: prints the content of file N, from a few bytes to some blocks.
body() {
    printf 'round %d, file %d\n' "$1" "$2"
    printf "%0$((($2 * 977) % 20000 + 1))d\n" "$2"
}

# check_churn ROUND: checks each logged operation, to the byte.
check_churn() {
    local round=$1 dir=$mnt/churn.$1 log=$outside/done.$1
    local what n last=0 files=0 gone=0
    local -A removed=()
    while read -r what n; do
        case $what in
        line) last=$n ;;
        gone) removed[$n]=1 ;;
        esac
    done <"$log"
    # The next operation may have been complete too, but not yet logged.
    local pending=none
    if ((last > 0 && last % 3 == 0)) && [[ -z ${removed[$((last - 1))]:-} ]]; then
        pending=$((last - 1))
    fi
    while read -r what n; do
        if [[ $what == gone ]]; then
            [[ ! -e $dir/$n ]] || die "$dir/$n was removed and is back"
            gone=$((gone + 1))
        elif [[ $what == file && -z ${removed[$n]:-} ]]; then
            [[ $n != "$pending" || -e $dir/$n ]] || continue
            body "$round" "$n" | cmp --quiet - "$dir/$n" || die "$dir/$n is not as it was written"
            files=$((files + 1))
        fi
    done <"$log"
    cmp --quiet <(seq "$last") <(head -n "$last" "$dir/journal") ||
        die "lines are missing from $dir/journal"
    seen "round $round: $files files as written, $last lines appended, $gone files removed: as logged"
}
