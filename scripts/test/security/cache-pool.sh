# shellcheck shell=bash
# A pool that another user may write does not become a cache of root's, nor continue as one. The
# handles in the records of a cache do not lead out of its directory.
: "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_cache_pool() {
    local path=/dev/shm/cache dir=$place/data target=$place/target own=/dev/shm/own
    # A file system that gives handles, as /etc's does; outside of the cached directory.
    truncate -s 64M "$place/image"
    mkfs.ext4 -q -F "$place/image"
    mkdir "$place/disk"
    mount -o loop "$place/image" "$place/disk"
    dir=$place/disk/data target=$place/disk/target
    mkdir -m 755 "$dir"
    echo "root's own" >"$target"
    chmod 600 "$target"

    # A stranger's pool, prepared by its owner.
    as stranger "$keepstone" mkfs "$path" --size 64M >/dev/null
    able stranger mkdir -p "$place/stranger/m"
    able stranger "$keepstone" mount "$path" "$place/stranger/m" >/dev/null
    python3 "$here/shadow.py" "$target" "$dir" "a stranger was here" >"$place/prepared"
    chmod 644 "$place/prepared"
    as stranger python3 "$here/prepare.py" "$place/stranger/m" "$place/prepared"
    able stranger "$keepstone" umount "$place/stranger/m"
    escape "$path" "$dir" "$target"
    # The same pool, now of root, with write access for the group or for every user.
    cp "$path" "$own"
    chmod 660 "$own"
    chgrp "$member" "$own"
    escape "$own" "$dir" "$target"
    chmod 666 "$own"
    escape "$own" "$dir" "$target"
    # A pool that only root may write: its records name files outside of the directory.
    chmod 600 "$own"
    chgrp 0 "$own"
    within 20 "$keepstone" attach "$own" "$dir" "$mnt"
    if mountpoint -q "$mnt"; then
        within 20 "$keepstone" attach flush "$mnt"
        umount "$mnt" || umount --lazy "$mnt"
    fi
    holds "$target" "root's own"

    # A pool that is opened to others while it is attached, and their writes then.
    rm "$own"
    pool own >/dev/null
    "$keepstone" attach "$own" "$dir" "$mnt" >/dev/null
    echo content >"$mnt/file"
    within 20 "$keepstone" umount "$mnt"
    [ "$(cat "$dir/file")" = content ] || die "the cache does not write back"
    chmod 666 "$own"
    refused timeout 20 "$keepstone" attach "$own" "$dir" "$mnt"
    grep -qi "$own" "$place/out" || die "the refusal does not name the pool: $(cat "$place/out")"
    refused timeout 20 "$keepstone" attach drain "$own" "$dir"
    chmod 600 "$own"
    "$keepstone" attach "$own" "$dir" "$mnt" >/dev/null
    healthy "$mnt"
    unmount "$mnt"
}

# escape POOL DIR TARGET
escape() {
    refused timeout 20 "$keepstone" attach "$1" "$2" "$mnt"
    ! mountpoint -q "$mnt" || die "a pool that others may write is attached"
    holds "$3" "root's own"
    [ "$(stat -c %a:%u "$3")" = 600:0 ] || die "$3 has other rights"
}
