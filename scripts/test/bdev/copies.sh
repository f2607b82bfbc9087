# shellcheck shell=bash
# Content in and out by several connections at once, between servers, and through image formats.
: "${scratch?is set by run.sh}" "${pools?is set by run.sh}"

suite_copies() {
    # Atomic blocks take some of it.
    serve "$pools/disk" --create --size 144M
    local bytes
    bytes=$(nbdinfo --size "$(uri)")
    head -c "$bytes" /dev/urandom >"$pools/random"
    nbdcopy --connections=4 --requests=32 "$pools/random" "$(uri)"
    nbdcopy --connections=4 --requests=32 "$(uri)" "$pools/back"
    same "$pools/random" "$pools/back"
    # From another server.
    nbdcopy -- [ nbdkit --exit-with-parent pattern "$bytes" ] "$(uri)"
    nbdcopy -- [ nbdkit --exit-with-parent pattern "$bytes" ] "$pools/pattern"
    nbdcopy "$(uri)" - | cmp - "$pools/pattern" || die "what nbdkit served did not arrive"

    # Sparse, with a second server on the other side.
    truncate -s "$bytes" "$pools/sparse"
    dd if="$pools/random" of="$pools/sparse" bs=1M count=3 seek=50 conv=notrunc status=none
    nbdcopy "$pools/sparse" "$(uri)"
    qemu-img compare -f raw -F raw "$pools/sparse" "$(uri)"
    qemu-img convert -f raw -O qcow2 "$(uri)" "$pools/image.qcow2"
    qemu-img convert -n -f qcow2 -O raw "$pools/image.qcow2" "$(uri)"
    qemu-img compare -f raw -F qcow2 "$(uri)" "$pools/image.qcow2"
    qemu-nbd --fork --persistent --format=raw --socket="$scratch/qemu" --pid-file="$scratch/qemu.pid" \
        "$pools/back"
    qemu-img convert -n -f raw -O raw "nbd+unix:///?socket=$scratch/qemu" "$(uri)"
    kill "$(cat "$scratch/qemu.pid")"
    nbdcopy "$(uri)" - | cmp - "$pools/random" || die "what qemu-nbd served did not arrive"
}
