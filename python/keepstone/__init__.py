"""Files in persistent memory, in the program's own process: pools of Keepstone.

    import keepstone

    keepstone.make_pool("/dev/shm/pool", 64 << 20)
    with keepstone.Pool("/dev/shm/pool") as pool:
        with pool.open("notes", "w") as file:
            file.write("kept")
        with pool.open("notes", "rb", buffering=0) as file:
            view = file.map()           # a memoryview, without a copy

keepstone.filesystem has a file system for fsspec, by which pandas, dask and others read pools.
"""

from ._file import File
from ._pool import DirEntry, Pool, make_pool

__all__ = ["DirEntry", "File", "Pool", "make_pool"]
