# shellcheck shell=bash
# Blocks written in random order and verified: by calls, and by the two interfaces that hand
# descriptors to the kernel.
for engine in psync libaio io_uring; do
    fio --verify_state_save=0 --name="$engine" --filename="$engine" --ioengine="$engine" --size=16M --bs=4k --rw=randwrite --iodepth=8 \
        --randseed=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --end_fsync=1 --output="$engine.log"
    grep -o 'err= *[0-9]*' "$engine.log"
    rm "$engine.log"
    sha256sum "$engine" | wc -l
    stat -c %s "$engine"
    rm "$engine"
done
