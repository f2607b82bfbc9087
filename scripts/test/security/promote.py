#!/usr/bin/python3
"""promote.py DIRECTORY UID: uses files of a pool in each way that makes the mount open them, and prints their names."""
import fcntl
import mmap
import os
import subprocess
import sys

directory, uid = sys.argv[1] + "/", int(sys.argv[2])


def show(what, fd):
    print(what, os.readlink(f"/proc/self/fd/{fd}"), flush=True)
    try:
        print(what, os.readlink(f"/proc/thread-self/fd/{fd}"), flush=True)
    except OSError:
        pass


secret = open(directory + "secret", "r+")
fcntl.lockf(secret, fcntl.LOCK_EX)
show("locked", secret.fileno())
mapping = mmap.mmap(secret.fileno(), 0)
show("mapped", secret.fileno())
with open("/proc/self/maps") as maps:
    print(*(line for line in maps if "keepstone" in line and ".so" not in line))
subprocess.run(["cat"], stdin=open(directory + "secret"), stdout=subprocess.DEVNULL, check=True)
for name in ("link", "fifo", "."):
    fd = os.open(directory + name, os.O_PATH | os.O_NOFOLLOW)
    os.set_inheritable(fd, True)
    subprocess.run(["ls", "-l", "/proc/self/fd/"], close_fds=False, check=False)
    show(name, fd)
for n in range(20):
    # As another user's standard input, output and error.
    command = ["readlink", "/proc/self/fd/0", "/proc/self/fd/2"]
    with open(directory + "other") as given, open(directory + f"out-{n}", "w") as error:
        subprocess.run(command, stdin=given, stderr=error, user=uid, group=uid, extra_groups=[], check=False)
os.mkdir(directory + "gone")
gone = os.open(directory + "gone", os.O_RDONLY | os.O_DIRECTORY)
os.rmdir(directory + "gone")
os.set_inheritable(gone, True)
subprocess.run(["true"], close_fds=False, check=True)
show("removed", gone)
