# shellcheck shell=bash
# pjdfstest: POSIX semantics of each system call (398 cases), compared with tmpfs.
#
# A case must pass on DIR if it passes on tmpfs. Cases that fail in the whole run are repeated by
# themselves up to three times: `mount -o remount,ro` is refused as busy, on tmpfs too, while the
# kernel has not yet closed what an earlier case executed.

: "${work:?is set by run.sh}"

# suite_pjdfstest DIR [COMMAND…]: the cases on DIR are run by COMMAND.
suite_pjdfstest() {
    local dir=$1 out=$work/pjdfstest${2:+-run}
    shift
    need_crate pjdfstest 0.2.2
    mkdir -p "$out"
    pjdfstest_on "$dir" "$out/dir" "$@"
    with_tmpfs pjdfstest_on "$out/tmpfs"
    local worse
    worse=$(comm -23 <(sort "$out/dir.failed") <(sort "$out/tmpfs.failed"))
    echo "on DIR: $(summary "$out/dir")"
    echo "on tmpfs: $(summary "$out/tmpfs")"
    [ -z "$worse" ] || {
        echo "pass on tmpfs, fail on DIR:"
        echo "$worse"
        return 1
    }
}

summary() {
    echo "$(wc -l <"$1.passed") passed, $(wc -l <"$1.failed") failed," \
        "$(wc -l <"$1.skipped") skipped$(paste -sd' ' "$1.failed" | sed 's/^./: &/')"
}

with_tmpfs() (
    local place
    place=$(mktemp -d "$work/tmpfs.XXXXXX")
    mount -t tmpfs pjdfstest "$place"
    trap 'umount "$place"; rmdir "$place"' EXIT
    "$1" "$place" "$2"
)

# pjdfstest_on DIR OUT [COMMAND…]: leaves OUT.log, OUT.passed, OUT.failed, OUT.skipped.
pjdfstest_on() (
    local dir=$1 out=$2 second base try
    shift 2
    second=$(mktemp -d "$work/second.XXXXXX")
    mount -t tmpfs pjdfstest-second "$second"
    trap 'umount "$second"; rmdir "$second"' EXIT
    # pjdfstest 0.2.2 cannot make a path of PATH_MAX below some lengths of base path: it adds
    # components of 127 bytes after a directory of 22 bytes, and at least 2 bytes must remain.
    base=$dir
    while [ $(((4095 - ${#base} - 22) % 127)) -lt 3 ]; do
        base=$dir/$(printf 'x%.0s' $(seq $((${#base} - ${#dir} + 4))))
    done
    mkdir -p "$base"
    chmod 755 "$base"
    cat >"$out.toml" <<TOML
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
secondary_fs = "$second"
[settings]
naptime = 0.02
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
TOML
    "$@" "$work/tools/bin/pjdfstest" -c "$out.toml" -p "$base" >"$out.log" 2>&1 || true
    grep -qa '^Summary:' "$out.log" || die "pjdfstest did not finish; see $out.log"
    cases "$out" ok >"$out.passed"
    cases "$out" skipped >"$out.skipped"
    cases "$out" FAILED >"$out.first"
    : >"$out.failed"
    while read -r name; do
        for try in 1 2 3 failed; do
            [ $try != failed ] || {
                echo "$name" >>"$out.failed"
                break
            }
            "$@" "$work/tools/bin/pjdfstest" -c "$out.toml" -p "$base" -e "pjdfstest::tests::$name" \
                >"$out.again" 2>&1 || true
            # A name that matches nothing succeeds as well.
            if grep -qa '^Summary: .* 1 passed,.* 1 total' "$out.again"; then
                echo "$name" >>"$out.passed"
                break
            fi
        done
    done <"$out.first"
)

# cases OUT VERDICT: names of the cases with that verdict.
cases() {
    grep -aE "^[a-z_0-9]+(::[a-z_0-9]+)+ +$2" "$1.log" | awk '{ print $1 }'
}
