//! `keepstone snapshot diff`: the names that differ between two states of a pool.
//!
//! An inode is the same in both states if its number, its generation and the time of its last
//! change are: each change of an inode or its content sets that time, and no program can set it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use ::pool::{Engine, MountOptions};
use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use vfs::{Attr, Errno, FileKind, Ino, ROOT};

use super::{attached, check_layout, explain, name};
use crate::{output, pool};

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
        self.lines.push(format!("{sign} {path}"));
        list.push(path);
    }
}

pub fn run(args: &DiffArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    let open = |name: &str| -> Result<Arc<dyn Engine>> {
        let region = pool::open_to_look(&path)?;
        engines::mount_snapshot(region, name, &MountOptions::default()).map_err(|err| match err {
            ::pool::Error::Errno(errno) => explain(errno, &path, name),
            err => anyhow::Error::new(err).context(path.display().to_string()),
        })
    };
    let from = open(&args.from)?;
    let compare = |to: &dyn Engine| {
        let mut found = Differences::default();
        let all = walk((&*from, ROOT), (to, ROOT), b"", &mut found);
        all.map(|()| found).with_context(|| path.display().to_string())
    };
    let found = match &args.to {
        Some(to) => compare(&*open(to)?)?,
        None => attached(&path, compare)?,
    };
    if json {
        let pool = path.display().to_string();
        return output::json(&Report { pool, from: &args.from, to: args.to.as_deref(), found });
    }
    found.lines.iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// Finds the differences below a directory of both states.
fn walk(
    from: (&dyn Engine, Ino),
    to: (&dyn Engine, Ino),
    path: &[u8],
    found: &mut Differences,
) -> vfs::Result<()> {
    let mut names: BTreeMap<Vec<u8>, (Option<Attr>, Option<Attr>)> = BTreeMap::new();
    for (name, attr) in entries(from)? {
        names.insert(name, (Some(attr), None));
    }
    for (name, attr) in entries(to)? {
        match names.entry(name) {
            Entry::Occupied(mut both) => both.get_mut().1 = Some(attr),
            Entry::Vacant(one) => drop(one.insert((None, Some(attr)))),
        }
    }
    for (name, states) in names {
        let path = [path, b"/", &name].concat();
        let is_dir = |attr: &Attr| attr.kind == FileKind::Dir;
        match states {
            (Some(old), Some(new)) if is_same(&old, &new) || is_dir(&old) && is_dir(&new) => {
                if !is_same(&old, &new) {
                    found.add(Difference::Changed, &path);
                }
                if is_dir(&old) {
                    walk((from.0, old.ino), (to.0, new.ino), &path, found)?;
                }
            }
            (Some(old), Some(new)) if old.kind == new.kind => found.add(Difference::Changed, &path),
            (old, new) => {
                if let Some(old) = old {
                    all(from.0, &old, Difference::Removed, &path, found)?;
                }
                if let Some(new) = new {
                    all(to.0, &new, Difference::Added, &path, found)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns whether an inode has not changed.
fn is_same(old: &Attr, new: &Attr) -> bool {
    (old.ino, old.generation, old.ctime) == (new.ino, new.generation, new.ctime)
}

/// Adds an inode, and all below it.
fn all(
    fs: &dyn Engine,
    attr: &Attr,
    kind: Difference,
    path: &[u8],
    found: &mut Differences,
) -> vfs::Result<()> {
    found.add(kind, path);
    if attr.kind == FileKind::Dir {
        for (name, attr) in entries((fs, attr.ino))? {
            all(fs, &attr, kind, &[path, b"/", &name].concat(), found)?;
        }
    }
    Ok(())
}

/// Returns the entries of a directory, without those that are removed meanwhile.
fn entries((fs, dir): (&dyn Engine, Ino)) -> vfs::Result<Vec<(Vec<u8>, Attr)>> {
    let names = match vfs::names_in(fs, dir) {
        Err(Errno::STALE | Errno::NOENT) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        match fs.peek(dir, &name) {
            Ok(attr) => all.push((name, attr)),
            Err(Errno::NOENT | Errno::STALE) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}
