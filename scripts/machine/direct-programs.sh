#!/usr/bin/env bash
# Runs the real programs of scripts/test/run under `keepstone run --direct` on DAX file systems of
# an emulated NVDIMM, where the kernel grants MAP_SYNC.
#
#   scripts/machine/direct-programs.sh [ext4|xfs] [PROGRAM…]     default: both, and all programs
#
# Boots a QEMU machine (lib/machine.sh) once per file system, with the programs of this machine: its
# /usr and /etc, and the needed files of the checkout, in a read-only image under an overlay in
# memory. Each program runs on tmpfs without Keepstone and on DAX with it, and its output and files
# are compared. Takes a quarter of an hour each, as emulation is slow. KEEPSTONE, the program under
# test, is as in run.sh.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
keepstone=$(realpath "${KEEPSTONE:-$root/target/release/keepstone}")
tree=$machine/programs-tree disk=$machine/programs.squashfs
mkdir -p "$machine"

# Makes $disk, the guest's root, and $machine/programs.initrd.
build() {
    say "making an image of this machine's programs"
    rm -rf "$tree" "$disk"
    mkdir -p "$tree/initrd" "$tree/keepstone/target/release"
    cp -r "$root/scripts" "$tree/keepstone/"
    install -s -m 755 "$keepstone" "$(dirname "$keepstone")/libkeepstone.so" "$tree/keepstone/target/release/"
    (cd / && mksquashfs usr etc bin lib lib64 sbin "$tree/keepstone" "$disk" -no-progress -quiet \
        -noI -noD -noF -noX -wildcards -e 'usr/local' 'usr/games' 'usr/share/doc' 'usr/share/man' \
        'usr/share/locale' 'usr/share/icons' 'usr/lib/google-cloud-sdk' 'usr/lib/jvm' 'usr/lib/llvm*' \
        'usr/lib/debug' 'usr/src' >/dev/null)
    cat >"$tree/initrd/main" <<'MAIN'
mkdir /lower && mount -o ro /dev/vda /lower || end 105
mkdir /over && mount -t tmpfs over /over && mkdir /over/up /over/work /programs || end 106
mount -t overlay -o lowerdir=/lower,upperdir=/over/up,workdir=/over/work overlay /programs || end 107
cd /programs && mkdir -p proc sys dev tmp run pmem var/tmp var/lib var/log root && chmod 1777 tmp var/tmp
mount -t proc proc proc && mount -t sysfs sys sys && mount --bind /dev dev || end 108
if [ "$fs" = xfs ]; then
    umount /pmem
    # Older kernels exclude DAX on file systems with reflinks.
    chroot . /usr/sbin/mkfs.xfs -q -f -m reflink=0 /dev/pmem0 && mount -o dax=always /dev/pmem0 /pmem || end 104
fi
grep /pmem /proc/mounts
mount --bind /pmem pmem || end 108
mount -t tmpfs tmp tmp && chmod 1777 tmp dev/shm
mkdir -p dev/pts && mount -t devpts pts dev/pts
ln -sf /proc/self/fd dev/fd
ip link set lo up
mkdir -m 755 pmem/tested
failed=0
for program in $(echo $programs | tr , ' '); do
    chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/tmp LANG=C.UTF-8 \
        bash /keepstone/scripts/test/run/run.sh --direct $program /pmem/tested || failed=1
done
echo "programs: done"
end $failed
MAIN
    machine_initrd "$tree/initrd" "$machine/programs.initrd"
}

# boot FS PROGRAMS: succeeds if all programs passed there.
boot() {
    local fs=$1 image=$machine/programs-$1.img log=$machine/programs-$1.log qemu
    machine_image fsdax "$image"
    machine_command fsdax "$image" "$machine/programs.initrd" "fs=$fs" "programs=$2"
    qemu+=(-drive "file=$disk,format=raw,if=virtio,readonly=on" -m "3G,slots=2,maxmem=6G")
    local status=0
    machine_run "$fs" "$log" "$((20 * machine_timeout))" "programs: done" || status=$?
    rm -f "$image"
    grep -a 'served in user space\|^run.sh:' "$log" | sed "s/^/$fs with DAX: /"
    return "$status"
}

systems=()
while [[ ${1:-} == ext4 || ${1:-} == xfs ]]; do
    systems+=("$1")
    shift
done
[ ${#systems[@]} -gt 0 ] || systems=(ext4 xfs)
[ $# -gt 0 ] || set -- coreutils shells tar git python python-modules sqlite build rsync vim fio rocksdb redis postgres
"$root/scripts/lib/packages.sh" squashfs-tools xfsprogs
machine_base
build
failed=0
for fs in "${systems[@]}"; do
    boot "$fs" "$(IFS=, && echo "$*")" || failed=1
done
exit $failed
