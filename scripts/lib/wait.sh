# shellcheck shell=bash
# Waits with limits: each prints a message if its limit is reached. Scripts source this.

# await_until SECONDS COMMAND…: runs COMMAND every 10 ms until it succeeds. After SECONDS it reports
# the command and fails.
await_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        if ((SECONDS >= end)); then
            echo "${0##*/}: waited in vain for: $*" >&2
            return 1
        fi
        sleep 0.01
    done
}

# has_ended PID: true for a zombie, too, which holds no resources. A container may have no init that
# reaps it.
has_ended() {
    local state
    kill -0 "$1" 2>/dev/null || return 0
    state=$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [[ ${state:-Z} == Z ]]
}

# await_exit SECONDS PID: returns the exit status of a child. Ends the script if the child still
# runs after SECONDS.
await_exit() {
    await_until "$1" has_ended "$2" || exit 1
    wait "$2" 2>/dev/null
}
