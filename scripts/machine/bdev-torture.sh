#!/usr/bin/env bash
# Kills an emulated machine with an NVDIMM while it writes to ext4 on a Keepstone block device,
# boots it again on the same memory, and verifies that the file system is clean and has everything
# that was fsynced.
#
#   scripts/machine/bdev-torture.sh [ROUNDS]      default: 3 kills, some 20 s each
#
# The device is attached by the kernel's NBD client. The machine has no CPU cache that could lose a
# store: missing flushes are found by `keepstone crashtest --engine pmbd`. Installs what it needs by
# apt, as root. KEEPSTONE names the program to test; default target/release/keepstone.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
keepstone=$(realpath "${KEEPSTONE:-$root/target/release/keepstone}")
rounds=${1:-3}
tree=$machine/bdev-torture-tree image=$machine/bdev-torture.img log=$machine/bdev-torture.log
initrd=$machine/bdev-torture.initrd
pid=

clean_up() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    rm -f "$image"
}
trap clean_up EXIT

# Each record is a file of its own. `confirmed` is the last record that the machine has reported.
guest_main() {
    machine_attach
    cat <<'MAIN'
[ -e $path ] || create="--create --size 96M"
serve --by nbd $create
if [ "$create" ]; then
    mkfs.ext4 -q -F -E lazy_itable_init=0 $device && mount -t ext4 $device /mnt || fail "no ext4 on it"
else
    # Mounting replays the journal.
    mount -t ext4 $device /mnt && umount /mnt || fail "not mounted after the kill"
    e2fsck -fn $device >/tmp/ready 2>&1 || fail "damaged"
    mount -t ext4 $device /mnt || fail "not mounted again"
fi
record=1
while [ $record -le $confirmed ]; do
    [ "$(cat /mnt/$record)" = "record $record" ] || fail "record $record of $confirmed is lost"
    record=$((record + 1))
done
echo "verified $confirmed"
[ "$last" = "" ] || end 0
while :; do
    echo "record $record" | dd of=/mnt/$record conv=fsync 2>/dev/null || fail "cannot be written"
    echo "confirmed $record"
    record=$((record + 1))
done
MAIN
}

# Prints the number of the last record that the console reports.
last_confirmed() { tr -d '\r' <"$log" | sed -n 's/^confirmed \([0-9]*\)$/\1/p' | tail -n 1; }

mkdir -p "$machine"
"$root/scripts/lib/packages.sh" e2fsprogs
machine_base
rm -rf "$tree"
for program in "$keepstone" "$(command -v mkfs.ext4)" "$(command -v e2fsck)"; do
    machine_program "$tree" "$program"
done
guest_main >"$tree/main"
machine_initrd "$tree" "$initrd"
machine_image fsdax "$image"
confirmed=0
for round in $(seq "$rounds"); do
    machine_command fsdax "$image" "$initrd" "confirmed=$confirmed"
    # shellcheck disable=SC2154  # set by machine_command
    "${qemu[@]}" </dev/null >"$log" 2>&1 &
    pid=$!
    deadline=$((SECONDS + machine_timeout))
    until [ -n "$(last_confirmed)" ]; do
        if ! kill -0 "$pid" 2>/dev/null || [ $SECONDS -gt $deadline ]; then
            say "round $round: FAILED; the console ($log):"
            tail -n 40 "$log" >&2
            exit 1
        fi
        sleep 0.2
    done
    sleep "$((RANDOM % 5)).$((RANDOM % 10))"
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    pid=
    confirmed=$(last_confirmed)
    echo "kill $round: $confirmed records confirmed"
done
machine_command fsdax "$image" "$initrd" "confirmed=$confirmed" last=1
machine_run "after $rounds kills" "$log" "$machine_timeout" "verified $confirmed"
echo "after $rounds kills of the machine, $confirmed of $confirmed records are there"
