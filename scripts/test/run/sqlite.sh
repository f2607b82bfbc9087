# shellcheck shell=bash
# A database, in each of its journal modes; two processes at once; a copy while it is used.
for mode in delete truncate persist wal memory; do
    echo "-- $mode"
    sqlite3 "$mode.db" <<SQL
PRAGMA journal_mode = $mode;
CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE, data BLOB);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
INSERT INTO t SELECT i, 'name' || i, zeroblob(i % 300) FROM n;
BEGIN;
UPDATE t SET name = name || 'x' WHERE id % 3 = 0;
ROLLBACK;
BEGIN;
DELETE FROM t WHERE id % 7 = 0;
SAVEPOINT s;
UPDATE t SET name = name || 'y';
ROLLBACK TO s;
COMMIT;
CREATE INDEX by_data ON t (length(data), name);
SELECT count(*), sum(length(data)), max(name) FROM t;
PRAGMA integrity_check;
VACUUM;
.backup copy.db
SQL
    sqlite3 copy.db 'SELECT count(*) FROM t; PRAGMA integrity_check;'
    rm copy.db
    for _ in 1 2 3 4; do
        for _ in $(seq 25); do
            sqlite3 -cmd '.timeout 20000' "$mode.db" "INSERT INTO t (name) VALUES (hex(randomblob(16)));"
        done &
    done
    wait
    sqlite3 "$mode.db" 'SELECT count(*) FROM t; PRAGMA integrity_check;'
    rm -f "$mode".db*
done
