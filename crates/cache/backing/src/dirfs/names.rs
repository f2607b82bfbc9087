//! Lookup, creation, removal and renaming of names.

use super::inode::{key_of, kind_of, stat};
use super::listing::{number_above, open_listing};
use super::{DirFs, link_to, reopen};
use crate::caller::Acting;
use crate::nodes::FoundNode;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat, openat, unlinkat};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use vfs::{Caller, Entry, Errno, FileKind, Ino, NewKind, NewNode, ROOT, RenameFlags, Result};

/// Flags to open a name without following it and without opening its content (dirfs-B1).
const NAMED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags to create and open a new file.
const NEW: OFlags =
    OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOATIME);

/// Opens the inode of `name`.
pub fn open_name(dir: &OwnedFd, name: &[u8]) -> Result<Arc<OwnedFd>> {
    openat(dir, name, NAMED, Mode::empty()).map(Arc::new)
}

impl DirFs {
    /// Implements `FileSystem::lookup`. The entry counts one more reference.
    pub(super) fn look_up(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let inode = self.inode(dir)?;
        if name == b"." {
            return self.enter(self.found(inode.fd)?, None);
        }
        if inode.kind != FileKind::Dir {
            return Err(Errno::NOTDIR);
        }
        self.limits.check_component(name)?;
        if name == b".." {
            return self.parent(dir, &inode.fd);
        }
        let _names = self.names.shared(dir);
        let found = self.found(open_name(&inode.fd, name)?)?;
        self.enter(found, Some((dir, name)))
    }

    /// Returns the parent of a directory. `ENOENT` if the directory was removed; `ESTALE` if the
    /// root is no longer above it.
    fn parent(&self, ino: Ino, dir: &Arc<OwnedFd>) -> Result<Entry> {
        if ino == ROOT {
            return self.enter(self.found(dir.clone())?, None);
        }
        if stat(dir.as_fd())?.stx_nlink == 0 || self.nodes().get(ino)?.is_nameless {
            return Err(Errno::NOENT);
        }
        if self.is_below_root(dir)? {
            return self.enter(self.found(self.root.clone())?, None);
        }
        let parent = open_name(dir, b"..")?;
        self.check_inside(&parent)?;
        self.enter(self.found(parent)?, None)
    }

    /// Fails with `ESTALE` if a directory is neither the root nor below it (dirfs-B1).
    pub(super) fn check_inside(&self, dir: &Arc<OwnedFd>) -> Result<()> {
        let root = key_of(&stat(self.root.as_fd())?);
        let mut at = dir.clone();
        let mut key = key_of(&stat(at.as_fd())?);
        while key != root && !self.is_below_root(&at)? {
            at = open_name(&at, b"..")?;
            let above = key_of(&stat(at.as_fd())?);
            if above == key {
                return Err(Errno::STALE);
            }
            key = above;
        }
        Ok(())
    }

    /// Returns whether the root is the parent of a directory. This reads the listing, because `..`
    /// would lead to what is mounted over the root.
    fn is_below_root(&self, dir: &OwnedFd) -> Result<bool> {
        let root = key_of(&stat(self.root.as_fd())?);
        let (dev, number) = key_of(&stat(dir.as_fd())?);
        if dev != root.0 || number == root.1 {
            return Ok(false);
        }
        match open_listing(dir).and_then(|stream| number_above(&stream)) {
            // A process that may not list the directory may still use `..`.
            Err(Errno::ACCESS | Errno::PERM) => Ok(false),
            above => Ok(above? == Some(root.1)),
        }
    }

    /// Implements `FileSystem::create`. If a later step fails, removes the name again.
    pub(super) fn create_named(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Result<Entry> {
        let parent = self.directory(dir)?;
        self.limits.check_name(name)?;
        if let NewKind::Symlink(target) = node.kind {
            self.limits.check_target(target)?;
        }
        let _names = self.names.exclusive(dir);
        let made = self.make(caller, &parent, name, node)?;
        let entered = made.and_then(|(fd, content)| {
            let entry = self.enter(self.found(fd)?, Some((dir, name)))?;
            self.nodes().note_name(entry.ino, dir);
            Ok((entry, content))
        });
        match entered {
            Ok((entry, content)) => {
                if let (Some(content), Ok(inode)) = (content, self.inode(entry.ino)) {
                    self.contents_open.put((inode.serial, true), Arc::new(content));
                }
                Ok(entry)
            }
            Err(errno) => {
                // A failed call must leave nothing behind (vfs-C2).
                let is_dir = node.kind == NewKind::Dir;
                let _ = unlinkat(&parent, name, remove_flags(is_dir));
                Err(errno)
            }
        }
    }

    /// Creates a name and opens its inode. The outer error is that of the creation, the inner one
    /// that of the opening.
    #[allow(clippy::type_complexity)]
    fn make(
        &self,
        caller: &Caller,
        parent: &OwnedFd,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Result<Result<(Arc<OwnedFd>, Option<OwnedFd>)>> {
        let mode = Mode::from_raw_mode(node.mode & 0o7777);
        let special = |kind, rdev: u32| rustix::fs::mknodat(parent, name, kind, mode, rdev.into());
        let acting = Acting::new(caller, node.umask)?;
        match node.kind {
            NewKind::File => {
                let content = openat(parent, name, NEW | OFlags::CREATE | OFlags::EXCL, mode)?;
                drop(acting);
                return Ok(reopen(&content, OFlags::PATH).map(|fd| (Arc::new(fd), Some(content))));
            }
            NewKind::Dir => rustix::fs::mkdirat(parent, name, mode)?,
            NewKind::Symlink(target) => rustix::fs::symlinkat(target, parent, name)?,
            NewKind::Fifo => special(FileType::Fifo, 0)?,
            NewKind::Socket => special(FileType::Socket, 0)?,
            NewKind::Char(rdev) => special(FileType::CharacterDevice, rdev)?,
            NewKind::Block(rdev) => special(FileType::BlockDevice, rdev)?,
        }
        drop(acting);
        Ok(open_name(parent, name).map(|fd| (fd, None)))
    }

    /// Implements `FileSystem::tmpfile`: a file without a name.
    pub(super) fn create_nameless(
        &self,
        caller: &Caller,
        dir: Ino,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        let parent = self.directory(dir)?;
        let content = {
            let _acting = Acting::new(caller, umask)?;
            let mode = Mode::from_raw_mode(mode & 0o7777);
            openat(&parent, ".", NEW | OFlags::TMPFILE, mode)?
        };
        let fd = Arc::new(reopen(&content, OFlags::PATH)?);
        let entry = self.enter(self.found(fd)?, None)?;
        if let Ok(inode) = self.inode(entry.ino) {
            self.contents_open.put((inode.serial, true), Arc::new(content));
        }
        Ok(entry)
    }

    /// Removes a name: of a directory if `is_dir`, else of anything else.
    pub(super) fn remove(&self, dir: Ino, name: &[u8], is_dir: bool) -> Result<()> {
        let parent = self.directory(dir)?;
        if is_dir && name == b".." {
            return Err(Errno::NOTEMPTY);
        }
        self.limits.check_name(name)?;
        let _names = self.names.exclusive(dir);
        let target = open_name(&parent, name)?;
        let kind = kind_of(&stat(target.as_fd())?)?;
        match (is_dir, kind) {
            (false, FileKind::Dir) => return Err(Errno::ISDIR),
            (true, FileKind::Dir) | (false, _) => {}
            (true, _) => return Err(Errno::NOTDIR),
        }
        let target = self.found(target)?;
        unlinkat(&parent, name, remove_flags(is_dir))?;
        self.lost_name(&target, dir, name);
        self.drop_descriptors();
        Ok(())
    }

    /// Notes that an inode lost a name. Its descriptor was opened before (dirfs-B3).
    fn lost_name(&self, lost: &FoundNode, dir: Ino, name: &[u8]) {
        let keeps_open = self.keeps_open(&lost.identity);
        let mut nodes = self.nodes();
        nodes.note_attrs(dir);
        let Some(ino) = nodes.find(lost) else { return };
        nodes.clear_place(ino, dir, name);
        // The link count is read under the lock of the table, so the last reader stores the right
        // value. Removed directories have one link on btrfs.
        let is_dir = lost.kind == FileKind::Dir;
        let is_nameless = is_dir || stat(lost.fd.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0);
        nodes.set_nameless(ino, &lost.fd, is_nameless, keeps_open);
        nodes.note_name(ino, dir);
    }

    /// Adds a name to an inode that is not a directory (`FileSystem::link`). Returns its entry,
    /// with one more reference. `EMLINK` at the limit of links.
    pub(super) fn add_name(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let parent = self.inode(dir)?;
        let inode = self.inode(ino)?;
        if parent.kind != FileKind::Dir {
            return Err(Errno::NOTDIR);
        }
        if inode.kind == FileKind::Dir {
            return Err(Errno::PERM);
        }
        self.limits.check_name(name)?;
        let _names = self.names.exclusive(dir);
        if stat(inode.fd.as_fd())?.stx_nlink >= self.limits.links {
            return Err(if open_name(&parent.fd, name).is_ok() {
                Errno::EXIST
            } else {
                Errno::MLINK
            });
        }
        {
            let _room = self.leave_reserve()?;
            linkat(CWD, link_to(&inode.fd), &parent.fd, name, AtFlags::SYMLINK_FOLLOW)?;
        }
        let found = self.found(inode.fd)?;
        {
            let keeps_open = self.keeps_open(&found.identity);
            let mut nodes = self.nodes();
            let is_nameless = stat(found.fd.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0);
            nodes.set_nameless(ino, &found.fd, is_nameless, keeps_open);
            nodes.note_name(ino, dir);
        }
        self.enter(found, Some((dir, name)))
    }

    /// Implements `FileSystem::rename`. With `leaves_whiteout`, leaves a whiteout of that caller at
    /// the old name.
    pub(super) fn move_name(
        &self,
        (from, from_name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
        flags: RenameFlags,
        leaves_whiteout: Option<&Caller>,
    ) -> Result<()> {
        let (from_inode, to_inode) = (self.inode(from)?, self.inode(to)?);
        if from_inode.kind != FileKind::Dir || to_inode.kind != FileKind::Dir {
            return Err(Errno::NOTDIR);
        }
        let (from_dir, to_dir) = (from_inode.fd, to_inode.fd);
        self.limits.check_name(from_name)?;
        self.limits.check_name(to_name)?;
        if flags == RenameFlags::all() || !RenameFlags::all().contains(flags) {
            return Err(Errno::INVAL);
        }
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if exchanges && leaves_whiteout.is_some() {
            return Err(Errno::INVAL);
        }
        let _names = self.names.exclusive_two(from, to);
        let moved = self.found(open_name(&from_dir, from_name)?)?;
        let replaced = match open_name(&to_dir, to_name) {
            Ok(fd) => Some(self.found(fd)?),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        let mut kernel_flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        kernel_flags.set(rustix::fs::RenameFlags::WHITEOUT, leaves_whiteout.is_some());
        let renamed = {
            // A whiteout belongs to the caller, as all that it creates.
            let _acting = leaves_whiteout.map(|caller| Acting::new(caller, 0)).transpose()?;
            let _room = leaves_whiteout.is_none().then(|| self.leave_reserve()).transpose()?;
            rustix::fs::renameat_with(&from_dir, from_name, &to_dir, to_name, kernel_flags)
        };
        renamed.map_err(|errno| match errno {
            // POSIX permits both errors; XFS returns this one for a directory that is not empty.
            Errno::EXIST if flags.is_empty() => Errno::NOTEMPTY,
            errno => errno,
        })?;
        if replaced.as_ref().is_some_and(|replaced| replaced.key == moved.key) {
            return Ok(());
        }
        {
            let mut nodes = self.nodes();
            let mut note = |found: &FoundNode, old: (Ino, &[u8]), new: (Ino, &[u8])| {
                nodes.note_attrs(old.0);
                nodes.note_attrs(new.0);
                let Some(ino) = nodes.find(found) else { return };
                nodes.clear_place(ino, old.0, old.1);
                nodes.set_place(ino, new.0, new.1);
                nodes.note_name(ino, old.0);
                nodes.note_name(ino, new.0);
            };
            note(&moved, (from, from_name), (to, to_name));
            if let Some(other) = replaced.as_ref().filter(|_| exchanges) {
                note(other, (to, to_name), (from, from_name));
            }
        }
        if let Some(replaced) = replaced.filter(|_| !exchanges) {
            self.lost_name(&replaced, to, to_name);
        }
        self.drop_descriptors();
        Ok(())
    }
}

fn remove_flags(is_dir: bool) -> AtFlags {
    if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() }
}
