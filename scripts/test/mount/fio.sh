# shellcheck shell=bash
# fio with verification: by each way to do I/O, reads return the written content.

: "${work:?is set by run.sh}" "${root:?is set by run.sh}"

suite_fio() {
    local dir=$1
    "$root/scripts/lib/packages.sh" fio
    fio_job "$dir" psync --ioengine=psync --bs=4k
    fio_job "$dir" psync-large --ioengine=psync --bs=1m
    fio_job "$dir" unaligned --ioengine=psync --bsrange=512-64k --bs_unaligned
    fio_job "$dir" mmap --ioengine=mmap --bs=4k
    fio_job "$dir" direct --ioengine=psync --direct=1 --bs=4k
    fio_job "$dir" libaio-direct --ioengine=libaio --iodepth=16 --direct=1 --bs=16k
    fio_job "$dir" fsync --ioengine=psync --bs=8k --fsync=8
}

# fio_job DIR NAME OPTION…: makes random writes, then reads that verify, by four jobs with a file
# each.
fio_job() {
    local dir=$1 name=$2
    shift 2
    echo "$name"
    mkdir -p "$dir/$name" "$work/fio"
    (cd "$work/fio" && fio --name="$name" --directory="$dir/$name" --size=32m --numjobs=4 \
        --rw=randrw --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_backlog=256 \
        --group_reporting "$@" >"$work/fio/$name.log" 2>&1) || {
        tail -20 "$work/fio/$name.log"
        return 1
    }
    rm -rf "${dir:?}/$name"
}
