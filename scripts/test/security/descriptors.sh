# shellcheck shell=bash
# A stranger that keeps thousands of files of a cache open, or of a mount: others can still open
# theirs.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_descriptors() {
    # Room for all of the files, so that only descriptors can run out.
    # shellcheck disable=SC2034  # `pool` uses it
    local path dir=$place/data what pool_size=512M
    path=$(pool descriptors --cache)
    mkdir -m 755 "$dir"
    for what in cache mount; do
        if [ "$what" = cache ]; then
            "$keepstone" attach "$path" "$dir" "$mnt" >/dev/null
        else
            rm "$path"
            pool descriptors >/dev/null
            "$keepstone" mount "$path" "$mnt" >/dev/null
        fi
        install -d -o "$stranger" -g "$stranger" "$mnt/theirs"
        echo content >"$mnt/ours"
        spawn stranger python3 "$here/hold.py" "$mnt/theirs" 6000 >"$place/held" 2>&1
        await_until 60 grep -q holds "$place/held"
        for _ in 1 2 3; do
            [ "$(cat "$mnt/ours")" = content ] || die "$what: root cannot read beside $(cat "$place/held")"
            as member cat "$mnt/ours" >/dev/null || die "$what: others cannot read beside $(cat "$place/held")"
            echo new >"$mnt/new" || die "$what: no file can be made beside $(cat "$place/held")"
        done
        healthy "$mnt"
        end
        # Its processes end within a quarter of a second after their parent.
        sleep 0.5
        unmount "$mnt"
    done
}
