#!/bin/bash
# A web server that sends 50 files by sendfile, 100 times each to one client, and logs that.
set -euo pipefail
socket=$(mktemp -u /tmp/programs-bench-nginx.XXXXXX)
mkdir web logs
for i in {1..50}; do head -c $((i * 1000)) "$INPUT/lines" >"web/$i"; done
cat >nginx.conf <<CONF
daemon off;
user root;
worker_processes 1;
error_log logs/error.log;
pid $socket.pid;
events { worker_connections 64; }
http {
    access_log logs/access.log;
    sendfile on;
    keepalive_requests 10000;
    client_body_temp_path logs/body;
    proxy_temp_path logs/proxy;
    fastcgi_temp_path logs/fastcgi;
    uwsgi_temp_path logs/uwsgi;
    scgi_temp_path logs/scgi;
    server { listen unix:$socket; root $PWD/web; }
}
CONF
nginx -p "$PWD" -c "$PWD/nginx.conf" 2>/dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$socket" "$socket.pid"' EXIT
for _ in {1..500}; do
    [ ! -S "$socket" ] || break
    sleep 0.01
done
curl -fsS --unix-socket "$socket" -o /dev/null 'http://localhost/[1-50]?[1-100]'
kill -QUIT "$server"
wait "$server"
