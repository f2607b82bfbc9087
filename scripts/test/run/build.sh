# shellcheck shell=bash
# A build: make with jobs, gcc with its own processes and temporary files, ar, and a run of the
# result.
export TMPDIR=$PWD/tmp
mkdir tmp src
for i in $(seq 20); do
    printf '#include <stdio.h>\n#include "all.h"\nint f%d(int x) { return printf("") + x + %d; }\n' "$i" "$i" \
        > "src/f$i.c"
done
for i in $(seq 20); do echo "int f$i(int);"; done > src/all.h
{
    echo '#include <stdio.h>'
    echo '#include "all.h"'
    echo 'int main(void) { int sum = 0;'
    for i in $(seq 20); do echo "sum = f$i(sum);"; done
    echo 'printf("%d", sum); puts(""); return 0; }'
} > src/main.c
cat > Makefile <<'MAKE'
objects := $(patsubst src/%.c,obj/%.o,$(wildcard src/*.c))
program: $(filter-out obj/main.o,$(objects)) obj/main.o
	ar rcs lib.a $(filter-out obj/main.o,$^)
	gcc -o $@ obj/main.o lib.a
obj/%.o: src/%.c src/all.h | obj
	gcc -O2 -pipe -MMD -c -o $@ $<
obj:
	mkdir $@
-include $(objects:.o=.d)
clean:
	rm -rf obj program lib.a
MAKE
make -j4 2>&1 | sort
./program
make -q && echo up to date
touch -d 2001-01-01 obj/f3.o
make -n | sort
make clean
gcc -save-temps -g -o program src/*.c && ./program
objdump -d program | grep -c '<f[0-9]*>:'
rm -f program ./*.i ./*.s ./*.o ./*-*.o
ls tmp
