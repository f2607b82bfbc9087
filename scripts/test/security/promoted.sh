# shellcheck shell=bash
# Names of descriptors that the mount opens for a program under `keepstone run`: they open nothing
# for others.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_promoted() {
    local path
    path=$(pool promoted)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    mkdir "$mnt/d"
    echo "root's secret" >"$mnt/d/secret"
    echo "another" >"$mnt/d/other"
    chmod 600 "$mnt/d/secret" "$mnt/d/other"
    ln -s secret "$mnt/d/link"
    mkfifo "$mnt/d/fifo"
    touch "$place/seen" "$place/report"
    chmod 666 "$place/seen" "$place/report"

    # A stranger's program has root's file as its standard output.
    "$keepstone" run --quiet -- sh -c "exec setpriv --reuid $stranger --regid $stranger --clear-groups \
        python3 '$here/steal.py' '$mnt' '$place/report' >>'$mnt/d/out'"
    grep -q "looked at" "$place/report" || die "the attack did not run: $(cat "$place/report")"
    lacks "opened" "$place/report"
    grep -q "standard output works" "$mnt/d/out" || die "the descriptor itself does not work"

    # Another program of it watches the mount meanwhile, and opens each name that it sees.
    spawn stranger python3 "$here/watch.py" 6 "$mnt" "$mnt/d" >"$place/seen" 2>&1
    await_until 10 grep -q watching "$place/seen"
    "$keepstone" run --quiet -- python3 "$here/promote.py" "$mnt/d" "$stranger" >"$place/names" 2>&1 ||
        die "the program failed: $(cat "$place/names")"
    wait "${spawned:?}" || die "the watcher failed: $(cat "$place/seen")"
    lacks "opened" "$place/seen"
    # The names that promoted descriptors show afterwards open nothing.
    as stranger python3 "$here/replay.py" "$mnt" <"$place/names" >"$place/seen" 2>&1 || die "replay: $(cat "$place/seen")"
    grep -q "tried" "$place/seen" || die "no name was tried"
    lacks "opened" "$place/seen"

    holds "$mnt/d/secret" "root's secret"
    holds "$mnt/d/other" "another"
    healthy "$mnt"
    unmount "$mnt"
}
