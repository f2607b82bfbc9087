//! Inodes by their identity.

use super::DirFs;
use super::inode::{key_of, kind_of, stat};
use super::listing::{for_each_entry, open_listing};
use super::names::open_name;
use crate::Identity;
use crate::nodes::Found;
use rustix::fs::FileType;
use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use vfs::{Entry, Errno, FileKind, Result};

/// How often the tree is searched for what others may be moving about.
const WALKS: usize = 2;

impl DirFs {
    pub(super) fn find_identity(&self, identity: &Identity, hint: &[u8]) -> Result<Entry> {
        if identity.0.len() > Identity::LEN_MAX {
            return Err(Errno::INVAL);
        }
        if let Some(handle) = self.identities.handle(identity).filter(|_| self.opens_handles) {
            return self.find_by_handle(identity, Arc::new(handle.open(self.locked.as_fd())?));
        }
        // What is looked for keeps its names meanwhile.
        let _names = self.names.shared_all();
        let is_it = |found: &Found| found.identity == *identity;
        if let Some(found) = self.follow(hint)?.filter(is_it) {
            return self.enter(found, None);
        }
        for _ in 0..WALKS {
            if let Some(found) = self.walk(identity)? {
                return self.enter(found, None);
            }
        }
        Err(Errno::STALE)
    }

    fn find_by_handle(&self, identity: &Identity, fd: Arc<OwnedFd>) -> Result<Entry> {
        let found = self.found(fd)?;
        if found.identity != *identity {
            return Err(Errno::STALE);
        }
        if found.kind == FileKind::Dir {
            self.check_inside(&found.fd)?;
        }
        let is_known = self.nodes().find(&found).is_some();
        let entry = self.enter(found, None)?;
        if entry.nlink == 0 && !is_known {
            // Somebody else has it open, but no name leads to it any more.
            self.nodes().forget(entry.ino, 1);
            self.drop_descriptors();
            return Err(Errno::STALE);
        }
        Ok(entry)
    }

    /// What a path leads to, if to anything.
    fn follow(&self, path: &[u8]) -> Result<Option<Found>> {
        let mut at = self.root.clone();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if self.limits.check_name(name).is_err() {
                return Ok(None);
            }
            at = match open_name(&at, name) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            };
        }
        self.found(at).map(Some)
    }

    /// Looks at everything below the root.
    fn walk(&self, identity: &Identity) -> Result<Option<Found>> {
        let root = self.found(self.root.clone())?;
        if root.identity == *identity {
            return Ok(Some(root));
        }
        // One descriptor at a time, and paths: trees may be broader than descriptors are many.
        let mut pending: Vec<Vec<CString>> = vec![Vec::new()];
        // Mounts of a directory below itself end the walk nowhere else.
        let mut met = HashSet::new();
        while let Some(path) = pending.pop() {
            let Some(dir) = self.open_path(&path)? else { continue };
            if !met.insert(key_of(&stat(dir.as_fd())?)) {
                continue;
            }
            let mut found = None;
            for_each_entry(&open_listing(&dir)?, 0, |name, kind, number, _| {
                if matches!(name.to_bytes(), b"." | b"..") {
                    return Ok(true);
                }
                if self.identities.may_be(identity, dir.as_fd(), name, number) {
                    match open_name(&dir, name.to_bytes()) {
                        Ok(fd) => found = Some(self.found(fd)?),
                        Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno),
                    }
                    found.take_if(|found| found.identity != *identity);
                }
                if matches!(kind, FileType::Directory | FileType::Unknown) {
                    pending.push(path.iter().cloned().chain([name.to_owned()]).collect());
                }
                Ok(found.is_none())
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The directory at a path of names, if one still is there.
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
