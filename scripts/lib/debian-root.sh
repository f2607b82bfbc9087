# shellcheck shell=bash
# Minimal Debian systems in directories, for tests. Scripts source this and set `here`.

: "${here:?is set by the script}"

# find_debs: sets debs to the directory of the packages of `make deb`, and ends the script by its
# `die` if there are none. Environment: DEBS.
# shellcheck disable=SC2034  # for the scripts
find_debs() {
    debs=${DEBS:-${CARGO_TARGET_DIR:-$here/target}/deb}
    ls "$debs"/keepstone_*.deb >/dev/null || die "no packages in $debs; make them by: make deb"
}

# make_debian_root ROOT SUITE PACKAGES: makes a root file system by debootstrap (variant minbase),
# with the names, proxies and certificates of the machine, as a container has.
make_debian_root() {
    local root=$1 suite=$2 packages=$3 mirror
    "$here/scripts/lib/packages.sh" debootstrap util-linux
    mirror=${MIRROR:-$(sed -nE 's/^(URIs:|deb)[[:space:]]+(\[[^]]*\][[:space:]]+)?(https?:[^[:space:]]*\/debian)\/?([[:space:]].*)?$/\3/p' \
        <(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null) | head -n 1)}
    mirror=${mirror:-http://deb.debian.org/debian}
    mkdir -p "${root%/*}"
    debootstrap --variant=minbase --include="ca-certificates,$packages" "$suite" "$root" "$mirror" || {
        echo "debootstrap from $mirror failed; see $root/debootstrap/debootstrap.log" >&2
        return 1
    }
    cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
    apt-config dump | grep -iE '^Acquire::https?::Proxy ' >"$root/etc/apt/apt.conf.d/proxy" || true
    cp --recursive /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    # No services start in it.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
}

# enter_debian_root ROOT: gives the root /proc, /sys, /dev and /dev/shm, in a mount namespace of the
# caller's own.
enter_debian_root() {
    local root=$1
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
}
