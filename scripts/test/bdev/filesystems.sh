# shellcheck shell=bash
# ext4, XFS and btrfs on a loop device: made, filled, verified by fio, trimmed, checked; and pools
# that give space back.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}" "${root?is set by run.sh}"

suite_filesystems() {
    "$root/scripts/lib/packages.sh" e2fsprogs xfsprogs btrfs-progs util-linux
    local fs device through mnt=$scratch/mnt
    mkdir "$mnt"
    # Once more with copies by the server, which is not the default if the kernel can copy.
    for fs in ext4 xfs btrfs ext4-server; do
        local options=()
        [ "$fs" = "${fs%-server}" ] || options=(--through server)
        device=$(attach "$pools/$fs" 512M "${options[@]}")
        fs=${fs%-server}
        mkfs."$fs" -q "$device" >/dev/null
        mount "$device" "$mnt"
        fio --name="$fs" --directory="$mnt" --rw=randwrite --bs=4k --size=64M --numjobs=2 --iodepth=16 \
            --ioengine=libaio --direct=1 --fsync=64 --verify=crc32c --verify_state_save=0 \
            --output="$scratch/fio" || die "fio: $(cat "$scratch/fio")"
        cp -a "$root/crates" "$mnt/"
        # Fills it until it is full.
        fails dd if=/dev/zero of="$mnt/filler" bs=1M || die "$fs never fills"
        rm "$mnt/filler"
        fstrim "$mnt"
        umount "$mnt"
        case $fs in
            ext4) e2fsck -fn "$device" >"$scratch/check" ;;
            xfs) xfs_repair -n "$device" >"$scratch/check" 2>&1 ;;
            btrfs) btrfs check "$device" >"$scratch/check" 2>&1 ;;
        esac || die "$fs is damaged: $(cat "$scratch/check")"
        mount "$device" "$mnt"
        [ "$fs" != btrfs ] || btrfs scrub start -B "$mnt" | grep "no errors found" >/dev/null
        diff -r "$root/crates" "$mnt/crates"
        fails "$keepstone" bdev detach "$device" || die "a mounted device was taken away"
        umount "$mnt"
        "$keepstone" bdev detach "$device"
        rm "$pools"/*
        echo "$fs: ok ${options[*]}"
    done
    # Atomic blocks give no space back.
    [[ ${DEVICE_OPTIONS:-} == *atomic* ]] || for through in kernel server; do
        thin "$mnt" "$through"
    done
}

# thin MOUNTPOINT THROUGH: checks that a pool takes space when it is written, and gives back what
# fstrim discards.
thin() {
    local mnt=$1 device written trimmed
    device=$(attach "$pools/thin" 256M --thin --through "$2")
    mkfs.ext4 -q "$device"
    mount "$device" "$mnt"
    dd if=/dev/urandom of="$mnt/file" bs=1M count=64 conv=fsync status=none
    written=$(du -k "$pools/thin" | cut -f1)
    rm "$mnt/file"
    sync -f "$mnt"
    fstrim "$mnt"
    trimmed=$(du -k "$pools/thin" | cut -f1)
    [ "$written" -lt 131072 ] || die "a thin pool took $written KiB for 64 MiB"
    [ $((written - trimmed)) -ge 61440 ] || die "of $written KiB $trimmed are left after fstrim"
    umount "$mnt"
    e2fsck -fn "$device" >"$scratch/check" || die "ext4 is damaged: $(cat "$scratch/check")"
    "$keepstone" bdev detach "$device"
    rm "$pools/thin"
    echo "thin, through $2: $written KiB, $trimmed after fstrim"
}
