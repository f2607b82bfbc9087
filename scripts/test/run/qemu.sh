# shellcheck shell=bash
# Images of machines' disks, by threads, Linux AIO and io_uring, with and without the page cache.
aios=(threads native)
# Machines can forbid rings altogether.
truncate -s 1M probe
! qemu-img bench -f raw -t none -i io_uring -c 1 probe >/dev/null 2>&1 || aios+=(io_uring)
rm probe
for aio in "${aios[@]}"; do
    for cache in none writeback; do
        # Linux AIO is for files without the page cache.
        [ "$aio,$cache" != native,writeback ] || continue
        qemu-img create -q -f qcow2 image 64M
        qemu-img bench -f qcow2 -t "$cache" -i "$aio" -w -c 1000 -d 16 -s 4096 --pattern=65 image >/dev/null
        qemu-img bench -f qcow2 -t "$cache" -i "$aio" -c 1000 -d 16 -s 4096 image >/dev/null
        qemu-img bench -f qcow2 -t "$cache" -i "$aio" -w -c 200 -d 8 -s 65536 -S 131072 --flush-interval=10 --pattern=66 image >/dev/null
        qemu-img check -q image
        qemu-io -f qcow2 -t "$cache" -c 'read -P 66 0 64k' -c 'read -P 65 64k 64k' -c 'write -P 7 1M 3M' -c 'discard 2M 1M' \
            -c 'read -P 7 1M 1M' -c flush -c 'aio_write -P 9 40M 1M' -c aio_flush -c 'aio_read -P 7 1M 4k' -c aio_flush image |
            grep -v 'ops; '
        qemu-img convert -f qcow2 -O raw -T "$cache" -t "$cache" image raw
        qemu-img compare -T "$cache" image raw
        sha256sum raw
        rm image raw
    done
done
