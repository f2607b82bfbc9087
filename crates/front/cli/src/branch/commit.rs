//! `keepstone branch commit`
//!
//! 1. If the pool is as the branch's base has it, the branch takes its place, in one step.
//! 2. Otherwise the state of the pool is kept as a snapshot. Its changes are merged into the
//!    branch, by path: the branch gets the paths that only the pool has changed.
//! 3. The branch takes the place of the pool if that is as this snapshot has it. If programs have
//!    changed the pool meanwhile, step 2 is repeated.
//!
//! A command that is killed leaves the branch, perhaps with a part of the pool's changes. The next
//! commit finds them equal on both sides, and goes on.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ::pool::{base_of_branch, later_of_branch};
use anyhow::{Result, bail};
use serde::Serialize;
use vfs::{Errno, FileKind, Ino, ROOT, TreeCopy};

use super::changes::{self, Changes, InodeValue, PathBytes, Tree};
use super::{Branches, CommitArgs, explain};
use crate::{output, pool};

/// How often the pool may change during the command.
const ATTEMPTS: u32 = 8;

#[derive(Serialize)]
struct Report {
    pool: String,
    branch: String,
    committed: bool,
    /// Paths that only the pool had changed, which the branch got.
    merged: Vec<String>,
    /// Paths that both had changed. With `--force` the pool has those of the branch.
    conflicts: Vec<String>,
}

/// The results of a merge so far.
#[derive(Default)]
struct Merged {
    /// The states that the branch got; `None`: a path that is no more.
    states: BTreeMap<PathBytes, Option<InodeValue>>,
    /// Paths that both have changed.
    conflicts: Vec<PathBytes>,
}

pub fn run(args: &CommitArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (name, force) = (&args.name, args.force);
    let mut merged = Merged::default();
    let committed = Branches::with(path.clone(), (name, false), |branches| {
        branches.commit(name, force, &mut merged)
    })?;
    let shown = |path: &PathBytes| match path.as_slice() {
        b"" => "/".to_owned(),
        path => String::from_utf8_lossy(path).into_owned(),
    };
    let report = Report {
        pool: path.display().to_string(),
        branch: name.clone(),
        committed,
        merged: merged.states.keys().map(shown).collect(),
        conflicts: merged.conflicts.iter().map(shown).collect(),
    };
    if json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(if committed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    let Report { pool, branch, committed, merged, conflicts } = report;
    if !committed {
        conflicts.iter().for_each(|path| say!("{path}"));
        output::notice(format_args!(
            "{pool}@{branch}: not committed; the pool and the branch have both changed the listed paths. `--force` takes \
             those of the branch"
        ));
        return;
    }
    say!("{pool}@{branch}: is the tree of the pool");
    if !merged.is_empty() {
        say!("paths merged from the pool: {}", merged.len());
    }
    if !conflicts.is_empty() {
        say!("paths that the pool had changed, too: {}", conflicts.len());
    }
}

impl Branches {
    /// Makes a branch the tree of the pool; returns whether it did. It does not if both have
    /// changed a path, unless `force`.
    fn commit(&self, name: &str, force: bool, merged: &mut Merged) -> Result<bool> {
        self.check_exists(name)?;
        self.hold_unmounted(name)?;
        let later = later_of_branch(name);
        let mut state_of_pool = base_of_branch(name);
        for _ in 0..ATTEMPTS {
            match self.fs.commit_branch(name, &state_of_pool) {
                Ok(()) => {
                    self.remove(name)?;
                    return Ok(true);
                }
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(explain(errno, &self.path, name)),
            }
            let mut merge = || -> Result<bool> {
                self.delete_snapshot(&later)?;
                self.fs.create_snapshot(&later).map_err(|e| explain(e, &self.path, name))?;
                self.merge(name, &later, force, merged)
            };
            let done = merge();
            if !matches!(done, Ok(true)) {
                let _ = self.delete_snapshot(&later);
                return done;
            }
            state_of_pool.clone_from(&later);
        }
        let _ = self.delete_snapshot(&later);
        bail!(
            "{}: programs change the pool all the time; stop them, and commit {name} again",
            self.path.display()
        );
    }

    /// Merges the changes of the pool between the base and a later snapshot into the branch.
    /// Returns whether the branch may be committed: no path is in conflict, or `force`.
    fn merge(&self, name: &str, later: &str, force: bool, merged: &mut Merged) -> Result<bool> {
        let base = self.open_snapshot(&base_of_branch(name))?;
        let newer = self.open_snapshot(later)?;
        let root = self.fs.peek(self.dir, name.as_bytes())?.ino;
        let of_pool = changes::between((&*base, ROOT), (&*newer, ROOT))?;
        let mut of_branch = changes::between((&*base, ROOT), (&*self.fs, root))?;
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
        let mut copy = TreeCopy::new((&*newer, &*self.fs), &share, &mut progress);
        self.apply(root, &wanted, &mut copy)?;
        let states = wanted.into_iter().map(|(path, (_, new))| (path, new.map(|new| new.state)));
        merged.states.extend(states);
        Ok(true)
    }

    /// Gives the branch the changed paths, if it does not have them so already.
    fn apply(&self, root: Ino, wanted: &Changes, copy: &mut TreeCopy<'_>) -> Result<()> {
        let tree: Tree<'_> = (&*self.fs, root);
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
                Err(errno) => return Err(errno.into()),
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
