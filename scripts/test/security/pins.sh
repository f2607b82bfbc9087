# shellcheck shell=bash
# A stranger's pins in a cache: others still have room.
: "${stranger?}" "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_pins() {
    local path dir=$place/disk home=$mnt/theirs
    make_disk 256M 755
    path=$(pool pins --cache)
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
    as stranger sh -c "rm -f '$home'/*"
    unmount "$mnt"
}
