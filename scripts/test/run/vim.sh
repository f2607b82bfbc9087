# shellcheck shell=bash
# An editor that replaces a file by renaming, and one that writes into it, with and without a
# backup.
export HOME=$PWD
seq 1000 > text
for copy in no yes; do
    vim -es -u NONE -c "set backup backupskip= backupcopy=$copy" -c '%s/7/seven/ge' -c 'normal Goend' -c wq text </dev/null
    sha256sum text text~
done
vim -es -u NONE -c 'set nobackup writebackup backupskip=' -c '1,10d' -c 'w other' -c 'wq' text </dev/null
wc -l text other
ls -A
rm -f .viminfo
