# shellcheck shell=bash
# Clients that connect and send nothing, slowly or without end, with and without TLS: a new client
# is served within seconds.
: "${keepstone:=}" "${place?}" "${here?}"

suite_nbd() {
    local port pid pool=/dev/shm/disk attack tls
    certificates "$place/pki"
    for tls in "" required; do
        "$keepstone" bdev serve "$pool" --create --size 16M --listen 127.0.0.1:0 \
            ${tls:+--tls-certificates "$place/pki" --tls-required --tls-verify-peer} >"$place/ready"
        port=$(sed -n 's/^serving on nbd.*:\([0-9]*\)$/\1/p' "$place/ready")
        pid=$("$keepstone" --json bdev list | jq '.[0].pid')
        for attack in $([ "$tls" ] && echo tls || echo flood loris idle options skip); do
            as stranger python3 "$here/clients.py" "$port" "$attack" ||
                die "$attack${tls:+ under TLS}: the server does not come through"
            [ -d "/proc/$pid" ] || die "$attack: the server is gone"
            [ "$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status")" -lt $((600 << 10)) ] || die "$attack takes memory without bound"
        done
        # Another user is admitted while other sessions stay.
        spawn stranger python3 "$here/clients.py" "$port" hold >"$place/held"
        await_until 60 grep -q holds "$place/held"
        as member python3 "$here/clients.py" "$port" probe || die "idle sessions of a user lock out others"
        end
        [ "$(du -sk /run/keepstone | cut -f1)" -lt 4096 ] || die "clients that are turned away fill the log"
        "$keepstone" bdev stop "$pool" >/dev/null
    done
    # The socket of a server is its owner's.
    "$keepstone" bdev serve "$pool" --socket /run/disk.sock >/dev/null
    refused as stranger python3 -c "import socket; socket.socket(socket.AF_UNIX).connect('/run/disk.sock')"
    "$keepstone" bdev stop /run/disk.sock >/dev/null
}

# certificates DIR: an authority and a server's certificate, under GnuTLS programs' names.
certificates() {
    mkdir "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=authority" \
        -keyout "$1/ca-key.pem" -out "$1/ca-cert.pem" 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=localhost" \
        -keyout "$1/server-key.pem" -out "$1/server.csr" 2>/dev/null
    openssl x509 -req -days 2 -in "$1/server.csr" -CA "$1/ca-cert.pem" -CAkey "$1/ca-key.pem" -CAcreateserial \
        -out "$1/server-cert.pem" -extfile <(printf 'subjectAltName=DNS:localhost\n') 2>/dev/null
}
