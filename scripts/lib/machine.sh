# shellcheck shell=bash
# An emulated machine with an NVDIMM (QEMU). Scripts that source this set `root`, the checkout.
#
# A case is a kind of memory and its access: fsdax (ext4 with -o dax=always), devdax (a character
# device), eadr (fsdax on a platform whose CPU caches persist), none (no NVDIMM). The machine runs
# from an initrd, which machine_base builds and to which a script adds files with machine_initrd.
# QEMU models no CPU caches, so these tests cannot find a missing flush.
#
# Environment:
#   KEEPSTONE_WORK            directory of the kernel, images and builds (default: .work)
#   KEEPSTONE_GUEST_KERNEL    Debian package of the guest's kernel (default: a cloud kernel)
#   KEEPSTONE_GUEST_ACCEL     QEMU accelerator: tcg,thread=single (default; works in a VM), tcg or kvm.
#                             With a thread per CPU, QEMU 7.2 races with kernels that patch their own
#                             code: one boot in some thirty ends in "Oops: int3" (linux-kernel, July 2023)
#   KEEPSTONE_GUEST_TIMEOUT   seconds until a guest counts as hung (default: 180)

: "${root:?is set by the script}"
machine=${KEEPSTONE_WORK:-$root/.work}/nvdimm
# shellcheck disable=SC2034  # for the scripts
machine_timeout=${KEEPSTONE_GUEST_TIMEOUT:-180}
machine_bytes=$((512 << 20))

say() {
    echo "${0##*/}: $*" >&2
}

die() {
    say "$*"
    exit 1
}

# machine_case CASE: sets mode (fsdax, devdax, none), persistence (QEMU's word), domain (Keepstone's
# word).
# shellcheck disable=SC2034  # not every caller wants all three
machine_case() {
    case $1 in
        fsdax) mode=fsdax persistence=mem-ctrl domain=map-sync ;;
        devdax) mode=devdax persistence=mem-ctrl domain=dev-dax ;;
        eadr) mode=fsdax persistence=cpu domain=cpu-cache ;;
        none) mode=none persistence='' domain='' ;;
        *) die "unknown case $1; use fsdax, devdax, eadr or none" ;;
    esac
}

# Installs the packages and makes $machine/kernel and $machine/base.cpio: busybox, the modules in
# the order of their loading, init.
machine_base() {
    "$root/scripts/lib/packages.sh" qemu-system-x86 busybox-static e2fsprogs kmod cpio xz-utils zstd
    [[ $machine/base.cpio -nt ${BASH_SOURCE[0]} ]] && return
    local package tree=$machine/tree unpacked=$machine/unpacked
    package=$(kernel_package) || { apt-get update -qq; package=$(kernel_package); }
    local version=${package#linux-image-}
    say "fetching $package"
    rm -rf "$tree" "$unpacked"
    mkdir -p "$tree"/{bin,dev,proc,sys,tmp,pmem,modules} "$unpacked"
    (cd "$unpacked" && apt-get -o APT::Sandbox::User=root download -qq "$package" && dpkg -x ./*.deb .)
    cp "$unpacked/boot/vmlinuz-$version" "$machine/kernel"
    depmod -b "$unpacked" "$version"

    # An empty configuration: that of ndctl would hook into loading libnvdimm.
    local module file n=100
    for module in ext4 xfs fuse nfit nd_pmem dax_pmem device_dax nbd ublk_drv virtio_blk virtio_pci squashfs overlay; do
        modprobe -C /nonexistent -S "$version" -d "$unpacked" --show-depends "$module"
    done | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r file; do
        local name=${file##*/} out
        out=$tree/modules/$n-${name%%.ko*}.ko
        n=$((n + 1))
        case $file in
            *.xz) xz -dc "$file" >"$out" ;;
            *.zst) zstd -dcq "$file" >"$out" ;;
            *) cp "$file" "$out" ;;
        esac
    done

    cp "$(command -v busybox)" "$tree/bin/busybox"
    machine_init >"$tree/init"
    chmod 755 "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet) >"$machine/base.cpio.new"
    rm -rf "$unpacked"
    mv "$machine/base.cpio.new" "$machine/base.cpio"
}

# The package to download: a metapackage is followed to the one that holds the kernel.
kernel_package() {
    local name real
    for name in ${KEEPSTONE_GUEST_KERNEL:-linux-image-6.12-cloud-amd64 linux-image-cloud-amd64}; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            real=$(apt-cache depends "$name" | awk '/Depends: linux-image-/ {print $2; exit}')
            echo "${real:-$name}"
            return
        fi
    done
    die "no kernel package found; set KEEPSTONE_GUEST_KERNEL"
}

# The guest's init: configures the NVDIMM for the case, then runs /main of the script in the same
# shell. /main finds `path`, where a pool goes, and calls `end STATUS`. Words name=value of the
# kernel command line are in its environment.
machine_init() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir /dev/shm
mount -t tmpfs shm /dev/shm
end() { echo "guest-exit $1"; sync; poweroff -f; }
for m in /modules/*.ko; do insmod "$m" || echo "insmod $m failed"; done
[ "$nvdimm_mode" != none ] || . /main
nd=/sys/bus/nd
tries=0
# A raw namespace has a block device; a configured one has the device of its kind.
while ! [ -b /dev/pmem0 ] && ! [ -c /dev/dax0.0 ]; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { echo "no /dev/pmem0, no /dev/dax0.0"; end 101; }
    sleep 0.1
done
if [ "$(cat $nd/devices/namespace0.0/holder)" = "" ]; then
    # The namespace starts out raw, without the page structures that DAX needs. Give it to the
    # region's free pfn device (fsdax) or dax device (devdax), with these structures in ram.
    case $nvdimm_mode in fsdax) seed=pfn_seed driver=nd_pmem ;; *) seed=dax_seed driver=dax_pmem ;; esac
    device=$(cat $nd/devices/region0/$seed)
    d=$nd/devices/$device
    echo namespace0.0 >$nd/drivers/nd_pmem/unbind &&
        cat /proc/sys/kernel/random/uuid >"$d/uuid" &&
        echo ram >"$d/mode" &&
        echo 2097152 >"$d/align" &&
        echo namespace0.0 >"$d/namespace" &&
        echo "$device" >$nd/drivers/$driver/bind || end 102
fi
if [ "$nvdimm_mode" = fsdax ]; then
    mount -t ext4 -o dax=always /dev/pmem0 /pmem || end 103
    path=/pmem/pool
else
    path=$(ls -d /dev/dax* | head -n 1)
fi
. /main
INIT
}

# machine_attach: prints the beginning of a /main that attaches block devices in the guest.
machine_attach() {
    cat <<'MAIN'
fail() { echo "failed: $1"; cat /tmp/ready; end 1; }

# serve OPTIONS…: starts a server, and waits for its device.
serve() {
    : >/tmp/ready
    keepstone bdev attach $path "$@" --foreground >/tmp/ready 2>&1 &
    server=$!
    tries=0
    until device=$(grep '^/dev/' /tmp/ready); do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "no device"
        sleep 0.1
    done
}

mkdir -p /run /etc /mnt
touch /etc/mtab
ip link set lo up
MAIN
}

# machine_initrd TREE OUT: the base with the files of TREE, among them main.
machine_initrd() {
    (cd "$1" && find . | cpio -o -H newc --quiet) | cat "$machine/base.cpio" - >"$2"
}

# machine_program TREE PROGRAM: copies PROGRAM into TREE/bin, and its libraries to the same paths as
# here.
machine_program() {
    local tree=$1 program=$2 library
    mkdir -p "$tree/bin"
    install -s -m 755 "$program" "$tree/bin/"
    # No libraries, if it is static.
    { ldd "$program" || true; } | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$tree${library%/*}"
        cp -L "$library" "$tree$library"
    done
}

# machine_image CASE IMAGE: makes a new NVDIMM as a sparse file.
machine_image() {
    local mode persistence domain
    machine_case "$1"
    rm -f "$2"
    truncate -s "$machine_bytes" "$2"
    if [[ $mode == fsdax ]]; then
        # A pfn device of 2 MiB alignment keeps the first 2 MiB for itself.
        mkfs.ext4 -q -F -b 4096 -E offset=2097152,stride=512,stripe_width=512 "$2" \
            $((machine_bytes / 1024 - 4096))k
    fi
}

# machine_command CASE IMAGE INITRD WORDS…: sets the array qemu, the command that boots the machine
# with the console on its stdout. WORDS go to the kernel. Stores survive the death of QEMU: the
# memory of the NVDIMM is a shared mapping of IMAGE, which does not matter in the case none.
machine_command() {
    local image=$2 initrd=$3
    # shellcheck disable=SC2034  # of no interest here
    local mode persistence domain
    machine_case "$1"
    shift 3
    local board=q35 nvdimm=()
    if [[ $mode != none ]]; then
        board+=,nvdimm=on,nvdimm-persistence=$persistence
        # shellcheck disable=SC2054  # the commas are QEMU's
        nvdimm=(
            -object "memory-backend-file,id=mem,share=on,mem-path=$image,size=$machine_bytes"
            -device nvdimm,id=nvdimm,memdev=mem
        )
    fi
    # erms off: string instructions are slow under TCG.
    # shellcheck disable=SC2034,SC2054  # the caller runs it; the commas are QEMU's
    qemu=(
        qemu-system-x86_64
        -machine "$board" -accel "${KEEPSTONE_GUEST_ACCEL:-tcg,thread=single}"
        -cpu "max,erms=off,la57=off" -smp 2 -m "1G,slots=2,maxmem=4G"
        "${nvdimm[@]}"
        -kernel "$machine/kernel" -initrd "$initrd"
        -append "console=ttyS0 quiet panic=-1 no_timer_check nowatchdog nvdimm_mode=$mode $*"
        -nodefaults -no-reboot -display none -serial stdio
    )
}

# machine_run NAME LOG SECONDS WORD: boots what machine_command has set, with the console in LOG.
# True when the guest ended with status 0 and a line of the console begins with WORD; else shows the
# console's end.
machine_run() {
    local name=$1 log=$2 seconds=$3 word=$4
    timeout "$seconds" "${qemu[@]}" </dev/null >"$log" 2>&1 || say "$name: qemu ended with $?"
    if grep -q "^guest-exit 0" "$log" && grep -q "^$word" "$log"; then
        return
    fi
    say "$name: FAILED; the console ($log):"
    tail -n 40 "$log" >&2
    return 1
}
