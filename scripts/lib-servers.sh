# shellcheck shell=bash
# Servers that scripts start themselves. Sourced.

# need_server PROGRAM PACKAGE: installs PACKAGE unless PROGRAM is there; its service is not left running.
need_server() {
    command -v "$1" >/dev/null && return
    "$(dirname "${BASH_SOURCE[0]}")/lib-packages.sh" "$2"
    systemctl disable --now "$2" 2>/dev/null || service "$2" stop 2>/dev/null || true
}
