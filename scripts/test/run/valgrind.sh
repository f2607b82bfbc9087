# shellcheck shell=bash
# Programs in valgrind, which finds no fault with them. Few, as it takes seconds to start. To look
# for leaks, valgrind reads all mappings, and so allocates memory for all of the pool's sparse
# shared state.
checked() { valgrind -q --leak-check=no --error-exitcode=99 "$@"; }
seq 2000 >numbers
checked cp numbers copy
checked sort -r -n copy -o sorted
checked sed -i s/1/one/ copy
mkdir tree
checked mv sorted copy tree
checked sqlite3 table.db "create table t (n); insert into t values (1), (2); select sum(n) from t"
ls . tree
