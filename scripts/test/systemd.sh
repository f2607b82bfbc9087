#!/bin/bash
# Boots a Debian with systemd and the packages of `make deb` in an emulated machine, three times.
#
#   scripts/test/systemd.sh [--keep] [SUITE]        (default: bookworm)
#
# Lines of /etc/fstab are a pool in a file, a disk in memory that is saved, a cache in memory over a
# directory, and a pool that does not exist; a unit serves a block device. The first boot checks
# that services start after their mounts and never on the directory below, and writes. The second
# finds everything, the cache's writes in the directory below among them. Then the machine is
# killed; the third finds what had been synced.
#
# Makes the root file system by debootstrap in .work/systemd; --keep keeps it, and one that is there is
# used again. Needs root; takes ten minutes and 3 GB.
# Environment: DEBS and MIRROR, as for package.sh; KEEPSTONE_GUEST_ACCEL, as in lib/machine.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root=$here
# shellcheck source=../lib/machine.sh
source "$here/scripts/lib/machine.sh"
# shellcheck source=../lib/debian-root.sh
source "$here/scripts/lib/debian-root.sh"
# shellcheck source=../lib/wait.sh
source "$here/scripts/lib/wait.sh"

keep='' suite=bookworm
for argument; do
    case $argument in
        --keep) keep=yes ;;
        -*) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2 ;;
        *) suite=$argument ;;
    esac
done
((EUID == 0)) || die "needs root, for debootstrap"
find_debs

work=${KEEPSTONE_WORK:-$here/.work}/systemd
tree=$work/$suite disk=$work/$suite.img console=$work/console
guest=''
clean_up() {
    [ -z "$guest" ] || kill -9 "$guest" 2>/dev/null || true
    [ -n "$keep" ] || rm -rf --one-file-system "$tree" "$disk" "$work"/initrd*
}
trap clean_up EXIT
mkdir -p "$work"

# Packages of Debian that the checks use.
packages=systemd,systemd-sysv,udev,dbus,kmod,fuse3,mount,e2fsprogs,procps,redis-server

# Files of the machine: the lines of fstab, the services, and what each boot checks.
configure() {
    printf '%s\n' keepstone-test >"$tree/etc/hostname"
    cat >"$tree/etc/fstab" <<'FSTAB'
/dev/vda             /            ext4            defaults  0 1
/var/lib/pools/fast  /srv/fast    fuse.keepstone  nofail  0 0
keepstone:/dev/shm/ram  /srv/ram     fuse.keepstone  create,size=64M,save=/var/lib/pools/ram,restore=/var/lib/pools/ram,nofail  0 0
keepstone:/dev/shm/cache  /srv/data    fuse.keepstone  attach=/srv/data,create,size=64M,max_age=3600,nofail,x-systemd.mount-timeout=infinity  0 0
/var/lib/pools/none  /srv/none    fuse.keepstone  nofail  0 0
LABEL=served         /srv/disk    ext4            _netdev,nofail,x-systemd.requires=keepstone-bdev@disk.service  0 0
FSTAB
    mkdir -p "$tree"/srv/{fast,ram,data,none,disk} "$tree"/var/lib/pools "$tree"/etc/keepstone/bdev
    printf 'POOL=/var/lib/pools/disk\nCOMMAND=attach\n' >"$tree/etc/keepstone/bdev/disk.conf"
    mkdir -p "$tree/etc/systemd/system/redis-server.service.d"
    # As docs/SERVICES.md has it.
    cat >"$tree/etc/systemd/system/redis-server.service.d/fast.conf" <<'UNIT'
[Unit]
RequiresMountsFor=/srv/fast
[Service]
PrivateUsers=no
ExecPaths=/usr/bin/keepstone
ReadWritePaths=/srv/fast /var/lib/pools/fast
ExecStartPre=+/usr/bin/install -d -o redis -g redis /srv/fast/redis
ExecStart=
ExecStart=/usr/bin/keepstone run -- /usr/bin/redis-server /etc/redis/redis.conf --dir /srv/fast/redis \
    --appendonly yes --appendfsync always --supervised systemd --daemonize no
UNIT
    # A service whose mount fails.
    cat >"$tree/etc/systemd/system/astray.service" <<'UNIT'
[Unit]
RequiresMountsFor=/srv/none
[Service]
Type=oneshot
ExecStart=/usr/bin/touch /srv/none/astray
[Install]
WantedBy=multi-user.target
UNIT
    cat >"$tree/etc/systemd/system/checks.service" <<'UNIT'
[Unit]
After=multi-user.target redis-server.service srv-fast.mount srv-ram.mount srv-data.mount srv-disk.mount keepstone-bdev@disk.service astray.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/checks
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=10min
[Install]
WantedBy=graphical.target
UNIT
    checks >"$tree/usr/local/sbin/checks"
    chmod 755 "$tree/usr/local/sbin/checks"
}

# The program that each boot runs at its end. `boot` is a word of the kernel's command line.
checks() {
    cat <<'CHECKS'
#!/bin/bash
# No -e: each check counts for itself.
set -uo pipefail
failed=0
check() {
    local name=$1
    shift
    if "$@" >/tmp/checked 2>&1; then
        echo "ok $name"
    else
        failed=1
        echo "FAILED $name: $*"
        tail -n 20 /tmp/checked
    fi
}
isnt() { ! "$@"; }
is() { [ "$1" = "$2" ]; }
redis() { redis-cli "$@" | grep -qx "${want:-OK}"; }
served_by() { findmnt -no FSTYPE "$1" | grep -qx "$2"; }
read -r _ words </proc/cmdline
boot=${words##*boot=}
boot=${boot%% *}

check "the pool is mounted" served_by /srv/fast fuse.keepstone
check "the disk in memory is mounted" served_by /srv/ram fuse.keepstone
check "the cache is mounted" served_by /srv/data fuse.keepstone
check "the file system on the block device is mounted" served_by /srv/disk ext4
check "redis runs" systemctl is-active redis-server
check "redis uses the pool itself" grep -q libkeepstone "/proc/$(systemctl show -P MainPID redis-server)/maps"
check "the missing pool's unit failed" isnt systemctl is-active srv-none.mount
check "a service whose mount failed did not start" isnt systemctl is-active astray
check "nothing is on the directory below" isnt test -e /srv/none/astray
check "doctor finds no fault with redis' unit" keepstone doctor redis-server.service
check "the journal has what the server prints" journalctl -u srv-fast.mount -o cat

case $boot in
    1)
        check "redis stores" redis set key first
        check "a file in memory" cp /bin/bash /srv/ram/bash
        check "files in the cache" cp -a /etc/systemd /srv/data/copied
        check "a file on the device" cp /bin/bash /srv/disk/bash
        check "the directory below has nothing yet" isnt test -e /run/below/copied
        mkdir -p /run/below && mount --bind / /run/below
        check "really nothing" isnt test -e /run/below/srv/data/copied
        umount /run/below
        ;;
    2)
        want=first check "redis has its key" redis get key
        check "the file in memory" cmp /bin/bash /srv/ram/bash
        check "files through the cache" diff -r --no-dereference /etc/systemd /srv/data/copied
        check "the file on the device" cmp /bin/bash /srv/disk/bash
        mkdir -p /run/below && mount --bind / /run/below
        check "files in the directory below" diff -r --no-dereference /etc/systemd /run/below/srv/data/copied
        umount /run/below
        check "redis stores again" redis set key second
        sync
        ;;
    3)
        want=second check "redis has what was acknowledged" redis get key
        check "the file of the saved disk" cmp /bin/bash /srv/ram/bash
        check "files through the cache, again" diff -r --no-dereference /etc/systemd /srv/data/copied
        check "the pool is sound" keepstone check /var/lib/pools/ram
        ;;
esac
if ((failed)); then
    for unit in redis-server keepstone-bdev@disk srv-fast.mount srv-ram.mount srv-data.mount srv-disk.mount; do
        echo "-- $unit"
        journalctl -b -u "$unit" -o cat -n 15 --no-pager
    done
    echo "-- blkid, and calls that filters of system calls have ended"
    blkid
    dmesg | grep -a 'type=1326' | tail -n 3
fi
echo "boot $boot: checks-exit $failed"
[ "$boot" = 2 ] || systemctl poweroff --no-block
CHECKS
}

# A static initial program: modules, then the root disk.
make_initrd() {
    local first=$work/initrd-tree
    mkdir -p "$first"
    cat >"$first/main" <<'MAIN'
mkdir -p /disk
mount -t ext4 /dev/vda /disk || end 104
umount /dev/shm
for d in dev proc sys; do mount -o move /$d /disk/$d; done
exec switch_root /disk /sbin/init
MAIN
    machine_initrd "$first" "$work/initrd"
}

# boot N: boots the machine with its console in $console.N; returns when it has ended, or with `kill`
# at the end of the checks.
boot() {
    local n=$1 log=$console.$1 qemu
    machine_command none '' "$work/initrd" "boot=$n systemd.show_status=1 rw"
    # shellcheck disable=SC2054  # the commas are QEMU's
    qemu+=(-drive "file=$disk,format=raw,if=virtio,cache=unsafe" -m 2G)
    "${qemu[@]}" </dev/null >"$log" 2>&1 &
    guest=$!
    local end=$((SECONDS + 900))
    until grep -q "^boot $n: checks-exit" "$log"; do
        kill -0 "$guest" 2>/dev/null || break
        ((SECONDS < end)) || die "boot $n: no end of its checks after 900 s; see $log"
        sleep 1
    done
    if [ "${2:-}" = kill ]; then
        kill -9 "$guest"
    else
        until ! kill -0 "$guest" 2>/dev/null; do
            ((SECONDS < end + 300)) || die "boot $n: the machine does not end; see $log"
            sleep 1
        done
    fi
    wait "$guest" 2>/dev/null || true
    guest=''
    tr -d '\r' <"$log" | grep -aE '^(ok|FAILED) ' || true
    grep -aq "^boot $n: checks-exit 0" "$log" && return
    tr -d '\r' <"$log" | sed -n '/^FAILED/,/^boot/p' >&2
    die "boot $n failed; see $log"
}

# in_tree COMMAND…: runs a command in the root file system, with /proc.
in_tree() {
    # shellcheck disable=SC2016  # the inner shell expands it
    unshare --mount --propagation private sh -c \
        'mount -t proc proc "$0/proc" && exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$tree" "$@"
}

"$here/scripts/lib/packages.sh" qemu-utils jq
machine_base
make_initrd
[ -d "$tree" ] || make_debian_root "$tree" "$suite" "$packages"
rm -rf "$tree"/debs "$tree"/var/lib/pools
mkdir "$tree/debs"
cp "$debs"/keepstone_*.deb "$debs"/libkeepstone0_*.deb "$tree/debs/"
in_tree DEBIAN_FRONTEND=noninteractive \
    sh -c 'dpkg -i /debs/*.deb || apt-get -y -f install' >"$work/install.log" 2>&1 || die "see $work/install.log"
configure
# make_served: makes the pool of the block device, with a file system.
make_served() {
    local image=$work/served socket=/var/lib/pools/socket server
    truncate -s 64M "$image"
    mkfs.ext4 -q -F -L served "$image"
    server=$(in_tree keepstone --json bdev serve /var/lib/pools/disk --create --size 64M --socket "$socket" | jq .pid)
    qemu-img convert -n -f raw -O raw "$image" "nbd:unix:$tree$socket"
    kill "$server"
    await_until 20 has_ended "$server"
    rm -f "$image"
}

in_tree keepstone mkfs /var/lib/pools/fast --size 64M
make_served
in_tree sh -c 'chgrp redis /var/lib/pools/fast && chmod 660 /var/lib/pools/fast'
in_tree systemctl enable checks.service astray.service keepstone-bdev@disk.service
in_tree systemctl mask serial-getty@ttyS0.service
in_tree systemctl set-default graphical.target
rm -f "$tree/usr/sbin/policy-rc.d"
truncate -s 3G "$disk"
mkfs.ext4 -q -F -d "$tree" "$disk"
boot 1
boot 2 kill
boot 3
echo "systemd.sh: $suite: passed"
