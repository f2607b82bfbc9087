#!/bin/bash
# Runs clients of the field against `keepstone bdev`: NBD clients over sockets and TLS, file systems
# and databases on a loop device, servers that are killed, a machine that boots.
#
#   scripts/test/bdev/run.sh SUITE
#       SUITE: clients, copies, sessions, exports, tls, activation, filesystems, databases, killed,
#       machine, or all
#
# Needs root. Installs what it lacks by apt-get; nothing is skipped silently. Environment:
# KEEPSTONE, the program under test (default: target/release/keepstone, then the one in PATH);
# DEVICE_OPTIONS, more options of `bdev serve` and `bdev loop`, such as "--atomic 4096 --checksums";
# for the suites clients, copies and sessions also "--workers 2".
set -eEuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck disable=SC2034  # lib.sh uses it
work=$root/.work
source "$here/../mount/lib.sh"
source "$here/lib.sh"
# shellcheck source=../../lib/wait.sh
source "$root/scripts/lib/wait.sh"

suites=(clients copies sessions exports tls activation filesystems databases killed machine)
suite=${1:?usage: run.sh SUITE; suites: ${suites[*]} all}
keepstone=$(keepstone_path)
# libnbd's module belongs to Debian's Python, not to another one that may come first.
export PATH=/usr/bin:$PATH

run_suite() (
    # shellcheck source=/dev/null  # each is checked by itself
    source "$here/$1.sh"
    scratch=$(mktemp -d /tmp/keepstone-bdev.XXXXXX)
    pools=$(mktemp -d /dev/shm/keepstone-bdev.XXXXXX)
    trap clean_up EXIT
    echo "== $1"
    SECONDS=0
    suite_"$1"
    echo "== $1: passed ($SECONDS s)"
)

if [ "$suite" = all ]; then
    each "$0" -- "${suites[@]}"
    exit 0
fi
[ -f "$here/$suite.sh" ] || die "no suite $suite; there are: ${suites[*]}"
mkdir -p "$work"
"$root/scripts/lib/packages.sh" libnbd-bin python3-libnbd qemu-utils nbdkit fio jq
run_suite "$suite"
