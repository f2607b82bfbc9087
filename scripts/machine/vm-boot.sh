#!/usr/bin/env bash
# Boots a virtual machine whose root disk is served by `keepstone bdev serve`, and kills both ends.
#
#   scripts/machine/vm-boot.sh
#
# The machine (QEMU, lib/machine.sh) has the disk over the server's NBD socket. It checks its files
# and writes records, each durable before the console reports it. Meanwhile the server is killed:
# QEMU waits for the next one, and the guest notices no error. Then the machine is killed and booted
# again: every reported record is there, and the file system is sound. Takes half a minute; installs
# packages by apt, as root. KEEPSTONE is the program under test (default: target/release/keepstone).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
# shellcheck source=../lib/wait.sh
source "$root/scripts/lib/wait.sh"
keepstone=${KEEPSTONE:-$root/target/release/keepstone}
# The number of records that become durable before the next kill.
records=5

scratch=$(mktemp -d /tmp/keepstone-vm.XXXXXX)
pool=$(mktemp -d /dev/shm/keepstone-vm.XXXXXX)/disk
socket=$scratch/disk.sock
log=$scratch/console
guest='' server=''
clean_up() {
    [ -z "$guest" ] || kill -9 "$guest" 2>/dev/null || true
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
    rm -rf "$scratch" "${pool%/*}"
}
trap clean_up EXIT

# serve OPTION…: starts a server of the disk.
serve() {
    server=$("$keepstone" --json bdev serve "$pool" --socket "$socket" "$@" | jq .pid)
}

# Makes a root file system with busybox and known files, and writes it through the server onto its
# disk.
make_disk() {
    local tree=$scratch/root
    mkdir -p "$tree"/{bin,dev,proc,sbin,records}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    dd if=/dev/urandom of="$tree/known" bs=1M count=4 status=none
    (cd "$tree" && sha256sum known bin/busybox >manifest)
    guest_init >"$tree/sbin/init"
    chmod 755 "$tree/sbin/init"
    truncate -s 48M "$scratch/image"
    mkfs.ext4 -q -d "$tree" "$scratch/image"
    qemu-img convert -n -f raw -O raw "$scratch/image" "nbd:unix:$socket"
}

# The program that the guest runs from its disk. `confirmed` is the number of records that it
# reported before.
guest_init() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
end() { mount -o remount,ro / || echo "still writing"; echo "guest-exit $1"; poweroff -f; }
cd /
sha256sum -c manifest || end 1
[ "$confirmed" = 0 ] || for n in $(seq $confirmed); do
    [ "$(cat records/$n)" = "record $n" ] || { echo "record $n is lost"; end 1; }
done
echo "found $confirmed records"
[ "$confirmed" = 0 ] || end 0
n=0
while true; do
    n=$((n + 1))
    echo "record $n" | dd of=records/$n conv=fsync 2>/dev/null || end 1
    echo "durable $n"
done
INIT
}

# Makes $scratch/initrd, which mounts the disk and goes on there.
make_initrd() {
    mkdir "$scratch/initrd-tree"
    cat >"$scratch/initrd-tree/main" <<'MAIN'
mkdir /disk && mount -t ext4 /dev/vda /disk || end 104
mount --move /dev /disk/dev && mount --move /proc /disk/proc || end 105
exec switch_root /disk /sbin/init
MAIN
    machine_initrd "$scratch/initrd-tree" "$scratch/initrd"
}

# machine CONFIRMED: sets the array qemu. It tries for a minute to reach a server that is gone.
machine() {
    machine_command none '' "$scratch/initrd" "confirmed=$1"
    # shellcheck disable=SC2054  # the commas are QEMU's
    qemu+=(
        -blockdev "driver=nbd,node-name=disk,server.type=unix,server.path=$socket,reconnect-delay=60"
        -device virtio-blk-pci,drive=disk
    )
}

# Prints the last record that the console reported whole.
durable() {
    awk '/^durable [0-9]+\r$/ { n = $2 } END { print n + 0 }' "$log"
}

# await COUNT: waits until COUNT records are durable.
await() {
    local tries
    for ((tries = 0; tries < machine_timeout * 5; tries++)); do
        if (($(durable) >= $1)); then
            return
        fi
        kill -0 "$guest" 2>/dev/null || break
        sleep 0.2
    done
    tail -n 40 "$log" >&2
    die "record $1 does not become durable"
}

"$root/scripts/lib/packages.sh" jq qemu-utils
machine_base
serve --create --size 48M
make_disk
make_initrd

machine 0
: >"$log"
"${qemu[@]}" </dev/null >"$log" 2>&1 &
guest=$!
await "$records"
kill -9 "$server"
# The server has the pool until it has ended.
await_until 30 has_ended "$server"
server=''
before=$(durable)
serve
await $((before + records))
kill -9 "$guest"
{ wait "$guest" || true; } 2>/dev/null
guest=''
confirmed=$(durable)

machine "$confirmed"
machine_run "the second boot" "$log" "$machine_timeout" "found $confirmed records"
qemu-img convert -f raw -O raw "nbd:unix:$socket" "$scratch/image"
e2fsck -fn "$scratch/image" >"$scratch/check" 2>&1 || die "ext4 is damaged: $(cat "$scratch/check")"
"$keepstone" bdev stop "$socket"
server=''
echo "booted twice; all $confirmed records are there"
