//! Branches of a pool: other trees in its inode file, which programs can change.
//!
//! - branches-W1: a branch is a directory that an entry of the *directory of branches* names. That
//!   has no name itself, so no walk from the root of the pool, or of a branch, leads to it
//!   ([`crate::Branch`]). Locks, records, space and recovery are the same for all trees.
//! - branches-W2: the directory of branches is durable before the word that leads to it is stored.
//! - branches-W3: an entry whose name begins with `@` is a branch that is being made or removed. A
//!   rename makes it a branch, or ends it.
//! - branches-W4: one record makes a branch the tree of the pool and frees its entry. All that the
//!   pool had before has no name then, and the state is derived again.
//!
//! | operation | commit |
//! |---|---|
//! | make the directory of branches | the superblock's word |
//! | create, discard | the renames of [`crate::rename`], after and before those operations that make and remove a tree |
//! | commit | a record of the words of the root, and of the entry |

use crate::derived::{SharedPool as _, notify_all_unnamed};
use crate::files::Files;
use crate::fs::Core;
use crate::layout::*;
use crate::mounted::Pool;
use crate::rename::Words;
use crate::scan::Scan;
use crate::store::Storage;
use crate::superblock::{POOL_BRANCHES, branches_word};
use crate::xattr::Attributes;
use pool::TreeSource;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Cloned, Errno, FileKind, Ino, ROOT, Result};

/// The words of a root that a commit gives the root of the pool. The mode follows: its word also
/// has the generation, which stays.
const WORDS: [Word; 7] =
    [Word::Root, Word::Size, Word::Mtime, Word::Ctime, Word::Atime, Word::Xattr, Word::Owner];

/// A set of inode numbers.
pub struct InodeSet(Vec<u64>);

impl InodeSet {
    /// Makes an empty set for numbers below `end`.
    fn new(end: u64) -> Self {
        Self(vec![0; end.div_ceil(64) as usize])
    }

    /// Adds a number; returns whether it was missing. A number that is too large is not added.
    fn insert(&mut self, ino: Ino) -> bool {
        let Some(word) = self.0.get_mut((ino.0 / 64) as usize) else { return false };
        let bit = 1 << (ino.0 % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Returns whether the set has a number.
    pub fn contains(&self, ino: Ino) -> bool {
        self.0.get((ino.0 / 64) as usize).is_some_and(|word| word >> (ino.0 % 64) & 1 != 0)
    }
}

impl<S: Storage> Core<S> {
    /// Makes the directory of branches, unless the pool has one (branches-W2). Returns its inode.
    pub fn make_branches_dir(&self) -> Result<Ino> {
        if let Some(dir) = self.branches_dir() {
            return Ok(dir);
        }
        self.check_writable()?;
        let ino = self.new_inode()?;
        let made = self.change(&[ROOT, ino], || {
            // Another process may have made it.
            if let Some(dir) = self.branches_dir() {
                return Ok(dir);
            }
            let owner = self.attr(ROOT, self.live_dir(ROOT)?);
            let v = self.tables().vinode(ino)?;
            let mut record = InodeRecord::born(self.now().0);
            record.mode = (FileKind::Dir.mode_bits() | 0o700).into();
            record.set_generation(self.next_generation(v));
            record.uid = owner.uid.into();
            record.gid = owner.gid.into();
            v.begin(FileKind::Dir, 0);
            v.parent.store(ROOT.0 as u32, Relaxed);
            self.write_new_inode(v, record, &[], &Attributes::default(), || Ok(()))
                .inspect_err(|_| v.end())?;
            let ready = self.medium().fence();
            let word = branches_word(&self.medium(), ino);
            let _ = self.medium().publish(POOL_BRANCHES, word, ready);
            Ok(ino)
        });
        if !matches!(made, Ok(dir) if dir == ino) {
            self.tables().release_inode(ino);
        }
        made
    }

    /// Returns whether the pool has branches, also unfinished ones.
    pub fn has_branches(&self) -> Result<bool> {
        let Some(dir) = self.branches_dir() else { return Ok(false) };
        Ok(self.live_dir(dir)?.entries.load(Relaxed) > 0)
    }

    /// Returns whether the directory of branches has an entry of this name. The caller is alone in
    /// the pool.
    pub fn has_branch(&self, name: &str) -> bool {
        self.branches_dir().is_some_and(|dir| self.find_name(dir, name.as_bytes()).is_some())
    }

    /// Returns the inodes of the pool's tree; `None`: the pool has no other tree. The caller is
    /// alone in the pool.
    pub fn inodes_of_tree(&self) -> Result<Option<InodeSet>> {
        if self.branches_dir().is_none() {
            return Ok(None);
        }
        let mut all = InodeSet::new(self.tables().inode_slots());
        all.insert(ROOT);
        let mut pending = vec![ROOT];
        while let Some(dir) = pending.pop() {
            self.list(self.live_dir(dir)?, 0, &mut |entry| {
                let is_dir = self.live(entry.ino).is_ok_and(|v| v.kind() == FileKind::Dir);
                if all.insert(entry.ino) && is_dir {
                    pending.push(entry.ino);
                }
                true
            })?;
        }
        Ok(Some(all))
    }

    /// Makes a branch the tree of the pool (branches-W4). The caller is alone in the pool, and
    /// derives its state again.
    pub fn replace_tree(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let dir = self.branches_dir().ok_or(Errno::NOENT)?;
        let found = self.find_name(dir, name.as_bytes()).ok_or(Errno::NOENT)?;
        self.make_own(&[ROOT, dir])?;
        let (old, new) = (self.live_dir(ROOT)?, self.live_dir(found.ino)?);
        let mut words: Words =
            WORDS.iter().map(|word| (self.word_at(old, *word), self.load(new, *word))).collect();
        let mode = self.load(old, Word::Mode) & !MODE_HALF | self.load(new, Word::Mode) & MODE_HALF;
        words.push((self.word_at(old, Word::Mode), mode));
        words.push((self.tables().entry_at(found.pos), 0));
        self.commit_words(ROOT, &words)?;
        self.settle();
        Ok(())
    }
}

/// The scan of branches.
impl<S: Storage> Core<S> {
    /// Returns the directory of branches if it is sound, so that it can be scanned. Reports it
    /// otherwise.
    pub(crate) fn scan_branches_dir(&self, scan: &Scan) -> Option<Ino> {
        let dir = self.branches_dir()?;
        let is_dir =
            |v| FileKind::from_mode(self.load(v, Word::Mode) as u32) == Some(FileKind::Dir);
        let is_sound = dir != ROOT
            && dir.0 < self.tables().inode_slots()
            && self.tables().vinode(dir).is_ok_and(is_dir);
        if !is_sound {
            let what = format!("inode {} is not a directory", dir.0);
            let fix = Some(((POOL_BRANCHES, 0), "drop all branches"));
            scan.problem(|| "the directory of branches".to_owned(), what, fix);
        }
        is_sound.then_some(dir)
    }

    /// Returns why an entry of the directory of branches names no branch; `None` if it does, and
    /// for an entry of another directory.
    pub(crate) fn branch_problem(&self, dir: Ino, name: &[u8], kind: FileKind) -> Option<String> {
        if self.branches_dir() != Some(dir) {
            return None;
        }
        let is_name = str::from_utf8(name).is_ok_and(|name| pool::split_branch(name).is_some());
        match kind {
            FileKind::Dir if is_name => None,
            FileKind::Dir => Some("a branch cannot have this name".to_owned()),
            kind => Some(format!("it is a branch, whose root is no directory but a {kind:?}")),
        }
    }
}

impl<F: Files> Pool<F> {
    /// As [`pool::Engine::branches_dir`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::branches_dir`].
    pub fn branches_dir(&self, creates: bool) -> Result<Option<Ino>> {
        self.files.op(|_| self.files.branches_dir(creates))
    }

    /// As [`pool::Engine::commit_branch`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::commit_branch`].
    pub fn commit_branch(&self, name: &str, base: Option<&str>) -> Result<()> {
        self.files.alone_then_derive(|| self.files.commit_branch(name, base))?;
        notify_all_unnamed(self.files.tables());
        // Readers may have ended meanwhile.
        self.files.op(|core| {
            core.clear_deferred();
            Ok(())
        })
    }

    /// As [`pool::Engine::copy_tree`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::copy_tree`].
    pub fn copy_tree(&self, from: &TreeSource<'_>, to: (Ino, &[u8])) -> Result<Cloned> {
        let (made, done) = self.files.op(|_| self.files.copy_tree(from, to))?;
        self.files.forget(made, 1);
        Ok(done)
    }

    /// As [`pool::Engine::clone_from_snapshot`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::clone_from_snapshot`].
    pub fn clone_from_snapshot(&self, name: &str, from: Ino, to: Ino) -> Result<()> {
        self.files.op(|_| self.files.clone_from_snapshot(name, from, to))
    }

    /// As [`pool::Engine::content_id`].
    ///
    /// # Errors
    /// Those of [`pool::Engine::content_id`].
    pub fn content_id(&self, ino: Ino) -> Result<u64> {
        self.files.op(|core| {
            let _lock = core.tables().lock_shared(ino)?;
            core.live_file(ino).map(|v| core.load(v, Word::Root))
        })
    }
}
