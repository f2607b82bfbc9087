# shellcheck shell=bash
# Blocks that the file system below a cache reserves for root: what programs write through the cache
# does not use them.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_reserve() {
    local path dir=$place/disk home=$mnt/theirs left total
    make_disk 256M 755 -m 25
    path=$(pool reserve --cache)
    "$keepstone" attach "$path" "$dir" "$mnt" >/dev/null
    install -d -o "$stranger" -g "$stranger" "$home"
    # More than there is.
    as stranger sh -c "dd if=/dev/zero of='$home/all' bs=1M count=400 conv=fsync 2>/dev/null; true"
    within 30 "$keepstone" attach flush "$mnt"
    left=$(stat -f -c %f "$dir") total=$(stat -f -c %b "$dir")
    [ "$left" -lt "$((total / 2))" ] || die "the stranger has written too little: $(df "$dir" | tail -1)"
    [ "$left" -gt "$((total / 8))" ] || die "a stranger has used blocks reserved for root: $(df "$dir" | tail -1)"
    as stranger rm -f "$home/all"
    within 30 "$keepstone" attach flush "$mnt"
    healthy "$mnt"
    unmount "$mnt"
}
