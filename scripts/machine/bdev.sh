#!/usr/bin/env bash
# Tests `keepstone bdev attach` by ublk and by the kernel's NBD client, on the NVDIMM of an emulated
# machine: this machine's kernel may have neither.
#
#   scripts/machine/bdev.sh [ublk|nbd]...      default: both
#
# Boots a small QEMU machine once for each (some 30 s): content, ext4, requests that reach the
# device, refusals, and a server that is killed under a file system. Installs packages by apt, as
# root. Environment: that of lib/machine.sh, and KEEPSTONE_UBLK, a program built with the feature
# `ublk` (default: builds one).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
keepstone=${KEEPSTONE_UBLK:-$machine/ublk-target/release/keepstone}
mkdir -p "$machine"

# Makes $machine/bdev-initrd.
build() {
    local tree=$machine/bdev-tree
    if [ -z "${KEEPSTONE_UBLK:-}" ]; then
        say "building keepstone with ublk"
        "$root/scripts/lib/packages.sh" libclang1-14
        # A target directory of its own, so that other scripts do not run this program by chance.
        (cd "$root" && CARGO_TARGET_DIR=$machine/ublk-target \
            cargo build --quiet --release -p keepstone --features ublk)
    fi
    rm -rf "$tree"
    machine_program "$tree" "$keepstone"
    machine_program "$tree" "$(command -v mkfs.ext4)"
    machine_program "$tree" "$(command -v e2fsck)"
    guest_main >"$tree/main"
    machine_initrd "$tree" "$machine/bdev-initrd"
}

guest_main() {
    machine_attach
    cat <<'MAIN'
# count NAME: prints the number of requests of that kind to the device.
count() { keepstone bdev stats $device --prometheus | sed -n "s/^keepstone_bdev_device_$1_total{.*} //p"; }

# asked NAME: fails unless the device has had a request of that kind.
asked() { [ "$(count $1)" -gt 0 ] || fail "no $1"; }

# fill FILE: writes 16 MiB, durably.
fill() { dd if=/tmp/random of=$1 bs=1M conv=fsync 2>/dev/null; }

content() {
    dd if=/tmp/random of=$device bs=1M seek=8 conv=fsync 2>/dev/null || fail "cannot be written"
    echo 3 >/proc/sys/vm/drop_caches
    dd if=$device bs=1M skip=8 count=16 2>/dev/null | cmp - /tmp/random || fail "reads otherwise"
    dd if=$path bs=1M skip=8 count=16 2>/dev/null | cmp - /tmp/random || fail "the pool holds otherwise"
}

file_system() {
    mkfs.ext4 -q -F -E lazy_itable_init=0 $device || fail "no ext4 on it"
    mount -t ext4 $device /mnt || fail "not mounted"
    fill /mnt/kept && umount /mnt && mount -t ext4 $device /mnt || fail "not mounted again"
    cmp /mnt/kept /tmp/random || fail "the file differs"
    for request in reads writes barriers discards zeroes; do asked $request; done
    keepstone bdev detach $device 2>/dev/null && fail "taken away while mounted"
}

# The next server has all that the killed one had confirmed; file systems on NBD have to be mounted
# again.
killed_nbd() {
    kill -9 $server
    wait $server
    umount /mnt
    serve --by nbd
    mount -t ext4 $device /mnt || fail "not mounted after the kill"
}

# Users of the device wait for the next server.
killed_ublk() {
    fill /mnt/under-way &
    writer=$!
    sleep 0.2
    kill -9 $server
    wait $server
    fill /mnt/later &
    later=$!
    before=$device
    serve --by ublk
    grep "taken over" /tmp/ready || fail "not taken over"
    [ $device = $before ] || fail "another device"
    wait $writer || fail "a write under way failed"
    wait $later || fail "a write without a server failed"
    cmp /mnt/under-way /tmp/random || fail "what was under way differs"
    cmp /mnt/later /tmp/random || fail "what waited differs"
    asked fua_writes
}

# Confirmed writes are lost with the write buffers, so the device has to go, too.
killed_with_buffers() {
    serve --by ublk --buffers 1
    dd if=/tmp/random of=$device bs=1M conv=fsync 2>/dev/null || fail "cannot be written through buffers"
    kill -9 $server
    wait $server
    tries=0
    while [ -b $device ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "the device is there without its server"
        sleep 0.1
    done
    serve --by ublk
    grep "taken over" /tmp/ready && fail "taken over, though content was lost"
    dd if=$device bs=1M count=16 2>/dev/null | cmp - /tmp/random || fail "what was durable differs"
    kill -9 $server
    wait $server
    keepstone bdev attach $path --by ublk --buffers 1 --foreground 2>&1 | grep "bdev detach" ||
        fail "taken over with buffers"
    # Without a server, it can be detached.
    keepstone bdev detach $device || fail "not detached"
    [ "$(ls /sys/class/ublk-char)" = "" ] || fail "devices of killed servers stay"
}

dd if=/dev/urandom of=/tmp/random bs=1M count=16 2>/dev/null
if [ $by = nbd ]; then
    rmmod ublk_drv
    keepstone bdev attach $path --by ublk 2>&1 | grep modprobe || fail "what is missing has no remedy"
fi
serve --create --size 96M
cat /tmp/ready
content
file_system
killed_$by
echo 3 >/proc/sys/vm/drop_caches
cmp /mnt/kept /tmp/random || fail "what was durable differs"
umount /mnt
e2fsck -fn $device || fail "the file system is damaged"
keepstone bdev detach $device || fail "not detached"
wait $server || fail "the server failed"
[ ! -e /sys/block/${device#/dev/}/pid ] || fail "still attached"
[ $by = nbd ] || killed_with_buffers
echo "bdev ok"
end 0
MAIN
}

# boot BY: succeeds if all checks in the machine passed.
boot() {
    local by=$1 image=$machine/bdev-$1.img log=$machine/bdev-$1.log qemu status=0
    machine_image fsdax "$image"
    machine_command fsdax "$image" "$machine/bdev-initrd" "by=$by"
    machine_run "$by" "$log" "$machine_timeout" "bdev ok" || status=$?
    rm -f "$image"
    ((status)) || echo "$by:$(grep '^  by ' "$log")"
    return "$status"
}

[ $# -gt 0 ] || set -- ublk nbd
machine_base
build
failed=0
for by in "$@"; do
    boot "$by" || failed=1
done
exit $failed
