# shellcheck shell=bash
# A server that synchronises its log at every write, killed and started again: all keys are there.
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true' EXIT
socket=$(mktemp -u /tmp/run-tests-redis.XXXXXX)
start() {
    redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync always \
        --save '' > log 2>&1 &
    server=$!
    disown "$server"
    for _ in $(seq 300); do
        [ "$(redis-cli -s "$socket" ping 2>/dev/null)" != PONG ] || return 0
        sleep 0.1
    done
    cat log
    return 1
}
# Until the server has ended; bash has been told not to speak of it.
gone() {
    while kill -0 "$server" 2>/dev/null; do sleep 0.05; done
}
start
seq 3000 | sed 's/.*/set key& value&/' | redis-cli -s "$socket" | sort | uniq -c
redis-cli -s "$socket" bgrewriteaof
until redis-cli -s "$socket" info persistence | grep -q aof_rewrite_in_progress:0; do sleep 0.1; done
seq 500 | sed 's/.*/set late& value&/' | redis-cli -s "$socket" | sort | uniq -c
kill -9 "$server"
gone
start
redis-cli -s "$socket" dbsize
redis-cli -s "$socket" mget key1 key3000 late1 late500
redis-cli -s "$socket" shutdown nosave
gone
server=
rm -rf appendonlydir log temp-*.aof "$socket"
