#!/bin/bash
# Kills the server of a mount with SIGKILL at random moments under real programs, mounts again and
# verifies that the pool is clean and has every operation that returned to a program.
#
#   scripts/test/torture.sh [--seconds N] [--seed N] [--workloads "sqlite git build"]
#
# Needs /dev/fuse; installs the programs it lacks by apt-get.
# KEEPSTONE names the program to test; default target/release/keepstone.
set -euo pipefail

seconds=60 seed=$RANDOM workloads="sqlite git build"
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2; shift 2 ;;
        --seed) seed=$2; shift 2 ;;
        --workloads) workloads=$2; shift 2 ;;
        *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=../lib/wait.sh
source "$root/scripts/lib/wait.sh"
keepstone=$(realpath "${KEEPSTONE:-$root/target/release/keepstone}")
RANDOM=$seed
scratch=$(mktemp -d)
pool=$(mktemp -u /dev/shm/keepstone-torture.XXXXXX)
mount=$scratch/mount
server="" client=""

die() {
    echo "torture.sh: $*" >&2
    exit 1
}

[ -x "$keepstone" ] || die "no $keepstone; build it with: cargo build --release -p keepstone"

launch_server() {
    "$keepstone" mount --foreground "$pool" "$mount" >>"$scratch/server.log" 2>&1 &
    server=$!
}

start_server() {
    launch_server
    for _ in $(seq 200); do
        mountpoint -q "$mount" && return
        sleep 0.05
    done
    die "the mount did not become ready; its log: $(cat "$scratch/server.log")"
}

kill_server() {
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    server=
}

clear_mount() {
    "$keepstone" umount --lazy "$mount" 2>/dev/null || fusermount3 -uz "$mount" 2>/dev/null || true
}

clean_up() {
    [ -z "$client" ] || kill "$client" 2>/dev/null || true
    [ -z "$server" ] || kill_server
    clear_mount
    rm -rf "$pool" "$scratch"
}
trap clean_up EXIT

# Each workload has two functions. NAME_run works until the mount fails, and writes each operation
# that returned to $scratch/NAME.done. NAME_verify checks these.

# Every second life of the server has a write-ahead log, which maps shared memory.
sqlite_run() {
    local db=$mount/db.sqlite n=0 journal=delete
    ((kills % 2)) && journal=wal
    sqlite3 "$db" "pragma journal_mode=$journal" >/dev/null || return 0
    sqlite3 "$db" 'create table if not exists t(n integer primary key, square int);
        create table if not exists sum(total int);
        insert into sum select 0 where not exists (select * from sum);' >/dev/null || return 0
    n=$(sqlite3 "$db" 'select coalesce(max(n), 0) from t') || return 0
    while n=$((n + 1)); do
        sqlite3 "$db" "begin; insert into t values($n, $n * $n);
            update sum set total = total + $n; commit;" || return 0
        echo "$n" >"$scratch/sqlite.done"
    done
}

sqlite_verify() {
    local db=$mount/db.sqlite done_n found
    [ -e "$db" ] || { [ ! -e "$scratch/sqlite.done" ] && return; die "sqlite: the database is gone"; }
    found=$(sqlite3 "$db" 'pragma integrity_check') || die "sqlite: cannot open the database"
    [ "$found" = ok ] || die "sqlite: $found"
    done_n=$(cat "$scratch/sqlite.done" 2>/dev/null || echo 0)
    found=$(sqlite3 "$db" "select count(*) >= $done_n and coalesce(sum(n), 0) =
        (select total from sum) and count(*) = coalesce(max(n), 0) and
        not exists (select * from t where square <> n * n) from t" 2>/dev/null || echo $((done_n == 0)))
    [ "$found" = 1 ] || die "sqlite: $done_n transactions were committed, the tables say otherwise"
}

git_run() {
    local repo=$mount/repo n=0
    [ -d "$repo/.git" ] || git init -q "$repo" || return 0
    rm -f "$repo"/.git/*.lock "$repo"/.git/refs/heads/*.lock
    while n=$((n + 1)); do
        head -c $((RANDOM % 20000)) /dev/urandom >"$repo/file-$((n % 7))" || return 0
        git -C "$repo" add -A || return 0
        git -C "$repo" -c user.name=t -c user.email=t@t -c gc.auto=0 commit -qm "$n" --allow-empty || return 0
        git -C "$repo" rev-parse HEAD >"$scratch/git.new" || return 0
        mv "$scratch/git.new" "$scratch/git.done"
    done
}

git_verify() {
    local repo=$mount/repo
    [ -e "$scratch/git.done" ] || return 0
    git -C "$repo" merge-base --is-ancestor "$(cat "$scratch/git.done")" HEAD ||
        die "git: commit $(cat "$scratch/git.done") is lost"
    git -C "$repo" fsck --no-dangling >"$scratch/fsck.log" 2>&1 ||
        die "git: $(cat "$scratch/fsck.log")"
}

# put FILE: writes stdin to FILE, all of it or nothing.
put() {
    cat >"$1.new" && mv "$1.new" "$1"
}

# Program n prints n.
build_run() {
    local src=$mount/src n i
    mkdir -p "$src" || return 0
    n=$(cat "$scratch/build.done" 2>/dev/null || echo 0)
    # shellcheck disable=SC2016  # make expands these
    printf '%s\n' 'prog: main.o f1.o f2.o f3.o f4.o; $(CC) -o $@ $^' | put "$src/Makefile" || return 0
    for i in 1 2 3 4; do echo "int f$i(){return $i;}" | put "$src/f$i.c" || return 0; done
    while n=$((n + 1)); do
        {
            echo '#include <stdio.h>'
            echo 'int f1(),f2(),f3(),f4();'
            echo "int main(){printf(\"%d\", f1()+f2()+f3()+f4()+$n-10); return 0;}"
        } | put "$src/main.c" || return 0
        make -s -C "$src" -B && put "$src/installed" <"$src/prog" && chmod +x "$src/installed" || return 0
        echo "$n" >"$scratch/build.done"
    done
}

build_verify() {
    local src=$mount/src done_n found
    done_n=$(cat "$scratch/build.done" 2>/dev/null || echo 0)
    [ "$done_n" != 0 ] || return 0
    # An interrupted install may leave a file that is not yet executable.
    chmod +x "$src/installed"
    found=$("$src/installed") || die "build: the installed program does not run"
    [ "$found" = "$done_n" ] || [ "$found" = $((done_n + 1)) ] ||
        die "build: program $done_n was installed, it says $found"
    # An interrupted compiler may leave a partial object, which is not an error of the pool.
    make -s -C "$src" -B || die "build: make fails"
    "$src/prog" >/dev/null || die "build: the program does not run"
}

"$root/scripts/lib/packages.sh" fuse3 sqlite3 git make gcc libc6-dev
mkdir "$mount"
"$keepstone" mkfs "$pool" --layout "${LAYOUT:-bpfs}" --size 256M >/dev/null
echo "torture.sh: seed $seed, workloads $workloads, $seconds seconds"
# Kills of a server at work, and of a server that mounts.
end=$((SECONDS + seconds)) kills=0 early=0
start_server
while [ $SECONDS -lt $end ]; do
    (
        for w in $workloads; do "${w}_run" >>"$scratch/clients.log" 2>&1 & done
        wait
    ) &
    client=$!
    sleep "0.$((RANDOM % 9))$((RANDOM % 10))"
    sleep $((RANDOM % 2))
    kill_server
    kills=$((kills + 1))
    await_exit 60 "$client" || true
    client=
    clear_mount
    if ((RANDOM % 4 == 0)); then
        launch_server
        sleep "0.0$((RANDOM % 10))"
        kill_server
        clear_mount
        early=$((early + 1))
    fi
    "$keepstone" check "$pool" >"$scratch/check.log" || die "kill $kills: $(cat "$scratch/check.log")"
    start_server
    for w in $workloads; do "${w}_verify"; done
done
kill_server
clear_mount
"$keepstone" check "$pool" >/dev/null || die "the pool is not clean at the end"
echo "torture.sh: $kills kills at work, $early while mounting; nothing lost"
for w in $workloads; do
    [ -e "$scratch/$w.done" ] || die "$w has done nothing"
    echo "  $w: $(head -c 40 "$scratch/$w.done")"
done
