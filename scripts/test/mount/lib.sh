# shellcheck shell=bash
# Functions that the suites share. run.sh sources this.

: "${work:?is set by run.sh}" "${root:?is set by run.sh}"

# Names the check that fails; with `set -E` also in functions and subshells.
trap 'echo "${BASH_SOURCE[0]##*/}:$LINENO: failed: $BASH_COMMAND" >&2' ERR

die() {
    echo "run.sh: $*" >&2
    exit 1
}

# each COMMAND ARG… -- NAME…: runs COMMAND ARG… NAME for each NAME. At the end, prints the last
# output of failed ones again, because often only the end of a long log is kept.
each() {
    local command=() one log failed=()
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    shift
    log=$(mktemp)
    for one; do
        "${command[@]}" "$one" 2>&1 | tee "$log" || {
            failed+=("$one")
            tail -12 "$log" | sed "s/^/$one: /" >>"$log.failed"
        }
    done
    [ ! -e "$log.failed" ] || cat "$log.failed"
    rm -f "$log" "$log.failed"
    [ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
}

# need_crate NAME VERSION: installs a program from crates.io into .work/tools.
need_crate() {
    [ -x "$work/tools/bin/$1" ] && return
    echo "installing $1 $2"
    CARGO_TARGET_DIR=$work/tools-target cargo install --root "$work/tools" \
        --version "$2" "$1" >"$work/cargo.log" 2>&1 || die "cannot install $1; see $work/cargo.log"
}

# The program under test.
keepstone_path() {
    local candidate
    for candidate in "${KEEPSTONE:-}" "$root/target/release/keepstone" "$(command -v keepstone || true)"; do
        [ -x "$candidate" ] && realpath "$candidate" && return
    done
    die "no keepstone to test; build it with: cargo build --release -p keepstone"
}

# space DIR: prints the free blocks and inodes.
space() {
    stat --file-system --format '%f free blocks, %d free inodes' "$1"
}

helper=/sbin/mount.fuse.keepstone
made_helper=

# install_helper: installs the mount helper, which remounting needs, if it is missing.
install_helper() {
    [ ! -e "$helper" ] || return 0
    ln -s "$keepstone" "$helper"
    made_helper=1
}

# remove_helper: removes what `install_helper` has made.
remove_helper() {
    [ -z "$made_helper" ] || rm -f "$helper"
}

# with_pool COMMAND ARG…: makes a pool, mounts it, runs COMMAND ARG… DIR, unmounts, checks. No
# leftovers may remain: a new count finds the same free space, and no shared state stays. Also
# installs the mount helper, which remounting needs, and removes it again.
with_pool() (
    keepstone=$(keepstone_path)
    mkdir -p "$work"
    # In a place that other users can reach.
    scratch=$(mktemp -d /tmp/keepstone-test.XXXXXX)
    chmod 755 "$scratch"
    pool=$(mktemp -u /dev/shm/keepstone-test.XXXXXX)
    # shellcheck disable=SC2317  # the trap calls it
    clean_up() {
        "$keepstone" umount "$scratch" 2>/dev/null || "$keepstone" umount --lazy "$scratch" || true
        rm -f "$pool"
        remove_helper
        rmdir "$scratch"
    }
    "$keepstone" mkfs "$pool" --layout "${LAYOUT:-bpfs}" --size "${POOL_SIZE:-2G}" >/dev/null
    chmod 666 "$pool"
    # The tests use set-user-ID programs and devices, which a pool that others may write allows only
    # by option.
    "$keepstone" mount -o "suid,dev${MOUNT_OPTIONS:+,$MOUNT_OPTIONS}" "$pool" "$scratch" >/dev/null
    trap clean_up EXIT
    install_helper
    status=0
    "$@" "$scratch" || status=$?
    # Not `grep -q`: it would leave early, and the pipe would break.
    "$keepstone" stats "$scratch" --json | grep '"panics": 0' >/dev/null || {
        echo "the server panicked: $("$keepstone" stats "$scratch" | grep panics)"
        status=1
    }
    # The server takes back the blocks of killed processes within a second.
    [ -z "${MOUNT_OPTIONS:-}" ] || sleep 1.5
    left=$(space "$scratch")
    "$keepstone" umount "$scratch"
    "$keepstone" mount "$pool" "$scratch" >/dev/null
    counted=$(space "$scratch")
    "$keepstone" umount "$scratch"
    [ "$left" = "$counted" ] || {
        echo "space is not given back: $left at the end; counted anew: $counted"
        status=1
    }
    uuid=$("$keepstone" info "$pool" --json | sed -nE 's/.*"uuid": "([^"]*)".*/\1/p')
    left=$(find /dev/shm -maxdepth 1 -name "keepstone-${uuid//-/}*")
    [ -z "$left" ] || {
        echo "shared state stays: $left"
        status=1
    }
    "$keepstone" check "$pool" || status=$?
    trap - EXIT
    rm -f "$pool"
    remove_helper
    rmdir "$scratch"
    return $status
)

# with_cache COMMAND ARG…: makes a directory on the disk and a cache of it, mounts that, runs
# COMMAND ARG… MOUNT, and detaches it. The directory has to have everything then.
with_cache() (
    keepstone=$(keepstone_path)
    scratch=$(mktemp -d /tmp/keepstone-test.XXXXXX)
    pool=$(mktemp -u /dev/shm/keepstone-test.XXXXXX)
    # shellcheck disable=SC2317  # the trap calls it
    clean_up() {
        "$keepstone" umount "$scratch/mount" 2>/dev/null || "$keepstone" umount --lazy "$scratch/mount" || true
        rm -rf "$pool" "$scratch/below" "$scratch/mount"
        remove_helper
        rmdir "$scratch"
    }
    chmod 755 "$scratch"
    mkdir "$scratch/below" "$scratch/mount"
    "$keepstone" mkfs "$pool" --cache --size "${POOL_SIZE:-2G}" >/dev/null
    "$keepstone" attach "$pool" "$scratch/below" "$scratch/mount" >/dev/null
    trap clean_up EXIT
    install_helper
    "$@" "$scratch/mount"
    "$keepstone" umount "$scratch/mount"
    "$keepstone" attach "$pool" "$scratch/below" "$scratch/mount" --json | jq -e '.dirty_bytes == 0' >/dev/null ||
        die "something is left that is not below"
)
