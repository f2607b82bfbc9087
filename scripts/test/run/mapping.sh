# shellcheck shell=bash
# Programs that map their files: LMDB as it is and writing through its map, a program written for
# libpmem, python's mmap in two processes that see each other's stores, and RocksDB that reads its
# tables so.
cat >lmdb_test.py <<'PYTHON'
import lmdb, os, sys
for writemap in (False, True):
    env = lmdb.open(f"db-{writemap}", map_size=16 << 20, writemap=writemap, max_dbs=2)
    for round in range(4):
        with env.begin(write=True) as txn:
            for i in range(round, 4000, 4):
                txn.put(b"key%06d" % i, (b"value%d-" % i) * (i % 20 + 1))
        with env.begin(write=True) as txn:
            for i in range(0, 4000, 7):
                txn.delete(b"key%06d" % i)
    # A process that is killed in the middle of a transaction leaves all committed data.
    child = os.fork()
    if child == 0:
        env = lmdb.open(f"db-{writemap}", map_size=16 << 20, writemap=writemap, max_dbs=2)
        txn = env.begin(write=True)
        for i in range(2000):
            txn.put(b"lost%06d" % i, b"x" * 200)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with env.begin() as txn:
        print(writemap, txn.stat()["entries"], sum(len(v) for _, v in txn.cursor()), txn.get(b"lost000001"))
    env.sync(True)
    env.copy(os.path.join(os.getcwd()), compact=True)
    copied = lmdb.open(".", map_size=16 << 20, readonly=True, lock=False)
    with copied.begin() as txn:
        print(txn.stat()["entries"])
    copied.close()
    env.close()
    os.unlink("data.mdb")
    # Locks contain the process that holds them.
    os.unlink(f"db-{writemap}/lock.mdb")
    for name in os.listdir(f"db-{writemap}"):
        os.unlink(os.path.join(f"db-{writemap}", name))
    os.rmdir(f"db-{writemap}")
PYTHON
/usr/bin/python3 lmdb_test.py

cat >two.py <<'PYTHON'
import mmap, os, struct
with open("two", "wb") as f:
    f.truncate(1 << 20)
f = open("two", "r+b")
m = mmap.mmap(f.fileno(), 0)
ready, go = os.pipe()
child = os.fork()
if child == 0:
    # A mapping of its own.
    other = open("two", "r+b")
    own = mmap.mmap(other.fileno(), 0)
    for i in range(0, 1 << 20, 4096):
        own[i:i + 4] = struct.pack("<I", i)
    os.write(go, b"x")
    while own[8:12] != b"seen":
        pass
    own.flush()
    os._exit(0)
os.read(ready, 1)
print(sum(struct.unpack("<I", m[i:i + 4])[0] for i in range(0, 1 << 20, 4096)))
m[8:12] = b"seen"
print(os.waitpid(child, 0)[1])
m.resize(2 << 20)
m[(2 << 20) - 1] = 7
m.flush()
print(len(m), os.path.getsize("two"), open("two", "rb").read()[-1])
m.close()
PYTHON
/usr/bin/python3 two.py

cat >pmem.c <<'C'
#include <libpmem.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	size_t len;
	int is_pmem, i;
	char *m = pmem_map_file(argv[1], 8 << 20, PMEM_FILE_CREATE, 0644, &len, &is_pmem);

	if (!m)
		return perror(pmem_errormsg()), 1;
	printf("%zu bytes, %s\n", len, is_pmem ? "persistent" : "not known to be persistent");
	for (i = 0; i < 2000; i++) {
		char *at = m + (i * 4093L) % (len - 100);

		if (is_pmem) {
			pmem_memcpy_persist(at, "persistent", 10);
		} else {
			memcpy(at, "persistent", 10);
			if (pmem_msync(at, 10))
				return perror("pmem_msync"), 1;
		}
	}
	return pmem_unmap(m, len);
}
C
gcc -O1 -o pmem pmem.c -lpmem
./pmem pool
PMEM_IS_PMEM_FORCE=1 ./pmem forced
sha256sum <pool
sha256sum <forced
rm pmem

# RocksDB reads its tables through mappings.
db_bench --db="$PWD/db" --benchmarks=fillrandom,compact,readrandom,readseq --num=10000 --seed=1 \
    --mmap_read=1 --compression_type=none > log 2>&1 || { tail -5 log; exit 1; }
awk '$2 == ":" { print $1 }' log
grep -ciE 'corrupt|i/o error' log || true
db_bench --db="$PWD/db" --use_existing_db=1 --benchmarks=readseq,readrandom --num=10000 --seed=1 --mmap_read=1 > log 2>&1
grep -o '([0-9]* of [0-9]* found)' log
rm -rf db log
