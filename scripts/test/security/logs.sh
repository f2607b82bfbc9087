# shellcheck shell=bash
# Names and lines of strangers in logs and on root's terminal: logs keep to a size, and names in
# them and in `attach status` are escaped.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

# The most bytes of a log, whatever a stranger does in a few seconds.
LOG_MAX=$((2 << 20))

suite_logs() {
    local path dir=$place/disk log
    make_disk 64M 755
    path=$(pool logs --cache)
    log=$(log_of "$path")
    "$keepstone" attach "$path" "$dir" "$mnt" >/dev/null
    install -d -o "$stranger" -g "$stranger" "$mnt/b"
    as stranger python3 "$here/conflict.py" "$mnt" "$dir" 6
    [ "$(bytes_of "$log")" -lt "$LOG_MAX" ] || die "the log has $(bytes_of "$log") bytes after six seconds"
    "$keepstone" attach status "$mnt" >"$place/status"
    "$keepstone" attach status --metrics "$mnt" >"$place/metrics"
    for file in "$log" "$place/status" "$place/metrics"; do
        [ -e "$file" ] || continue
        ! grep -q $'\e\|\x07' "$file" || die "$file passes escape sequences on"
        ! grep -q "^FORGED" "$file" || die "a name makes lines of its own in $file"
    done
    # Answers that fail in the store of a file, many of them.
    umount "$mnt" 2>/dev/null || umount --lazy "$mnt"
}
