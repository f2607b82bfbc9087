#!/bin/bash
# A database server of another user, and two clients that make 1000 transactions each. `pgbench.sh
# prepare` makes the database.
set -euo pipefail
bin=$(echo /usr/lib/postgresql/*/bin)
PGHOST=$(mktemp -d /tmp/bench-programs-pgbench.XXXXXX)
export PGHOST PGUSER=postgres PGDATABASE=bench
server=
trap '[ -z "$server" ] || kill -QUIT "$server" 2>/dev/null || true; rm -rf "$PGHOST"' EXIT

as_postgres=(setpriv --reuid postgres --regid postgres --init-groups)

start() {
    "${as_postgres[@]}" "$bin/postgres" -D data -c unix_socket_directories="$PGHOST" -c listen_addresses= >"$PGHOST/log" 2>&1 &
    server=$!
    for _ in {1..1000}; do
        ! "$bin/pg_isready" -q -d postgres || return 0
        sleep 0.01
    done
    cat "$PGHOST/log" >&2
    return 1
}

stop() {
    kill -INT "$server"
    wait "$server"
    server=
}

chown postgres: "$PGHOST"
if [ "${1:-}" = prepare ]; then
    install -d -o postgres -g postgres -m 700 data
    "${as_postgres[@]}" "$bin/initdb" -D data -A trust
    start
    "$bin/createdb" bench
    "$bin/pgbench" -i -q -s 2 2>/dev/null
else
    start
    "$bin/pgbench" -n -c 2 -t 1000 2>/dev/null
fi
stop
