# shellcheck shell=bash
# Threads that act for different users by setfsuid(2) and setfsgid(2), under `keepstone run`: as the
# kernel has it, each thread has an identity of its own.
: "${stranger?}" "${member?}" "${keepstone:=}" "${mnt?}" "${here?}"

suite_setfsuid() {
    local path
    path=$(pool setfsuid)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    echo "root's secret" >"$mnt/secret"
    chmod 600 "$mnt/secret"
    echo "the group's" >"$mnt/group"
    chmod 640 "$mnt/group"
    chgrp "$member" "$mnt/group"
    python3 "$here/threads.py" "$mnt" "$stranger" "$member" || die "the kernel itself does not pass"
    "$keepstone" run --quiet -- python3 "$here/threads.py" "$mnt" "$stranger" "$member" ||
        die "an identity leaks from thread to thread"
    healthy "$mnt"
    unmount "$mnt"
}
