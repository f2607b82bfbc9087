# shellcheck shell=bash
# Programs people use: tar, git, sqlite3, a compiler.

: "${root:?is set by run.sh}"

suite_smoke() {
    local dir=$1
    "$root/scripts/lib/packages.sh" tar diffutils git sqlite3 gcc libc6-dev
    smoke_tar "$dir"
    smoke_git "$dir"
    smoke_sqlite "$dir"
    smoke_gcc "$dir"
}

smoke_tar() {
    local dir=$1
    echo "tar: copy /usr/include in and out, compare"
    mkdir -p "$dir/tar"
    tar -C /usr -cf - include | tar -C "$dir/tar" -xf -
    diff -r --no-dereference /usr/include "$dir/tar/include"
    tar -C /usr -cf "$dir/include.tar" include
    tar -C "$dir/tar" -df "$dir/include.tar"
    rm -r "$dir/tar" "$dir/include.tar"
}

smoke_git() {
    local dir=$1
    echo "git: init, add, commit, gc, fsck, clone"
    export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org
    export GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.org
    git init -q "$dir/repo"
    cp -r /usr/include/linux "$dir/repo"
    git -C "$dir/repo" add -A
    git -C "$dir/repo" commit -qm one
    git -C "$dir/repo" gc -q --aggressive
    git -C "$dir/repo" fsck --strict --no-progress
    git clone -q "$dir/repo" "$dir/clone"
    [ -z "$(git -C "$dir/clone" status --porcelain)" ]
    rm -rf "$dir/repo" "$dir/clone"
}

smoke_sqlite() {
    local dir=$1 mode
    for mode in delete wal; do
        echo "sqlite3: journal_mode=$mode"
        sqlite3 "$dir/$mode.db" >/dev/null <<SQL
PRAGMA journal_mode=$mode;
CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO t SELECT i, randomblob(100) FROM n;
DELETE FROM t WHERE id % 3 = 0;
VACUUM;
SQL
        [ "$(sqlite3 "$dir/$mode.db" 'PRAGMA integrity_check')" = ok ]
        [ "$(sqlite3 "$dir/$mode.db" 'SELECT count(*) FROM t')" = 13334 ]
    done
    rm -f "$dir"/delete.db* "$dir"/wal.db*
}

smoke_gcc() {
    local dir=$1
    echo "gcc: compile and run in the mount"
    printf '#include <stdio.h>\nint main(void) { puts("ran"); return 0; }\n' >"$dir/a.c"
    gcc -o "$dir/a.out" "$dir/a.c"
    [ "$("$dir/a.out")" = ran ]
    rm "$dir/a.c" "$dir/a.out"
}
