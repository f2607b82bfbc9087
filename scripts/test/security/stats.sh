# shellcheck shell=bash
# Counters that every user may read: they name no file in a directory that the reader may not list.
: "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_stats() {
    local path dir=$place/data name=divorce-lawyer.txt
    path=$(pool stats --cache)
    mkdir -m 755 "$dir"
    "$keepstone" attach --watch off "$path" "$dir" "$mnt" >/dev/null
    install -d -m 700 -o "$member" -g "$member" "$mnt/private"
    as member sh -c "echo a >'$mnt/private/$name'"
    "$keepstone" attach flush "$mnt" >/dev/null
    # A conflict, which counters name to its owner.
    as member sh -c "echo b >>'$mnt/private/$name'"
    sleep 1.1
    echo behind >>"$dir/private/$name"
    sleep 1.1
    as member cat "$mnt/private/$name" >/dev/null || true
    as member sh -c "echo c >>'$mnt/private/$name'" || true
    "$keepstone" attach flush "$mnt" >/dev/null 2>&1 || true
    refused as stranger ls "$mnt/private"
    "$keepstone" attach status --json "$mnt" >"$place/roots"
    grep -q "$name" "$place/roots" || die "root is not told which file needs attention: $(cat "$place/roots")"
    # For other users, by each way to read counters.
    touch "$place/theirs"
    for command in "attach status" "attach status --json" "attach status --metrics" stats "stats --json" "top --count 1" \
        "doctor"; do
        # shellcheck disable=SC2086  # words of a command
        as stranger "$keepstone" $command "$mnt" >>"$place/theirs" 2>&1 || true
    done
    as stranger getfattr -d -m - "$mnt" >>"$place/theirs" 2>&1 || true
    as stranger getfattr -n user.keepstone.stats "$mnt" >>"$place/theirs" 2>&1 || true
    [ -s "$place/theirs" ] || die "nothing was tried"
    lacks "$name" "$place/theirs"
    umount "$mnt" || umount --lazy "$mnt"
}
