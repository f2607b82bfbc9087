#!/bin/bash
# A database server that reads and writes by io_uring: 3000 rows, each a transaction, and a table of
# copies. `mariadb.sh prepare` makes the database.
set -euo pipefail
# shellcheck source=../../lib/servers.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/servers.sh"
if [ "${1:-}" = prepare ]; then
    install -d -o mysql -m 700 data
    exec mariadb-install-db --no-defaults --user=mysql --datadir="$PWD/data" --auth-root-authentication-method=normal
fi
socket=$(mktemp -u /tmp/bench-programs-mariadb.XXXXXX)
mariadbd --no-defaults --user=mysql --datadir="$PWD/data" --socket="$socket" --skip-networking \
    --innodb-buffer-pool-size=16M >log 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
await_socket 20 "$socket"
{
    echo 'create database bench; use bench; create table rows_ (id int primary key, text_ varchar(200), key (text_));'
    seq 3000 | sed "s/.*/insert into rows_ values (&, repeat(md5(&), 6));/"
    echo 'create table copies as select a.id, b.text_ from rows_ a, rows_ b where b.id <= 40;'
    echo 'select count(*), sum(length(text_)) from copies;'
} | mariadb --no-defaults --socket="$socket" --user=root --batch
mariadb-admin --no-defaults --socket="$socket" --user=root shutdown
wait "$server"
