# shellcheck shell=bash
# A stranger's pins in a cache, and its use of blocks that the file system below reserves for root:
# others still have room.
: "${stranger?}" "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_pins() {
    local path dir=$place/disk home=$mnt/theirs
    truncate -s 256M "$place/image"
    mkfs.ext4 -q -F -m 25 "$place/image"
    mkdir "$dir"
    mount -o loop "$place/image" "$dir"
    chmod 755 "$dir"
    path=$(pool pins)
    "$keepstone" attach "$path" "$dir" "$mnt" >/dev/null
    install -d -o "$stranger" -g "$stranger" "$home"
    # More than the pool has, each file pinned.
    as stranger sh -c "
        for n in \$(seq 24); do
            head -c 4M /dev/zero | tr '\\0' x >'$home/'\$n
            '$keepstone' attach pin '$home/'\$n >/dev/null 2>&1
        done
        true"
    head -c 20M /dev/urandom >"$mnt/root-file" || die "pins of a stranger leave root no room"
    as member sh -c "head -c 100 '$mnt/root-file' >/dev/null"
    install -d -o "$member" -g "$member" "$mnt/members"
    as member sh -c "head -c 20M /dev/zero >'$mnt/members/file'" || die "pins of a stranger leave others no room"
    "$keepstone" attach flush "$mnt" >/dev/null
    cmp -n 20971520 "$mnt/root-file" "$dir/root-file"
    # Root can still pin.
    "$keepstone" attach pin "$mnt/root-file" >/dev/null || die "root cannot pin: all is a stranger's"
    healthy "$mnt"

    # Reserved blocks: the cache writes as its caller would.
    as stranger sh -c "dd if=/dev/zero of='$home/all' bs=1M count=400 conv=fsync 2>/dev/null; true"
    within 30 "$keepstone" attach flush "$mnt"
    [ "$(stat -f -c %f "$dir")" -gt "$(($(stat -f -c %b "$dir") / 8))" ] ||
        die "a stranger has used blocks reserved for root: $(df "$dir" | tail -1)"
    as stranger sh -c "rm -f '$home'/*"
    umount "$mnt" 2>/dev/null || umount --lazy "$mnt"
}
