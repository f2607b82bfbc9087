# shellcheck shell=bash
# A server that synchronises its log at every write, killed and started again: all keys are there.
# shellcheck source=../../lib/servers.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/servers.sh"
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true' EXIT
socket=$(mktemp -u /tmp/test-run-redis.XXXXXX)
start() {
    redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync always \
        --save '' > log 2>&1 &
    server=$!
    disown "$server"
    await_answer log answers
}
answers() { [ "$(redis-cli -s "$socket" ping)" = PONG ]; }
is_rewritten() { redis-cli -s "$socket" info persistence | grep -q aof_rewrite_in_progress:0; }
start
seq 3000 | sed 's/.*/set key& value&/' | redis-cli -s "$socket" | sort | uniq -c
redis-cli -s "$socket" bgrewriteaof
await_until 60 is_rewritten
seq 500 | sed 's/.*/set late& value&/' | redis-cli -s "$socket" | sort | uniq -c
kill -9 "$server"
await_end "$server"
start
redis-cli -s "$socket" dbsize
redis-cli -s "$socket" mget key1 key3000 late1 late500
redis-cli -s "$socket" shutdown nosave
await_end "$server"
server=
rm -rf appendonlydir log temp-*.aof "$socket"
