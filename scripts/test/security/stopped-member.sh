# shellcheck shell=bash
# A member stops inside an operation and keeps its locks. Programs of others that wait for them on
# the mount can be killed, and then the kernel's locks are free as well. SECURITY.md does not
# promise more progress.
: "${keepstone:=}" "${place?}" "${mnt?}" "${here?}" "${member?}"

suite_stopped_member() {
    local path pid program waiting other tries=40
    path=$(shared stopped)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    pid=$(server_of "$mnt")
    mkdir -m 777 "$mnt/w"
    spawn member "$keepstone" run --quiet -- python3 "$here/rename.py" "$mnt/w"
    await_until 30 test -e "$mnt/w/begun"
    program=$(pgrep -u "$member" -f "^python3 $here/rename.py")
    # Until it is stopped while it has the lock of the directory.
    while :; do
        kill -STOP "$program"
        touch "$mnt/w/mine" &
        waiting=$!
        sleep 1
        has_ended "$waiting" || break
        wait "$waiting" || die "a file of root's is refused"
        kill -CONT "$program"
        sleep "0.0$((RANDOM % 10))"
        [ $((tries -= 1)) -gt 0 ] || die "the member was never stopped with a lock"
    done
    # The first waits in the server, this one for the kernel's lock of the directory, which the
    # first has.
    touch "$mnt/w/other" &
    other=$!
    kill -9 "$waiting" "$other"
    await_until 20 has_ended "$waiting"
    await_until 20 has_ended "$other"
    within 20 touch "$mnt/elsewhere"
    [ -d "/proc/$pid" ] || die "the server is gone"
    kill -CONT "$program"
    within 20 touch "$mnt/w/after"
    end
    healthy "$mnt"
    unmount "$mnt"
    "$keepstone" check "$path" >/dev/null || die "the pool is damaged"
}
