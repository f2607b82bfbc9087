#!/bin/bash
# Builds the image of packaging/container over a minimal Debian, and lets two containers use one
# pool: one makes it, both write to it at the same time through the C interface.
#
#   scripts/test/container.sh
#
# The base image is made by debootstrap, so that no registry of images is needed. Needs root;
# takes two minutes and 1 GB. Environment: DEBS and MIRROR, as for package.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/debian-root.sh
source "$here/scripts/lib/debian-root.sh"

die() {
    echo "container.sh: $*" >&2
    exit 1
}

((EUID == 0)) || die "needs root, for debootstrap"
find_debs
"$here/scripts/lib/packages.sh" podman runc

work=$here/.work/container
[ ! -e "$work" ] || die "$work exists; remove it"
mkdir -p "$work"
# Images and containers of this test only. runc, because crun refuses some arrangements of control
# groups.
podman() {
    command podman --root "$work/storage" --runroot "$work/run" --storage-driver vfs \
        --cgroup-manager cgroupfs --runtime runc "$@"
}
# The locks of podman, which stay in memory.
locks=/dev/shm/libpod_lock
[ ! -e "$locks" ] || locks=''
cleanup() {
    podman rm --all --force --time 0 >/dev/null 2>&1 || true
    [ "$locks" = '' ] || rm -f "$locks"
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT

make_debian_root "$work/root" bookworm gcc,libc6-dev,pkg-config >/dev/null
tar --create --directory "$work/root" --one-file-system . | podman import --quiet - keepstone-base >/dev/null
rm -rf --one-file-system "$work/root"
podman build --quiet --isolation chroot --network host --build-arg BASE=localhost/keepstone-base \
    --file "$here/packaging/container/Containerfile" --tag keepstone "$debs" >/dev/null

# The limits of this shell: more may be forbidden.
limits=(--network none --ulimit "nofile=$(ulimit -n):$(ulimit -n)" --ulimit nproc=4096:4096)
[[ $(podman run --rm "${limits[@]}" keepstone --version) == keepstone\ * ]] || die "the image has no keepstone"
# shellcheck disable=SC2016  # the inner shell's
count='cc -o /tmp/counter /src/counter.c $(pkg-config --cflags --libs keepstone)
    for i in $(seq 50); do /tmp/counter /dev/shm/pool >/tmp/last; done'
podman run --detach --name pool "${limits[@]}" --ipc shareable --shm-size 256m --entrypoint sh \
    --volume "$here/examples/c:/src:ro" keepstone -euc "keepstone mkfs /dev/shm/pool --size 64M
        touch /dev/shm/ready; $count; touch /dev/shm/done; sleep 60" >/dev/null
# wait_for FILE: until the first container has made it.
wait_for() {
    local i
    for ((i = 0; i < 600; i++)); do
        podman exec pool test -e "$1" && return
        sleep 0.1
    done
    die "the first container has not made $1 in a minute: $(podman logs pool 2>&1)"
}
wait_for /dev/shm/ready
podman run --rm "${limits[@]}" --ipc container:pool --pid container:pool --entrypoint sh \
    --volume "$here/examples/c:/src:ro" keepstone -euc "$count"
wait_for /dev/shm/done
bytes=$(podman exec pool /tmp/counter /dev/shm/pool | sed -n 's/ bytes of log//p')
# 101 lines of at least six bytes.
((bytes >= 606)) || die "the log has $bytes bytes, and misses lines"
podman exec pool keepstone check /dev/shm/pool
echo "container.sh: passed"
