#!/bin/bash
# A web server that sends 50 files by sendfile, 100 times each to one client, and logs that.
set -euo pipefail
# shellcheck source=../../lib/servers.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/servers.sh"
socket=$(mktemp -u /tmp/bench-programs-nginx.XXXXXX)
mkdir web logs
for i in {1..50}; do head -c $((i * 1000)) "$INPUT/lines" >"web/$i"; done
start_nginx "$socket" 'keepalive_requests 10000;'
trap 'kill "$server" 2>/dev/null || true; rm -f "$socket" "$socket.pid"' EXIT
await_socket 5 "$socket"
curl -fsS --unix-socket "$socket" -o /dev/null 'http://localhost/[1-50]?[1-100]'
kill -QUIT "$server"
wait "$server"
