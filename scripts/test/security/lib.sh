# shellcheck shell=bash
# Shared by the attack suites: a place with two users, and the checks at the end. Sourced by run.sh.

: "${here?is set by run.sh}"

# Users by numbers that no system gives out. `member` may write pools that root shares with its
# group, `stranger` may not.
# shellcheck disable=SC2034  # the suites use them
member=61001 stranger=61002
# The directory of a suite, with each user's home and root's mount point.
place=/mnt
mnt=$place/m
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

# make_place KEEPSTONE: makes the file systems that the namespaces of a suite start with.
make_place() {
    local dir name uid
    for dir in /dev/shm /run /tmp "$place"; do
        mount -t tmpfs -o mode=1777,size=2G tmpfs "$dir"
    done
    chmod 755 "$place" /run
    mkdir "$mnt" "$place/bin" "$place/etc"
    # In a place where other users can execute it.
    for name in keepstone libkeepstone.so; do
        touch "$place/bin/$name"
        mount --bind "$(dirname "$1")/$name" "$place/bin/$name"
    done
    keepstone=$place/bin/keepstone
    mknod "$place/etc/fuse" c 10 229
    chmod 666 "$place/etc/fuse"
    [ -e /dev/fuse ] || mknod /dev/fuse c 10 229
    mount --bind "$place/etc/fuse" /dev/fuse
    echo user_allow_other >"$place/etc/fuse.conf"
    cp /etc/passwd /etc/group "$place/etc"
    for name in member stranger; do
        uid=${!name}
        echo "ks$name:x:$uid:$uid::$place/$name:/bin/sh" >>"$place/etc/passwd"
        echo "ks$name:x:$uid:" >>"$place/etc/group"
        install -d -o "$uid" -g "$uid" "$place/$name"
    done
    for name in fuse.conf passwd group; do
        mount --bind "$place/etc/$name" "/etc/$name"
    done
}

# make_disk SIZE MODE [OPTION…]: mounts an ext4 file system, made with these options, at $place/disk;
# its root directory has this mode.
make_disk() {
    truncate -s "$1" "$place/image"
    mkfs.ext4 -q -F "${@:3}" "$place/image"
    mkdir "$place/disk"
    mount -o loop "$place/image" "$place/disk"
    chmod "$2" "$place/disk"
}

# as USER COMMAND…: runs COMMAND as one of the two users, for a minute at most; it cannot change its
# user.
as() {
    (become "$1" --no-new-privs "${@:2}")
}

# able USER COMMAND…: the same, with programs that change their user.
able() {
    (become "$1" --inh-caps=-all "${@:2}")
}

# spawn USER COMMAND…: the same in the background. `end` ends the last.
spawn() {
    become "$1" --no-new-privs "${@:2}" &
    spawned=$!
}

end() {
    kill "$spawned" 2>/dev/null || true
    wait "$spawned" 2>/dev/null || true
}

# become USER OPTION COMMAND…: replaces this process by COMMAND as that user.
become() {
    local user=$1 uid=${!1}
    exec timeout 60 setpriv --reuid "$uid" --regid "$uid" --clear-groups "$2" \
        env HOME="$place/$user" XDG_RUNTIME_DIR="$place/$user" "${@:3}"
}

# refused COMMAND…: fails if COMMAND succeeds.
refused() {
    if "$@" >"$place/out" 2>&1; then
        cat "$place/out"
        die "not refused: $*"
    fi
    [ $? -ne 124 ] || die "hangs: $*"
}

# within SECONDS COMMAND…: fails if COMMAND takes longer; its own status does not matter.
within() {
    local status=0
    timeout "$@" >"$place/out" 2>&1 || status=$?
    [ "$status" -ne 124 ] || die "takes longer than $1 s: ${*:2}"
    [ "$status" -lt 129 ] || die "ended by signal $((status - 128)): ${*:2}"
}

# holds FILE TEXT: fails unless FILE has exactly this content.
holds() {
    [ "$(cat "$1")" = "$2" ] || die "$1 has been changed: $(head -c 200 "$1" | cat -v)"
}

# lacks TEXT FILE…: fails, with the lines, if one of the files has TEXT.
lacks() {
    ! grep -rF -m 3 -- "$@" || die "a secret leaked"
}

# pool NAME [OPTION…]: formats a pool of root's in /dev/shm, of $pool_size (64M), and prints its
# path.
pool() {
    local path=/dev/shm/$1
    shift
    "$keepstone" mkfs "$path" --size "${pool_size:-64M}" "$@" >/dev/null
    echo "$path"
}

# shared NAME [OPTION…]: the same, which `member` may write by its group (docs/SERVICES.md).
shared() {
    local path
    path=$(pool "$@")
    chgrp "$member" "$path"
    chmod 660 "$path"
    echo "$path"
}

# server_of MOUNT: prints the process that serves it.
server_of() {
    "$keepstone" stats "$1" --json | jq .pid
}

# log_of POOL
log_of() {
    echo "/run/keepstone/$("$keepstone" info --json "$1" | jq -r .uuid).log"
}

# bytes_of FILE: prints its length; 0 if it is missing.
bytes_of() {
    stat -c %s "$1" 2>/dev/null || echo 0
}

# healthy MOUNT: checks that its server answers, has not panicked, and that root can work there.
healthy() {
    within 10 "$keepstone" stats "$1" --json
    jq -e '.panics == 0' "$place/out" >/dev/null || die "the server of $1 panicked: $(cat "$place/out")"
    timeout 10 sh -c "echo sound >'$1/health' && cat '$1/health' && rm '$1/health'" >/dev/null || die "$1 does not work"
}

# unmount MOUNT
unmount() {
    within 30 "$keepstone" umount "$1"
    ! mountpoint -q "$1" || die "$1 is still mounted: $(cat "$place/out")"
}

# flags_are MOUNT FLAG…: each flag is among its mount flags.
flags_are() {
    local flag
    for flag in "${@:2}"; do
        findmnt -no OPTIONS "$1" | tr , '\n' | grep -qx "$flag" || die "$1 lacks $flag: $(findmnt -no OPTIONS "$1")"
    done
}

# flags_lack MOUNT FLAG…
flags_lack() {
    local flag
    for flag in "${@:2}"; do
        ! findmnt -no OPTIONS "$1" | tr , '\n' | grep -qx "$flag" || die "$1 has $flag: $(findmnt -no OPTIONS "$1")"
    done
}
