#!/bin/bash
# Installs moto, a server that speaks S3, from PyPI. Tests of object stores use it.
#
#   scripts/lib/moto.sh DIR
#
# Makes DIR a virtual environment of Python with DIR/bin/moto_server, unless it has that already.
set -euo pipefail

dir=$1
# Versions 5.2.0 to 5.2.2 answer a failing condition with an internal error.
packages=('moto[s3]==5.2.5' flask flask-cors)

mkdir -p "$(dirname "$dir")"
# One at a time: tests run side by side.
exec 9>"$dir.lock"
flock 9
if [[ -f $dir/complete && $(<"$dir/complete") == "${packages[*]}" ]]; then
    exit 0
fi
rm -rf "$dir"
python3 -c 'import ensurepip, venv' 2>/dev/null || "$(dirname "$0")"/packages.sh python3-venv
echo "installing ${packages[*]}" >&2
python3 -m venv "$dir"
"$dir/bin/pip" --quiet --disable-pip-version-check install "${packages[@]}" >&2
echo "${packages[*]}" >"$dir/complete"
