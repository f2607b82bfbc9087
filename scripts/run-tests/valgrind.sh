# shellcheck shell=bash
# Programs in valgrind, which finds no fault with them.
checked() { valgrind -q --error-exitcode=99 "$@"; }
seq 2000 >numbers
checked cp numbers copy
checked cat copy | cksum
checked sort -r -n copy -o sorted
checked head -n 3 sorted
checked tail -c 20 sorted
mkdir tree
checked mv sorted tree/moved
checked ln -s moved tree/link
checked find tree | sort
checked ls tree
checked grep -c 7 copy numbers tree/moved
checked sed -i s/1/one/ copy
checked dd if=copy of=part bs=100 count=7 skip=3 status=none
checked cksum part copy
checked tar -cf - tree | tar -tf - | sort
checked sqlite3 table.db "create table t (n); insert into t values (1), (2); select sum(n) from t"
checked rm -r tree
ls
