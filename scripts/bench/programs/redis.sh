#!/bin/bash
# A server that synchronises its log at every write, and eight clients that write.
set -euo pipefail
# shellcheck source=../../lib/servers.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/servers.sh"
socket=$(mktemp -u /tmp/bench-programs-redis.XXXXXX)
redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync always --save '' >log &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
await_socket 5 "$socket"
redis-benchmark -s "$socket" -q -c 8 -n 20000 -r 10000 -d 200 -t set
redis-cli -s "$socket" shutdown nosave
wait "$server"
