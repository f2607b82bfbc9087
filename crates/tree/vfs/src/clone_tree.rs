//! Clones of files and directory trees.
//!
//! - clone_tree-C1: the clone appears as a whole, by its last step: the name of a file is given to
//!   a complete file without a name, a directory is renamed from a name of its own.
//! - clone_tree-C2: it has the same contents, attributes, extended attributes and times. Names of
//!   one inode in the tree are names of one inode in the clone.
//! - clone_tree-C3: each file is cloned as it is at one moment. Different files are cloned at
//!   different moments, if others change them meanwhile.
//! - clone_tree-C4: if the clone fails, nothing of it stays. If the process is killed, a directory
//!   with the name of [`temporary_name`] may stay.

use crate::acl::{ACL_ACCESS, ACL_DEFAULT};
use crate::{
    Attr, Caller, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, RenameFlags, Result, SetAttr,
    SetTime, SetXattr, Timestamp,
};
use std::collections::HashMap;

/// The number of inodes and bytes of a clone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// Regular files; a file with several names counts once.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic links, pipes, sockets and devices.
    pub others: u64,
    /// Sizes of all files.
    pub bytes: u64,
}

/// Receives the counts while a clone is made; returns whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(&Cloned) -> bool;

/// Returns the name of the directory in which the clone `name` is built, in the same directory.
pub fn temporary_name(name: &[u8], unique: u64) -> Vec<u8> {
    // Short enough for every file system.
    let shown = &name[..name.len().min(32)];
    [b".".as_slice(), shown, format!(".clone-{unique:016x}").as_bytes()].concat()
}

/// Returns a number that no other call on this machine returns at about the same time.
pub fn unique_number() -> u64 {
    let now = Timestamp::now().0.cast_unsigned();
    u64::from(std::process::id()) << 32 | now & u64::from(u32::MAX)
}

/// Clones `from`, a file, a directory with all below it, or anything else, to the new name `to`. If
/// the file system does not share content ([`crate::Limits::clones`]), files are copied. `unique`
/// is different in each call ([`temporary_name`]).
///
/// # Errors
/// `EEXIST` if the name is taken; `EINVAL` if it lies below `from`; `EINTR` if `progress` returns
/// `false`; those of the calls of [`FileSystem`].
pub fn clone_tree(
    fs: &dyn FileSystem,
    from: Ino,
    to: (Ino, &[u8]),
    unique: u64,
    progress: Progress<'_>,
) -> Result<Cloned> {
    fs.limits().check_name(to.1)?;
    match fs.peek(to.0, to.1) {
        Err(Errno::NOENT) => {}
        Ok(_) => return Err(Errno::EXIST),
        Err(errno) => return Err(errno),
    }
    let mut cloning = Cloning::new((fs, fs), None, progress);
    let attr = fs.getattr(from)?;
    match attr.kind {
        FileKind::Dir => cloning.whole_dir(&attr, to, unique)?,
        FileKind::File => {
            let made = cloning.nameless_file(&attr, to.0)?;
            let linked = fs.link(made, to.0, to.1).map(|entry| fs.forget(entry.ino, 1));
            fs.forget(made, 1);
            linked?;
        }
        _ => {
            let made = cloning.other(&attr, to)?;
            fs.forget(made, 1);
        }
    }
    Ok(cloning.done)
}

/// Gives a file the content of a file of another file system, of which it knows how.
pub type Share<'a> = &'a dyn Fn(Ino, Ino) -> Result<()>;

/// Copies names from one file system to another one, which can share contents with it. Nobody
/// changes either meanwhile. Names of one inode become names of one inode, also of several calls.
pub struct TreeCopy<'a>(Cloning<'a>);

impl<'a> TreeCopy<'a> {
    /// Begins to copy from the first file system to the second.
    pub fn new(
        between: (&'a dyn FileSystem, &'a dyn FileSystem),
        share: Share<'a>,
        progress: Progress<'a>,
    ) -> Self {
        Self(Cloning::new(between, Some(share), progress))
    }

    /// Copies all that is in a directory to one that is empty, then the attributes.
    ///
    /// # Errors
    /// As [`clone_tree`].
    pub fn fill(&mut self, from: Ino, to: Ino) -> Result<()> {
        let attr = self.0.from.getattr(from)?;
        self.0.fill(&attr, to)
    }

    /// Copies an inode that is no directory to a new name.
    ///
    /// # Errors
    /// As [`clone_tree`].
    pub fn copy(&mut self, from: Ino, to: (Ino, &[u8])) -> Result<()> {
        let attr = self.0.from.getattr(from)?;
        if attr.kind == FileKind::Dir {
            return Err(Errno::ISDIR);
        }
        self.0.entry(&attr, to)?;
        // It may have inherited some.
        self.attributes(from, self.0.fs.peek(to.0, to.1)?.ino)
    }

    /// Makes an empty directory with the attributes of another one.
    ///
    /// # Errors
    /// As [`clone_tree`].
    pub fn empty_dir(&mut self, from: Ino, to: (Ino, &[u8])) -> Result<()> {
        let attr = self.0.from.getattr(from)?;
        let node = NewNode { kind: NewKind::Dir, mode: 0o700, umask: 0 };
        let made = self.0.fs.create(&owner(&attr), to.0, to.1, &node)?.ino;
        let done = self.attributes(from, made);
        self.0.fs.forget(made, 1);
        done
    }

    /// Copies the attributes of an inode to another one of its kind.
    ///
    /// # Errors
    /// Those of [`FileSystem::setattr`] and [`FileSystem::setxattr`].
    pub fn attributes(&self, from: Ino, to: Ino) -> Result<()> {
        for name in self.0.fs.listxattr(to)? {
            match self.0.fs.removexattr(to, &name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.0.attributes(&self.0.from.getattr(from)?, to)
    }
}

/// A clone that is being made.
struct Cloning<'a> {
    /// The file system of the source.
    from: &'a dyn FileSystem,
    /// The file system of the clone.
    fs: &'a dyn FileSystem,
    /// How the two share contents, if they are not the same.
    share: Option<Share<'a>>,
    progress: Progress<'a>,
    done: Cloned,
    /// The clones of inodes with several names. Each is held.
    linked: HashMap<Ino, Ino>,
}

impl Drop for Cloning<'_> {
    fn drop(&mut self) {
        for clone in self.linked.values() {
            self.fs.forget(*clone, 1);
        }
    }
}

impl<'a> Cloning<'a> {
    fn new(
        (from, fs): (&'a dyn FileSystem, &'a dyn FileSystem),
        share: Option<Share<'a>>,
        progress: Progress<'a>,
    ) -> Self {
        Self { from, fs, share, progress, done: Cloned::default(), linked: HashMap::new() }
    }

    /// Clones a directory with all below it (clone_tree-C1).
    fn whole_dir(&mut self, attr: &Attr, to: (Ino, &[u8]), unique: u64) -> Result<()> {
        let fs = self.fs;
        if is_below(fs, to.0, attr.ino)? {
            return Err(Errno::INVAL);
        }
        let name = temporary_name(to.1, unique);
        // Others see the clone only when it is complete.
        let node = NewNode { kind: NewKind::Dir, mode: 0o700, umask: 0 };
        let made = fs.create(&owner(attr), to.0, &name, &node)?.ino;
        let result = self.remove_inherited(made).and_then(|()| self.fill(attr, made));
        let result =
            result.and_then(|()| fs.rename((to.0, &name), (to.0, to.1), RenameFlags::NOREPLACE));
        fs.forget(made, 1);
        if result.is_err() {
            // clone_tree-C4.
            let _ = remove_tree(fs, to.0, &name);
        }
        result
    }

    /// Clones all below a directory into another one, then its attributes.
    fn fill(&mut self, top: &Attr, made: Ino) -> Result<()> {
        let mut todo = vec![(*top, made, false)];
        let result = self.fill_all(&mut todo);
        // The caller holds the first.
        for (_, dir, _) in todo.into_iter().filter(|(_, dir, _)| *dir != made) {
            self.fs.forget(dir, 1);
        }
        result
    }

    /// Clones what is to be done: directories with their clones, and whether all below them is
    /// done. Adds those that it meets.
    fn fill_all(&mut self, todo: &mut Vec<(Attr, Ino, bool)>) -> Result<()> {
        while let Some((attr, dir, is_filled)) = todo.last().copied() {
            if is_filled {
                // Names that were made have changed its times.
                self.attributes(&attr, dir)?;
                self.count(|done| done.dirs += 1)?;
                if todo.len() > 1 {
                    self.fs.forget(dir, 1);
                }
                todo.pop();
                continue;
            }
            if let Some(last) = todo.last_mut() {
                last.2 = true;
            }
            for name in names_in(self.from, attr.ino)? {
                let found = match self.from.lookup(attr.ino, &name) {
                    // It was removed meanwhile.
                    Err(Errno::NOENT) => continue,
                    found => found?,
                };
                let made = self.entry(&found, (dir, &name));
                self.from.forget(found.ino, 1);
                if let Some(made) = made? {
                    todo.push((found, made, false));
                }
            }
        }
        Ok(())
    }

    /// Clones one name; returns the clone of a directory, which is empty yet.
    fn entry(&mut self, attr: &Attr, to: (Ino, &[u8])) -> Result<Option<Ino>> {
        let fs = self.fs;
        if attr.kind == FileKind::Dir {
            let node = NewNode { kind: NewKind::Dir, mode: 0o700, umask: 0 };
            return Ok(Some(fs.create(&owner(attr), to.0, to.1, &node)?.ino));
        }
        if let Some(clone) = self.linked.get(&attr.ino) {
            let linked = fs.link(*clone, to.0, to.1)?;
            fs.forget(linked.ino, 1);
            return Ok(None);
        }
        let made = match attr.kind {
            FileKind::File => {
                let mode = attr.perm;
                let node = NewNode { kind: NewKind::File, mode, umask: 0 };
                let made = fs.create(&owner(attr), to.0, to.1, &node)?.ino;
                self.file(attr, made).inspect_err(|_| fs.forget(made, 1))?;
                made
            }
            _ => self.other(attr, to)?,
        };
        match attr.nlink {
            0 | 1 => fs.forget(made, 1),
            _ => drop(self.linked.insert(attr.ino, made)),
        }
        Ok(None)
    }

    /// Clones a file, without a name; adds a reference.
    fn nameless_file(&mut self, attr: &Attr, dir: Ino) -> Result<Ino> {
        let made = self.fs.tmpfile(&owner(attr), dir, attr.perm, 0)?.ino;
        self.remove_inherited(made)
            .and_then(|()| self.file(attr, made))
            .inspect_err(|_| self.fs.forget(made, 1))?;
        Ok(made)
    }

    /// Clones content and attributes of a file (clone_tree-C3).
    fn file(&mut self, attr: &Attr, made: Ino) -> Result<()> {
        let fs = self.fs;
        if attr.size > 0 {
            match self.share {
                Some(share) => share(attr.ino, made)?,
                None if fs.limits().clones => fs.clone_range((attr.ino, 0), (made, 0), 0)?,
                None => self.copy(attr, made)?,
            }
        }
        self.attributes(attr, made)?;
        self.count(|done| {
            done.files += 1;
            done.bytes += attr.size;
        })
    }

    /// Copies the content of a file, without its holes.
    fn copy(&mut self, attr: &Attr, made: Ino) -> Result<()> {
        const AT_ONCE: u64 = 4 << 20;
        let fs = self.fs;
        let set = SetAttr { size: Some(attr.size), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, made, &set)?;
        let mut at = 0;
        while at < attr.size {
            at = match fs.seek(attr.ino, at, crate::Seek::Data) {
                Ok(at) => at,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno),
            };
            let hole = fs.seek(attr.ino, at, crate::Seek::Hole)?;
            let len = (hole - at).min(AT_ONCE);
            match fs.copy_range((attr.ino, at), (made, at), len)? {
                0 => break,
                // It may copy less.
                copied => at += copied,
            }
            self.count(|_| {})?;
        }
        Ok(())
    }

    /// Clones what is neither a file nor a directory; adds a reference.
    fn other(&mut self, attr: &Attr, to: (Ino, &[u8])) -> Result<Ino> {
        let target;
        let kind = match attr.kind {
            FileKind::Symlink => {
                target = self.from.readlink(attr.ino)?;
                NewKind::Symlink(&target)
            }
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::Char => NewKind::Char(attr.rdev),
            FileKind::Block => NewKind::Block(attr.rdev),
            FileKind::File | FileKind::Dir => return Err(Errno::INVAL),
        };
        let node = NewNode { kind, mode: attr.perm, umask: 0 };
        let made = self.fs.create(&owner(attr), to.0, to.1, &node)?.ino;
        self.attributes(attr, made)
            .and_then(|()| self.count(|done| done.others += 1))
            .inspect_err(|_| self.fs.forget(made, 1))?;
        Ok(made)
    }

    /// Gives a clone the attributes of the source, and the extended attributes (clone_tree-C2).
    fn attributes(&self, attr: &Attr, made: Ino) -> Result<()> {
        let fs = self.fs;
        let set = SetAttr {
            // Symbolic links have no permissions of their own.
            perm: (attr.kind != FileKind::Symlink).then_some(attr.perm),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        fs.setattr(&Caller::ROOT, made, &set)?;
        for name in self.from.listxattr(attr.ino)? {
            match self.from.getxattr(attr.ino, &name) {
                // It was removed meanwhile.
                Err(Errno::NODATA) => {}
                value => fs.setxattr(made, &name, &value?, SetXattr::Any)?,
            }
        }
        Ok(())
    }

    /// Removes the access control lists that an inode got from the directory that it was made in.
    fn remove_inherited(&self, made: Ino) -> Result<()> {
        for name in [ACL_ACCESS, ACL_DEFAULT] {
            match self.fs.removexattr(made, name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Counts, and asks whether to go on.
    fn count(&mut self, count: impl FnOnce(&mut Cloned)) -> Result<()> {
        count(&mut self.done);
        if (self.progress)(&self.done) { Ok(()) } else { Err(Errno::INTR) }
    }
}

/// Returns whether a directory is `top`, or lies below it.
///
/// # Errors
/// Those of [`FileSystem::lookup`].
pub fn is_below(fs: &dyn FileSystem, dir: Ino, top: Ino) -> Result<bool> {
    let mut at = dir;
    while at != top && at != fs.root() {
        let parent = fs.lookup(at, b"..")?;
        fs.forget(parent.ino, 1);
        at = parent.ino;
    }
    Ok(at == top)
}

/// Returns the owner of an inode, as the caller that makes its clone.
fn owner(attr: &Attr) -> Caller {
    Caller { uid: attr.uid, gid: attr.gid }
}

/// Returns the names in a directory, except `.` and `..`, in the order of the file system.
///
/// # Errors
/// Those of [`FileSystem::readdir`].
pub fn names_in(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    Ok(names)
}

/// Removes a directory with all below it, however deep that is.
///
/// # Errors
/// Those of [`FileSystem::unlink`] and [`FileSystem::rmdir`].
pub fn remove_tree(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> Result<()> {
    let mut open = vec![(dir, name.to_vec(), fs.lookup(dir, name)?.ino)];
    let removed = remove_all(fs, &mut open);
    open.iter().for_each(|(_, _, ino)| fs.forget(*ino, 1));
    removed
}

/// Removes directories, each with its parent, its name there, and a reference to it. Adds those
/// that it meets, which are removed before.
fn remove_all(fs: &dyn FileSystem, open: &mut Vec<(Ino, Vec<u8>, Ino)>) -> Result<()> {
    while let Some((parent, name, dir)) = open.last().cloned() {
        let before = open.len();
        for below in names_in(fs, dir)? {
            match fs.peek(dir, &below)?.kind {
                FileKind::Dir => {
                    let found = fs.lookup(dir, &below)?.ino;
                    open.push((dir, below, found));
                }
                _ => fs.unlink(dir, &below)?,
            }
        }
        if open.len() == before {
            fs.rmdir(parent, &name)?;
            fs.forget(dir, 1);
            open.pop();
        }
    }
    Ok(())
}
