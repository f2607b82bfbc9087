# shellcheck shell=bash
# Archives of a tree, written, read, compared and extracted in several ways.
cp -a /usr/include/asm-generic tree
mkdir -p tree/empty
ln -s ../tree tree/self
ln tree/ioctl.h tree/hard
chmod 4751 tree/errno.h
chown 12:34 tree/errno.h
setfattr -n user.note -v value tree/ioctl.h 2>/dev/null || true
truncate -s 100K tree/sparse
echo end >> tree/sparse
tar --sort=name --xattrs -cf a.tar tree
tar -tvf a.tar --full-time | awk '{ print $1, $2, $3, $6 }'
mkdir out
tar -C out --same-owner --xattrs -xpf a.tar
diff -r --no-dereference tree out/tree
tar -df a.tar
tar --sort=name -czf a.tgz tree
tar -xzf a.tgz -O tree/errno.h | cmp - tree/errno.h
tar --sparse --sort=name -cf sparse.tar tree/sparse
tar -rf sparse.tar tree/errno.h
tar --delete -f sparse.tar tree/sparse
tar -tf sparse.tar
tar -C tree -cf - . | (mkdir piped && tar -C piped -xf -)
diff -r --no-dereference tree piped
rm a.tar a.tgz sparse.tar
