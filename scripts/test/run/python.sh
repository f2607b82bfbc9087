# shellcheck shell=bash
# An interpreter: buffered and raw files, mappings, processes, locks, temporary files, modules.
export PYTHONDONTWRITEBYTECODE=
cat > module.py <<'PYTHON'
VALUE = 42
PYTHON
cat > program.py <<'PYTHON'
import array, fcntl, glob, io, json, mmap, multiprocessing, os, pathlib, pickle, shelve, shutil
import subprocess, sys, tempfile, threading, zipfile
import module

print(module.VALUE, sorted(os.listdir("__pycache__"))[0].split(".")[0])
with open("text", "w") as f:
    for i in range(20000):
        print("line", i, file=f)
with open("text") as f:
    print(sum(1 for _ in f))
with open("text", "r+b", buffering=0) as f:
    f.seek(-4, io.SEEK_END)
    print(f.read(), f.tell(), f.truncate(1000), os.fstat(f.fileno()).st_size)
    print(os.pread(f.fileno(), 5, 10), os.preadv(f.fileno(), [bytearray(3), bytearray(4)], 2))
    os.posix_fallocate(f.fileno(), 0, 5000)
    fcntl.flock(f, fcntl.LOCK_EX)
    fcntl.lockf(f, fcntl.LOCK_EX)
    m = mmap.mmap(f.fileno(), 0)
    m[0:5] = b"LINE!"
    m.flush()
    print(m[:10], os.pread(f.fileno(), 5, 0))
    m.close()
json.dump({"a": [1, 2, 3]}, open("json", "w"))
pickle.dump(list(range(1000)), open("pickle", "wb"))
print(json.load(open("json")), sum(pickle.load(open("pickle", "rb"))))
with zipfile.ZipFile("zip", "w") as z:
    z.write("text")
with zipfile.ZipFile("zip") as z:
    print(z.testzip(), len(z.read("text")))
os.remove("zip")
with tempfile.NamedTemporaryFile(dir=".") as f, tempfile.TemporaryFile(dir=".") as g:
    g.write(b"temporary")
    g.seek(0)
    print(os.path.exists(f.name), g.read())
with tempfile.TemporaryDirectory(dir=".") as d:
    shutil.copytree("__pycache__", d + "/tree")
    shutil.copyfile("text", d + "/copy")
    print(len(glob.glob(d + "/**", recursive=True)))
with open("output", "w") as out:
    subprocess.run(["sh", "-c", "echo from the child; pwd | sed 's,.*/,,'; cat"], stdout=out,
                   stdin=open("json"), check=True, cwd="__pycache__")
print(open("output").read().splitlines()[0])
with open("shared", "wb", buffering=0) as f:
    if os.fork() == 0:
        f.write(b"child ")
        os._exit(0)
    os.wait()
    f.write(b"parent")
print(open("shared").read())

def work(i):
    name = f"worker{i}"
    for n in range(50):
        with open(name, "a") as f:
            f.write(f"{n}\n")
    return os.stat(name).st_size

with multiprocessing.get_context("fork").Pool(4) as pool:
    print(pool.map(work, range(8)))
threads = [threading.Thread(target=work, args=(100 + i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print([os.stat(f"worker{100 + i}").st_size for i in range(8)])
p = pathlib.Path("a/b")
p.mkdir(parents=True)
(p / "c").write_text("c")
(p / "c").rename("a/d")
print(sorted(str(x) for x in pathlib.Path("a").rglob("*")), (pathlib.Path("a") / "d").resolve().name)
os.symlink("d", "a/link")
os.chdir("a")
print(os.path.basename(os.getcwd()), os.readlink("link"), open("link").read())
for e in sorted(os.scandir("."), key=lambda e: e.name):
    print(e.name, e.is_dir(), e.is_symlink())
os.chdir("..")
fd = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
print(sorted(os.listdir(fd)), os.stat("d", dir_fd=fd).st_size)
os.setxattr("text", "user.x", b"y")
print(os.getxattr("text", "user.x"))
os.sendfile(os.open("sent", os.O_CREAT | os.O_WRONLY, 0o600), os.open("text", os.O_RDONLY), 0, 500)
for name in "text", "missing/x", "a":
    try:
        open(name, "x")
    except OSError as e:
        print(type(e).__name__, e.errno)
PYTHON
python3 program.py
rm -rf __pycache__
