# shellcheck shell=bash
# fsx: 40 000 random operations on one file (FSX_OPERATIONS), every read verified; mapped reads and
# writes, direct truncation, holes, preallocation and copies included. A second run uses other files
# at once.

: "${work:?is set by run.sh}"

suite_fsx() {
    local dir=$1 seed n=${FSX_OPERATIONS:-40000}
    need_crate fsx 0.3.2
    mkdir -p "$work/fsx"
    cat >"$work/fsx/fsx.toml" <<TOML
flen = 1048576
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 5
posix_fadvise = 2
copy_file_range = 5
TOML
    echo "$n operations, seed 1"
    fsx_run "$dir/fsx" "$n" 1
    echo "4 files at once, $((n / 4)) operations each, seeds 2 to 5"
    local pids=() pid
    for seed in 2 3 4 5; do
        fsx_run "$dir/fsx$seed" "$((n / 4))" $seed &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
}

fsx_run() {
    "$work/tools/bin/fsx" -f "$work/fsx/fsx.toml" -P "$work/fsx" -N "$2" -S "$3" "$1" \
        >"$work/fsx/$3.log" 2>&1 || {
        tail -20 "$work/fsx/$3.log"
        return 1
    }
    rm -f "$1"
}
