# shellcheck shell=bash
# A web server that sends files by sendfile, to several clients at once.
# shellcheck source=../../lib/servers.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/servers.sh"
socket=$(mktemp -u /tmp/test-run-nginx.XXXXXX)
mkdir web logs
seq 1 100000 > web/numbers
for i in {1..50}; do head -c $((i * 1000)) web/numbers > "web/$i"; done
chmod -R a+rX .
start_nginx "$socket"
trap 'kill "$server" 2>/dev/null || true' EXIT
await_socket 10 "$socket"
for _ in {1..5}; do
    for i in {1..50}; do
        curl -sS --unix-socket "$socket" "http://localhost/$i" | cmp - "web/$i"
    done
    curl -sS --unix-socket "$socket" -r 100-199 http://localhost/numbers
    curl -sS --unix-socket "$socket" http://localhost/numbers | sha256sum
done
curl -sS -o /dev/null -w '%{http_code}\n' --unix-socket "$socket" http://localhost/missing
kill -QUIT "$server"
await_exit 60 "$server" || true
grep -c ' 200 ' logs/access.log
rm -rf logs "$socket" "$socket.pid" nginx.conf
