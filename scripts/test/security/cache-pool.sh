# shellcheck shell=bash
# A pool that another user may write does not become a cache of root's, nor continue as one. The
# identities in a pool do not lead out of the directory of the cache.
: "${member?}" "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_cache_pool() {
    local path=/dev/shm/cache dir target own=/dev/shm/own
    # A file system that gives handles, as /etc's does; the target is outside of the cached directory.
    make_disk 64M 755
    dir=$place/disk/data target=$place/disk/target
    mkdir -m 755 "$dir"
    echo "root's own" >"$target"
    chmod 600 "$target"

    # The identity of a file outside, in a pool of a stranger's.
    prepare "$own" "$dir" "$target"
    cp "$own" "$path"
    chown "$stranger" "$path"
    escape "$path" "$dir" "$target"
    # The same pool, of root, with write access for the group or for every user.
    chmod 660 "$own"
    chgrp "$member" "$own"
    escape "$own" "$dir" "$target"
    chmod 666 "$own"
    escape "$own" "$dir" "$target"
    # Only root may write it: it is attached, and its identity is not believed.
    chmod 600 "$own"
    chgrp 0 "$own"
    write_back "$own" "$dir"
    holds "$target" "root's own"
    [ "$(stat -c %a:%u "$target")" = 600:0 ] || die "$target has other rights"
    # The same identity is believed when the file has a name in the directory.
    prepare "$own" "$dir" "$target"
    ln -f "$target" "$dir/file"
    write_back "$own" "$dir"
    holds "$target" "a stranger was here"

    # A pool that is opened to others while it is attached, and their writes then.
    rm "$own" "$dir/file"
    pool own --cache >/dev/null
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

# prepare POOL DIR TARGET: makes the pool of a cache of DIR with changes of a file that names TARGET.
prepare() {
    local server
    rm -f "$1"
    pool "$(basename "$1")" --cache >/dev/null
    echo "as it was" >"$2/file"
    "$keepstone" attach --max-age 3600 "$1" "$2" "$mnt" >/dev/null
    echo "a stranger was here" >"$mnt/file"
    server=$(server_of "$mnt")
    kill -9 "$server"
    await_until 10 has_ended "$server"
    umount --lazy "$mnt"
    python3 "$here/identity.py" "$1" "$2/file" "$3" || die "the attack finds no inode"
}

# has_ended PROCESS: it is gone, or a zombie.
has_ended() {
    ! readlink "/proc/$1/exe" >/dev/null 2>&1
}

# write_back POOL DIR: attaches the cache, writes back what is possible, and unmounts.
write_back() {
    "$keepstone" attach "$1" "$2" "$mnt" >/dev/null
    within 20 "$keepstone" attach flush "$mnt"
    unmount "$mnt"
}

# escape POOL DIR TARGET
escape() {
    refused timeout 20 "$keepstone" attach "$1" "$2" "$mnt"
    ! mountpoint -q "$mnt" || die "a pool that others may write is attached"
    holds "$3" "root's own"
}
