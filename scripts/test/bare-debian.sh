#!/bin/bash
# Tries the first commands of a newcomer on a minimal Debian 12: `make demo` has to install all that
# it needs.
#
#   scripts/test/bare-debian.sh [--test] [--keep] [DIR]
#
# Makes a root file system by debootstrap (variant minbase) in DIR (default .work/bare-debian), with
# git, make, and gcc, gives it this machine's Rust toolchain, clones the last commit of the checkout
# into it, and runs `make demo` there, with --test also `make test`. The root has mounts, /dev,
# /dev/shm and processes of its own. It is removed at the end, except with --keep. Needs root; takes
# 10 minutes and 3 GB, with --test an hour and 20 GB.
#
# Environment: KEEPSTONE, the program to show instead of a release build, with libkeepstone.so in
# the same directory; MIRROR, of Debian's packages (default: that of this machine); BARE_TIMEOUT,
# the limit of each command in seconds (default 7200).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# shellcheck source=../lib/debian-root.sh
source "$here/scripts/lib/debian-root.sh"

die() {
    echo "bare-debian.sh: $*" >&2
    exit 1
}

if [ "${BARE_INSIDE:-}" = '' ]; then
    targets=(demo) keep='' root=$here/.work/bare-debian
    while [ $# -gt 0 ]; do
        case $1 in
            --test) targets+=(test) ;;
            --keep) keep=yes ;;
            -*) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2 ;;
            *) root=$(realpath --canonicalize-missing "$1") ;;
        esac
        shift
    done
    ((EUID == 0)) || die "needs root, for debootstrap and chroot"
    [ ! -e "$root" ] || die "$root exists; remove it, or name another directory"
    "$here/scripts/lib/packages.sh" git
    [ "$keep" != '' ] || trap 'rm -rf --one-file-system "$root"' EXIT
    make_debian_root "$root" bookworm gcc,git,libc6-dev,make || die "no root file system"
    git -c safe.directory='*' clone --quiet --no-hardlinks "$here" "$root/keepstone"
    # Its mounts and processes end with the shell inside.
    BARE_INSIDE=$root unshare --mount --pid --fork --kill-child --propagation private "$0" "${targets[@]}"
    echo "bare-debian.sh: passed: ${targets[*]}"
    exit
fi

# Inside: the first process of its own namespaces.
root=$BARE_INSIDE
mkdir -p "$root/opt/rust" "$root/opt/cargo/registry" "$root/opt/keepstone"
mount --bind -o ro "$(rustc --print sysroot)" "$root/opt/rust"
# The crates that this machine has fetched.
[ ! -d "${CARGO_HOME:-$HOME/.cargo}/registry" ] ||
    mount --bind "${CARGO_HOME:-$HOME/.cargo}/registry" "$root/opt/cargo/registry"
enter_debian_root "$root"
environment=(HOME=/root LANG=C.UTF-8 CARGO_HOME=/opt/cargo
    PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
if [ "${KEEPSTONE:-}" != '' ]; then
    mount --bind -o ro "$(dirname "$(realpath "$KEEPSTONE")")" "$root/opt/keepstone"
    environment+=("KEEPSTONE=/opt/keepstone/$(basename "$KEEPSTONE")")
fi
for target; do
    # `make demo` builds a release even if there is a program to show.
    command=(make "$target")
    [ "$target/${KEEPSTONE:-}" = demo/ ] || [ "$target" != demo ] || command=(scripts/demo.sh)
    status=0
    chroot "$root" env -i "${environment[@]}" timeout --verbose "${BARE_TIMEOUT:-7200}" \
        env --chdir=/keepstone "${command[@]}" </dev/null || status=$?
    ((status == 0)) || die "${command[*]} failed with status $status"
done
