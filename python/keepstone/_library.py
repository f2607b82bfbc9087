"""The C interface of libkeepstone.so (include/keepstone.h), by ctypes."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint32, c_void_p

SONAME = "libkeepstone.so.0"


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", c_int64), ("nanos", c_int64)]


class Stat(ctypes.Structure):
    """struct stat of x86-64."""

    _fields_ = [
        ("dev", ctypes.c_uint64),
        ("ino", ctypes.c_uint64),
        ("nlink", ctypes.c_uint64),
        ("mode", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
        ("_pad", c_uint32),
        ("rdev", ctypes.c_uint64),
        ("size", c_int64),
        ("blksize", c_int64),
        ("blocks", c_int64),
        ("atime", Timespec),
        ("mtime", Timespec),
        ("ctime", Timespec),
        ("_reserved", c_int64 * 3),
    ]

    def result(self):
        """Returns the same as os.stat does."""
        times = (self.atime, self.mtime, self.ctime)
        nanos = [time.seconds * 1_000_000_000 + time.nanos for time in times]
        return os.stat_result(
            [self.mode, self.ino, self.dev, self.nlink, self.uid, self.gid, self.size]
            + [time.seconds for time in times]
            + [n / 1e9 for n in nanos]
            + nanos
            + [self.blksize, self.blocks, self.rdev]
        )


class Statvfs(ctypes.Structure):
    """struct statvfs of x86-64."""

    _fields_ = [(name, ctypes.c_uint64) for name in
                ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "fsid", "flag",
                 "namemax")] + [("_reserved", c_int * 6)]


class Dirent(ctypes.Structure):
    """struct dirent of x86-64."""

    _fields_ = [
        ("ino", ctypes.c_uint64),
        ("off", c_int64),
        ("reclen", ctypes.c_uint16),
        ("type", ctypes.c_uint8),
        ("name", ctypes.c_char * 256),
    ]


FUNCTIONS = {
    "ks_make_pool": (c_int, c_char_p, c_int64, c_char_p),
    "ks_open_pool": (c_void_p, c_char_p),
    "ks_close_pool": (c_int, c_void_p),
    "ks_strerror": (c_char_p, c_int),
    "ks_open": (c_void_p, c_void_p, c_char_p, c_int, c_uint32),
    "ks_close": (c_int, c_void_p),
    "ks_pread": (c_ssize_t, c_void_p, c_void_p, c_size_t, c_int64),
    "ks_pwrite": (c_ssize_t, c_void_p, c_void_p, c_size_t, c_int64),
    "ks_read": (c_ssize_t, c_void_p, c_void_p, c_size_t),
    "ks_write": (c_ssize_t, c_void_p, c_void_p, c_size_t),
    "ks_lseek": (c_int64, c_void_p, c_int64, c_int),
    "ks_map": (c_void_p, c_void_p, c_size_t, c_int, c_int64),
    "ks_unmap": (c_int, c_void_p, c_void_p),
    "ks_ftruncate": (c_int, c_void_p, c_int64),
    "ks_fallocate": (c_int, c_void_p, c_int, c_int64, c_int64),
    "ks_fsync": (c_int, c_void_p),
    "ks_fstat": (c_int, c_void_p, POINTER(Stat)),
    "ks_stat": (c_int, c_void_p, c_char_p, POINTER(Stat)),
    "ks_lstat": (c_int, c_void_p, c_char_p, POINTER(Stat)),
    "ks_mkdir": (c_int, c_void_p, c_char_p, c_uint32),
    "ks_rmdir": (c_int, c_void_p, c_char_p),
    "ks_unlink": (c_int, c_void_p, c_char_p),
    "ks_rename": (c_int, c_void_p, c_char_p, c_char_p),
    "ks_clone": (c_int, c_void_p, c_char_p, c_char_p),
    "ks_snapshot_create": (c_int, c_void_p, c_char_p),
    "ks_snapshot_delete": (c_int, c_void_p, c_char_p),
    "ks_snapshot_rollback": (c_int, c_void_p, c_char_p),
    "ks_snapshot_list": (c_ssize_t, c_void_p, c_void_p, c_size_t),
    "ks_branch_create": (c_int, c_void_p, c_char_p),
    "ks_branch_commit": (c_ssize_t, c_void_p, c_char_p, c_int, c_void_p, c_size_t),
    "ks_branch_discard": (c_int, c_void_p, c_char_p),
    "ks_branch_list": (c_ssize_t, c_void_p, c_void_p, c_size_t),
    "ks_link": (c_int, c_void_p, c_char_p, c_char_p),
    "ks_symlink": (c_int, c_void_p, c_char_p, c_char_p),
    "ks_readlink": (c_ssize_t, c_void_p, c_char_p, c_void_p, c_size_t),
    "ks_chmod": (c_int, c_void_p, c_char_p, c_uint32),
    "ks_chown": (c_int, c_void_p, c_char_p, c_uint32, c_uint32),
    "ks_utimens": (c_int, c_void_p, c_char_p, POINTER(Timespec)),
    "ks_getxattr": (c_ssize_t, c_void_p, c_char_p, c_char_p, c_void_p, c_size_t),
    "ks_setxattr": (c_int, c_void_p, c_char_p, c_char_p, c_void_p, c_size_t, c_int),
    "ks_listxattr": (c_ssize_t, c_void_p, c_char_p, c_void_p, c_size_t),
    "ks_removexattr": (c_int, c_void_p, c_char_p, c_char_p),
    "ks_sync": (c_int, c_void_p),
    "ks_statvfs": (c_int, c_void_p, POINTER(Statvfs)),
    "ks_opendir": (c_void_p, c_void_p, c_char_p),
    "ks_readdir": (POINTER(Dirent), c_void_p),
    "ks_closedir": (c_int, c_void_p),
}


def _load():
    """Loads the library once: the one that the process has already (under `keepstone run`), else that of
    KEEPSTONE_LIBRARY, else that of this package, else that of the system."""
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY, use_errno=True)
    except OSError:
        pass
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libkeepstone.so")
    found = os.environ.get("KEEPSTONE_LIBRARY") or (packaged if os.path.exists(packaged) else SONAME)
    return ctypes.CDLL(found, use_errno=True)


library = _load()
for _name, (_result, *_arguments) in FUNCTIONS.items():
    _function = getattr(library, _name)
    _function.restype, _function.argtypes = _result, _arguments


def path_bytes(path):
    """Returns a path as C takes it."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("a path has no NUL")
    return name


def error(*paths):
    """Returns the exception for the error number of the last call."""
    number = ctypes.get_errno()
    text = library.ks_strerror(number).decode(errors="replace")
    if len(paths) == 2:
        return OSError(number, text, os.fsdecode(paths[0]), None, os.fsdecode(paths[1]))
    return OSError(number, text, *map(os.fsdecode, paths))


def check(result, *paths):
    """Returns the result of a call that is -1 after a failure."""
    if result == -1:
        raise error(*paths)
    return result
