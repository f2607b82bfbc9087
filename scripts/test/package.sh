#!/bin/bash
# Installs the packages of `make deb` in a minimal Debian, uses them, removes them, and checks that
# no file is left.
#
#   scripts/test/package.sh [--keep] [SUITE]…       (default: bookworm)
#
# Makes a root file system for each suite by debootstrap (variant minbase) in .work/package. The root
# has mounts, /dev, /dev/shm and processes of its own, and is removed at the end, except with --keep.
# Needs root; takes two minutes and 500 MB.
#
# Environment: DEBS, the directory of the packages (default: target/deb); MIRROR, of Debian's
# packages (default: that of this machine).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/debian-root.sh
source "$here/scripts/lib/debian-root.sh"

die() {
    echo "package.sh: $*" >&2
    exit 1
}

if [ "${PACKAGE_ROOT:-}" = '' ]; then
    keep='' suites=()
    for argument; do
        case $argument in
            --keep) keep=yes ;;
            -*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
            *) suites+=("$argument") ;;
        esac
    done
    ((EUID == 0)) || die "needs root, for debootstrap and chroot"
    find_debs
    for suite in "${suites[@]:-bookworm}"; do
        root=$here/.work/package-$suite
        [ ! -e "$root" ] || die "$root exists; remove it"
        [ "$keep" != '' ] || trap 'rm -rf --one-file-system "$root"' EXIT
        make_debian_root "$root" "$suite" fuse3,gcc,libc6-dev,mount,pkg-config
        mkdir "$root/debs"
        cp "$debs"/*.deb "$root/debs/"
        cp "$here/examples/c/counter.c" "$root/debs/"
        # Its mounts and processes end with the shell inside.
        PACKAGE_ROOT=$root unshare --mount --pid --fork --kill-child --propagation private "$0"
        echo "package.sh: $suite: passed"
        [ "$keep" != '' ] || rm -rf --one-file-system "$root"
    done
    exit
fi

# Inside: the first process of its own namespaces.
root=$PACKAGE_ROOT
enter_debian_root "$root"

inside() {
    chroot "$root" env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# Files of the root, without those of package management, mount(8) and systemd themselves, and caches.
files() {
    find "$root" -xdev \( -path "$root/var/lib/dpkg" -o -path "$root/var/lib/apt" -o -path "$root/var/cache" \
        -o -path "$root/run/mount" -o -path "$root/run/systemd" -o -path "$root/var/log" -o -path "$root/debs" -o -path "$root/tmp" \) -prune -o -printf '%P %M %U %G\n' | sort
    cat "$root/etc/group" "$root/etc/passwd"
}

# Dependencies of the packages stay.
inside apt-get -qq -y install systemd udev libc6 >/dev/null
files >"$root/debs/before"
inside sh -c 'apt-get -qq -y --no-install-recommends install /debs/*.deb' >/dev/null
inside getent group keepstone >/dev/null || die "the group keepstone is missing"
# shellcheck disable=SC2016  # the inner shell's
inside sh -euc '
    keepstone --version
    man=/usr/share/man/man1/keepstone-mount.1.gz
    [ -e $man ] && [ -e /usr/share/bash-completion/completions/keepstone ]
    keepstone mkfs /dev/shm/pool --size 64M --label packaged >/dev/null
    echo "keepstone:LABEL=packaged /mnt fuse.keepstone nofail 0 0" >>/etc/fstab
    mount /mnt
    mount -a
    keepstone run --quiet -- cp /etc/passwd /mnt/copy
    cmp /etc/passwd /mnt/copy
    umount /mnt
    [ ! -s /run/mount/utab ]
    keepstone check /dev/shm/pool
    keepstone bench run tmpfs pool --quick --rounds 2 --case stat --html /tmp/bench.html >/dev/null
    rm /tmp/bench.html
    cc -o /tmp/counter /debs/counter.c $(pkg-config --cflags --libs keepstone)
    /tmp/counter /dev/shm/pool
    mkdir /srv/data
    keepstone mkfs /dev/shm/cache --cache --size 64M >/dev/null
    mount -t fuse.keepstone -o attach=/srv/data /dev/shm/cache /srv/data
    cp /usr/bin/keepstone /srv/data/
    umount /srv/data
    cmp /usr/bin/keepstone /srv/data/keepstone
    rm -rf /srv/data /dev/shm/pool /dev/shm/cache
    sed -i /keepstone:LABEL/d /etc/fstab
    systemd-analyze --man=no verify /lib/systemd/system/keepstone-bdev@.service /lib/systemd/system/keepstone-volumes.service'
inside sh -c 'apt-get -qq -y purge keepstone libkeepstone0 libkeepstone-dev' >/dev/null
files >"$root/debs/after"
diff "$root/debs/before" "$root/debs/after" || die "removing the packages leaves this"
