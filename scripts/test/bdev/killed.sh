# shellcheck shell=bash
# Servers that are killed under load: every write that was confirmed as durable is there afterwards.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}" "${here?is set by run.sh}"

suite_killed() {
    killed_nbd
    killed_worker
    killed_loop --through server
    rm "$scratch/synced" "$pools/killed"
    killed_loop
}

# An NBD server; its client notes the writes that forced unit access or a flush confirmed.
killed_nbd() {
    serve "$pools/disk" --create --size 64M
    local round
    for round in 1 2 3; do
        python3 "$here/confirmed.py" write "$(uri)" "$scratch/noted" "$round" &
        local client=$!
        sleep 0.7
        kill -9 "$(server_of disk)"
        await_exit 60 "$client" || die "the client did not notice the end"
        # The dead server's socket is replaced.
        serve "$pools/disk"
        python3 "$here/confirmed.py" check "$(uri)" "$scratch/noted" "$round"
    done
    "$keepstone" bdev stop disk
}

# A worker of an NBD server: clients that connect again find all confirmed writes, served by new
# workers.
killed_worker() {
    serve "$pools/worked" --create --size 64M --workers 2
    local round
    for round in 1 2 3; do
        python3 "$here/confirmed.py" write "$(uri)" "$scratch/noted" "$round" &
        local client=$!
        sleep 0.7
        kill -9 "$("$keepstone" --json bdev stats worked | jq ".workers.processes[$round % 2].pid")"
        await_exit 60 "$client" || die "the client did not notice the end"
        python3 "$here/confirmed.py" check "$(uri)" "$scratch/noted" "$round"
    done
    [ "$("$keepstone" --json bdev stats worked | jq .workers.restarts)" = 3 ] || die "the workers were not replaced"
    "$keepstone" bdev stop worked
}

# killed_loop OPTION…: a loop device with ext4: every file that was synced is there, and the file
# system recovers.
killed_loop() {
    local device mnt=$scratch/mnt i
    mkdir -p "$mnt"
    device=$(attach "$pools/killed" 256M "$@")
    mkfs.ext4 -q "$device"
    mount "$device" "$mnt"
    (
        i=0
        while dd if=/dev/urandom of="$mnt/file$i" bs=16k count=1 conv=fsync status=none 2>/dev/null; do
            sha256sum "$mnt/file$i" >>"$scratch/synced"
            i=$((i + 1))
        done
    ) 2>/dev/null &
    local writer=$!
    sleep 1
    kill -9 "$(server_of "$device")"
    await_exit 60 "$writer" || true
    umount "$mnt" 2>/dev/null || umount --lazy "$mnt"
    await_until 30 fails losetup --detach "$device"

    device=$(attach "$pools/killed" 256M "$@")
    mount "$device" "$mnt"
    [ "$(wc -l <"$scratch/synced")" -gt 10 ] || die "hardly anything was synced before the kill"
    sha256sum --quiet --check "$scratch/synced" || die "what was synced is not there"
    umount "$mnt"
    e2fsck -fn "$device" >"$scratch/check" || die "ext4 is damaged: $(cat "$scratch/check")"
    "$keepstone" bdev detach "$device"
    echo "$(wc -l <"$scratch/synced") synced files are there"
}
