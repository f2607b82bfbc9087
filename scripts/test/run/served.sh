# shellcheck shell=bash
# Programs that use streams of libc, inherited descriptors and redirections: run.sh asserts that
# nearly all of their calls are served.
seq 1 300000 > numbers
mkdir tree
for i in {1..300}; do head -c 20000 numbers > "tree/$i"; done
sort -S 4M -T . -rn numbers -o sorted
sort -S 4M -T . < numbers > sorted2
rsync -a tree/ synced
diff -r tree synced
printf 'int main(void) { return 0; }\n' > a.c
gcc -c a.c
gcc -save-temps -o a a.c
./a
dd if=numbers of=copy bs=512 status=none
dd bs=512 status=none < numbers > copied
tee one two < numbers > three
cp numbers again
cp -a tree copies
for i in {1..2000}; do echo "$i"; done > many
while read -r line; do last=$line; done < many
echo "$last"
cat < numbers > redirected
sed -i s/1/2/ again
sha256sum again sorted sorted2
