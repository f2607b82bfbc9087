# shellcheck shell=bash
# Clients that look at an export and use it: nbdinfo, qemu-img, qemu-io, fio.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}"

suite_clients() {
    serve "$pools/disk" --create --size 64M --describe "disk=a disk"
    nbdinfo --json "$(uri)" >"$scratch/info"
    jq -e '.protocol == "newstyle-fixed" and .structured and (.exports[0] | .description == "a disk"
        and ."export-size" > 66000000 and .can_multi_conn and .can_fua and .can_flush and .can_trim
        and .can_zero and .can_fast_zero and .can_cache and .can_df and (.is_read_only | not)
        and .block_size_minimum <= 4096 and (.contexts == ["base:allocation"]))' "$scratch/info" >/dev/null ||
        die "nbdinfo: $(cat "$scratch/info")"
    nbdinfo --map --totals "$(uri)"

    qemu-img info --output=json "$(uri)" | jq -e '."virtual-size" > 66000000' >/dev/null
    qemu-io -f raw -c 'write -P 0xa1 0 1M' -c 'read -P 0xa1 0 1M' -c 'write -f -P 0xb2 512k 64k' \
        -c 'read -P 0xb2 512k 64k' -c 'write -z 1M 1M' -c 'read -P 0 1M 1M' -c 'write -z -u 2M 1M' \
        -c 'read -P 0 2M 1M' -c 'discard 0 4k' -c 'flush' -c 'aio_write -P 0xc3 4M 4M' -c 'aio_flush' \
        -c 'read -P 0xc3 4M 4M' "$(uri)" >"$scratch/qemu-io"
    fails grep -i -E 'fail|error' "$scratch/qemu-io" || die "$(cat "$scratch/qemu-io")"

    local job
    for job in randwrite:4k:32 rw:64k:8 randrw:512:16; do
        IFS=: read -r rw bs depth <<<"$job"
        [[ $bs != 512 || ${DEVICE_OPTIONS:-} != *atomic* ]] || bs=4k
        fio --name="$rw" --ioengine=nbd --uri="$(uri)" --rw="$rw" --bs="$bs" --iodepth="$depth" --size=32M \
            --verify=crc32c --verify_state_save=0 --output="$scratch/fio" --randrepeat=1 ||
            die "fio: $(cat "$scratch/fio")"
    done
    "$keepstone" --json bdev stats disk | jq -e '.exports[0].requests | .errors == 0 and .writes > 8192' >/dev/null
    "$keepstone" bdev stats disk --prometheus | grep '^keepstone_bdev_requests_writes_total{export="disk",' >/dev/null
    "$keepstone" bdev list | grep "nbd nbd+unix:///?socket=$scratch/sock, 0 clients" >/dev/null
    "$keepstone" bdev stop "$scratch/sock"
    [ ! -e "$scratch/sock" ] || die "the socket stayed"
}
