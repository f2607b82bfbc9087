#!/bin/bash
# Installs Debian packages that are missing.
#
#   scripts/lib/packages.sh PACKAGE…
#
# Runs as root, or with sudo.
set -euo pipefail

missing=()
for package; do
    [[ $(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
        missing+=("$package")
done
if ((${#missing[@]} == 0)); then
    exit 0
fi
as_root=()
if ((EUID != 0)); then
    command -v sudo >/dev/null || {
        echo "packages.sh: please install, as root: apt-get install ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
echo "installing ${missing[*]}" >&2
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}")
# A fresh machine has no lists yet; an old one may have lists of versions that are gone.
"${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
    "${install[@]}" >/dev/null
}
