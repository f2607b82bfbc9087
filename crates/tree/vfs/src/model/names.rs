//! Directories, names, and the life of inodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::data::Sparse;
use super::{Inode, Node, State};
use crate::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use crate::rules::NewInode;
use crate::{
    Caller, DirEntry, Entry, Errno, FileKind, Ino, NewKind, NewNode, ROOT, RenameFlags, Result,
    Timestamp,
};

/// Where listings continue after `.` and after `..`; entries count on from there.
const COOKIE_DOT: u64 = 1;
pub(super) const COOKIE_DOTDOT: u64 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Dir {
    /// `None` once the directory is removed.
    pub(super) parent: Option<Ino>,
    pub(super) entries: BTreeMap<Vec<u8>, NameEntry>,
    pub(super) last_cookie: u64,
}

/// The inode of a name, and its place in listings. The place stays when a rename replaces the
/// inode.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct NameEntry {
    pub(super) ino: Ino,
    pub(super) cookie: u64,
}

impl Dir {
    pub(super) fn new(parent: Ino) -> Self {
        Self { parent: Some(parent), entries: BTreeMap::new(), last_cookie: COOKIE_DOTDOT }
    }

    fn get(&self, name: &[u8]) -> Option<Ino> {
        self.entries.get(name).map(|slot| slot.ino)
    }

    fn find(&self, name: &[u8]) -> Result<Ino> {
        self.get(name).ok_or(Errno::NOENT)
    }

    /// Fails with `EEXIST` if the name is taken, `ENOENT` if the directory is removed.
    fn check_vacant(&self, name: &[u8]) -> Result<()> {
        if self.entries.contains_key(name) { Err(Errno::EXIST) } else { self.check_linked() }
    }

    fn check_linked(&self) -> Result<()> {
        self.parent.map(|_| ()).ok_or(Errno::NOENT)
    }
}

impl State {
    fn dir(&self, ino: Ino) -> Result<&Dir> {
        match &self.inode(ino)?.node {
            Node::Dir(dir) => Ok(dir),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> Result<&mut Dir> {
        match &mut self.inode_mut(ino)?.node {
            Node::Dir(dir) => Ok(dir),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn lookup(&mut self, dir: Ino, name: &[u8]) -> Result<Entry> {
        if name == b"." {
            return self.reference(dir);
        }
        let entries = self.dir(dir)?;
        self.limits.check_component(name)?;
        let found = match name {
            b".." => entries.parent.ok_or(Errno::NOENT)?,
            _ => entries.find(name)?,
        };
        self.reference(found)
    }

    fn reference(&mut self, ino: Ino) -> Result<Entry> {
        let inode = self.inode_mut(ino)?;
        inode.refs += 1;
        Ok(inode.attr(ino))
    }

    pub(super) fn forget(&mut self, ino: Ino, refs: u64) {
        if let Ok(inode) = self.inode_mut(ino) {
            inode.refs = inode.refs.saturating_sub(refs);
            self.reap(ino);
        }
    }

    /// Frees an inode that nothing holds any more (model-M3).
    fn reap(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.refs == 0) {
            self.inodes.remove(&ino);
        }
    }

    pub(super) fn create(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Result<Entry> {
        let entries = self.dir(dir)?;
        self.limits.check_name(name)?;
        if let NewKind::Symlink(target) = node.kind {
            self.limits.check_target(target)?;
        }
        entries.check_vacant(name)?;
        let ino = self.add_inode(now, caller, dir, node)?;
        self.attach(now, dir, name, ino, None)?;
        self.reference(ino)
    }

    pub(super) fn tmpfile(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        dir: Ino,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        self.dir(dir)?;
        let node = NewNode { kind: NewKind::File, mode, umask };
        let ino = self.add_inode(now, caller, dir, &node)?;
        self.inode_mut(ino)?.linkable = true;
        self.reference(ino)
    }

    /// Makes a nameless inode with the attributes that it inherits from `dir`.
    fn add_inode(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        dir: Ino,
        node: &NewNode<'_>,
    ) -> Result<Ino> {
        let parent = self.inode(dir)?;
        let default = parent.xattrs.get(ACL_DEFAULT).map(|value| Acl::parse(value)).transpose()?;
        let new = NewInode::derive(caller, &parent.attr(dir), default.as_ref(), node);
        let body = match node.kind {
            NewKind::File => Node::File(Sparse::default()),
            NewKind::Dir => Node::Dir(Dir::new(dir)),
            NewKind::Symlink(target) => Node::Symlink(target.to_vec()),
            NewKind::Fifo => Node::Special(FileKind::Fifo, 0),
            NewKind::Socket => Node::Special(FileKind::Socket, 0),
            NewKind::Char(rdev) => Node::Special(FileKind::Char, rdev),
            NewKind::Block(rdev) => Node::Special(FileKind::Block, rdev),
        };
        let mut inode = Inode::new(body, now);
        inode.perm = new.perm;
        inode.uid = caller.uid;
        inode.gid = new.gid;
        for (name, acl) in [(ACL_ACCESS, new.access), (ACL_DEFAULT, new.default)] {
            if let Some(acl) = acl {
                inode.xattrs.insert(name.to_vec(), acl.to_bytes());
            }
        }
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        Ok(ino)
    }

    /// Gives `ino` a name (model-M2), at the end of listings or at the place of `cookie`.
    fn attach(
        &mut self,
        now: Timestamp,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        cookie: Option<u64>,
    ) -> Result<()> {
        let entries = self.dir_mut(dir)?;
        let cookie = cookie.unwrap_or(entries.last_cookie + 1);
        entries.last_cookie = entries.last_cookie.max(cookie);
        entries.entries.insert(name.to_vec(), NameEntry { ino, cookie });
        let inode = self.inode_mut(ino)?;
        inode.ctime = now;
        inode.linkable = false;
        let subdirs = match &mut inode.node {
            Node::Dir(child) => {
                child.parent = Some(dir);
                1
            }
            _ => {
                inode.nlink += 1;
                0
            }
        };
        let parent = self.inode_mut(dir)?;
        parent.nlink += subdirs;
        parent.modified(now);
        Ok(())
    }

    /// Removes a name and updates times and link counts; returns the entry. Does not free the inode
    /// ([`reap`](Self::reap)), nor clear the link count of a removed directory. `ENOENT` without
    /// such a name.
    fn detach(&mut self, now: Timestamp, dir: Ino, name: &[u8]) -> Result<NameEntry> {
        let slot = self.dir_mut(dir)?.entries.remove(name).ok_or(Errno::NOENT)?;
        let inode = self.inode_mut(slot.ino)?;
        inode.ctime = now;
        let subdirs = match &mut inode.node {
            Node::Dir(child) => {
                child.parent = None;
                1
            }
            _ => {
                inode.nlink -= 1;
                0
            }
        };
        let parent = self.inode_mut(dir)?;
        parent.nlink -= subdirs;
        parent.modified(now);
        Ok(slot)
    }

    /// Removes a name ([`detach`](Self::detach)), and the inode if nothing else holds it. A
    /// directory gets the link count 0.
    fn remove(&mut self, now: Timestamp, dir: Ino, name: &[u8]) -> Result<NameEntry> {
        let slot = self.detach(now, dir, name)?;
        let inode = self.inode_mut(slot.ino)?;
        if inode.is_dir() {
            inode.nlink = 0;
        }
        self.reap(slot.ino);
        Ok(slot)
    }

    pub(super) fn unlink(&mut self, now: Timestamp, dir: Ino, name: &[u8]) -> Result<()> {
        let entries = self.dir(dir)?;
        self.limits.check_name(name)?;
        if self.inode(entries.find(name)?)?.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.remove(now, dir, name).map(|_| ())
    }

    pub(super) fn rmdir(&mut self, now: Timestamp, dir: Ino, name: &[u8]) -> Result<()> {
        let entries = self.dir(dir)?;
        if name == b".." {
            return Err(Errno::NOTEMPTY);
        }
        self.limits.check_name(name)?;
        self.check_empty(entries.find(name)?)?;
        self.remove(now, dir, name).map(|_| ())
    }

    /// Fails with `ENOTDIR` or `ENOTEMPTY` unless `ino` is an empty directory.
    fn check_empty(&self, ino: Ino) -> Result<()> {
        if self.dir(ino)?.entries.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    pub(super) fn link(
        &mut self,
        now: Timestamp,
        ino: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<Entry> {
        let inode = self.inode(ino)?;
        let entries = self.dir(dir)?;
        if inode.is_dir() {
            return Err(Errno::PERM);
        }
        self.limits.check_name(name)?;
        entries.check_vacant(name)?;
        if inode.nlink == 0 && !inode.linkable {
            return Err(Errno::NOENT);
        }
        if inode.nlink >= self.limits.links {
            return Err(Errno::MLINK);
        }
        self.attach(now, dir, name, ino, None)?;
        self.reference(ino)
    }

    pub(super) fn rename(
        &mut self,
        now: Timestamp,
        (from_dir, from_name): (Ino, &[u8]),
        (to_dir, to_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.dir(from_dir)?, self.dir(to_dir)?);
        self.limits.check_name(from_name)?;
        self.limits.check_name(to_name)?;
        let exchange = flags == RenameFlags::EXCHANGE;
        let noreplace = flags == RenameFlags::NOREPLACE;
        if !exchange && !noreplace && !flags.is_empty() {
            return Err(Errno::INVAL);
        }
        let source = from.find(from_name)?;
        let target = to.get(to_name);
        if noreplace && target.is_some() {
            return Err(Errno::EXIST);
        }
        if exchange && target.is_none() {
            return Err(Errno::NOENT);
        }
        if self.is_within(to_dir, source) {
            return Err(Errno::INVAL);
        }
        if target.is_some_and(|target| self.is_within(from_dir, target)) {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if target == Some(source) {
            return Ok(());
        }
        to.check_linked()?;
        if exchange {
            let source = self.detach(now, from_dir, from_name)?;
            let target = self.detach(now, to_dir, to_name)?;
            self.attach(now, to_dir, to_name, source.ino, Some(target.cookie))?;
            return self.attach(now, from_dir, from_name, target.ino, Some(source.cookie));
        }
        if let Some(target) = target {
            match (self.inode(source)?.is_dir(), self.inode(target)?.is_dir()) {
                (true, _) => self.check_empty(target)?,
                (false, true) => return Err(Errno::ISDIR),
                (false, false) => {}
            }
        }
        self.detach(now, from_dir, from_name)?;
        let replaced = target.map(|_| self.remove(now, to_dir, to_name)).transpose()?;
        self.attach(now, to_dir, to_name, source, replaced.map(|slot| slot.cookie))
    }

    pub(super) fn rename_whiteout(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        (from_dir, from_name): (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        let flags = if is_exchange { RenameFlags::all() } else { flags };
        self.rename(now, (from_dir, from_name), to, flags)?;
        if self.dir(from_dir)?.get(from_name).is_none() {
            let left = self.create(now, caller, from_dir, from_name, &NewNode::WHITEOUT)?;
            self.forget(left.ino, 1);
        }
        Ok(())
    }

    /// Returns whether `dir` is `ancestor` or below it.
    fn is_within(&self, dir: Ino, ancestor: Ino) -> bool {
        let mut at = dir;
        while at != ancestor {
            match self.dir(at).ok().and_then(|dir| dir.parent) {
                Some(parent) if at != ROOT => at = parent,
                _ => return false,
            }
        }
        true
    }

    pub(super) fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.dir(ino)?;
        let parent = dir.parent.ok_or(Errno::NOENT)?;
        let mut listing: Vec<(&[u8], NameEntry)> = vec![
            (b".", NameEntry { ino, cookie: COOKIE_DOT }),
            (b"..", NameEntry { ino: parent, cookie: COOKIE_DOTDOT }),
        ];
        listing.extend(dir.entries.iter().map(|(name, &slot)| (name.as_slice(), slot)));
        listing.retain(|(_, slot)| slot.cookie > cookie);
        listing.sort_by_key(|(_, slot)| slot.cookie);
        for (name, NameEntry { ino, cookie }) in listing {
            let kind = self.inode(ino)?.kind();
            if !emit(&DirEntry { ino, kind, name, cookie }) {
                break;
            }
        }
        Ok(())
    }
}
