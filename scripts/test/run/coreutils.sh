# shellcheck shell=bash
# The tools of every shell script, which call mostly by descriptor and by relative path.
cp -a /usr/include/linux headers
cp -r --preserve=timestamps headers copy
diff -r headers copy
mv copy moved
ln -s headers/types.h link
ln headers/types.h hard
# shellcheck disable=SC2012  # ls is what is tested
ls -1 headers | wc -l
# shellcheck disable=SC2012
ls -l --time-style=+ link hard headers/types.h | awk '{ print $1, $2, $3, $4, $5, $NF }'
cat headers/*.h | sha256sum
head -n 3 link
tail -c 20 hard
wc -l headers/fs.h
sort -r headers/fs.h | uniq -c | sort -rn | sed -n 1,5p
split -b 1000 headers/fs.h part.
cat part.* | cmp - headers/fs.h
dd if=headers/fs.h of=dd bs=512 count=3 seek=1 conv=notrunc,fsync status=none
truncate -s 1M dd
fallocate -l 2M dd
stat -c '%s %a %F %h' dd hard link
stat -c '%a %F %h' moved
touch -d '2001-02-03 04:05:06 UTC' dd
date -u -r dd
chmod -R go-rwx moved
chown 1:2 dd
du -s --apparent-size part.aa
tee one two < ./link | md5sum
install -D -m 640 dd deep/er/dd
mkdir -p a/b/c
rmdir -p a/b/c
mkfifo fifo
(echo through the fifo > fifo &) && cat fifo
realpath --relative-to=. link
readlink link
test -L link -a -d headers -a ! -e a
find . -newer dd -name '*.h' | sort | sed -n 1,3p
find headers -type f -size +20k | sort
grep -rl SPDX moved | sort | sed -n 1,5p
sed -i 's/SPDX/XDPS/' moved/fs.h
sed -n 1p moved/fs.h
rm -rf moved
cp --sparse=always dd sparse
cmp dd sparse
shred -u -n 1 two
comm -12 <(sort one) <(sort link) | wc -l
ls missing || true
cat headers || true
rm -rf part.*
