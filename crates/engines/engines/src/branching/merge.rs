//! Commits of branches.
//!
//! 1. If the pool is as the branch's base has it, the branch takes its place, in one step.
//! 2. Otherwise the state of the pool is kept as a snapshot. Its changes are merged into the
//!    branch, by path: the branch gets the paths that only the pool has changed.
//! 3. The branch takes the place of the pool if that is as this snapshot has it. If programs have
//!    changed the pool meanwhile, step 2 is repeated.
//!
//! A process that is killed leaves the branch, perhaps with a part of the pool's changes. The next
//! commit finds them equal on both sides, and goes on.

use super::Branches;
use super::changes::{self, Changes, InodeValue, PathBytes, Tree};
use pool::{Error, base_of_branch, later_of_branch};
use std::collections::BTreeMap;
use vfs::{Errno, FileKind, Ino, ROOT, TreeCopy};

/// The number of times that the pool may change during a commit.
const ATTEMPTS: u32 = 8;

/// The result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedBranch {
    /// Whether the branch is the tree of the pool. If not, nothing has changed.
    pub is_done: bool,
    /// The paths that the branch and the pool have both changed.
    pub paths: MergedPaths,
}

/// The paths that a merge has met, each from the root of the tree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedPaths {
    /// Paths that only the pool had changed: the branch got them.
    pub merged: Vec<PathBytes>,
    /// Paths that both had changed.
    pub conflicts: Vec<PathBytes>,
}

/// The results of a merge so far.
#[derive(Default)]
struct Merged {
    /// The states that the branch got; `None`: a path that is no more.
    states: BTreeMap<PathBytes, Option<InodeValue>>,
    /// Paths that both have changed.
    conflicts: Vec<PathBytes>,
}

impl Branches<'_> {
    /// Makes a branch the tree of the pool. It does not if both have changed a path, unless
    /// `force`: then the pool gets the state of the branch for such paths.
    ///
    /// # Errors
    /// `ENOENT` if there is no such branch, `EBUSY` if it is used, `EAGAIN` if programs change the
    /// pool all the time, `ENOSPC`.
    pub fn commit(&self, name: &str, force: bool) -> Result<CommittedBranch, Error> {
        let mut merged = Merged::default();
        let is_done = self.try_commit(name, force, &mut merged)?;
        let paths = MergedPaths {
            merged: merged.states.into_keys().collect(),
            conflicts: merged.conflicts,
        };
        Ok(CommittedBranch { is_done, paths })
    }

    fn try_commit(&self, name: &str, force: bool, merged: &mut Merged) -> Result<bool, Error> {
        let later = later_of_branch(name);
        let mut state_of_pool = base_of_branch(name);
        let end = |done| {
            match self.fs.delete_snapshot(&later) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    tracing::warn!(%errno, later, "a snapshot stays until the next command")
                }
            }
            done
        };
        for _ in 0..ATTEMPTS {
            // A commit gives it back.
            let _unused = self.hold_unused(name)?;
            match self.fs.commit_branch(name, Some(&state_of_pool)) {
                Ok(()) => return self.remove(name).map(|()| true),
                Err(Errno::AGAIN) => {}
                Err(errno) => return end(Err(errno.into())),
            }
            let _unused = self.hold_unused(name)?;
            let done = self.merge_present(name, &later, force, merged);
            if !matches!(done, Ok(true)) {
                return end(done);
            }
            state_of_pool.clone_from(&later);
        }
        end(Err(Errno::AGAIN.into()))
    }

    /// Keeps the present state of the pool as a snapshot, and merges it into the branch.
    fn merge_present(
        &self,
        name: &str,
        later: &str,
        force: bool,
        merged: &mut Merged,
    ) -> Result<bool, Error> {
        match self.fs.delete_snapshot(later) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.fs.create_snapshot(later)?;
        self.merge(name, later, force, merged)
    }

    /// Merges the changes of the pool between the base and a later snapshot into the branch.
    /// Returns whether the branch may be committed: no path is in conflict, or `force`.
    fn merge(
        &self,
        name: &str,
        later: &str,
        force: bool,
        merged: &mut Merged,
    ) -> Result<bool, Error> {
        let base = self.open_snapshot(&base_of_branch(name))?;
        let newer = self.open_snapshot(later)?;
        let root = self.fs.peek(self.dir, name.as_bytes())?.ino;
        let of_pool = changes::between((&*base, ROOT), (&*newer, ROOT))?;
        let mut of_branch = changes::between((&*base, ROOT), (self.fs, root))?;
        // An earlier attempt has merged these.
        of_branch.retain(|path, (_, new)| {
            merged
                .states
                .get(path)
                .is_none_or(|state| state.as_ref() != changes::state(new.as_ref()))
        });
        merged.conflicts = changes::conflicts(&of_pool, &of_branch);
        if !merged.conflicts.is_empty() && !force {
            return Ok(false);
        }
        let mut wanted = of_pool;
        wanted.retain(|path, _| merged.conflicts.binary_search(path).is_err());
        let share = |from, to| self.fs.clone_from_snapshot(later, from, to);
        let mut progress = |_: &vfs::Cloned| true;
        let mut copy = TreeCopy::new((&*newer, self.fs), &share, &mut progress);
        self.apply(root, &wanted, &mut copy)?;
        let states = wanted.into_iter().map(|(path, (_, new))| (path, new.map(|new| new.state)));
        merged.states.extend(states);
        Ok(true)
    }

    /// Gives the branch the changed paths, if it does not have them so already.
    fn apply(&self, root: Ino, wanted: &Changes, copy: &mut TreeCopy<'_>) -> vfs::Result<()> {
        let tree: Tree<'_> = (self.fs, root);
        // Paths below a directory go before it.
        for (path, (_, new)) in wanted.iter().rev() {
            let Some((dir, name)) = place(tree, path)? else { continue };
            let Some(found) = changes::find(tree, path)? else { continue };
            let stays = match new.as_ref().map(|new| &new.state) {
                Some(new) if new.kind == found.kind => {
                    found.kind == FileKind::Dir || *new == InodeValue::of(tree.0, &found)?
                }
                _ => false,
            };
            if stays {
                continue;
            }
            let removed = match found.kind {
                FileKind::Dir => self.fs.rmdir(dir, name),
                _ => self.fs.unlink(dir, name),
            };
            match removed {
                // The branch has more in it, which it keeps (`--force`).
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(errno) => return Err(errno),
            }
        }
        for (path, (_, new)) in wanted {
            let (Some(new), Some((dir, name))) = (new, place(tree, path)?) else { continue };
            if changes::find(tree, path)?.is_some() {
                continue;
            }
            match new.state.kind {
                // Names in it have paths of their own.
                FileKind::Dir => copy.empty_dir(new.ino, (dir, name))?,
                _ => copy.copy(new.ino, (dir, name))?,
            }
        }
        // After the names in them, which change their times.
        for (path, (_, new)) in wanted.iter().rev() {
            let Some(new) = new.as_ref().filter(|new| new.is_dir()) else { continue };
            if let Some(found) =
                changes::find(tree, path)?.filter(|found| found.kind == FileKind::Dir)
            {
                copy.attributes(new.ino, found.ino)?;
            }
        }
        Ok(())
    }
}

/// Returns the directory of a path in a tree, and the name; `None` for the root, and if the tree
/// has no such directory.
fn place<'p>(tree: Tree<'_>, path: &'p [u8]) -> vfs::Result<Option<(Ino, &'p [u8])>> {
    let Some(at) = path.iter().rposition(|byte| *byte == b'/') else { return Ok(None) };
    let dir = changes::find(tree, &path[..at])?.filter(|dir| dir.kind == FileKind::Dir);
    Ok(dir.map(|dir| (dir.ino, &path[at + 1..])))
}
