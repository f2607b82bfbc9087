//! `keepstone snapshot diff`: the names that differ between two states of a pool.
//!
//! Two snapshots are compared where they lie: contents are the same if the pointers to them are
//! ([`engines::changed`]). In a comparison with the present state, an inode is the same if its
//! number, its generation and the time of its last change are: each change of an inode or its
//! content sets that time, and no program can set it.

use std::collections::{BTreeMap, HashSet, btree_map};
use std::path::{Path, PathBuf};

use ::pool::stream::SendError;
use ::pool::{Engine, MountOptions};
use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use vfs::{Errno, FileKind, Ino, ROOT};

use super::{attached, check_layout, explain, name};
use crate::{output, pool, shown};

/// `keepstone snapshot diff`
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The name of the older snapshot.
    #[arg(value_parser = name)]
    pub from: String,
    /// The name of the newer snapshot. Default: the present state of the pool.
    #[arg(value_parser = name)]
    pub to: Option<String>,
}

/// The paths that differ, in the order of their bytes within each directory.
#[derive(Default, Serialize)]
struct Differences {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
    #[serde(skip)]
    lines: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    pool: String,
    from: &'a str,
    /// Null: the present state of the pool.
    to: Option<&'a str>,
    #[serde(flatten)]
    found: Differences,
}

/// A kind of difference.
#[derive(Clone, Copy)]
enum Difference {
    Added,
    Removed,
    Changed,
}

impl Differences {
    fn add(&mut self, kind: Difference, path: &[u8]) {
        let path = String::from_utf8_lossy(path).into_owned();
        let (sign, list) = match kind {
            Difference::Added => ('+', &mut self.added),
            Difference::Removed => ('-', &mut self.removed),
            Difference::Changed => ('M', &mut self.changed),
        };
        self.lines.push(format!("{sign} {}", shown::path(&path)));
        list.push(path);
    }
}

pub fn run(args: &DiffArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    let found = match &args.to {
        Some(to) => of_snapshots(&path, &args.from, to)?,
        None => of_present(&path, &args.from)?,
    };
    if json {
        let pool = path.display().to_string();
        return output::json(&Report { pool, from: &args.from, to: args.to.as_deref(), found });
    }
    found.lines.iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// Compares two snapshots.
fn of_snapshots(path: &Path, from: &str, to: &str) -> Result<Differences> {
    let region = pool::open_to_look(path)?;
    let failed = |err: SendError| match err {
        SendError::NoSnapshot(name) => explain(Errno::NOENT, path, &name),
        err => anyhow::Error::new(err).context(path.display().to_string()),
    };
    let changed = engines::changed(&region, from, to).map_err(failed)?;
    let names = |name: &str, dir| -> Result<Vec<(Vec<u8>, InodeState)>> {
        let names = engines::names_in_snapshot(&region, name, dir).map_err(failed)?;
        let state = |inode: engines::NamedInode| InodeState {
            ino: inode.ino,
            kind: inode.kind,
            life: (inode.generation, 0),
        };
        Ok(names.into_iter().map(|(name, inode)| (name, state(inode))).collect())
    };
    let is_changed = |ino| changed.contains(&ino);
    let sides = (&mut |dir| names(from, dir), &mut |dir| names(to, dir));
    walk(sides.0, sides.1, &is_changed).with_context(|| path.display().to_string())
}

/// Compares a snapshot with the present state.
fn of_present(path: &Path, from: &str) -> Result<Differences> {
    let region = pool::open_to_look(path)?;
    let old = engines::mount_snapshot(region, from, &MountOptions::default());
    let old = old.map_err(|err| match err {
        ::pool::Error::Errno(errno) => explain(errno, path, from),
        err => anyhow::Error::new(err).context(path.display().to_string()),
    })?;
    attached(path, |new| {
        let mut sides = (|dir| Ok(entries(&*old, dir)?), |dir| Ok(entries(new, dir)?));
        walk(&mut sides.0, &mut sides.1, &|_| false).with_context(|| path.display().to_string())
    })
}

/// An inode of one of the states.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InodeState {
    ino: Ino,
    kind: FileKind,
    /// Its generation, and the time of its last change, if that decides whether it has changed.
    life: (u32, i64),
}

/// Returns the entries of a directory.
type Names<'a> = &'a mut dyn FnMut(Ino) -> Result<Vec<(Vec<u8>, InodeState)>>;

/// The entries of a directory that are still to be compared: of both states, or of one.
type Entries = btree_map::IntoIter<Vec<u8>, (Option<InodeState>, Option<InodeState>)>;

/// Finds the differences between two states. `is_changed` returns whether an inode has changed that
/// is the same in both.
fn walk(from: Names<'_>, to: Names<'_>, is_changed: &dyn Fn(Ino) -> bool) -> Result<Differences> {
    let mut found = Differences::default();
    // A directory has one name; more of them are damage, and might be a cycle.
    let mut seen = (HashSet::new(), HashSet::new());
    let mut both = |old: Option<Ino>, new: Option<Ino>| -> Result<Entries> {
        let mut names: BTreeMap<_, (Option<InodeState>, Option<InodeState>)> = BTreeMap::new();
        if let Some(old) = old {
            anyhow::ensure!(seen.0.insert(old), Errno::UCLEAN);
            from(old)?.into_iter().for_each(|(name, state)| {
                names.entry(name).or_default().0 = Some(state);
            });
        }
        if let Some(new) = new {
            anyhow::ensure!(seen.1.insert(new), Errno::UCLEAN);
            to(new)?.into_iter().for_each(|(name, state)| {
                names.entry(name).or_default().1 = Some(state);
            });
        }
        Ok(names.into_iter())
    };
    let mut open = vec![(Vec::new(), both(Some(ROOT), Some(ROOT))?)];
    while let Some((dir, names)) = open.last_mut() {
        let Some((name, states)) = names.next() else {
            open.pop();
            continue;
        };
        let path = [dir, b"/".as_slice(), &name].concat();
        let dir = |state: InodeState| (state.kind == FileKind::Dir).then_some(state.ino);
        match states {
            (Some(old), Some(new)) if old.kind == new.kind => {
                if old != new || is_changed(new.ino) {
                    found.add(Difference::Changed, &path);
                }
                if dir(old).is_some() {
                    open.push((path, both(dir(old), dir(new))?));
                }
            }
            (old, new) => {
                if old.is_some() {
                    found.add(Difference::Removed, &path);
                }
                if new.is_some() {
                    found.add(Difference::Added, &path);
                }
                // At most one of them is a directory.
                let (old, new) = (old.and_then(dir), new.and_then(dir));
                if old.or(new).is_some() {
                    open.push((path, both(old, new)?));
                }
            }
        }
    }
    Ok(found)
}

/// Returns the entries of a directory, without those that are removed meanwhile.
fn entries(fs: &dyn Engine, dir: Ino) -> vfs::Result<Vec<(Vec<u8>, InodeState)>> {
    let names = match vfs::names_in(fs, dir) {
        Err(Errno::STALE | Errno::NOENT) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        match fs.peek(dir, &name) {
            Ok(attr) => {
                let life = (attr.generation, attr.ctime.0);
                all.push((name, InodeState { ino: attr.ino, kind: attr.kind, life }));
            }
            Err(Errno::NOENT | Errno::STALE) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}
