# shellcheck shell=bash
# Functions that the suites of block devices share. run.sh sources this.

: "${keepstone:=}" "${scratch:=}" "${pools:=}"

read -ra device_options <<<"${DEVICE_OPTIONS:-}"

# Prints the URI of the export NAME on the socket of `serve`.
uri() {
    echo "nbd+unix:///${1:-}?socket=$scratch/sock"
}

# serve OPTION…: starts a server on $scratch/sock.
serve() {
    "$keepstone" bdev serve --socket "$scratch/sock" "${device_options[@]}" "$@" >/dev/null
}

# attach POOL SIZE OPTION…: attaches a loop device on a new pool; prints its name.
attach() {
    local pool=$1 size=$2
    shift 2
    "$keepstone" --json bdev loop "$pool" --create --size "$size" "${device_options[@]}" "$@" | jq -r .device
}

# server_of NAME: prints the process that serves it.
server_of() {
    "$keepstone" --json bdev stats "$1" | jq .pid
}

# fails COMMAND…: true if COMMAND fails.
fails() {
    ! "$@" 2>"$scratch/stderr"
}

# same FILE FILE
same() {
    cmp "$1" "$2" || die "$1 and $2 differ"
}

# Ends processes that a suite has left behind, only servers of its own pools.
clean_up() {
    local pid mount
    findmnt --noheadings --output TARGET --list | sort -r | while read -r mount; do
        [[ $mount != "$scratch"/* ]] || umount "$mount" || umount --lazy "$mount"
    done
    "$keepstone" --json bdev list | jq -r --arg pools "$pools/" \
        '.[] | select(any(.exports[]; .path | startswith($pools))) | .pid' | while read -r pid; do
        "$keepstone" bdev stop "$pid" || kill -9 "$pid"
    done
    rm -rf "$scratch" "$pools"
}
