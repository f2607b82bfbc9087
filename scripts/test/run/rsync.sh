# shellcheck shell=bash
# Copies of trees, brought up to date by their times and by their contents, and verified.
rsync -a /usr/include/linux/ first/
rsync -aHX first/ second/
rsync -ac --itemize-changes first/ second/
diff -r first second
echo change >> first/fs.h
rm first/types.h
rsync -a --no-whole-file --delete --itemize-changes first/ second/
diff -r first second
rsync -a --inplace --no-whole-file --checksum --itemize-changes /usr/include/linux/ second/
diff -r /usr/include/linux second
rsync -a --link-dest=../second second/ third/
[ second/fs.h -ef third/fs.h ] && echo linked
