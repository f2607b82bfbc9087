# shellcheck shell=bash
# Locks that a stranger takes on files that it may read: they do not keep root from attaching,
# mounting or unmounting.
: "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_flock() {
    local path dir=$place/data how holders=()
    path=$(pool flock --cache)
    mkdir -m 755 "$dir"
    for how in LOCK_SH LOCK_EX; do
        spawn stranger python3 -c "
import fcntl, os, time
for path in '$dir', '$mnt':
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.$how)
time.sleep(50)" 2>/dev/null
        holders+=("$spawned")
    done
    sleep 0.7
    within 20 "$keepstone" attach "$path" "$dir" "$mnt"
    mountpoint -q "$mnt" || die "a lock of a stranger on the directory refuses root's attach: $(cat "$place/out")"
    healthy "$mnt"
    unmount "$mnt"
    # Two caches of one directory still exclude each other.
    "$keepstone" attach "$path" "$dir" "$mnt" >/dev/null
    mkdir "$place/second"
    refused timeout 20 "$keepstone" attach "$(pool second --cache)" "$dir" "$place/second"
    unmount "$mnt"
    kill "${holders[@]}" 2>/dev/null || true
}
