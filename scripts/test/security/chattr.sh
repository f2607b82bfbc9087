# shellcheck shell=bash
# Files below a cache that root has made immutable or append-only: callers cannot change them
# through the cache either.
: "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_chattr() {
    local path dir=$place/disk
    truncate -s 64M "$place/image"
    mkfs.ext4 -q -F "$place/image"
    mkdir "$dir"
    mount -o loop "$place/image" "$dir"
    chmod 777 "$dir"
    for name in immutable append; do
        echo "as it was" >"$dir/$name"
        chmod 666 "$dir/$name"
    done
    mkdir -m 777 "$dir/held"
    echo inner >"$dir/held/inner"
    chattr +i "$dir/immutable" "$dir/held"
    chattr +a "$dir/append"
    path=$(pool chattr)
    "$keepstone" attach "$path" "$dir" "$mnt" >/dev/null
    refused as stranger sh -c "echo new >'$mnt/immutable'"
    refused as stranger sh -c "echo new >>'$mnt/immutable'"
    refused as stranger truncate -s 0 "$mnt/immutable"
    refused as stranger python3 -c "import os; os.pwrite(os.open('$mnt/append', os.O_WRONLY), b'over', 0)"
    refused as stranger truncate -s 0 "$mnt/append"
    refused as stranger touch "$mnt/held/new"
    refused rm -f "$mnt/immutable"
    refused rm -f "$mnt/append"
    as stranger sh -c "echo more >>'$mnt/append'" || die "appending is refused"
    "$keepstone" attach flush "$mnt" >/dev/null
    holds "$dir/immutable" "as it was"
    [ "$(cat "$dir/append")" = $'as it was\nmore' ] || die "append-only: $(cat "$dir/append")"
    # A file that becomes immutable while the cache has changes for it keeps its content.
    echo "as it was" >"$mnt/later"
    chmod 666 "$mnt/later"
    "$keepstone" attach flush "$mnt" >/dev/null
    chattr +i "$dir/later"
    sleep 1.1
    as stranger sh -c "echo new >'$mnt/later'" 2>/dev/null || true
    "$keepstone" attach flush "$mnt" >/dev/null 2>&1 || true
    holds "$dir/later" "as it was"
    chattr -i "$dir/immutable" "$dir/held" "$dir/later"
    chattr -a "$dir/append"
    umount "$mnt" || umount --lazy "$mnt"
}
