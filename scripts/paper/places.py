"""Places in which programs run: file systems on block devices of Keepstone, and their peers."""

import contextlib
import os
import subprocess
from dataclasses import dataclass

from page import KEEPSTONE

# Memory in DRAM is flushed and fenced as if it were persistent.
PERSISTENT = {**os.environ, "KEEPSTONE_DRAM_AS_PM": "1"}
SECTOR = 512


def run(*command, **options):
    """Runs a command; returns what it prints. Its errors are shown only if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Place:
    """A file system and the device below it."""

    name: str
    fs: str = "ext4"
    # `keepstone`, `ram` (a loop device on tmpfs), `disk` (one on the machine's disk), or none.
    device: str = "keepstone"
    protect: str = "window"
    scheme: str = "nt"
    has_barriers: bool = True
    emulate: str = ""


@contextlib.contextmanager
def attached(place, size, memory, disk):
    """Attaches the device of a place, with files in `memory` or on `disk`; yields its path."""
    file = os.path.join(disk if place.device == "disk" else memory, "device")
    try:
        if place.device == "keepstone":
            options = ["--protect", place.protect, "--scheme", place.scheme, "--through", "server"]
            if place.emulate:
                options += ["--emulate", place.emulate]
            command = [KEEPSTONE, "bdev", "loop", "--create", "--size", size, *options, file]
            device = run(*command, env=PERSISTENT).split()[-1]
            detach = [KEEPSTONE, "bdev", "detach", device]
        else:
            with open(file, "wb") as made:
                os.posix_fallocate(made.fileno(), 0, size)
            device = run("losetup", "--find", "--show", "--direct-io=on", file).strip()
            detach = ["losetup", "--detach", device]
        try:
            yield device
        finally:
            run(*detach)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)


class Mounted:
    """A mounted place: its directory, and how many bytes its device has moved."""

    def __init__(self, place, device, point):
        self.place, self.device, self.dir = place, device, point
        if device:
            makes = {"xfs": ["mkfs.xfs", "-q", "-f"]}.get(place.fs, [f"mkfs.{place.fs}", "-q", "-F"])
            run(*makes, device)
        self.mount()

    def mount(self):
        place = self.place
        options = ["noatime"]
        if place.fs in ("ext3", "ext4"):
            options.append(f"barrier={int(place.has_barriers)}")
        run("mount", "-t", place.fs, "-o", ",".join(options), self.device or "keepstone-paper", self.dir)
        os.chmod(self.dir, 0o755)

    def forget_pages(self):
        """Empties the page cache of the file system, if it is on a device."""
        if self.device:
            run("umount", self.dir)
            self.mount()

    def moved(self):
        """Returns the bytes that the device has read and written so far."""
        if not self.device:
            return 0, 0
        with open(f"/sys/block/{os.path.basename(self.device)}/stat") as stat:
            fields = stat.read().split()
        return int(fields[2]) * SECTOR, int(fields[6]) * SECTOR


@contextlib.contextmanager
def mounted(place, size, memory, disk):
    """Makes and mounts the file system of a place."""
    point = os.path.join(memory, "mount")
    os.makedirs(point, exist_ok=True)
    has_device = place.fs not in ("tmpfs", "ramfs")
    device = attached(place, size, memory, disk) if has_device else contextlib.nullcontext()
    with device as path:
        at = Mounted(place, path, point)
        try:
            yield at
        finally:
            run("umount", point)
