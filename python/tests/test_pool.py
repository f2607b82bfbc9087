"""The package keepstone, without other packages: python3 -m unittest discover -s python/tests."""

import errno
import gc
import io
import os
import stat
import tempfile
import threading
import unittest

import keepstone


class PoolTest(unittest.TestCase):
    layout = "bpfs"

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(self.dir.cleanup)
        self.path = os.path.join(self.dir.name, "pool")
        keepstone.make_pool(self.path, 64 << 20, self.layout)
        self.pool = keepstone.Pool(self.path)
        self.addCleanup(self.pool.close)

    def fails(self, number, call, *arguments):
        with self.assertRaises(OSError) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.errno, number)
        return caught.exception


class FilesTest(PoolTest):
    def test_files_are_as_those_of_open(self):
        with self.pool.open("text", "w") as file:
            file.write("one\ntwo\n")
        with self.pool.open("text") as file:
            self.assertEqual(list(file), ["one\n", "two\n"])
        with self.pool.open("text", "ab") as file:
            file.write(b"three\n")
            self.assertEqual(file.tell(), 14)
        with self.pool.open("text", "r+b") as file:
            file.seek(4)
            file.write(b"TWO")
            file.seek(0)
            self.assertEqual(file.read(), b"one\nTWO\nthree\n")
            file.truncate(3)
        self.assertEqual(self.pool.read_bytes("text"), b"one")
        self.fails(errno.EEXIST, self.pool.open, "text", "x")
        self.fails(errno.ENOENT, self.pool.open, "none")
        self.assertEqual(self.fails(errno.EISDIR, self.pool.open, "/").filename, "/")
        for mode in ("", "rw", "bt", "q"):
            self.assertRaises(ValueError, self.pool.open, "text", mode)
        self.assertRaises(ValueError, self.pool.open, "te\0xt")

    def test_a_raw_file_reads_and_writes_at_offsets(self):
        with self.pool.open("raw", "w+b", buffering=0) as file:
            self.assertEqual(file.write(bytearray(b"0123456789")), 10)
            self.assertEqual(file.write(memoryview(b"abc")), 3)
            self.assertEqual(file.pwrite(b"XY", 2), 2)
            self.assertEqual(file.pread(100, 1), b"1XY456789abc")
            file.allocate(0, 8192)
            file.sync()
            self.assertEqual(file.stat().st_size, 8192)
            self.assertEqual(file.seek(-2, io.SEEK_END), 8190)
            self.assertEqual(file.read(10), b"\0\0")
            self.assertEqual(file.readinto(bytearray(4)), 0)
        self.assertRaises(ValueError, file.read, 1)
        with self.pool.open("raw", "rb", buffering=0) as file:
            self.assertRaises(io.UnsupportedOperation, file.write, b"no")
        with self.pool.open("raw", "wb", buffering=0) as file:
            self.assertRaises(io.UnsupportedOperation, file.read, 1)

    def test_threads_append_whole_records(self):
        def append(byte):
            with self.pool.open("log", "ab", buffering=0) as file:
                for _ in range(100):
                    file.write(bytes([byte]) * 10)

        threads = [threading.Thread(target=append, args=(byte,)) for byte in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log = self.pool.read_bytes("log")
        records = [log[i : i + 10] for i in range(0, len(log), 10)]
        self.assertEqual(len(records), 400)
        self.assertTrue(all(len(set(record)) == 1 for record in records))


class NamesTest(PoolTest):
    def test_names_are_made_listed_moved_and_removed(self):
        pool = self.pool
        pool.makedirs("a/b/c")
        pool.makedirs("a/b/c", exist_ok=True)
        self.fails(errno.EEXIST, pool.makedirs, "a/b/c")
        for i in range(200):
            pool.write_bytes(f"a/b/{i}", b"x" * i)
        pool.symlink("b/7", "a/link")
        pool.link("a/b/7", "hard")
        self.assertEqual(sorted(pool.listdir("a")), ["b", "link"])
        entries = {entry.name: entry for entry in pool.scandir("a/b")}
        self.assertEqual(len(entries), 201)
        self.assertTrue(entries["c"].is_dir() and entries["9"].is_file())
        self.assertEqual(entries["9"].inode(), pool.stat("a/b/9").st_ino)
        self.assertEqual(pool.readlink("a/link"), "b/7")
        self.assertTrue(stat.S_ISLNK(pool.lstat("a/link").st_mode))
        self.assertEqual(pool.stat("a/link").st_nlink, 2)
        pool.clone("a", "copy")
        pool.rename("copy/b/9", "nine")
        self.assertEqual(pool.read_bytes("nine"), b"x" * 9)
        self.assertTrue(pool.isfile("nine") and pool.isdir("copy") and not pool.exists("copy/b/9"))
        self.assertFalse(pool.exists("nine/x"))
        pool.remove("nine")
        self.fails(errno.ENOTEMPTY, pool.rmdir, "a")
        self.fails(errno.ENOTDIR, pool.listdir, "hard")
        both = self.fails(errno.ENOENT, pool.rename, "nine", "ten")
        self.assertEqual((both.filename, both.filename2), ("nine", "ten"))

    def test_snapshots_and_branches_are_made_and_removed(self):
        pool, path = self.pool, self.path
        if self.layout != "bpfs":
            self.fails(errno.EOPNOTSUPP, pool.create_branch, "test")
            self.fails(errno.EOPNOTSUPP, pool.create_snapshot, "test")
            return
        pool.write_bytes("a", b"prepared")
        pool.create_branch("test")
        self.assertEqual(pool.branches(), ["test"])
        self.fails(errno.EEXIST, pool.create_branch, "test")
        with keepstone.Pool(f"{path}@test") as branch:
            branch.write_bytes("a", b"changed")
            self.fails(errno.EBUSY, pool.discard_branch, "test")
        self.assertEqual(pool.read_bytes("a"), b"prepared")
        pool.write_bytes("a", b"by the pool")
        self.assertEqual(pool.commit_branch("test"), ["/a"])
        self.assertEqual(pool.commit_branch("test", force=True), [])
        self.assertEqual(pool.read_bytes("a"), b"changed")
        pool.create_branch("test")
        pool.discard_branch("test")
        self.fails(errno.ENOENT, pool.discard_branch, "test")
        pool.create_snapshot("monday")
        self.assertEqual(pool.snapshots(), ["monday"])
        pool.mkdir("/later")
        pool.roll_back("monday")
        self.fails(errno.ENOENT, pool.stat, "/later")
        self.fails(errno.ENOENT, pool.roll_back, "tuesday")
        pool.delete_snapshot("monday")
        self.assertEqual((pool.snapshots(), pool.branches()), ([], []))

    def test_attributes_are_kept(self):
        pool = self.pool
        pool.write_bytes("file", b"12345")
        pool.chmod("file", 0o640)
        pool.utime("file", ns=(-1, 2_000_000_003))
        found = pool.stat("file")
        self.assertEqual((found.st_mode, found.st_size), (0o100640, 5))
        self.assertEqual((found.st_atime_ns, found.st_mtime_ns, found.st_mtime), (-1, 2_000_000_003, 2.000000003))
        pool.utime("file")
        self.assertGreater(pool.stat("file").st_mtime, 1e9)
        pool.setxattr("file", "user.origin", b"he\0re")
        self.assertEqual(pool.listxattr("file"), ["user.origin"])
        self.assertEqual(pool.getxattr("file", "user.origin"), b"he\0re")
        pool.removexattr("file", "user.origin")
        self.fails(errno.ENODATA, pool.getxattr, "file", "user.origin")
        space = pool.statvfs()
        self.assertTrue(0 < space.f_bfree < space.f_blocks and space.f_namemax == 255)

    def test_pools_are_opened_again(self):
        self.pool.write_bytes("file", b"kept")
        other = keepstone.Pool(self.path)
        self.assertEqual(other.read_bytes("file"), b"kept")
        file = other.open("file", "rb")
        other.sync()
        other.close()
        other.close()
        self.assertEqual(file.read(), b"kept")
        file.close()
        self.assertRaises(ValueError, other.listdir)
        self.fails(errno.EEXIST, keepstone.make_pool, self.path, 64 << 20)
        self.fails(errno.EINVAL, keepstone.make_pool, self.path + "2", 64 << 20, "none")
        missing = self.fails(errno.ENOENT, keepstone.Pool, self.path + "2")
        self.assertEqual(missing.filename, self.path + "2")


class MapsTest(PoolTest):
    def test_a_map_is_a_view_of_the_file(self):
        self.pool.write_bytes("file", bytes(range(256)) * 100)
        file = self.pool.open("file", "rb", buffering=0)
        view = file.map(10, 1000)
        self.assertTrue(view.readonly and len(view) == 1000 and view[0] == 10)
        part = view[990:]
        del view
        gc.collect()
        self.assertEqual(len(file.map()), 25600)
        self.assertEqual(len(file.map(25600)), 0)
        self.fails(errno.EINVAL, file.map, 25000, 1000)
        # The view keeps the file, and the pool that it lies in.
        file.close()
        self.pool.unlink("file")
        self.pool.write_bytes("other", b"\xff" * 100_000)
        self.assertEqual(bytes(part), bytes(i % 256 for i in range(1000, 1010)))
        self.assertRaises(ValueError, file.map)
        del part
        gc.collect()

    def test_what_cannot_be_mapped_is_refused(self):
        with self.pool.open("hole", "w+b", buffering=0) as file:
            file.truncate(1 << 20)
            if self.layout == "bpfs":
                self.fails(errno.ENOTSUP, file.map)
            else:
                self.assertEqual(bytes(file.map(0, 8192)), bytes(8192))

    def test_stores_to_a_map_reach_the_file(self):
        self.pool.write_bytes("file", bytes(10_000))
        with self.pool.open("file", "r+b", buffering=0) as file:
            if self.layout == "bpfs":
                self.fails(errno.ENOTSUP, lambda: file.map(writable=True))
                return
            view = file.map(4090, 10, writable=True)
            view[:] = b"0123456789"
            self.assertEqual(file.pread(10, 4090), b"0123456789")
            del view
            gc.collect()


class ScmfsFilesTest(FilesTest):
    layout = "scmfs"


class ScmfsNamesTest(NamesTest):
    layout = "scmfs"


class ScmfsMapsTest(MapsTest):
    layout = "scmfs"


if __name__ == "__main__":
    unittest.main()
