#!/bin/bash
# Makes the wheel, installs it with fsspec into an environment of its own, and runs the tests of
# python/tests there.
#
#   scripts/test/python.sh
#
# Environment: KEEPSTONE, the program whose directory has libkeepstone.so (default:
# target/release/keepstone); PYTHON (default: python3). Fetches fsspec by pip. Takes ten seconds.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
keepstone=${KEEPSTONE:-$here/target/release/keepstone}
python=${PYTHON:-python3}
library=$(dirname "$keepstone")/libkeepstone.so
[ -e "$library" ] || {
    echo "python.sh: $library is missing; run 'make build' before" >&2
    exit 1
}
# Pythons that are not Debian's have it.
"$python" -c 'import ensurepip' 2>/dev/null || "$here/scripts/lib/packages.sh" python3-venv

work=$here/.work/python
mkdir -p "$here/.work"
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
wheel=$("$python" "$here/python/wheel.py" "$library" "$work/wheel")
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "${wheel}[fsspec]"
# The installed package, not that of the checkout or of the environment.
cd "$work"
env -u KEEPSTONE_LIBRARY -u PYTHONPATH "$work/venv/bin/python" -W error -m unittest discover -s "$here/python/tests"
