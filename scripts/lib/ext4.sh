# shellcheck shell=bash
# ext4 in an image. Benchmarks source this.

# ext4_in IMAGE SIZE DIR: makes an image with ext4 and mounts it on a directory.
ext4_in() {
    truncate -s "$2" "$1"
    mkfs.ext4 -q "$1"
    mount -o loop "$1" "$3"
}
