# shellcheck shell=bash
# The calls of libnbd, errors included (sessions.py).
: "${pools?is set by run.sh}" "${here?is set by run.sh}"

suite_sessions() {
    serve "$pools/disk" --create --size 16M
    python3 "$here/sessions.py" "$(uri)"
}
