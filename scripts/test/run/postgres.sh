# shellcheck shell=bash
# A database of another user: transactions, a kill in the middle of them, recovery. The books
# balance.
# shellcheck source=../../lib/wait.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/wait.sh"
bin=$(echo /usr/lib/postgresql/*/bin)
export PGUSER=postgres PGDATABASE=bench PGHOST
# Paths of sockets are short, so this one is not below the tested directory.
PGHOST=$(mktemp -d /tmp/test-run-postgres.XXXXXX)
mkdir data
chown postgres: data "$PGHOST"
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
trap '[ ! -e data/postmaster.pid ] || kill -9 "$(head -1 data/postmaster.pid)"; rm -rf "$PGHOST"' EXIT
start() {
    # Waits for the children of a killed server, which end by themselves.
    for _ in $(seq 50); do
        if as_postgres "$bin/pg_ctl" -D data -l "$PGHOST/log" -w start >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    cat "$PGHOST/log"
    return 1
}
as_postgres "$bin/initdb" -D data -A trust >/dev/null
cat >>data/postgresql.conf <<CONF
unix_socket_directories = '$PGHOST'
listen_addresses = ''
shared_buffers = 32MB
CONF
start
createdb bench
pgbench -i -q -s 2 >/dev/null 2>&1
pgbench -c 2 -t 300 2>/dev/null | grep -E 'actually processed|failed transactions'
pgbench -n -c 2 -T 60 >/dev/null 2>&1 &
load=$!
sleep 1
kill -9 "$(head -1 data/postmaster.pid)"
await_exit 90 "$load" || true
start
psql -At <<'SQL'
select count(*) >= 600 from pgbench_history;
select (select sum(delta) from pgbench_history) = (select sum(bbalance) from pgbench_branches);
select (select sum(delta) from pgbench_history) = (select sum(abalance) from pgbench_accounts);
create index by_balance on pgbench_accounts (abalance);
vacuum full pgbench_history;
select count(*) from pgbench_accounts;
SQL
as_postgres "$bin/pg_ctl" -D data -m fast -w stop >/dev/null
rm -rf data
