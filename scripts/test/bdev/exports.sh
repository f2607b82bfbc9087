# shellcheck shell=bash
# Several exports, read-only ones, and one that grows.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}"

suite_exports() {
    truncate -s 8M "$pools/first" "$pools/second"
    "$keepstone" bdev serve "$pools/first" --export "other=$pools/second" --describe "other=the other" \
        --socket "$scratch/sock" --listen 127.0.0.1:0 >"$scratch/ready"
    nbdinfo --list --json "$(uri)" | jq -e '[.exports[] | {(."export-name"): .description}] | add ==
        {"first": null, "other": "the other"}' >/dev/null
    nbdinfo --size "$(uri other)" | grep 8388608 >/dev/null
    local tcp
    tcp=$(sed -n 's/^serving on \(nbd:\/\/.*\)/\1/p' "$scratch/ready")
    qemu-io -f raw -c 'write -P 1 0 64k' "$(uri other)" | grep wrote >/dev/null
    qemu-io -f raw -c 'read -P 1 0 64k' "$tcp/other" | grep "read 65536" >/dev/null
    qemu-io -f raw -c 'read -P 0 0 64k' "$tcp/first" | grep "read 65536" >/dev/null
    fails nbdinfo "$(uri nobody)" || die "an export that is not there was served"
    fails "$keepstone" bdev serve "$pools/first" --socket "$scratch/again" || die "a pool was served twice"
    "$keepstone" bdev stop "$scratch/sock"

    "$keepstone" bdev serve "$pools/first" --socket "$scratch/sock" --read-only >/dev/null
    nbdinfo --is read-only "$(uri)" || die "not read-only"
    fails qemu-io -f raw -c 'write 0 4k' "$(uri)" || die "a read-only export was written"
    "$keepstone" bdev stop "$scratch/sock"
}
