# shellcheck shell=dash
# The program inside the machine of torture.sh: its /main, which init of lib/machine.sh sources
# (busybox sh). Reports to the host, line by line on the second serial port:
#
#   up                programs run
#   formatted         mkfs has returned
#   found NAME N      the files of workload NAME are whole, and its Nth operation is the last one there
#   ready             everything has been verified, all workloads run
#   ack NAME N        the Nth operation of workload NAME has returned
#   closed            the mount has been taken down and the pool is clean
#   bad TEXT          something is wrong
#
# It does not end by itself; the host kills it.
#
# From the kernel's command line: todo (format, work, verify or look), expect (the persistence
# domain), layout, workloads (with commas), journal (SQLite's mode).

: "${path:?}" "${todo:?}" "${expect:=}" "${layout:=bpfs}" "${workloads:=}" "${journal:=}"
mnt=/mnt

tell() {
    echo "$*" >&3
}

bad() {
    tell "bad $*"
    await_kill
}

await_kill() {
    while :; do sleep 60; done
}

# settle FILE: makes its content durable, if the engine does not do so on return.
settle() {
    [ "$layout" = bpfs ] || sync "$1"
}

# Each workload has two functions. NAME_find verifies its files and sets n, the last operation
# found. NAME_run goes on from n until an operation fails, and acknowledges each operation that
# returned.

# Records at the end of a file, each by one write: all are whole, in order, without gaps.
append_find() {
    n=0
    [ -e $mnt/append ] || return 0
    n=$(wc -l <$mnt/append)
    awk -v n="$n" 'BEGIN { for (i = 1; i <= n; i++) print "record " i ", whole or not at all" }' |
        cmp - $mnt/append || bad "append: what is there is not records 1 to $n"
}

append_run() {
    while n=$((n + 1)); do
        echo "record $n, whole or not at all" >>$mnt/append && settle $mnt/append || return
        tell "ack append $n"
    done
}

# A file replaced by rename, as editors do: it always has exactly one whole state.
replace_find() {
    n=0
    [ -e $mnt/current ] || return 0
    read -r _ n _ <$mnt/current
    [ "$(cat $mnt/current)" = "state $n is whole" ] || bad "replace: found $(head -c 80 $mnt/current)"
}

replace_run() {
    while n=$((n + 1)); do
        echo "state $n is whole" >$mnt/next && settle $mnt/next && mv $mnt/next $mnt/current || return
        tell "ack replace $n"
    done
}

# A file that is renamed from directory to directory: it is in exactly one, under one name.
move_find() {
    n=0
    mkdir -p $mnt/side0 $mnt/side1
    tokens=$(cd $mnt && find side0 side1 -type f)
    [ "$tokens" ] || return 0
    n=${tokens##*/}
    [ "$tokens" = "side$((n % 2))/$n" ] || bad "move: found $(echo "$tokens" | head -n 3 | tr '\n' ' ')"
}

move_run() {
    [ "$n" -gt 0 ] || : >$mnt/side0/0
    while n=$((n + 1)); do
        mv $mnt/side$(((n - 1) % 2))/$((n - 1)) $mnt/side$((n % 2))/$n || return
        tell "ack move $n"
    done
}

# New files by rename, old ones removed: the youngest 8 are there and whole, removed ones stay away.
# The creation of file i is operation 2i, the removal of file i - 8 is 2i + 1.
churn_find() {
    mkdir -p $mnt/churn
    n=$(cd $mnt/churn && find . -type f ! -name next | tr -d ./ | sort -n | tail -n 1)
    n=${n:-0}
    for i in $(cd $mnt/churn && find . -type f ! -name next | tr -d ./); do
        [ "$i" -ge $((n - 8)) ] || bad "churn: file $i is back, $n is the youngest"
    done
    i=$((n > 7 ? n - 7 : 1))
    while [ $i -le "$n" ]; do
        churn_body $i | cmp - $mnt/churn/$i || bad "churn: file $i is not as it was written"
        i=$((i + 1))
    done
    n=$((2 * n + 1))
    [ ! -e $mnt/churn/$((n / 2 - 8)) ] || n=$((n - 1))
}

# churn_body I: prints the content of file I, from a byte to some blocks.
churn_body() {
    awk -v i="$1" 'BEGIN {
        bytes = i * 7919 % 60000 + 1
        for (body = "file " i "\n"; length(body) < bytes;) body = body body
        printf "%s", substr(body, 1, bytes)
    }'
}

churn_run() {
    i=$((n / 2))
    rm -f $mnt/churn/$((i - 8))
    while i=$((i + 1)); do
        churn_body $i >$mnt/churn/next && settle $mnt/churn/next &&
            mv $mnt/churn/next $mnt/churn/$i || return
        tell "ack churn $((2 * i))"
        if [ $i -gt 8 ]; then
            rm $mnt/churn/$((i - 8)) || return
        fi
        tell "ack churn $((2 * i + 1))"
    done
}

# Transactions on two tables that must agree.
sqlite_find() {
    n=0
    db=$mnt/db
    [ -e $db ] || return 0
    found=$(sqlite3 $db 'pragma integrity_check') || bad "sqlite: cannot open the database"
    [ "$found" = ok ] || bad "sqlite: $(echo "$found" | head -n 1)"
    [ "$(sqlite3 $db "select count(*) from sqlite_schema where name = 'total'")" = 1 ] || return 0
    n=$(sqlite3 $db "select count(*) from t")
    found=$(sqlite3 $db "select coalesce(max(n), 0) = $n and coalesce(sum(n), 0) = (select n from total)
        and coalesce(min(length(body) = 2 * (n % 700 + 1)), 1) from t")
    [ "$found" = 1 ] || bad "sqlite: the tables do not agree on $n transactions"
}

# A single process, whose answers are the acknowledgements.
sqlite_run() {
    {
        echo ".bail on
            .output /dev/null
            pragma journal_mode=$journal; pragma synchronous=full;
            .output stdout
            begin; create table if not exists t(n integer primary key, body text);
            create table if not exists total(n integer);
            insert into total select 0 where not exists (select * from total); commit;" | sed 's/^ *//'
        while n=$((n + 1)); do
            echo "begin; insert into t values($n, hex(randomblob($n % 700 + 1)));
                update total set n = n + $n; commit; select 'ack sqlite $n';"
        done
    } | sqlite3 -batch $mnt/db >&3
}

# Commits. Removes locks that a crash leaves, as git advises.
git_find() {
    n=0
    find $mnt/repo -name '*.lock' -exec rm {} + 2>/dev/null
    git -C $mnt/repo rev-parse -q --verify HEAD >/dev/null 2>&1 || return 0
    n=$(git -C $mnt/repo rev-list --count HEAD) || bad "git: the history is broken"
    git -C $mnt/repo fsck --full --no-dangling || bad "git: fsck finds damage"
}

git_run() {
    git init -q --template= $mnt/repo || return
    while n=$((n + 1)); do
        churn_body $n >$mnt/repo/file$((n % 5)) && git -C $mnt/repo add -A &&
            git -C $mnt/repo commit -qm "$n" || return
        tell "ack git $n"
    done
}

export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0
[ "$layout" = bpfs ] || export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_1=core.fsync GIT_CONFIG_VALUE_1=all
stty -F /dev/ttyS1 -opost
exec 3>/dev/ttyS1
tell up
if [ "$todo" = look ]; then
    export path
    echo "The pool is $path: keepstone check $path; mkdir $mnt; keepstone mount --read-only $path $mnt; poweroff -f"
    setsid cttyhack sh
    end 0
fi
if [ "$todo" = format ]; then
    keepstone mkfs "$path" --layout "$layout" --size 256M --force || bad "mkfs fails"
    tell formatted
fi
keepstone info "$path" | grep "^domain *$expect" || bad "the domain is not $expect: $(keepstone info "$path")"
keepstone check "$path" >/tmp/check 2>&1 || { cat /tmp/check; bad "check: $(tail -n 1 /tmp/check)"; }
mkdir $mnt
keepstone mount "$path" $mnt || bad "mount fails"
for workload in $(echo "$workloads" | tr , ' '); do
    "${workload}_find"
    tell "found $workload $n"
    [ "$todo" = verify ] || {
        # An operation of git does as much as many of the others.
        [ "$workload" = git ] || renice -n 10 -p "$(exec sh -c 'echo $PPID')"
        "${workload}_run"
        bad "$workload: an operation failed"
    } &
done
if [ "$todo" = verify ]; then
    keepstone umount $mnt || bad "umount fails"
    keepstone check "$path" || bad "check finds damage after umount"
    tell closed
else
    tell ready
fi
await_kill
