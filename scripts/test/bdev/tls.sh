# shellcheck shell=bash
# TLS with certificates, offered and required, with and without clients' certificates; GnuTLS
# clients.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}" "${root?is set by run.sh}"

suite_tls() {
    "$root/scripts/lib/packages.sh" openssl
    certificates "$scratch/pki"
    truncate -s 16M "$pools/disk"
    local tls="nbds+unix:///disk?socket=$scratch/sock&tls-certificates=$scratch/pki&tls-verify-peer=false"

    "$keepstone" bdev serve "$pools/disk" --socket "$scratch/sock" --tls-certificates "$scratch/pki" >/dev/null
    nbdinfo "$tls" | grep "with TLS" >/dev/null || die "no TLS"
    nbdinfo "$(uri)" | grep "without TLS" >/dev/null || die "TLS where nobody asked for it"
    head -c 16M /dev/urandom >"$pools/random"
    nbdcopy --connections=2 "$pools/random" "$tls"
    nbdcopy "$tls" - | cmp - "$pools/random" || die "content under TLS differs"
    "$keepstone" bdev stop "$scratch/sock"

    "$keepstone" bdev serve "$pools/disk" --socket "$scratch/sock" --listen 127.0.0.1:0 \
        --tls-certificates "$scratch/pki" --tls-required --tls-verify-peer >"$scratch/ready"
    fails nbdinfo "$(uri)" || die "served without TLS"
    nbdinfo "$tls" | grep "with TLS" >/dev/null || die "a client with a certificate is turned away"
    local port
    port=$(sed -n 's/^serving on nbd:\/\/.*:\([0-9]*\)$/\1/p' "$scratch/ready")
    qemu-img info --object "tls-creds-x509,id=tls,dir=$scratch/pki,endpoint=client" --image-opts \
        "driver=nbd,host=localhost,port=$port,export=disk,tls-creds=tls" | grep "16 MiB" >/dev/null
    mkdir "$scratch/nobody"
    cp "$scratch/pki/ca-cert.pem" "$scratch/nobody"
    fails nbdinfo "${tls/pki/nobody}" || die "a client without a certificate is served"
}

# certificates DIR: an authority, a server's and a client's certificate, under GnuTLS programs'
# names.
certificates() {
    local dir=$1 who
    mkdir "$dir"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=authority" \
        -keyout "$dir/ca-key.pem" -out "$dir/ca-cert.pem" 2>/dev/null
    for who in server client; do
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=localhost" \
            -keyout "$dir/$who-key.pem" -out "$dir/$who.csr" 2>/dev/null
        openssl x509 -req -days 2 -in "$dir/$who.csr" -CA "$dir/ca-cert.pem" -CAkey "$dir/ca-key.pem" \
            -CAcreateserial -out "$dir/$who-cert.pem" -extfile <(printf 'subjectAltName=DNS:localhost\nextendedKeyUsage=%sAuth\n' "$who") 2>/dev/null
    done
}
