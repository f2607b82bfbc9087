#!/usr/bin/python3
"""threads.py DIRECTORY UID GROUP: a file server whose threads act for users. Fails if one acts as another."""
import ctypes
import os
import sys
import threading

directory, uid, group = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
together = threading.Barrier(2)
wrong = []


def may(name, expected, when, how=os.O_RDONLY):
    try:
        os.close(os.open(f"{directory}/{name}", how))
        found = True
    except PermissionError:
        found = False
    if found != expected:
        wrong.append(f"{when}: {name} {'opened' if found else 'refused'}")


def as_root():
    together.wait()
    libc.setfsuid(0)
    may("secret", True, "root's thread beside a user's")
    together.wait()
    together.wait()
    libc.syscall(122, 0)
    may("secret", True, "root's thread after the system call")
    together.wait()
    together.wait()
    libc.setfsuid(uid)
    may("secret", False, "root's thread as a user")
    libc.setfsuid(0)
    may("secret", True, "root's thread as root again")


def as_user():
    libc.setfsgid(uid)
    libc.setfsuid(uid)
    may("secret", False, "a user's thread, alone")
    together.wait()
    together.wait()
    may("secret", False, "a user's thread after root's")
    may("secret", False, "a user's thread after root's, to write", os.O_RDWR)
    together.wait()
    together.wait()
    may("secret", False, "a user's thread after root's system call")
    may("group", False, "a user's thread without the group")
    libc.setfsgid(group)
    may("group", True, "a user's thread with the group")
    try:
        os.close(os.open(f"{directory}/made", os.O_CREAT | os.O_WRONLY))
        wrong.append("a user's thread makes files in root's directory")
    except PermissionError:
        pass
    together.wait()


# Before any thread has an identity of its own.
may("secret", True, "root at first")
threads = [threading.Thread(target=as_root), threading.Thread(target=as_user)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
may("secret", True, "root's first thread at the end")
sys.exit("\n".join(wrong) if wrong else 0)
