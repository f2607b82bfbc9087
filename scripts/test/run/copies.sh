# shellcheck shell=bash
# Tools that copy or scan, on a tree that a program has just written: by calls, through a mapping,
# with its files still open; and once more after it has ended.
cat >copy.sh <<'END'
set -euo pipefail
for sparse in always auto; do
    cp -r --sparse=$sparse tree "$1-$sparse"
    diff -r tree "$1-$sparse"
done
tar --sparse --sort=name -cf "$1.tar" tree
mkdir "$1-tar"
tar -C "$1-tar" -xf "$1.tar"
diff -r tree "$1-tar/tree"
rsync -a tree/ rsync/
rsync -ac tree/ rsync/ | grep -v / || true
diff -r tree rsync
(cd tree && sha256sum -- *)
rm -r "$1-always" "$1-auto" "$1-tar" "$1.tar"
END
cat >write.py <<'END'
import mmap, os, subprocess
def make(name, size):
    fd = os.open("tree/" + name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    return fd
def copy(name):
    print(name, flush=True)
    subprocess.check_call(["bash", "copy.sh", name])
os.mkdir("tree")
mapped, written, holes = [make(name, 1 << 20) for name in ("mapped", "written", "holes")]
pages = mmap.mmap(mapped, 1 << 20)
pages[600000:600006] = b"stored"
for at in range(0, 1 << 20, 10000):
    os.pwrite(written, b"%09d\n" % at * 500, at)
os.pwrite(holes, b"end", 900000)
copy("first")
pages[300000:300005] = b"again"
os.pwrite(written, b"again", 300000)
os.pwrite(holes, b"again", 300000)
subprocess.check_call(["fallocate", "-p", "-o", "16384", "-l", "65536", "tree/written"])
copy("second")
END
python3 write.py
bash copy.sh quiet
# Nothing has changed since: a second backup has no file.
sync
sleep 1.1
tar --listed-incremental=snapshot -cf full.tar tree
tar --listed-incremental=snapshot -cvf changed.tar tree
cp -rp tree kept
rsync -aci tree/ kept/
rm -r rsync kept full.tar changed.tar snapshot
