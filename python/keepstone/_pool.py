"""Pools, and the names in them."""

import ctypes
import io
import os
import stat as kinds
import weakref

from . import _library
from ._file import File
from ._library import Stat, Statvfs, Timespec, check, library, path_bytes

_MODES = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
          "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}


def make_pool(path, size, layout="bpfs"):
    """Makes a pool of size bytes in a new file, as `keepstone mkfs` does. layout: bpfs or scmfs."""
    check(library.ks_make_pool(path_bytes(path), size, layout.encode()), path)


def _close(handle):
    library.ks_close_pool(handle)


class DirEntry:
    """An entry of a directory."""

    __slots__ = ("name", "_kind", "_ino")

    def __init__(self, name, kind, ino):
        self.name, self._kind, self._ino = name, kind << 12, ino

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def is_file(self):
        return kinds.S_ISREG(self._kind)

    def is_dir(self):
        return kinds.S_ISDIR(self._kind)

    def is_symlink(self):
        return kinds.S_ISLNK(self._kind)

    def inode(self):
        return self._ino


class Pool:
    """A pool that this process has open, by the path of its file or device. No mount is needed; a mount of
    it, unless made with `-o exclusive`, and other programs may use the pool at the same time.

    Paths begin at the root of the pool, and may be str, bytes or os.PathLike. Methods are named as in the module os,
    and raise OSError as those do. A child of os.fork must not use the pool."""

    def __init__(self, path):
        handle = library.ks_open_pool(path_bytes(path))
        if handle is None:
            raise _library.error(path)
        self.path = os.fsdecode(path)
        self._handle = handle
        self._end = weakref.finalize(self, _close, handle)

    def __repr__(self):
        return f"Pool({self.path!r})"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _use(self):
        if self._handle is None:
            raise ValueError("the pool is closed")
        return self._handle

    def close(self):
        """Makes everything durable and closes the pool. Its open files stay open."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._end.detach()
            check(library.ks_close_pool(handle), self.path)

    def sync(self):
        """Makes everything that has completed durable."""
        check(library.ks_sync(self._use()), self.path)

    def statvfs(self):
        """Returns the space, as os.statvfs."""
        space = Statvfs()
        check(library.ks_statvfs(self._use(), ctypes.byref(space)), self.path)
        return os.statvfs_result([space.bsize, space.frsize, space.blocks, space.bfree, space.bavail, space.files,
                                  space.ffree, space.favail, space.flag, space.namemax])

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        """Opens a file as the function open does. With buffering=0 and a binary mode the result is a File."""
        binary, updating = "b" in mode, "+" in mode
        main = mode.replace("b", "").replace("t", "").replace("+", "")
        if main not in _MODES or ("b" in mode and "t" in mode):
            raise ValueError(f"invalid mode: {mode!r}")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        flags = _MODES[main]
        if updating:
            flags = flags & ~os.O_ACCMODE | os.O_RDWR
        raw = File(self, path, flags)
        if main == "a":
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        kind = io.BufferedRandom if updating else io.BufferedReader if main == "r" else io.BufferedWriter
        buffered = kind(raw, size)
        if binary:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)

    def read_bytes(self, path):
        """Returns all of a file."""
        with self.open(path, "rb", buffering=0) as file:
            return file.readall()

    def write_bytes(self, path, data):
        """Gives a file this content."""
        with self.open(path, "wb", buffering=0) as file:
            return file.write(data)

    def stat(self, path, follow_symlinks=True):
        stat, call = Stat(), library.ks_stat if follow_symlinks else library.ks_lstat
        check(call(self._use(), path_bytes(path), ctypes.byref(stat)), path)
        return stat.result()

    def lstat(self, path):
        return self.stat(path, follow_symlinks=False)

    def exists(self, path):
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path):
        return self.exists(path) and kinds.S_ISDIR(self.stat(path).st_mode)

    def isfile(self, path):
        return self.exists(path) and kinds.S_ISREG(self.stat(path).st_mode)

    def scandir(self, path="/"):
        """Yields the entries of a directory, without . and .."""
        dir = library.ks_opendir(self._use(), path_bytes(path))
        if dir is None:
            raise _library.error(path)
        try:
            while True:
                ctypes.set_errno(0)
                found = library.ks_readdir(dir)
                if not found:
                    break
                entry = found.contents
                if entry.name not in (b".", b".."):
                    yield DirEntry(os.fsdecode(entry.name), entry.type, entry.ino)
            if ctypes.get_errno() != 0:
                raise _library.error(path)
        finally:
            library.ks_closedir(dir)

    def listdir(self, path="/"):
        return [entry.name for entry in self.scandir(path)]

    def mkdir(self, path, mode=0o777):
        check(library.ks_mkdir(self._use(), path_bytes(path), mode), path)

    def makedirs(self, path, mode=0o777, exist_ok=False):
        parent = os.path.dirname(os.fsdecode(path).rstrip("/"))
        if parent.strip("/") and not self.exists(parent):
            self.makedirs(parent, mode, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def rmdir(self, path):
        check(library.ks_rmdir(self._use(), path_bytes(path)), path)

    def unlink(self, path):
        check(library.ks_unlink(self._use(), path_bytes(path)), path)

    remove = unlink

    def rename(self, source, target):
        check(library.ks_rename(self._use(), path_bytes(source), path_bytes(target)), source, target)

    replace = rename

    def clone(self, source, target):
        """Clones a file or a tree, which appears as a whole and shares its blocks if the layout can do that."""
        check(library.ks_clone(self._use(), path_bytes(source), path_bytes(target)), source, target)

    def create_snapshot(self, name):
        """Keeps the present state of the pool as a snapshot."""
        check(library.ks_snapshot_create(self._use(), os.fsencode(name)), name)

    def delete_snapshot(self, name):
        """Deletes a snapshot; all space that only it held becomes free."""
        check(library.ks_snapshot_delete(self._use(), os.fsencode(name)), name)

    def roll_back(self, name):
        """Makes the tree of the pool the one of a snapshot. Files that are open stay open, without a name."""
        check(library.ks_snapshot_rollback(self._use(), os.fsencode(name)), name)

    def snapshots(self):
        """Returns the names of the snapshots, in the order of their creation."""
        return self._names(library.ks_snapshot_list)

    def create_branch(self, name):
        """Makes a branch of the present state of the pool. Pool(f"{path}@{name}") opens it."""
        check(library.ks_branch_create(self._use(), os.fsencode(name)), name)

    def commit_branch(self, name, force=False):
        """Makes a branch the tree of the pool; the branch ends. What only the pool has changed meanwhile is kept.
        Returns the paths that both have changed: if there are any, nothing has changed. With force, the pool gets the
        state of the branch for them, and the list is empty."""
        place = ctypes.create_string_buffer(1 << 20)
        result = library.ks_branch_commit(self._use(), os.fsencode(name), int(bool(force)), place, len(place))
        bytes_used = min(check(result, name), len(place))
        return [os.fsdecode(path) for path in place.raw[:bytes_used].split(b"\0")[:-1]]

    def discard_branch(self, name):
        """Removes a branch; all its space becomes free."""
        check(library.ks_branch_discard(self._use(), os.fsencode(name)), name)

    def branches(self):
        """Returns the names of the branches, sorted."""
        return self._names(library.ks_branch_list)

    def _names(self, call):
        # A pool has up to 40 of both together, with up to 64 bytes.
        place = ctypes.create_string_buffer(8192)
        got = check(call(self._use(), place, len(place)), self.path)
        return [name.decode() for name in place.raw[:got].split(b"\0")[:-1]]

    def link(self, source, target):
        check(library.ks_link(self._use(), path_bytes(source), path_bytes(target)), source, target)

    def symlink(self, source, target):
        check(library.ks_symlink(self._use(), path_bytes(source), path_bytes(target)), source, target)

    def readlink(self, path):
        place = ctypes.create_string_buffer(4096)
        got = check(library.ks_readlink(self._use(), path_bytes(path), place, 4096), path)
        return os.fsdecode(place.raw[:got])

    def chmod(self, path, mode):
        check(library.ks_chmod(self._use(), path_bytes(path), mode), path)

    def chown(self, path, uid, gid):
        """Sets owner and group; -1 leaves one as it is."""
        check(library.ks_chown(self._use(), path_bytes(path), uid & 0xFFFFFFFF, gid & 0xFFFFFFFF), path)

    def utime(self, path, ns=None):
        """Sets the times of access and modification, in nanoseconds; None: both are now."""
        times = None
        if ns is not None:
            times = (Timespec * 2)(*(Timespec(*divmod(n, 1_000_000_000)) for n in ns))
        check(library.ks_utimens(self._use(), path_bytes(path), times), path)

    def getxattr(self, path, name):
        return self._value(library.ks_getxattr, path, os.fsencode(name))

    def setxattr(self, path, name, value, flags=0):
        value = bytes(value)
        result = library.ks_setxattr(self._use(), path_bytes(path), os.fsencode(name), value, len(value), flags)
        check(result, path)

    def listxattr(self, path):
        names = self._value(library.ks_listxattr, path).split(b"\0")[:-1]
        return [os.fsdecode(name) for name in names]

    def removexattr(self, path, name):
        check(library.ks_removexattr(self._use(), path_bytes(path), os.fsencode(name)), path)

    def _value(self, call, path, *name):
        place = ctypes.create_string_buffer(65536)
        got = check(call(self._use(), path_bytes(path), *name, place, 65536), path)
        return place.raw[:got]
