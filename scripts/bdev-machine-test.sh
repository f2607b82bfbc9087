#!/usr/bin/env bash
# Tests `keepstone bdev attach` by the kernel's NBD client, on the NVDIMM of an emulated machine: this
# machine's kernel may have no such client.
#
#   scripts/bdev-machine-test.sh
#
# Boots a small QEMU machine (some 20 s). Installs what it needs by apt, as root. The environment it heeds
# is that of lib-machine.sh, and KEEPSTONE, the program under test (default: target/release/keepstone).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=lib-machine.sh
source "$root/scripts/lib-machine.sh"
keepstone=${KEEPSTONE:-$root/target/release/keepstone}
tree=$machine/bdev-tree
image=$machine/bdev.img
log=$machine/bdev.log
mkdir -p "$machine"

machine_base
rm -rf "$tree"
mkdir "$tree"
machine_program "$tree" "$keepstone"
machine_program "$tree" "$(command -v mkfs.ext4)"
cat >"$tree/main" <<'MAIN'
fail() { echo "failed: $1"; cat /tmp/ready; end 1; }
mkdir -p /run /etc /mnt
touch /tmp/ready
ip link set lo up
keepstone bdev attach $path --create --size 96M --foreground >/tmp/ready 2>&1 &
tries=0
until grep -q '^/dev/nbd' /tmp/ready; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || fail "no device"
    sleep 0.1
done
cat /tmp/ready
dd if=/dev/urandom of=/tmp/random bs=1M count=16 2>/dev/null
dd if=/tmp/random of=/dev/nbd0 bs=1M seek=8 conv=fsync 2>/dev/null || fail "cannot be written"
echo 3 >/proc/sys/vm/drop_caches
dd if=/dev/nbd0 bs=1M skip=8 count=16 2>/dev/null | cmp - /tmp/random || fail "reads otherwise"
dd if=$path bs=1M skip=8 count=16 2>/dev/null | cmp - /tmp/random || fail "the pool holds otherwise"
mkfs.ext4 -q -F /dev/nbd0 || fail "no ext4 on it"
mount -t ext4 /dev/nbd0 /mnt || fail "not mounted"
cp /tmp/random /mnt/random && umount /mnt && mount -t ext4 /dev/nbd0 /mnt || fail "not mounted again"
cmp /mnt/random /tmp/random || fail "the file differs"
keepstone bdev detach /dev/nbd0 2>/dev/null && fail "taken away while mounted"
umount /mnt
keepstone bdev detach /dev/nbd0 || fail "not detached"
[ ! -e /sys/block/nbd0/pid ] || fail "still attached"
wait
echo "bdev ok"
end 0
MAIN
machine_initrd "$tree" "$machine/bdev-initrd"
machine_image fsdax "$image"
machine_command fsdax "$image" "$machine/bdev-initrd"
status=0
machine_run "the kernel's NBD client" "$log" "$machine_timeout" "bdev ok" || status=$?
rm -f "$image"
if ((status == 0)); then
    grep "NBD client" "$log" || true
    echo "attached, used and detached"
fi
exit "$status"
