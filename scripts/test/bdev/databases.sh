# shellcheck shell=bash
# SQLite and PostgreSQL on ext4 on a loop device.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}" "${root?is set by run.sh}"

suite_databases() {
    "$root/scripts/lib/packages.sh" sqlite3 postgresql
    local device mnt=$scratch/mnt
    mkdir "$mnt"
    chmod 755 "$scratch"
    device=$(attach "$pools/databases" 768M)
    mkfs.ext4 -q "$device"
    mount "$device" "$mnt"

    sqlite3 "$mnt/wal.db" <<'SQL' >"$scratch/sqlite"
PRAGMA journal_mode = wal;
PRAGMA synchronous = full;
CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO t SELECT i, randomblob(i % 500) FROM n;
DELETE FROM t WHERE id % 7 = 0;
PRAGMA integrity_check;
SQL
    grep '^ok$' "$scratch/sqlite" >/dev/null || die "sqlite: $(cat "$scratch/sqlite")"

    local bin
    bin=$(pg_config --bindir 2>/dev/null || echo /usr/lib/postgresql/*/bin)
    # shellcheck disable=SC2086  # a pattern, where there is no pg_config
    bin=$(echo $bin | awk '{print $NF}')
    install -d -o postgres "$mnt/pg"
    as_postgres() { setpriv --reuid postgres --regid postgres --init-groups env -C "$mnt/pg" "$@"; }
    as_postgres "$bin/initdb" --pgdata="$mnt/pg/data" --auth=trust >"$scratch/initdb"
    as_postgres "$bin/pg_ctl" --pgdata="$mnt/pg/data" --wait --log="$mnt/pg/log" \
        --options="-c listen_addresses= -c unix_socket_directories=$mnt/pg" start >/dev/null
    as_postgres "$bin/pgbench" --host="$mnt/pg" --initialize --quiet --scale=2 postgres 2>/dev/null
    as_postgres "$bin/pgbench" --host="$mnt/pg" --client=4 --transactions=250 postgres >"$scratch/pgbench" 2>&1 ||
        die "pgbench: $(cat "$scratch/pgbench")"
    as_postgres psql --host="$mnt/pg" --quiet --tuples-only --command="
        SELECT sum(abalance) = (SELECT sum(delta) FROM pgbench_history) FROM pgbench_accounts" postgres |
        grep t >/dev/null || die "balances are wrong"
    as_postgres "$bin/pg_ctl" --pgdata="$mnt/pg/data" --wait --mode=fast stop >/dev/null
    as_postgres "$bin/pg_checksums" --check --pgdata="$mnt/pg/data" >/dev/null 2>&1 || true
    umount "$mnt"
    e2fsck -fn "$device" >"$scratch/check" || die "ext4 is damaged: $(cat "$scratch/check")"
    "$keepstone" bdev detach "$device"
}
