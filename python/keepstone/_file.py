"""Open files of a pool."""

import ctypes
import io
import os
import threading
import weakref

from . import _library
from ._library import Stat, check, library

# mmap.PROT_READ and PROT_WRITE.
_READ, _WRITE = 1, 2


def _close(handle):
    library.ks_close(handle)


class File(io.RawIOBase):
    """A regular file of a pool, unbuffered: a read or write is one call of the library, which copies to or from the
    pool's memory. A write is atomic, however long it is."""

    def __init__(self, pool, path, flags, mode=0o666):
        super().__init__()
        name = _library.path_bytes(path)
        handle = library.ks_open(pool._use(), name, flags, mode)
        if handle is None:
            raise _library.error(path)
        self.name = os.fsdecode(path)
        self._access = flags & os.O_ACCMODE
        self._handle = handle
        self._maps = 0
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _close, handle)

    def _use(self):
        if self.closed or self._handle is None:
            raise ValueError("I/O operation on closed file")
        return self._handle

    def close(self):
        """Closes the file. Maps of it stay readable: the file is closed for good with the last of them."""
        if not self.closed:
            super().close()
            with self._lock:
                if self._maps == 0:
                    self._end()

    def readable(self):
        return self._access != os.O_WRONLY

    def writable(self):
        return self._access != os.O_RDONLY

    def seekable(self):
        return True

    def readinto(self, buffer):
        handle = self._use()
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        view = memoryview(buffer).cast("B")
        if len(view) == 0:
            return 0
        place = (ctypes.c_char * len(view)).from_buffer(view)
        return check(library.ks_read(handle, place, len(view)), self.name)

    def write(self, data):
        handle = self._use()
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        with _bytes_of(data) as (place, count):
            return check(library.ks_write(handle, place, count), self.name)

    def pread(self, count, offset):
        """Reads up to count bytes at an offset."""
        place = ctypes.create_string_buffer(count)
        got = check(library.ks_pread(self._use(), place, count, offset), self.name)
        return place.raw[:got]

    def pwrite(self, data, offset):
        """Writes all of data at an offset."""
        handle = self._use()
        with _bytes_of(data) as (place, count):
            return check(library.ks_pwrite(handle, place, count, offset), self.name)

    def seek(self, offset, whence=os.SEEK_SET):
        return check(library.ks_lseek(self._use(), offset, whence), self.name)

    def tell(self):
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size=None):
        size = self.tell() if size is None else size
        check(library.ks_ftruncate(self._use(), size), self.name)
        return size

    def allocate(self, offset, length):
        """Allocates space, so that writes to it cannot lack any."""
        check(library.ks_fallocate(self._use(), 0, offset, length), self.name)

    def sync(self):
        """Makes the content durable, in a pool of the layout scmfs; elsewhere it is already."""
        check(library.ks_fsync(self._use()), self.name)

    def stat(self):
        """Returns the attributes, as os.fstat."""
        stat = Stat()
        check(library.ks_fstat(self._use(), ctypes.byref(stat)), self.name)
        return stat.result()

    def map(self, offset=0, length=None, writable=False):
        """Returns bytes of the file as a memoryview, without a copy. They stay valid as long as the view, or any made of
        it, exists, even if the file is closed or removed meanwhile.

        length: to the end of the file if None. writable: in a pool of the layout scmfs; what is stored is durable
        when the last view is gone. OSError with ENOTSUP if the bytes do not lie in one piece: read them then."""
        if length is None:
            length = max(self.stat().st_size - offset, 0)
        if length == 0:
            return memoryview(b"")
        handle = self._use()
        prot = _READ | _WRITE if writable else _READ
        addr = library.ks_map(handle, length, prot, offset)
        if addr is None:
            raise _library.error(self.name)
        with self._lock:
            self._maps += 1
        mapped = (ctypes.c_char * length).from_address(addr)
        # The view keeps `mapped`, and the finalizer keeps this file.
        weakref.finalize(mapped, self._unmap, handle, addr)
        view = memoryview(mapped).cast("B")
        return view if writable else view.toreadonly()

    def _unmap(self, handle, addr):
        library.ks_unmap(handle, addr)
        with self._lock:
            self._maps -= 1
            if self._maps == 0 and self.closed:
                self._end()


class _bytes_of:
    """The address and number of bytes of an object with a buffer, without a copy."""

    def __init__(self, data):
        self._view = memoryview(data).cast("B") if not isinstance(data, bytes) else None
        self._data = data

    def __enter__(self):
        if self._view is None:
            return self._data, len(self._data)
        if self._view.readonly or len(self._view) == 0:
            data = bytes(self._view)
            return data, len(data)
        return (ctypes.c_char * len(self._view)).from_buffer(self._view), len(self._view)

    def __exit__(self, *_):
        return False
