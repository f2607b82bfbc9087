# shellcheck shell=bash
# Files that strangers put into /dev/shm: names that shared state could have, links, FIFOs, files
# that shrink while they are mapped, and pools with a label that root looks for.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_shm() {
    local path names name kind
    echo "root's own" >"$place/target"
    chmod 600 "$place/target"
    path=$(pool shm)
    # The names of shared state, as a stranger can learn them from a mount before.
    "$keepstone" mount "$path" "$mnt" >/dev/null
    names=$(find /dev/shm -mindepth 1 ! -path "$path" -name 'keepstone*' -printf '%P\n')
    "$keepstone" umount "$mnt"
    for kind in file link fifo directory; do
        # As after a boot.
        find /dev/shm -mindepth 1 ! -path "$path" -delete
        for name in keepstone-0 $names; do
            as stranger python3 "$here/squat.py" "$kind" "/dev/shm/$name" "$place/target"
        done
        within 20 "$keepstone" mount "$path" "$mnt"
        if mountpoint -q "$mnt"; then
            within 10 "$keepstone" run --quiet -- sh -c "echo one >'$mnt/one' && cat '$mnt/one'"
            grep -q one "$place/out" || die "squatted as $kind: $(cat "$place/out")"
            healthy "$mnt"
            unmount "$mnt"
        else
            # A refusal names what to remove.
            grep -q "/dev/shm" "$place/out" || die "squatted as $kind: $(cat "$place/out")"
        fi
        holds "$place/target" "root's own"
        find /dev/shm -mindepth 1 -depth -user "$stranger" -delete
    done

    # Files that shrink while servers and programs look at them: no process dies of a signal.
    # shellcheck disable=SC2086  # names without spaces
    spawn stranger python3 "$here/shrink.py" 12 $names
    for _ in $(seq 4); do
        within 20 "$keepstone" mount "$path" "$mnt"
        ! mountpoint -q "$mnt" || {
            within 20 "$keepstone" run --quiet -- ls "$mnt"
            healthy "$mnt"
            unmount "$mnt"
        }
        within 20 "$keepstone" run --quiet -- true
        within 20 "$keepstone" doctor
    done
    end
    find /dev/shm -mindepth 1 -depth -user "$stranger" -delete

    # Labels are searched only in files of root.
    as stranger "$keepstone" mkfs /dev/shm/theirs --size 32M --label backup >/dev/null
    refused timeout 20 "$keepstone" mount LABEL=backup "$mnt"
    ! mountpoint -q "$mnt" || die "a stranger's pool is mounted by its label"
    refused timeout 20 "$keepstone" mount "UUID=$("$keepstone" info --json /dev/shm/theirs | jq -r .uuid)" "$mnt"
    pool labelled --label backup >/dev/null
    within 20 "$keepstone" mount LABEL=backup "$mnt"
    [ "$(findmnt -no SOURCE "$mnt")" = /dev/shm/labelled ] || die "not root's own pool: $(cat "$place/out")"
    unmount "$mnt"
    planted
    # Many files and a FIFO delay no search.
    as stranger python3 -c "
import os
os.mkfifo('/dev/shm/aaa')
for n in range(3000): open(f'/dev/shm/z{n}', 'wb').write(b'KSTNBPFS')"
    within 20 "$keepstone" info LABEL=other
    within 20 "$keepstone" mount LABEL=backup "$mnt"
    unmount "$mnt"
}

# Files that a stranger has put at the names that documents tell: root's commands do not take them.
planted() {
    local file=/dev/shm/planted saved=$place/saved
    as stranger sh -euc "umask 077; truncate -s 64M '$file'"
    refused "$keepstone" mkfs "$file" --size 64M
    grep -q "belongs to user $stranger" "$place/out" || die "no reason: $(cat "$place/out")"
    refused "$keepstone" bdev serve "$file" --create --size 64M --socket "$place/socket"
    refused "$keepstone" mount --create --size 64M "$file" "$mnt"
    as stranger "$keepstone" mkfs "$file" --size 64M >/dev/null
    refused "$keepstone" mount --create --size 64M --save "$saved" --restore "$saved" "$file" "$mnt"
    ! mountpoint -q "$mnt" || die "a planted pool is mounted"
    # By its name alone, and if root insists, it is another user's pool as ever.
    "$keepstone" mount "$file" "$mnt" >/dev/null 2>&1
    flags_are "$mnt" nosuid nodev
    unmount "$mnt"
    "$keepstone" mkfs "$file" --size 64M --force >/dev/null
    rm "$file"
}
