# shellcheck shell=bash
# A database that reads and writes by io_uring: rows that were committed before it was killed are
# there, in tables of each engine.
# shellcheck source=../../lib/servers.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/servers.sh"
server=
socket=$(mktemp -u /tmp/test-run-mariadb.XXXXXX)
mkdir data tmp
chown mysql: data tmp
# A server that starts removes the temporary tables of all others in the same directory.
export TMPDIR=$PWD/tmp
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true; rm -f "$socket"' EXIT
sql() { mariadb --no-defaults --socket="$socket" --user=root --batch "$@"; }
start() {
    mariadbd --no-defaults --user=mysql --datadir="$PWD/data" --socket="$socket" --skip-networking \
        --innodb-buffer-pool-size=8M >log 2>&1 &
    server=$!
    disown "$server"
    await_answer log sql --execute 'select 1'
}
mariadb-install-db --no-defaults --user=mysql --datadir="$PWD/data" \
    --auth-root-authentication-method=normal >installed 2>&1 || { cat installed; false; }
start
{
    echo 'create database bench; use bench; create table rows_ (id int primary key, text_ varchar(200), key (text_));'
    seq 2000 | sed "s/.*/insert into rows_ values (&, repeat(md5(&), 6));/"
} | sql
# More rows than the server keeps in memory.
sql bench --execute 'create table copies as select a.id, b.text_ from rows_ a, rows_ b where b.id <= 20'
kill -9 "$server"
await_end "$server"
start
sql bench --execute 'select count(*), md5(group_concat(md5(text_) order by id)) from rows_; check table rows_ extended;
    select count(*), sum(length(text_)) from copies; alter table copies engine=aria; check table copies extended;
    alter table copies engine=myisam; check table copies extended; select count(*) from copies;
    drop table copies; optimize table rows_;'
mariadb-admin --no-defaults --socket="$socket" --user=root shutdown
await_end "$server"
server=
rm -rf data tmp log installed
