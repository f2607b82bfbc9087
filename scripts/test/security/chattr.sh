# shellcheck shell=bash
# Files below a cache that root has made immutable or append-only: changes through the cache stay in
# the pool, and are named. Below, nothing changes.
: "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_chattr() {
    local path name dir=$place/disk
    make_disk 64M 777
    for name in immutable removed append later; do
        echo "as it was" >"$dir/$name"
        chmod 666 "$dir/$name"
    done
    mkdir -m 777 "$dir/held"
    echo inner >"$dir/held/inner"
    chattr +i "$dir/immutable" "$dir/removed" "$dir/held"
    chattr +a "$dir/append"
    path=$(pool chattr --cache)
    "$keepstone" attach --max-age 3600 "$path" "$dir" "$mnt" >/dev/null
    as stranger sh -c "echo new >'$mnt/immutable'"
    as stranger python3 -c "import os; os.pwrite(os.open('$mnt/append', os.O_WRONLY), b'over', 0)"
    as stranger touch "$mnt/held/new"
    as stranger rm -f "$mnt/held/inner"
    rm -f "$mnt/removed"
    # A file that becomes immutable while the pool has changes for it.
    as stranger sh -c "echo new >'$mnt/later'"
    chattr +i "$dir/later"
    refused timeout 20 "$keepstone" attach flush "$mnt"
    for name in immutable removed append later; do
        holds "$dir/$name" "as it was"
    done
    [ "$(ls "$dir/held")" = inner ] || die "an immutable directory has: $(ls "$dir/held")"
    within 10 "$keepstone" attach status "$mnt"
    for name in immutable append held later; do
        grep -q "^$name" "$place/out" || die "the status does not name $name: $(cat "$place/out")"
    done
    holds "$mnt/immutable" new
    healthy "$mnt"

    # As soon as root lifts the protection, the changes go below. A flag that was set when the pool
    # had changes already is a change by others, so that file is a conflict.
    chattr -i "$dir/immutable" "$dir/removed" "$dir/held" "$dir/later"
    chattr -a "$dir/append"
    refused timeout 20 "$keepstone" attach flush "$mnt"
    holds "$dir/later" "as it was"
    rm "$dir/later"
    "$keepstone" attach flush "$mnt" >/dev/null
    holds "$dir/immutable" new
    holds "$dir/later" new
    holds "$dir/append" "overt was"
    [ ! -e "$dir/removed" ] || die "a removal is not written back"
    [ "$(ls "$dir/held")" = new ] || die "the directory has: $(ls "$dir/held")"
    unmount "$mnt"
}
