#!/bin/bash
# Builds the FUSE servers that Keepstone is compared with: libfuse's own examples passthrough_ll
# and passthrough_hp, from Debian's source package, against Debian's libfuse.
#
#   scripts/lib/peers.sh DIR     puts the two programs into DIR
#
# Installs what it needs by apt-get.
set -euo pipefail
out=${1:?usage: peers.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=source.sh
source "$here/source.sh"

if [[ -x $out/passthrough_ll && -x $out/passthrough_hp ]]; then
    exit 0
fi
"$here/packages.sh" gcc g++ pkg-config libfuse3-dev fuse3 xz-utils

mkdir -p "$out"
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
fetch_source fuse3 "$build/fuse3"
read -ra flags <<<"$(pkg-config --cflags --libs fuse3)"
gcc -O2 -w "$build/fuse3/example/passthrough_ll.c" -o "$out/passthrough_ll" "${flags[@]}"
g++ -O2 -w -std=c++17 "$build/fuse3/example/passthrough_hp.cc" -o "$out/passthrough_hp" "${flags[@]}"
