//! The differences between two states of a tree, by path.
//!
//! Inodes are compared by value, not by number or time of change: a branch has other inodes than
//! its base, and two changes can have the same time. Of directories, only the attributes count;
//! names in them have paths of their own. Contents are compared by their identity
//! ([`Engine::content_id`]), so that no data is read. A file that was written with the same bytes
//! has changed.

use pool::Engine;
use std::collections::BTreeMap;
use vfs::{Attr, Errno, FileKind, Ino, Result, Timestamp};

/// A path from the root, which is empty.
pub type PathBytes = Vec<u8>;

/// A tree: a file system, and the root of the tree.
pub type Tree<'a> = (&'a dyn Engine, Ino);

/// The value of an inode: all that a user can see, except its number, its names, and times that
/// cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeValue {
    pub kind: FileKind,
    perm: u32,
    owner: (u32, u32),
    rdev: u32,
    /// Size, identity of the content, and time of its last change. Nothing of a directory.
    content: Option<(u64, u64, Timestamp)>,
    /// The target of a symbolic link.
    target: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An inode in a tree.
#[derive(Clone, Debug)]
pub struct SeenInode {
    pub ino: Ino,
    pub state: InodeValue,
}

/// A path that differs: what it was, and what it is.
pub type Change = (Option<SeenInode>, Option<SeenInode>);

/// The paths that differ.
pub type Changes = BTreeMap<PathBytes, Change>;

impl InodeValue {
    /// Reads the value of an inode.
    pub fn of(fs: &dyn Engine, attr: &Attr) -> Result<Self> {
        let content = match attr.kind {
            FileKind::Dir => None,
            FileKind::File => Some((attr.size, fs.content_id(attr.ino)?, attr.mtime)),
            _ => Some((attr.size, 0, attr.mtime)),
        };
        let target = match attr.kind {
            FileKind::Symlink => fs.readlink(attr.ino)?,
            _ => Vec::new(),
        };
        let mut attributes = Vec::new();
        for name in fs.listxattr(attr.ino)? {
            let value = fs.getxattr(attr.ino, &name)?;
            attributes.push((name, value));
        }
        attributes.sort_unstable();
        let owner = (attr.uid, attr.gid);
        Ok(Self {
            kind: attr.kind,
            perm: attr.perm,
            owner,
            rdev: attr.rdev,
            content,
            target,
            attributes,
        })
    }
}

impl SeenInode {
    fn of(fs: &dyn Engine, attr: &Attr) -> Result<Self> {
        Ok(Self { ino: attr.ino, state: InodeValue::of(fs, attr)? })
    }

    pub fn is_dir(&self) -> bool {
        self.state.kind == FileKind::Dir
    }
}

/// Returns the value on one side of a change.
pub fn state(seen: Option<&SeenInode>) -> Option<&InodeValue> {
    seen.map(|seen| &seen.state)
}

/// Returns the paths that differ between two trees that do not change meanwhile.
pub fn between(from: Tree<'_>, to: Tree<'_>) -> Result<Changes> {
    let mut found = Changes::new();
    let roots = [from, to].map(|(fs, ino)| SeenInode::of(fs, &fs.getattr(ino)?));
    let [old, new] = roots;
    let mut pending = vec![(Vec::new(), (Some(old?), Some(new?)))];
    while let Some((path, (old, new))) = pending.pop() {
        let mut names: BTreeMap<Vec<u8>, Change> = BTreeMap::new();
        if let Some(old) = old.as_ref().filter(|seen| seen.is_dir()) {
            for (name, seen) in entries((from.0, old.ino))? {
                names.insert(name, (Some(seen), None));
            }
        }
        if let Some(new) = new.as_ref().filter(|seen| seen.is_dir()) {
            for (name, seen) in entries((to.0, new.ino))? {
                names.entry(name).or_default().1 = Some(seen);
            }
        }
        for (name, (old, new)) in names {
            pending.push(([&path, &b"/"[..], &name].concat(), (old, new)));
        }
        if state(old.as_ref()) != state(new.as_ref()) {
            found.insert(path, (old, new));
        }
    }
    Ok(found)
}

/// Returns the entries of a directory.
fn entries((fs, dir): Tree<'_>) -> Result<Vec<(Vec<u8>, SeenInode)>> {
    let names = vfs::names_in(fs, dir)?;
    let seen = |name: Vec<u8>| {
        let seen = SeenInode::of(fs, &fs.peek(dir, &name)?)?;
        Ok((name, seen))
    };
    names.into_iter().map(seen).collect()
}

/// Returns the paths above a path, the root first.
pub fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..path.len()).filter(|at| path[*at] == b'/').map(|at| &path[..at])
}

/// Returns the paths that two changed states of a tree have changed differently: the same path, or
/// one that needs a directory which the other state does not have.
pub fn conflicts(one: &Changes, other: &Changes) -> Vec<PathBytes> {
    let lacks_above = |path: &PathBytes, changes: &Changes| {
        above(path).any(|dir| {
            changes.get(dir).is_some_and(|(_, new)| !new.as_ref().is_some_and(SeenInode::is_dir))
        })
    };
    let is_new = |change: &Change| change.1.is_some();
    let mut found: Vec<PathBytes> = Vec::new();
    for (path, change) in one {
        let differs = other
            .get(path)
            .is_some_and(|others| state(others.1.as_ref()) != state(change.1.as_ref()));
        if differs || is_new(change) && lacks_above(path, other) {
            found.push(path.clone());
        }
    }
    let more = other.iter().filter(|(path, change)| is_new(change) && lacks_above(path, one));
    found.extend(more.map(|(path, _)| path.clone()));
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the inode of a path below a root; `None` if it does not exist.
pub fn find(tree: Tree<'_>, path: &[u8]) -> Result<Option<Attr>> {
    let mut attr = tree.0.getattr(tree.1)?;
    for name in vfs::path::names(path) {
        match tree.0.peek(attr.ino, name) {
            Ok(next) => attr = next,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
    Ok(Some(attr))
}
