//! Finding inodes by their identity.

use super::inode::{key_of, kind_of, stat};
use super::listing::{for_each_entry, open_listing};
use super::names::open_name;
use super::{DirFs, DirInode, link_to};
use crate::Identity;
use crate::nodes::FoundNode;
use rustix::fs::FileType;
use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use vfs::{Entry, Errno, FileKind, Ino, ROOT, Result};

impl DirFs {
    /// Implements [`Backing::find`](crate::Backing::find).
    pub(super) fn find_identity(&self, identity: &Identity) -> Result<Entry> {
        if identity.0.len() > Identity::LEN_MAX {
            return Err(Errno::INVAL);
        }
        let entry = match self.identities.handle(identity).filter(|_| self.opens_handles) {
            Some(handle) => {
                let fd = Arc::new(handle.open(self.locked.as_fd())?);
                return self.find_by_handle(identity, fd);
            }
            None => self.enter_by_name(identity, None, None)?,
        };
        self.nodes().set_recorded(entry.ino);
        Ok(entry)
    }

    /// Enters the inode that a handle opened as `fd`. `ESTALE` if it has another identity, no name,
    /// or lies outside the directory.
    fn find_by_handle(&self, identity: &Identity, fd: Arc<OwnedFd>) -> Result<Entry> {
        let found = self.found(fd)?;
        if found.identity != *identity {
            return Err(Errno::STALE);
        }
        let known = self.nodes().find(&found);
        if let Some(ino) = known {
            let inode = DirInode { fd: found.fd.clone(), kind: found.kind, serial: 0 };
            self.check_within(ino, &inode)?;
            return self.enter(found, None);
        }
        let stat = stat(found.fd.as_fd())?;
        let entry = if found.kind == FileKind::Dir {
            self.check_inside(&found.fd)?;
            self.enter(found, None)?
        } else if stat.stx_nlink == 0 {
            // Another process has it open, but no name leads to it any more.
            return Err(Errno::STALE);
        } else {
            let path = self.path_of(&found.fd);
            self.enter_by_name(identity, Some(stat.stx_ino), path.as_deref())?
        };
        self.nodes().set_recorded(entry.ino);
        Ok(entry)
    }

    /// Checks that an inode found by its identity lies within the directory, or has lost its last
    /// name (dirfs-B5). `ESTALE` if it lies elsewhere. May search the whole tree.
    pub(super) fn check_within(&self, ino: Ino, inode: &DirInode) -> Result<()> {
        if inode.kind == FileKind::Dir {
            return self.check_inside(&inode.fd);
        }
        let found = self.found(inode.fd.clone())?;
        let stat = stat(inode.fd.as_fd())?;
        if stat.stx_nlink == 0 {
            return Ok(());
        }
        let (path, left_at) = {
            let nodes = self.nodes();
            (nodes.path(ino), nodes.get(ino)?.left_at)
        };
        if let Some(path) = path
            && self.follow(&path)?.is_some_and(|(at, _)| at.identity == found.identity)
        {
            return Ok(());
        }
        // A new name changes the inode's change time, too.
        let changed_at = (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        if left_at == Some(changed_at) {
            return Err(Errno::STALE);
        }
        let path = self.path_of(&inode.fd);
        match self.enter_named(&found.identity, Some(stat.stx_ino), path.as_deref()) {
            Ok(entry) => {
                let mut nodes = self.nodes();
                nodes.set_recorded(entry.ino);
                nodes.forget(entry.ino, 1);
                Ok(())
            }
            Err(errno) => {
                if errno == Errno::STALE {
                    self.nodes().set_left(ino, changed_at);
                }
                Err(errno)
            }
        }
    }

    /// As [`enter_named`](Self::enter_named), while no call of this object can change names.
    fn enter_by_name(
        &self,
        identity: &Identity,
        number: Option<u64>,
        hint: Option<&[u8]>,
    ) -> Result<Entry> {
        let _names = self.names.shared_all();
        self.enter_named(identity, number, hint)
    }

    /// Enters an inode by a name within the directory, with the directories above it. Tries the
    /// given path, and then searches the whole tree. `number` is its inode number, if that is
    /// known.
    fn enter_named(
        &self,
        identity: &Identity,
        number: Option<u64>,
        hint: Option<&[u8]>,
    ) -> Result<Entry> {
        // The root has an empty path.
        for hint in hint.into_iter().chain([&b""[..]]) {
            if let Some(entry) = self.enter_path(hint, identity)? {
                return Ok(entry);
            }
        }
        // A listing may give another number than the inode has (overlayfs); so the second search
        // opens every name.
        for number in [number, None] {
            if let Some(path) = self.walk(identity, number)?
                && let Some(entry) = self.enter_path(&path, identity)?
            {
                return Ok(entry);
            }
        }
        Err(Errno::STALE)
    }

    /// Enters the inode at a path, and the directories above it, if it has the wanted identity.
    fn enter_path(&self, path: &[u8], identity: &Identity) -> Result<Option<Entry>> {
        let Some((found, above)) = self.follow(path)? else { return Ok(None) };
        if found.identity != *identity {
            return Ok(None);
        }
        let mut names = components(path);
        let Some(last) = names.next_back() else { return self.enter(found, None).map(Some) };
        let mut dir = ROOT;
        for (found, name) in above.into_iter().zip(names) {
            let entered = self.enter(found, Some((dir, name)));
            // The inode that was entered below it holds it (nodes-N2).
            self.nodes().forget(dir, 1);
            dir = entered?.ino;
        }
        let entered = self.enter(found, Some((dir, last)));
        self.nodes().forget(dir, 1);
        self.drop_descriptors();
        entered.map(Some)
    }

    /// Follows a path without symbolic links. Returns the inode at its end, if it exists, and the
    /// directories on the way.
    fn follow(&self, path: &[u8]) -> Result<Option<(FoundNode, Vec<FoundNode>)>> {
        let mut at = self.found(self.root.clone())?;
        let mut above = Vec::new();
        for (depth, name) in components(path).enumerate() {
            if self.limits.check_name(name).is_err() {
                return Ok(None);
            }
            let next = match open_name(&at.fd, name) {
                Ok(fd) => self.found(fd)?,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            };
            let passed = std::mem::replace(&mut at, next);
            // The root is entered already.
            above.extend((depth > 0).then_some(passed));
        }
        Ok(Some((at, above)))
    }

    /// Returns the kernel's path of an inode, relative to the root. It is only a hint.
    fn path_of(&self, fd: &OwnedFd) -> Option<Vec<u8>> {
        let path = |fd: &OwnedFd| rustix::fs::readlink(link_to(fd), Vec::new()).ok();
        let (root, path) = (path(&self.root)?, path(fd)?);
        let root = root.as_bytes().strip_suffix(b"/").unwrap_or(root.as_bytes());
        Some(path.as_bytes().strip_prefix(root)?.strip_prefix(b"/")?.to_vec())
    }

    /// Searches the tree below the root for an identity, and returns its path. Opens only entries
    /// with the inode number `wanted`, if that is given.
    fn walk(&self, identity: &Identity, wanted: Option<u64>) -> Result<Option<Vec<u8>>> {
        // The search keeps paths and one descriptor at a time, as a tree may be broader than the
        // limit of descriptors.
        let mut pending: Vec<Vec<CString>> = vec![Vec::new()];
        // Without this set, a directory mounted below itself would make the walk endless.
        let mut met = HashSet::new();
        while let Some(path) = pending.pop() {
            let Some(dir) = self.open_path(&path)? else { continue };
            if !met.insert(key_of(&stat(dir.as_fd())?)) {
                continue;
            }
            let mut found: Option<FoundNode> = None;
            let mut at = Vec::new();
            for_each_entry(&open_listing(&dir)?, 0, |name, kind, number, _| {
                if matches!(name.to_bytes(), b"." | b"..") {
                    return Ok(true);
                }
                let may_be = match wanted {
                    Some(wanted) => wanted == number,
                    None => self.identities.may_be(identity, dir.as_fd(), name, number),
                };
                if may_be {
                    match open_name(&dir, name.to_bytes()) {
                        Ok(fd) => found = Some(self.found(fd)?),
                        Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno),
                    }
                    found.take_if(|found| found.identity != *identity);
                    at = name.to_bytes().to_vec();
                }
                if matches!(kind, FileType::Directory | FileType::Unknown) {
                    pending.push(path.iter().cloned().chain([name.to_owned()]).collect());
                }
                Ok(found.is_none())
            })?;
            if found.is_some() {
                let above = path.iter().map(|name| name.to_bytes());
                return Ok(Some(above.chain([&at[..]]).collect::<Vec<_>>().join(&b'/')));
            }
        }
        Ok(None)
    }

    /// Opens the directory at a path of names, if it still exists.
    fn open_path(&self, path: &[CString]) -> Result<Option<Arc<OwnedFd>>> {
        let mut at = self.root.clone();
        for name in path {
            at = match open_name(&at, name.to_bytes()) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            };
        }
        let is_dir = kind_of(&stat(at.as_fd())?)? == FileKind::Dir;
        Ok(is_dir.then_some(at))
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}
