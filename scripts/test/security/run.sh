#!/bin/bash
# Runs attacks by unprivileged users on a machine where root uses Keepstone as README and SERVICES
# recommend. Each suite asserts that its attacks are refused, or end as SECURITY.md promises.
#
#   scripts/test/security/run.sh SUITE     SUITE: a file of this directory, or all
#
# Each suite has mount and PID namespaces of its own, with its own /dev/shm, /run, /tmp, list of
# users and a /dev/fuse for every user. Leftovers of a suite end with them, also after a failure.
# Needs root. Installs what it lacks by apt-get; nothing is skipped silently. Environment:
# KEEPSTONE, the program under test (default: target/release/keepstone, then the one in PATH).
set -eEuo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
# shellcheck disable=SC2034  # lib.sh uses it
work=$root/.work
source "$here/../../lib/wait.sh"
source "$here/../mount/lib.sh"
source "$here/lib.sh"

suites=(arena-member cache-pool chattr descriptors environment fake-mount flock former-owner logs nbd pins promoted redirects reserve setfsuid setuid shm starvation stats stopped-member)
suite=${1:?usage: run.sh SUITE; suites: ${suites[*]} all}

if [ "$suite" = all ]; then
    each "$0" -- "${suites[@]}"
    exit 0
fi
[ -f "$here/$suite.sh" ] || die "no suite $suite; there are: ${suites[*]}"
if [ -z "${SECURITY_NAMESPACES:-}" ]; then
    "$root/scripts/lib/packages.sh" fuse3 attr acl python3 e2fsprogs util-linux openssl jq
    # The end of the first process of a PID namespace ends all others.
    SECURITY_NAMESPACES=1 exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$0" "$suite"
fi
make_place "$(keepstone_path)"
# shellcheck source=/dev/null  # each is checked by itself
source "$here/$suite.sh"
echo "== $suite"
SECONDS=0
"suite_${suite//-/_}"
echo "== $suite: passed ($SECONDS s)"
