# shellcheck shell=bash
# A member writes at random to the shared state of a pool, and cuts it off: root's server and root's
# programs do not die of a signal, and do not hang.
: "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_arena_member() {
    local layout how path pid run files status
    for layout in bpfs scmfs; do
        for how in scribble truncate unlink; do
            path=$(shared arena --layout "$layout")
            "$keepstone" mount "$path" "$mnt" >/dev/null
            pid=$(server_of "$mnt")
            mkdir -m 777 "$mnt/w"
            # The member has the pool by a program of its own, and so reaches all that members
            # reach.
            files=$(as member "$keepstone" run --quiet -- python3 "$here/arena.py" list "$mnt")
            [ -n "$files" ] || die "a member sees no shared state"
            timeout 6 "$keepstone" run --quiet -- python3 "$here/work.py" "$mnt/w" 3 >"$place/out" 2>&1 &
            run=$!
            sleep 0.7
            # shellcheck disable=SC2086  # one a line, without spaces
            as member python3 "$here/arena.py" "$how" 1 $files >"$place/attack" 2>&1 || true
            status=0
            wait "$run" || status=$?
            # 124: it waits for a lock that a member holds for ever. SECURITY.md does not promise
            # progress then.
            [ "$status" -lt 129 ] || die "$layout, $how: root's program ended by signal $((status - 128))"
            [ -d "/proc/$pid" ] || die "$layout, $how: root's server is gone"
            ! grep -q "^State:.*Z" "/proc/$pid/status" || die "$layout, $how: root's server has died"
            [ "$(bytes_of "$(log_of "$path")")" -lt $((4 << 20)) ] || die "$layout, $how: the log grows without bound"
            # Ends it if it waits for such a lock, too.
            timeout 3 "$keepstone" umount "$mnt" >/dev/null 2>&1 || kill -9 "$pid"
            ! mountpoint -q "$mnt" || umount --lazy "$mnt"
            rm -f "$path"
        done
    done
}
