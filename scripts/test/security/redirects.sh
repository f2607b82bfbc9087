# shellcheck shell=bash
# A store that redirects requests to another host, or replies without end: credentials go nowhere
# else, and memory is bounded.
: "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

# No server of a cache has more resident, in KiB.
RESIDENT_MAX=$((512 << 10))

suite_redirects() {
    local path n other pid option
    path=$(pool redirects --cache)
    python3 "$here/store.py" "$place/port" "$place/requests" &
    python3 "$here/store.py" "$place/other-port" "$place/other-requests" &
    await_until 10 test -s "$place/port"
    await_until 10 test -s "$place/other-port"
    other=http://127.0.0.1:$(cat "$place/other-port")
    export AWS_ACCESS_KEY_ID=AKIAEXAMPLE AWS_SECRET_ACCESS_KEY=k AWS_SESSION_TOKEN=session-secret AWS_REGION=us-east-1
    option=(--store-option "aws_endpoint=http://127.0.0.1:$(cat "$place/port")" --store-option aws_allow_http=true --lease 1)
    "$keepstone" attach "${option[@]}" "$path" s3://b/t "$mnt" >/dev/null
    head -c 3000000 /dev/urandom >"$mnt/file"
    unmount "$mnt"
    grep -q session-secret "$place/requests" || die "the store itself is asked without the token"
    rm "$path"
    pool redirects --cache >/dev/null
    "$keepstone" attach "${option[@]}" "$path" s3://b/t "$mnt" >/dev/null
    pid=$(server_of "$mnt")

    mode endless
    within 60 head -c 100 "$mnt/file"
    n=$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status")
    [ "$n" -lt "$RESIDENT_MAX" ] || die "an endless reply takes $n KiB of memory"

    mode "redirect:$other"
    within 60 head -c 100 "$mnt/file"
    echo new >"$mnt/new"
    within 60 sync -f "$mnt/new"
    [ ! -s "$place/other-requests" ] || lacks session-secret "$place/other-requests"
    [ ! -s "$place/other-requests" ] || lacks AWS4-HMAC "$place/other-requests"
    mode ok
    [ -d "/proc/$pid" ] || die "the server is gone"
    umount --lazy "$mnt"
}

# mode NAME: sets how the store answers from now on.
mode() {
    python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$(cat "$place/port")/__mode/$1').read()"
}
