#!/usr/bin/env bash
# Tests Chell-Direct on DAX file systems of an emulated NVDIMM, where the kernel grants MAP_SYNC.
#
#   scripts/machine/direct.sh [ext4|xfs]...      default: both
#
# Boots a small QEMU machine once per file system (lib/machine.sh), which runs the tests of
# crates/front/preload/tests/direct there: random calls on served files against the kernel's
# answers, and truncation by another process. KEEPSTONE_OPS: number of calls (4000); some two
# minutes each.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
ops=${KEEPSTONE_OPS:-4000}
mkdir -p "$machine"

# Makes $machine/direct.initrd.
build() {
    local tree=$machine/direct-tree test library
    say "building the tests"
    test=$(cd "$root" && cargo test --quiet --release -p preload --test it --no-run --message-format=json |
        jq -r 'select(.executable != null and .target.name == "it") | .executable')
    library=$(dirname "$test")/libkeepstone.so
    rm -rf "$tree"
    machine_program "$tree" "$test"
    mv "$tree/bin/${test##*/}" "$tree/bin/direct"
    install -s -m 755 "$library" "$tree/bin/libkeepstone.so"
    machine_program "$tree" "$(command -v mkfs.xfs)"
    cat >"$tree/main" <<'MAIN'
if [ "$fs" = xfs ]; then
    umount /pmem
    # Older kernels exclude DAX on file systems with reflinks.
    mkfs.xfs -q -f -m reflink=0 /dev/pmem0 && mount -o dax=always /dev/pmem0 /pmem || end 104
fi
grep /pmem /proc/mounts
KEEPSTONE_DIRECT_ON=/pmem KEEPSTONE_OPS=$ops direct direct:: --nocapture --test-threads=1
end $?
MAIN
    machine_initrd "$tree" "$machine/direct.initrd"
}

# boot FS: succeeds if all tests passed there.
boot() {
    local fs=$1 image=$machine/direct-$1.img log=$machine/direct-$1.log qemu
    machine_image fsdax "$image"
    machine_command fsdax "$image" "$machine/direct.initrd" "fs=$fs" "ops=$ops"
    local status=0
    machine_run "$fs" "$log" "$((2 * machine_timeout))" "test result: ok" || status=$?
    rm -f "$image"
    ((status)) || echo "$fs with DAX: $(grep 'calls compared' "$log")"
    return "$status"
}

[ $# -gt 0 ] || set -- ext4 xfs
"$root/scripts/lib/packages.sh" jq xfsprogs
machine_base
build
failed=0
for fs in "$@"; do
    boot "$fs" || failed=1
done
exit $failed
