"""Uses descriptors of files whose owner has changed since: former.py DIR ready go

Opens DIR/file and each other file that the attacks need, makes the file `ready`, and waits for the
file `go`. Then tries what only the owner may do. Prints each attack that succeeded.
"""

import ctypes
import os
import sys
import time

directory, ready, go = sys.argv[1:]
# From <sched.h>.
CLONE_NEWUSER = 0x10000000
# User and group rwx, as `setfacl -m u::rwx,g::rwx,o::rwx` stores it.
ACL = bytes.fromhex("0200000001000700ffffffff04000700ffffffff20000700ffffffff")
attacks = {
    "chmod": lambda fd: os.fchmod(fd, 0o4777),
    "chmod-own-namespace": lambda fd: in_own_namespace(lambda: os.fchmod(fd, 0o4777)),
    "chgrp": lambda fd: os.fchown(fd, -1, os.getgid()),
    "times": lambda fd: os.utime(fd, (5, 5)),
    "acl": lambda fd: os.setxattr(fd, "system.posix_acl_access", ACL),
    "no-acl": lambda fd: os.removexattr(fd, "system.posix_acl_access"),
    "sticky": lambda fd: os.unlink(f"{directory}/sticky/sticky"),
    "sticky-rename": lambda fd: os.rename(
        f"{directory}/sticky/sticky-rename", f"{directory}/sticky/moved"
    ),
}


def in_own_namespace(attack):
    """Runs an attack as root of a user namespace of its own."""
    user = os.getuid()
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        status = 2
        try:
            if libc.unshare(CLONE_NEWUSER) != 0:
                sys.exit("no user namespace")
            with open("/proc/self/uid_map", "w") as table:
                table.write(f"0 {user} 1")
            attack()
            status = 0
        except OSError:
            status = 1
        finally:
            os._exit(status)
    match os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        case 0:
            pass
        case 1:
            raise OSError("refused")
        case _:
            print("the attack in a namespace does not work")


def path_of(name):
    return f"{directory}/sticky/{name}" if name.startswith("sticky") else f"{directory}/{name}"


def opened(name):
    descriptor = os.open(path_of(name), os.O_RDONLY)
    # The kernel has the attributes now.
    os.fstat(descriptor)
    return descriptor


descriptors = {name: opened(name) for name in attacks}
open(ready, "w").close()
while not os.path.exists(go):
    time.sleep(0.05)
for name, attack in attacks.items():
    try:
        attack(descriptors[name])
    except OSError:
        continue
    print(name)
