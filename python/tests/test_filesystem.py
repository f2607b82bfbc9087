"""keepstone.filesystem with fsspec, which must be installed."""

import os
import tempfile
import unittest

import fsspec
import keepstone


class FileSystemTest(unittest.TestCase):
    def setUp(self):
        dir = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(dir.cleanup)
        self.pool = os.path.join(dir.name, "pool")
        keepstone.make_pool(self.pool, 64 << 20)
        self.fs = fsspec.filesystem("keepstone", pool=self.pool, skip_instance_cache=True)
        self.addCleanup(self.fs.pool.close)

    def test_the_wheel_registers_the_protocol(self):
        with fsspec.open("keepstone://file", "w", pool=self.pool) as file:
            file.write("text")
        self.assertEqual(self.fs.cat("keepstone://file"), b"text")
        self.assertEqual(type(self.fs).__name__, "KeepstoneFileSystem")

    def test_files_and_directories(self):
        fs = self.fs
        fs.makedirs("/data/2024")
        fs.pipe({"/data/2024/a.csv": b"x,y\n1,2\n", "/data/2024/b.csv": b"x,y\n3,4\n"})
        self.assertEqual(fs.ls("/data/2024", detail=False), ["/data/2024/a.csv", "/data/2024/b.csv"])
        self.assertEqual(fs.glob("/data/*/*.csv"), ["/data/2024/a.csv", "/data/2024/b.csv"])
        self.assertEqual(fs.find("/"), ["/data/2024/a.csv", "/data/2024/b.csv"])
        self.assertEqual(fs.cat("/data/2024/a.csv"), b"x,y\n1,2\n")
        self.assertEqual(fs.cat_file("/data/2024/a.csv", start=-4, end=-1), b"1,2")
        self.assertEqual(fs.info("data/2024")["type"], "directory")
        self.assertEqual(fs.size("data/2024/a.csv"), 8)
        self.assertTrue(fs.isfile("/data/2024/a.csv") and not fs.exists("/none"))
        fs.copy("/data/2024/a.csv", "/copy.csv")
        fs.copy("/data", "/all", recursive=True)
        fs.mv("/copy.csv", "/moved.csv")
        self.assertEqual(fs.cat("/moved.csv"), fs.cat("/all/2024/a.csv"))
        with fs.open("/moved.csv", "ab") as file:
            file.write(b"5,6\n")
        with fs.open("/moved.csv", "r") as file:
            self.assertEqual(file.read(), "x,y\n1,2\n5,6\n")
        self.assertGreater(fs.modified("/moved.csv").year, 2000)
        with tempfile.TemporaryDirectory() as out:
            fs.get("/all", out + "/got", recursive=True)
            fs.put(out + "/got", "/back", recursive=True)
        self.assertEqual(fs.cat("/back/2024/b.csv"), b"x,y\n3,4\n")
        fs.rm("/data", recursive=True)
        self.assertFalse(fs.exists("/data"))
        self.assertRaises(FileNotFoundError, fs.cat_file, "/none")
        self.assertEqual(sorted(fs.walk("/all"))[0], ("/all", ["2024"], []))

    def test_a_mapper_is_a_dictionary_of_files(self):
        store = self.fs.get_mapper("/store")
        store["a/b"] = b"value"
        self.assertEqual(dict(store), {"a/b": b"value"})
        del store["a/b"]
        self.assertEqual(list(store), [])


if __name__ == "__main__":
    unittest.main()
