# shellcheck shell=bash
# libfuse's own test of a mount, from Debian's source package of fuse3: as root, with files
# unlinked while they are open, and as an ordinary user.

: "${work:?is set by run.sh}" "${root:?is set by run.sh}"
# shellcheck source=../../lib/source.sh
source "$root/scripts/lib/source.sh"

suite_test_syscalls() {
    local dir=$1
    build_test_syscalls
    test_syscalls_run "as root" "$dir/as-root"
    test_syscalls_run "with unlinked files" "$dir/unlinked" -u
    install -d -o nobody -g nogroup "$dir/as-nobody"
    test_syscalls_run "as an ordinary user" "$dir/as-nobody"
}

# test_syscalls_run TITLE DIR OPTION…: runs it as the owner of DIR.
test_syscalls_run() {
    local title=$1 dir=$2 log=$work/test_syscalls/log
    shift 2
    mkdir -p "$dir"
    setpriv --reuid "$(stat -c %u "$dir")" --regid "$(stat -c %g "$dir")" --clear-groups \
        "$work/test_syscalls/test_syscalls" "$dir" "$@" >"$log" 2>&1 || {
        cat "$log"
        return 1
    }
    echo "$title: $(grep -c ' OK$' "$log") tests"
}

build_test_syscalls() {
    local out=$work/test_syscalls src=$work/src/fuse3
    [ -x "$out/test_syscalls" ] && return
    "$root/scripts/lib/packages.sh" gcc libc6-dev dpkg-dev xz-utils
    mkdir -p "$out" "$work/src"
    rm -rf "$src"
    fetch_source fuse3 "$src"
    # The definitions that libfuse's build would find.
    printf '#define HAVE_COPY_FILE_RANGE 1\n#define HAVE_STRUCT_STAT_ST_ATIM 1\n' \
        >"$out/fuse_config.h"
    gcc -O1 -w -D_GNU_SOURCE -I "$out" -o "$out/test_syscalls" "$src/test/test_syscalls.c"
    # For the ordinary user.
    chmod 755 "$work" "$out"
}
