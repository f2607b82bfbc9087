# shellcheck shell=bash
# A repository: many small files made by rename, mapped packs, locks, hooks.
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org GIT_AUTHOR_DATE='2001-02-03 04:05:06 +0000'
export GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.org GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
git config --global init.defaultBranch main
git config --global advice.detachedHead false
git init -q repo
cd repo || exit
cp -r /usr/include/asm-generic /usr/include/scsi .
git add -A
git commit -qm one
git checkout -qb side
sed -i 's/define/DEFINE/' asm-generic/*.h
git commit -qam two
git checkout -q main
git mv scsi moved
echo 'echo hook ran' > .git/hooks/post-commit
chmod +x .git/hooks/post-commit
git commit -qm three
git merge -q side -m merge
git log --oneline --stat | sha256sum
git status --short
git gc -q
git fsck --strict
git count-objects -v | grep -v size
git diff HEAD~1 | sha256sum
# shellcheck disable=SC2103  # what is done in there is a test, too
cd ..
git clone -q --no-local repo clone
git clone -q --no-hardlinks repo bare.git --bare
git -C clone log --oneline -3
git -C clone grep -c _IOC asm-generic/ioctl.h
git -C clone stash list
echo change >> clone/moved/sg.h
git -C clone stash -q
git -C clone stash pop -q
git -C clone diff | sha256sum
git -C clone commit -qam four
git -C clone worktree add -q ../tree side
git -C clone rebase -q origin/main
git -C bare.git repack -adq
git -C bare.git fsck
rm -rf repo/.git clone/.git bare.git tree/.git .gitconfig
