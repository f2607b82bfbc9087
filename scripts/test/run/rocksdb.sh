# shellcheck shell=bash
# A log-structured store: logs synchronised at every write, tables made and removed by compaction.
db_bench --db="$PWD/db" --benchmarks=fillsync,fillrandom,readrandom,overwrite,compact,readseq \
    --num=10000 --seed=1 --compression_type=none > log 2>&1 || { tail -5 log; exit 1; }
awk '$2 == ":" { print $1 }' log
grep -ciE 'corrupt|i/o error' log || true
db_bench --db="$PWD/db" --use_existing_db=1 --benchmarks=readseq --num=10000 > log 2>&1
awk '$2 == ":" { print $1 }' log
rm -rf db log
