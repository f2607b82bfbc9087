"""SQLite: transactions of reads and updates at random in a table much larger than the cache.

    table.py DIR TRANSACTIONS          prints seconds: elapsed, of them in the kernel
"""

import os
import random
import sqlite3
import sys
import time

ROWS = 60_000

path, transactions = os.path.join(sys.argv[1], "table.db"), int(sys.argv[2])
rng = random.Random(42)
db = sqlite3.connect(path, isolation_level=None)
for pragma in ("journal_mode=persist", "locking_mode=exclusive", "synchronous=off", "cache_size=100", "mmap_size=0"):
    db.execute(f"PRAGMA {pragma}").fetchall()
db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB)")
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES (?, ?)", ((i, rng.randbytes(400)) for i in range(ROWS)))
db.execute("COMMIT")
data = rng.randbytes(400)
kernel, start = os.times().system, time.monotonic()
for _ in range(transactions):
    db.execute("BEGIN")
    for _ in range(35):
        db.execute("SELECT data FROM t WHERE id = ?", (rng.randrange(ROWS),)).fetchone()
    for _ in range(10):
        db.execute("UPDATE t SET data = ? WHERE id = ?", (data, rng.randrange(ROWS)))
    db.execute("COMMIT")
print(f"{time.monotonic() - start:.3f} {os.times().system - kernel:.3f}")
