# shellcheck shell=bash
# A web server that sends files by sendfile, to several clients at once.
socket=$(mktemp -u /tmp/run-tests-nginx.XXXXXX)
mkdir web logs
seq 1 100000 > web/numbers
for i in {1..50}; do head -c $((i * 1000)) web/numbers > "web/$i"; done
chmod -R a+rX .
cat > nginx.conf <<CONF
daemon off;
user root;
worker_processes 1;
error_log logs/error.log;
pid $socket.pid;
events { worker_connections 64; }
http {
    access_log logs/access.log;
    sendfile on;
    client_body_temp_path logs/body;
    proxy_temp_path logs/proxy;
    fastcgi_temp_path logs/fastcgi;
    uwsgi_temp_path logs/uwsgi;
    scgi_temp_path logs/scgi;
    server { listen unix:$socket; root $PWD/web; }
}
CONF
nginx -p "$PWD" -c "$PWD/nginx.conf" 2> /dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in {1..100}; do
    [ ! -S "$socket" ] || break
    sleep 0.1
done
for _ in {1..5}; do
    for i in {1..50}; do
        curl -sS --unix-socket "$socket" "http://localhost/$i" | cmp - "web/$i"
    done
    curl -sS --unix-socket "$socket" -r 100-199 http://localhost/numbers
    curl -sS --unix-socket "$socket" http://localhost/numbers | sha256sum
done
curl -sS -o /dev/null -w '%{http_code}\n' --unix-socket "$socket" http://localhost/missing
kill -QUIT "$server"
wait "$server" || true
grep -c ' 200 ' logs/access.log
rm -rf logs "$socket" "$socket.pid" nginx.conf
