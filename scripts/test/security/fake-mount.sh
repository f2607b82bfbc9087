# shellcheck shell=bash
# FUSE file systems of strangers that call themselves Keepstone's, with root's pool as their source:
# programs of root under `keepstone run` do not follow them into the pool, and no command waits for
# them.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_fake_mount() {
    local path home=$place/stranger option n
    path=$(pool fake-mount)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    mkdir -m 700 "$mnt/private"
    echo "top secret" >"$mnt/private/file"
    echo victim >"$mnt/victim"

    for option in "" allow_other; do
        fake "$home/mnt" "$option" ok
        for dir in "$home/mnt" "$home"; do
            within 10 "$keepstone" run --quiet -- ls -lR "$dir"
            ! grep -q "private\|victim" "$place/out" || die "root's pool shows below $dir: $(cat "$place/out")"
        done
        within 10 "$keepstone" run --quiet -- cat "$home/mnt/victim" "$home/mnt/private/file"
        lacks "top secret" "$place/out"
        within 10 "$keepstone" run --quiet -- chown -R "$stranger:$stranger" "$home"
        [ "$(stat -c %u "$mnt/victim" "$mnt/private" "$mnt/private/file" | sort -u)" = 0 ] ||
            die "chown reached root's pool ($option)"
        within 10 "$keepstone" run --quiet -- cp -r "$home/mnt" "$place/copy"
        [ ! -e "$place/copy/victim" ] || die "cp reached root's pool ($option)"
        within 10 "$keepstone" run --quiet -- sh -c "rm -rf '$home/mnt/'* '$home'/mnt/victim"
        holds "$mnt/victim" victim
        holds "$mnt/private/file" "top secret"
        # Counters of a stranger's mount are not believed.
        "$keepstone" run --stats -- true >"$place/out" 2>&1
        ! grep -q "100 % of 0" "$place/out" || die "nothing served is reported as all: $(cat "$place/out")"
        umount --lazy "$home/mnt"
        rm -rf "$place/copy"
    done

    # Servers that never answer, twenty of them.
    for n in $(seq 20); do
        fake "$home/hang-$n" "$([ $((n % 2)) = 0 ] || echo allow_other)" "$([ $((n % 4)) -lt 2 ] && echo hang || echo mute)"
    done
    within 15 "$keepstone" run -- true
    within 15 "$keepstone" run --stats -- cat "$mnt/victim"
    grep -q victim "$place/out" || die "run does not reach root's mount: $(cat "$place/out")"
    within 15 "$keepstone" top --count 1
    grep -q "$mnt" "$place/out" || die "top does not show root's mount: $(cat "$place/out")"
    within 15 "$keepstone" stats "$mnt"
    within 15 "$keepstone" doctor
    healthy "$mnt"
    unmount "$mnt"
}

# fake DIRECTORY OPTION MODE: makes the stranger's mount of type fuse.keepstone.
fake() {
    able stranger mkdir -p "$1"
    able stranger python3 "$here/fakefuse.py" "$1" "$path" "$2" "$3" || die "fusermount3 refuses the mount"
}
