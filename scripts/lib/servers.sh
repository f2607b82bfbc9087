# shellcheck shell=bash
# Servers that scripts start themselves. Sourced.

# shellcheck source=wait.sh
source "$(dirname "${BASH_SOURCE[0]}")/wait.sh"

# need_server PROGRAM PACKAGE: installs PACKAGE unless PROGRAM is there, and stops its service.
need_server() {
    command -v "$1" >/dev/null && return
    "$(dirname "${BASH_SOURCE[0]}")/packages.sh" "$2"
    systemctl disable --now "$2" 2>/dev/null || service "$2" stop 2>/dev/null || true
}

# await_socket SECONDS PATH: waits for the socket of a server.
await_socket() {
    await_until "$1" test -S "$2"
}

# await_answer LOG COMMAND ARG…: waits until COMMAND ARG… succeeds; prints LOG if the server never
# answers.
await_answer() {
    local log=$1
    shift
    await_until 30 quietly "$@" || { cat "$log"; return 1; }
}

quietly() { "$@" >/dev/null 2>&1; }

# await_end PID: waits for a process that the shell does not report.
await_end() {
    await_until 60 has_ended "$1"
}

# start_nginx SOCKET [DIRECTIVES]: starts a web server of ./web at a socket, which logs to ./logs.
# `$server` is its process.
start_nginx() {
    cat >nginx.conf <<CONF
daemon off;
user root;
worker_processes 1;
error_log logs/error.log;
pid $1.pid;
events { worker_connections 64; }
http {
    access_log logs/access.log;
    sendfile on;
    ${2:-}
    client_body_temp_path logs/body;
    proxy_temp_path logs/proxy;
    fastcgi_temp_path logs/fastcgi;
    uwsgi_temp_path logs/uwsgi;
    scgi_temp_path logs/scgi;
    server { listen unix:$1; root $PWD/web; }
}
CONF
    nginx -p "$PWD" -c "$PWD/nginx.conf" 2>/dev/null &
    # shellcheck disable=SC2034  # the caller's
    server=$!
}
