#!/bin/bash
# The demonstration: real programs on a mounted pool, while its server is killed again and again.
#
#   scripts/demo.sh        or: make demo
#
# Needs Debian 12 and a Rust toolchain; installs the rest by apt-get. The pool is in DRAM (/dev/shm)
# and is removed at the end, also after a failure. Exit status: 0 if every claim was shown, 1 if
# not.
#
# Environment: KEEPSTONE, the program to show (default: builds target/release/keepstone);
# KEEPSTONE_CACHE, the directory of sources (default: .work/debian-source); LAYOUT, the layout of
# the pool (bpfs, scmfs; default bpfs).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=lib/source.sh
source "$here/scripts/lib/source.sh"
# shellcheck source=lib/wait.sh
source "$here/scripts/lib/wait.sh"
# shellcheck source=lib/demo.sh
source "$here/scripts/lib/demo.sh"

step "Prepare: programs, sources, keepstone itself"
"$here/scripts/lib/packages.sh" git sqlite3 gcc libc6-dev make tar xz-utils diffutils findutils gawk util-linux fuse3
build_keepstone
make_places
fetch_source xz-utils "$outside/xz"
fetch_source git "$outside/git-tree"
# git keeps no empty directories.
find "$outside/git-tree" -type d -empty -delete
progress "sources of xz ($(count "$outside/xz") files) and git ($(count "$outside/git-tree") files), from Debian"

step "Make a pool in DRAM, mount it"
"$keepstone" mkfs "$pool" --layout "${LAYOUT:-bpfs}" --size 2G --label demo | indent
"$keepstone" mount "$pool" "$mnt" | indent
seen "a pool in DRAM, mounted as an ordinary directory"

step "Build a C project in it: xz"
tar --create --directory "$outside" xz | tar --extract --directory "$mnt"
(cd "$mnt/xz" && ./configure --quiet --disable-nls --disable-doc --disable-shared) >"$outside/log" 2>&1
progress "unpacked and configured"
make --directory "$mnt/xz" -j2 >"$outside/log" 2>&1 &
helper=$!
sleep 5
kill_server "make -j2 was compiling"
await_exit 60 "$helper" && die "make did not notice that the server was killed"
recover
# make cannot know which objects the compilers had not finished, after this crash as after any.
find "$mnt/xz" -name '*.[ol]*' -newermt '3 seconds ago' -delete
make --directory "$mnt/xz" -j2 >"$outside/log" 2>&1
make --directory "$mnt/xz" -j2 check >"$outside/log" 2>&1
grep -qE '^# FAIL: +0$' "$outside/log"
seen "xz: unpacked, configured, built with make -j2 despite a kill; make check $(sed -n 's/^# PASS: */passed /p' "$outside/log")"
"$mnt/xz/src/xz/xz" --keep --stdout "$mnt/xz/ChangeLog" | "$mnt/xz/src/xz/xz" -d | cmp - "$outside/xz/ChangeLog"
progress "the xz that was built packs and unpacks"

step "Keep a repository in it: git with $(count "$outside/git-tree") files"
cp --recursive "$outside/git-tree" "$mnt/work"
git init --quiet "$mnt/work"
git_add_all &
helper=$!
sleep 0.7
kill_server "git add was hashing files"
await_exit 60 "$helper" && die "git add did not notice that the server was killed"
recover
rm -f "$mnt/work/.git/index.lock"
git_add_all
git -C "$mnt/work" commit --quiet --message "all of it"
seen "git: init, add (despite a kill), commit of $(git -C "$mnt/work" ls-files | wc -l) files"
find "$mnt/work" -name '*.c' -exec sed -i '1i /* edited */' {} +
git -C "$mnt/work" commit --quiet --all --message "every C file"
git -C "$mnt/work" checkout --quiet --detach HEAD~1
git -C "$mnt/work" gc --quiet --prune=now
git -C "$mnt/work" fsck --full --strict --no-dangling 2>"$outside/log" || die "git fsck: $(cat "$outside/log")"
git -c advice.detachedHead=false clone --quiet --no-hardlinks "$mnt/work" "$mnt/clone"
diff --recursive --exclude .git "$outside/git-tree" "$mnt/clone"
seen "git: edit, commit, checkout, gc, fsck, clone; the clone equals the original"

for mode in delete wal; do
    step "Load a database in it: sqlite, journal mode $mode"
    load_database "$mode" &
    helper=$!
    wait_for_lines 150 "$outside/rows.$mode"
    kill_server "sqlite was committing ($(wc -l <"$outside/rows.$mode") commits so far)"
    await_exit 60 "$helper" && die "sqlite did not notice that the server was killed"
    recover
    check_database "$mode"
done

step "Kill the server while files come and go"
for round in 1 2 3; do
    churn "$round" &
    helper=$!
    wait_for_lines $((round * 800)) "$outside/done.$round"
    kill_server "round $round: $(wc -l <"$outside/done.$round") operations were complete"
    await_exit 60 "$helper" && die "the writer did not notice that the server was killed"
    recover
    check_churn "$round"
done

step "Take everything out and compare"
tar --create --directory "$mnt" . | tar --extract --directory "$outside/copy"
diff --recursive --no-dereference "$mnt" "$outside/copy"
seen "tar out of the mount: $(count "$outside/copy") files, all the same"
diff --recursive --exclude .git "$outside/git-tree" "$mnt/clone"
seen "and the clone still equals what came from Debian, $kills kills later"

step "Unmount cleanly, check, mount again"
save_counters
"$keepstone" umount "$mnt"
"$keepstone" check "$pool" | indent
"$keepstone" mount "$pool" "$mnt" >/dev/null
diff --recursive --no-dereference "$mnt" "$outside/copy"
seen "unmounted, checked, mounted again: still the same"

step "Use it without the server: keepstone run"
"$keepstone" umount "$mnt"
"$keepstone" mount -o direct "$pool" "$mnt" >/dev/null
timed "git clone through the mount" git -c advice.detachedHead=false clone --quiet --no-hardlinks "$mnt/work" "$mnt/clone-mount"
timed "git clone under keepstone run" \
    "$keepstone" run -- git -c advice.detachedHead=false clone --quiet --no-hardlinks "$mnt/work" "$mnt/clone-run"
diff --recursive --exclude .git "$mnt/clone-mount" "$mnt/clone-run"
seen "the same clone by git as it is, serving itself from the pool; the mount shows it at once"
mkdir "$mnt/cut"
"$keepstone" run -- tar --create --directory "$mnt/work" . >"$outside/work.tar"
# shellcheck disable=SC2016 # the inner shell's variables
"$keepstone" run -- bash -c 'while :; do
        tar --extract --overwrite --directory "$1" --file "$2" &
        echo "$!" >"$3" && wait "$!" || exit
    done' bash "$mnt/cut" "$outside/work.tar" "$outside/program" 2>/dev/null &
helper=$!
sleep 1
await_until 10 kill_program
await_exit 60 "$helper" && die "tar did not notice that it was killed"
helper=
"$keepstone" run -- tar --extract --overwrite --directory "$mnt/cut" --file "$outside/work.tar"
diff --recursive "$mnt/work" "$mnt/cut"
seen "a program killed in the middle of its own file system: the others go on"
"$keepstone" umount "$mnt"
"$keepstone" check "$pool" | indent

step "What was shown"
printf '   * %s\n' "${facts[@]}"
echo
echo "Counters, of all $((kills + 1)) lives of the server until the kill or the end:"
sum_counters | indent
echo
echo "Done in $SECONDS s: the server was killed $kills times, and nothing that was complete was lost."
