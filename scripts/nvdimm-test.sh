#!/usr/bin/env bash
# Tests pmem on an emulated NVDIMM: DAX file system, devdax device, and caches that persist (eADR).
#
#   scripts/nvdimm-test.sh [fsdax|devdax|eadr]...      default: all three
#
# Builds crates/pmem/examples/nvdimm_selftest.rs statically and runs it as the only program of a small
# QEMU machine, once per case (some 10 s each). Installs what it needs by apt, as root.
# QEMU models no CPU caches: this tests what the kernel grants, not whether a flush is missing.
#
# Environment:
#   KEEPSTONE_WORK            where to keep the kernel, images and builds (default: .work)
#   KEEPSTONE_GUEST_KERNEL    Debian package of the guest's kernel (default: a cloud kernel)
#   KEEPSTONE_GUEST_ACCEL     QEMU accelerator: tcg (default, works in a VM) or kvm
#   KEEPSTONE_GUEST_TIMEOUT   seconds until a guest counts as hung (default: 180)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=${KEEPSTONE_WORK:-$root/.work}/nvdimm
target=x86_64-unknown-linux-gnu
mkdir -p "$work"

say() { echo "nvdimm-test: $*" >&2; }
die() { say "$*"; exit 1; }

install_tools() {
    local packages=(qemu-system-x86 busybox-static e2fsprogs kmod cpio xz-utils zstd)
    dpkg -s "${packages[@]}" >/dev/null 2>&1 && return
    say "installing ${packages[*]}"
    apt-get update -qq
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
}

# The package to download: a metapackage is followed to the one that holds the kernel.
kernel_package() {
    local name
    for name in ${KEEPSTONE_GUEST_KERNEL:-linux-image-6.12-cloud-amd64 linux-image-cloud-amd64}; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            local real
            real=$(apt-cache depends "$name" | awk '/Depends: linux-image-/ {print $2; exit}')
            echo "${real:-$name}"
            return
        fi
    done
    die "no kernel package found; set KEEPSTONE_GUEST_KERNEL"
}

# Leaves $work/kernel and $work/base.cpio: busybox, the modules in the order of their loading, init.
build_base() {
    [ "$work/base.cpio" -nt "${BASH_SOURCE[0]}" ] && return
    local package tree=$work/tree unpacked=$work/unpacked
    package=$(kernel_package) || { apt-get update -qq; package=$(kernel_package); }
    local version=${package#linux-image-}
    say "fetching $package"
    rm -rf "$tree" "$unpacked"
    mkdir -p "$tree"/{bin,dev,proc,sys,pmem,modules} "$unpacked"
    (cd "$unpacked" && apt-get -o APT::Sandbox::User=root download -qq "$package" && dpkg -x ./*.deb .)
    cp "$unpacked/boot/vmlinuz-$version" "$work/kernel"
    depmod -b "$unpacked" "$version"

    # An empty configuration: that of ndctl would hook into loading libnvdimm.
    local module file n=100
    for module in ext4 nfit nd_pmem dax_pmem device_dax; do
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
    write_init >"$tree/init"
    chmod 755 "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet) >"$work/base.cpio.new"
    rm -rf "$unpacked"
    mv "$work/base.cpio.new" "$work/base.cpio"
}

# The guest's init. The kernel command line names the mode (fsdax or devdax) and the domain to expect.
write_init() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
end() { echo "guest-exit $1"; sync; poweroff -f; }
for m in /modules/*.ko; do insmod "$m" || echo "insmod $m failed"; done
for word in $(cat /proc/cmdline); do
    case $word in nvdimm.mode=*) mode=${word#*=} ;; nvdimm.expect=*) expect=${word#*=} ;; esac
done
nd=/sys/bus/nd
tries=0
while [ ! -b /dev/pmem0 ]; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { echo "no /dev/pmem0"; end 101; }
    sleep 0.1
done
# The namespace starts out raw, without the page structures that DAX needs. Give it to the region's
# free pfn device (fsdax) or dax device (devdax), with these structures in ram.
case $mode in fsdax) seed=pfn_seed driver=nd_pmem ;; *) seed=dax_seed driver=dax_pmem ;; esac
device=$(cat $nd/devices/region0/$seed)
d=$nd/devices/$device
echo namespace0.0 >$nd/drivers/nd_pmem/unbind &&
    cat /proc/sys/kernel/random/uuid >"$d/uuid" &&
    echo ram >"$d/mode" &&
    echo 2097152 >"$d/align" &&
    echo namespace0.0 >"$d/namespace" &&
    echo "$device" >$nd/drivers/$driver/bind || end 102
if [ "$mode" = fsdax ]; then
    mount -t ext4 -o dax=always /dev/pmem0 /pmem || end 103
    path=/pmem/pool
else
    path=$(ls -d /dev/dax* | head -n 1)
fi
cat $nd/devices/region0/persistence_domain
/selftest "$expect" "$path"
end $?
INIT
}

build_selftest() {
    say "building the self-test"
    # A target directory of its own, because the flags differ from everybody else's.
    (cd "$root" && RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR=$work/target \
        cargo build --quiet --release -p pmem --example nvdimm_selftest --target $target)
    cp "$work/target/$target/release/examples/nvdimm_selftest" "$work/selftest"
    (cd "$work" && echo selftest | cpio -o -H newc --quiet) >"$work/selftest.cpio"
    cat "$work/base.cpio" "$work/selftest.cpio" >"$work/initrd"
}

# boot NAME MODE PERSISTENCE DOMAIN: true when the self-test found DOMAIN and its bytes.
boot() {
    local name=$1 mode=$2 persistence=$3 domain=$4
    local image=$work/$name.img log=$work/$name.log
    rm -f "$image"
    truncate -s 512M "$image"
    if [ "$mode" = fsdax ]; then
        # A pfn device of 2 MiB alignment keeps the first 2 MiB for itself.
        mkfs.ext4 -q -F -b 4096 -E offset=2097152,stride=512,stripe_width=512 "$image" 508M
    fi
    # erms off: string instructions are slow under TCG.
    timeout "${KEEPSTONE_GUEST_TIMEOUT:-180}" qemu-system-x86_64 \
        -machine "q35,nvdimm=on,nvdimm-persistence=$persistence" -accel "${KEEPSTONE_GUEST_ACCEL:-tcg}" \
        -cpu max,erms=off,la57=off -smp 2 -m 1G,slots=2,maxmem=4G \
        -object "memory-backend-file,id=mem,share=on,mem-path=$image,size=512M" \
        -device nvdimm,id=nvdimm,memdev=mem \
        -kernel "$work/kernel" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check nvdimm.mode=$mode nvdimm.expect=$domain" \
        -nodefaults -no-reboot -display none -serial stdio </dev/null >"$log" 2>&1 ||
        say "$name: qemu ended with $?"
    rm -f "$image"
    if grep -q "^guest-exit 0" "$log" && grep -q "^ok $domain" "$log"; then
        echo "$name: ok $domain"
    else
        say "$name: FAILED; the console ($log):"
        tail -n 40 "$log" >&2
        return 1
    fi
}

[ $# -gt 0 ] || set -- fsdax devdax eadr
for case in "$@"; do
    case $case in
        fsdax | devdax | eadr) ;;
        *) die "unknown case $case; use fsdax, devdax or eadr" ;;
    esac
done
install_tools
build_base
build_selftest
failed=0
for case in "$@"; do
    case $case in
        fsdax) boot fsdax fsdax mem-ctrl map-sync ;;
        devdax) boot devdax devdax mem-ctrl dev-dax ;;
        eadr) boot eadr fsdax cpu cpu-cache ;;
    esac || failed=1
done
exit $failed
