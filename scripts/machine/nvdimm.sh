#!/usr/bin/env bash
# Tests pmem on an emulated NVDIMM: DAX file system, devdax device, and caches that persist (eADR).
#
#   scripts/machine/nvdimm.sh [fsdax|devdax|eadr]...      default: all three
#
# Builds crates/base/pmem/examples/nvdimm_selftest.rs statically and runs it as the only program of
# a small QEMU machine, once per case (some 10 s each). Installs packages by apt, as root. QEMU
# models no CPU caches: this tests the domain that the kernel grants, and cannot find a missing
# flush. Environment: that of lib/machine.sh.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
target=x86_64-unknown-linux-gnu
mkdir -p "$machine"

# Makes $machine/initrd, which runs the self-test.
build_selftest() {
    local tree=$machine/selftest-tree
    say "building the self-test"
    # A target directory of its own, because the flags differ from those of other builds.
    (cd "$root" && RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR=$machine/target \
        cargo build --quiet --release -p pmem --example nvdimm_selftest --target $target)
    rm -rf "$tree"
    mkdir "$tree"
    cp "$machine/target/$target/release/examples/nvdimm_selftest" "$tree/selftest"
    cat >"$tree/main" <<'MAIN'
cat $nd/devices/region0/persistence_domain
/selftest "$expect" "$path"
end $?
MAIN
    machine_initrd "$tree" "$machine/initrd"
}

# boot CASE: succeeds if the self-test found the domain of the case and its bytes.
boot() {
    local name=$1 image=$machine/$1.img log=$machine/$1.log
    local mode persistence domain qemu
    machine_case "$name"
    machine_image "$name" "$image"
    machine_command "$name" "$image" "$machine/initrd" "expect=$domain"
    local status=0
    machine_run "$name" "$log" "$machine_timeout" "ok $domain" || status=$?
    rm -f "$image"
    ((status)) || echo "$name: ok $domain"
    return "$status"
}

[ $# -gt 0 ] || set -- fsdax devdax eadr
for case in "$@"; do
    machine_case "$case"
done
machine_base
build_selftest
failed=0
for case in "$@"; do
    boot "$case" || failed=1
done
exit $failed
