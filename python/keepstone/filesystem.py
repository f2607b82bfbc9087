"""A file system for fsspec over a pool.

    fs = fsspec.filesystem("keepstone", pool="/dev/shm/pool")
    pandas.read_csv("keepstone://data/table.csv", storage_options={"pool": "/dev/shm/pool"})
"""

import os
import stat as kinds

from fsspec import AbstractFileSystem

from ._pool import Pool


def _kind(mode):
    if kinds.S_ISDIR(mode):
        return "directory"
    return "link" if kinds.S_ISLNK(mode) else "file" if kinds.S_ISREG(mode) else "other"


class KeepstoneFileSystem(AbstractFileSystem):
    """The files of the pool at the path `pool`."""

    protocol = "keepstone"
    root_marker = "/"
    # Another process may change the pool at any time.
    use_listings_cache = False

    def __init__(self, pool, **options):
        super().__init__(**options)
        self.pool = Pool(pool)

    @classmethod
    def _strip_protocol(cls, path):
        path = super()._strip_protocol(path)
        if isinstance(path, list):
            return path
        return "/" + path.strip("/")

    def _details(self, path, stat):
        return {"name": path, "size": stat.st_size, "type": _kind(stat.st_mode), "mode": stat.st_mode,
                "ino": stat.st_ino, "nlink": stat.st_nlink, "uid": stat.st_uid, "gid": stat.st_gid,
                "mtime": stat.st_mtime, "created": stat.st_ctime}

    def info(self, path, **_):
        path = self._strip_protocol(path)
        return self._details(path, self.pool.stat(path))

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        if not self.pool.isdir(path):
            found = [self.info(path)]
        else:
            found = []
            for name in sorted(self.pool.listdir(path)):
                full = path.rstrip("/") + "/" + name
                try:
                    found.append(self._details(full, self.pool.stat(full)))
                except FileNotFoundError:
                    # It was removed meanwhile, or is a link that leads nowhere.
                    continue
        return found if detail else [entry["name"] for entry in found]

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **_):
        return self.pool.open(path, mode)

    def mkdir(self, path, create_parents=True, **_):
        path = self._strip_protocol(path)
        if create_parents:
            self.pool.makedirs(path)
        else:
            self.pool.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.pool.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.pool.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.pool.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        for found in self.expand_path(path, recursive=recursive, maxdepth=maxdepth)[::-1]:
            if kinds.S_ISDIR(self.pool.lstat(found).st_mode):
                self.pool.rmdir(found)
            else:
                self.pool.unlink(found)

    def mv_file(self, path1, path2, **_):
        self.pool.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(self, path1, path2, recursive=False, maxdepth=None, **_):
        self.mv_file(path1, path2)

    def cp_file(self, path1, path2, **_):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.pool.isdir(path1):
            self.pool.makedirs(path2, exist_ok=True)
            return
        # A clone shares its blocks, and appears as a whole.
        temporary = f"{path2}.{os.getpid():x}-{os.urandom(8).hex()}"
        self.pool.clone(path1, temporary)
        self.pool.rename(temporary, path2)

    def cat_file(self, path, start=None, end=None, **_):
        path = self._strip_protocol(path)
        with self.pool.open(path, "rb", buffering=0) as file:
            size = file.stat().st_size
            start = 0 if start is None else start if start >= 0 else max(size + start, 0)
            end = size if end is None else end if end >= 0 else size + end
            return file.pread(max(min(end, size) - start, 0), start)

    def pipe_file(self, path, value, mode="overwrite", **_):
        path = self._strip_protocol(path)
        with self.pool.open(path, "xb" if mode == "create" else "wb", buffering=0) as file:
            file.write(value)

    def created(self, path):
        return self.modified(path)

    def modified(self, path):
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    def sign(self, path, expiration=100, **_):
        raise NotImplementedError("files of a pool have no URLs for others")
