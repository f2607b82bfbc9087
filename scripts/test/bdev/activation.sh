# shellcheck shell=bash
# Sockets that another process has opened, as systemd does.
: "${keepstone?is set by run.sh}" "${scratch?is set by run.sh}" "${pools?is set by run.sh}"

suite_activation() {
    truncate -s 8M "$pools/disk"
    python3 - "$keepstone" "$pools/disk" "$scratch/sock" <<'PYTHON' &
import os, socket, sys
keepstone, pool, path = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
os.dup2(listener.detach(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(keepstone, [keepstone, "bdev", "serve", pool])
PYTHON
    local server=$!
    await_until 30 test -S "$scratch/sock"
    [ "$(nbdinfo --size "$(uri)")" = 8388608 ] || die "the passed socket is not served"
    kill "$server"
    await_exit 30 "$server" || die "the server did not end in order"
    [ -S "$scratch/sock" ] || die "the socket belongs to systemd, and was removed"
}
