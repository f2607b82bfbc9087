# shellcheck shell=bash
# Backup programs, twice on a tree that a program has just written: the second time they find that
# nothing has changed. Their repositories lie on the same file system. restic is a static program,
# which nothing serves; borg is served.
export RESTIC_REPOSITORY=$PWD/restic RESTIC_PASSWORD=secret
export BORG_REPO=$PWD/borg BORG_BASE_DIR=$PWD/borg-base BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
cat >write.py <<'END'
import mmap, os, sys, time
os.makedirs("tree/dir", exist_ok=True)
for name in "mapped", "dir/written":
    fd = os.open("tree/" + name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 3 << 20)
    pages = mmap.mmap(fd, 3 << 20)
    for at in range(0, 3 << 20, 30000):
        if name == "mapped":
            pages[at : at + 6] = b"stored"
        else:
            os.pwrite(fd, b"%09d\n" % at * 500, at)
os.symlink("dir/written", "tree/link")
open("tree/name", "w").write("content")
os.link("tree/name", "tree/same")
# borg does not remember the files that were changed last: they could change again within the same
# tick of the clock.
time.sleep(0.1)
open("tree/last", "w").close()
print("ready", flush=True)
sys.stdin.read()
END
# restic_found: prints the numbers of files and directories that restic found new, changed and the
# same.
restic_found() {
    restic --no-cache --json backup tree | jq -c 'select(.message_type == "summary") |
        {files_new, files_changed, files_unmodified, dirs_new, dirs_changed, dirs_unmodified}'
}
mkdir restored
restic --no-cache --quiet init
borg init --encryption none
# The program has its files mapped and open meanwhile.
coproc python3 write.py
read -r -u "${COPROC[0]}" _
restic_found
borg create ::first tree
restic_found
# The file system decides which name of a file comes first.
borg create --list ::second tree 2>&1 | grep -vE '(name|same)$' | sort
pid=$COPROC_PID
to=${COPROC[1]}
exec {to}>&-
wait "$pid"
# SCMFS dates a file when a mapping for stores ends, so one more backup may find it changed.
restic_found >/dev/null
restic_found
restic --no-cache --quiet check
restic --no-cache --quiet restore latest --target restored
diff -r tree restored/tree
rm -r restored
mkdir restored
borg check
(cd restored && borg extract ::second)
diff -r tree restored/tree
rm -r restic borg borg-base restored
