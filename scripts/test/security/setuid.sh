# shellcheck shell=bash
# Set-user-ID programs, capabilities and devices of members, of foreign pools and below caches: they
# have no effect, unless the pool is root's alone or the option is given. A flag that cannot be kept
# is refused.
: "${stranger?}" "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_setuid() {
    local path home=$mnt/home flag dir=$place/data own
    path=$(shared setuid)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    flags_are "$mnt" nosuid nodev
    install -d -o "$member" -g "$member" "$home"
    as member sh -c "cp /usr/bin/id '$home/id' && chmod 4755 '$home/id'"
    # A member writes the inode of its own file: it belongs to root then.
    as member python3 "$here/inode.py" "$path" "$member" 0o104755 ||
        die "the attack finds no inode"
    as member "$keepstone" run --quiet -- ls -l "$home/id" >/dev/null
    sleep 1.5
    [ "$(stat -c %u:%a "$home/id")" = 0:4755 ] || die "the attack has no effect: $(stat -c %u:%a "$home/id")"
    [ "$(able member "$home/id" -u)" = "$member" ] || die "a member became root"
    able member "$keepstone" run --quiet -- "$home/id" -u >"$place/out" 2>&1 || true
    ! grep -qx 0 "$place/out" || die "a member became root under run"
    mknod "$home/null" c 1 3
    chmod 666 "$home/null"
    refused as member cat "$home/null"
    healthy "$mnt"
    unmount "$mnt"

    # Opened to others while it is mounted: a remount or a new mount has the flags.
    own=$(pool own)
    "$keepstone" mount "$own" "$mnt" >/dev/null
    flags_lack "$mnt" nosuid nodev
    unmount "$mnt"
    "$keepstone" mount -o nosuid,nodev "$own" "$mnt" >/dev/null
    flags_are "$mnt" nosuid nodev
    unmount "$mnt"
    chmod 606 "$own"
    "$keepstone" mount "$own" "$mnt" >/dev/null
    flags_are "$mnt" nosuid nodev
    unmount "$mnt"
    chmod 600 "$own"
    chown "$stranger" "$own"
    "$keepstone" mount "$own" "$mnt" >/dev/null
    flags_are "$mnt" nosuid nodev
    unmount "$mnt"
    # Requested by option.
    "$keepstone" mount -o suid,dev "$path" "$mnt" >/dev/null
    flags_lack "$mnt" nosuid nodev
    unmount "$mnt"

    # A cache has the flags of what it caches.
    rm "$own"
    for flag in nosuid nodev noexec nosymfollow ro; do
        rm -f "$own"
        pool own --cache >/dev/null
        mkdir -p "$dir"
        mount -t tmpfs -o "$flag,mode=755" tmpfs "$dir"
        within 20 "$keepstone" attach "$own" "$dir" "$mnt"
        if mountpoint -q "$mnt"; then
            flags_are "$mnt" "$flag"
            umount "$mnt"
        else
            grep -q "$flag" "$place/out" || die "refused without its reason: $(cat "$place/out")"
        fi
        await_until 10 is_unmounted "$dir"
    done
    rm -f "$own"
    pool own --cache >/dev/null
    "$keepstone" attach -o nosuid,nodev,noexec "$own" "$dir" "$mnt" >/dev/null
    flags_are "$mnt" nosuid nodev noexec
    unmount "$mnt"

    # A remount lifts what root names, and keeps the rest of what the directory has.
    rm "$own"
    pool own --cache >/dev/null
    ln -s "$keepstone" "$place/mount.fuse.keepstone"
    mount -t tmpfs -o nosuid,nodev,noexec,mode=755 tmpfs "$dir"
    "$keepstone" attach "$own" "$dir" "$mnt" >/dev/null
    "$place/mount.fuse.keepstone" "$own" "$mnt" -o remount,noatime
    flags_are "$mnt" nosuid nodev noexec noatime
    "$place/mount.fuse.keepstone" "$own" "$mnt" -o remount,exec
    flags_are "$mnt" nosuid nodev
    flags_lack "$mnt" noexec
    unmount "$mnt"
    await_until 10 is_unmounted "$dir"
    remounted_parts
}

# Mounts of snapshots and branches are remounted as others.
remounted_parts() {
    local path part
    path=$(pool parts)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    "$keepstone" snapshot create "$mnt" s >/dev/null
    "$keepstone" branch create "$mnt" b >/dev/null
    mkdir "$place/part"
    for part in s b; do
        "$keepstone" mount "$path@$part" "$place/part" >/dev/null
        "$place/mount.fuse.keepstone" "$path@$part" "$place/part" -o remount,ro,noexec
        flags_are "$place/part" ro noexec
        unmount "$place/part"
    done
    unmount "$mnt"
}

# is_unmounted DIRECTORY: nothing is mounted there any more. The server of a cache ends after its
# mount does.
is_unmounted() {
    umount "$1" 2>/dev/null
}
