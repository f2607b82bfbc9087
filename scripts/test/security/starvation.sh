# shellcheck shell=bash
# Requests that wait, for a silent object store or a stopped program: others are served meanwhile.
: "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_starvation() {
    local path n store option
    path=$(pool starvation --cache)
    python3 "$here/store.py" "$place/port" "$place/requests" &
    store=$!
    await_until 10 test -s "$place/port"
    export AWS_ACCESS_KEY_ID=AKIAEXAMPLE AWS_SECRET_ACCESS_KEY=k AWS_REGION=us-east-1
    option=(--store-option "aws_endpoint=http://127.0.0.1:$(cat "$place/port")" --store-option aws_allow_http=true --lease 1)
    "$keepstone" attach "${option[@]}" "$path" s3://b/t "$mnt" >/dev/null
    for n in $(seq 8); do head -c 3000000 /dev/urandom >"$mnt/cold-$n"; done
    echo cached >"$mnt/hot"
    chmod 644 "$mnt"/*
    unmount "$mnt"
    rm "$path"
    pool starvation --cache >/dev/null
    # Two threads, as on a small machine.
    "$keepstone" attach --threads 2 "${option[@]}" "$path" s3://b/t "$mnt" >/dev/null
    cat "$mnt/hot" >/dev/null
    mode hang
    for n in $(seq 8); do
        spawn stranger head -c 100 "$mnt/cold-$n" >/dev/null 2>&1
    done
    sleep 1
    for n in 1 2 3; do
        within 5 setpriv --reuid "$member" --clear-groups --regid "$member" stat "$mnt/hot"
        # Bypasses the kernel's cache.
        within 5 setpriv --reuid "$member" --clear-groups --regid "$member" \
            python3 -c "import os; assert os.pread(os.open('$mnt/hot', os.O_RDONLY | os.O_DIRECT), 100, 0)[:6] == b'cached'"
        within 5 "$keepstone" attach status "$mnt"
    done
    mode ok
    kill "$store"
    umount --lazy "$mnt"
    other_waits
}

# mode NAME: sets how the store answers from now on.
mode() {
    python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$(cat "$place/port")/__mode/$1').read()"
}

# Locks and FIFOs of a mount with two threads: waiting for them blocks no thread of the server.
other_waits() {
    local path n m=$place/m2 pids=()
    path=$(pool waits)
    mkdir "$m"
    "$keepstone" mount --threads 2 "$path" "$m" >/dev/null
    touch "$m/locked"
    chmod 666 "$m/locked"
    flock "$m/locked" sleep 20 &
    pids+=($!)
    sleep 0.3
    for n in $(seq 6); do
        spawn stranger flock "$m/locked" true
        pids+=("$spawned")
        spawn stranger python3 -c "import fcntl; fcntl.lockf(open('$m/locked', 'r+'), fcntl.LOCK_EX)"
        pids+=("$spawned")
    done
    sleep 0.5
    healthy "$m"
    kill "${pids[@]}" 2>/dev/null || true
    umount --lazy "$m"
}
