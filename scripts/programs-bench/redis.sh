#!/bin/bash
# A server that synchronises its log at every write, and eight clients that write.
set -euo pipefail
socket=$(mktemp -u /tmp/programs-bench-redis.XXXXXX)
redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync always --save '' >log &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in {1..500}; do
    [ ! -S "$socket" ] || break
    sleep 0.01
done
redis-benchmark -s "$socket" -q -c 8 -n 20000 -r 10000 -d 200 -t set
redis-cli -s "$socket" shutdown nosave
wait "$server"
