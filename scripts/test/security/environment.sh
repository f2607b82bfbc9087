# shellcheck shell=bash
# Programs with more rights than their caller: variables of the caller's environment do not steer
# them, and they are not served in their own process.
: "${member?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_environment() {
    local path program=$place/id
    path=$(pool environment)
    "$keepstone" mount "$path" "$mnt" >/dev/null
    echo "root's secret" >"$mnt/secret"
    chmod 600 "$mnt/secret"
    # A copy of cat, set-group-ID to the member's group, which may read nothing of root's.
    install -o root -g "$member" -m 2755 /usr/bin/cat "$program"
    chmod 750 "$place/member"
    as member sh -c "echo 'the group has this' >'$place/member/file'"
    able stranger env LD_PRELOAD="$place/bin/libkeepstone.so" KEEPSTONE_DEBUG=1 \
        KEEPSTONE_MOUNTS="1	36 35 0:98 / $place/member rw - fuse.keepstone $path rw,user_id=0" \
        KEEPSTONE_STATS="$place/stranger/stats" "$program" "$place/member/file" >"$place/out" 2>"$place/err" ||
        die "the program does not run: $(cat "$place/err")"
    grep -q "the group has this" "$place/out" || die "the program has lost its group"
    ! grep -qi keepstone "$place/err" || die "a set-group-ID program loads the library: $(cat "$place/err")"
    # Root's program in a stranger's environment: an announcement of mounts that do not exist is not
    # believed.
    env LD_PRELOAD="$place/bin/libkeepstone.so" \
        KEEPSTONE_MOUNTS="1	36 35 0:98 / $place/stranger rw - fuse.keepstone $path rw,user_id=0" \
        timeout 20 ls "$place/stranger" >"$place/out" 2>&1
    lacks secret "$place/out"
    # The set-user-ID program that keepstone run starts.
    install -o "$member" -g "$member" -m 4755 /usr/bin/id "$place/suid"
    able stranger "$keepstone" run -- "$place/suid" -u >"$place/out" 2>&1 || die "$(cat "$place/out")"
    grep -qx "$member" "$place/out" || die "a set-user-ID program lost its user under run: $(cat "$place/out")"
    healthy "$mnt"
    unmount "$mnt"
}
