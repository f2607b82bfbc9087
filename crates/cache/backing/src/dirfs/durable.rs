//! Syncs: what each makes durable, and when no sync is needed.

use super::{DirFs, DirInode, lock, reopen};
use crate::nodes::Changes;
use rustix::fs::OFlags;
use std::collections::HashSet;
use vfs::{Errno, FileKind, Ino, Result};

impl DirFs {
    /// Makes an inode's content and attributes durable, and its names in all directories in which
    /// they changed.
    pub(super) fn make_durable(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let (lost, changes) = {
            let nodes = self.nodes();
            (nodes.lost_at(), nodes.changes(ino))
        };
        self.sync_inode(&inode, changes.as_ref())?;
        if lost.is_some() {
            return self.make_all_durable();
        }
        self.sync_names(ino, changes)
    }

    /// As [`make_durable`](Self::make_durable), but does nothing if neither attributes nor names of
    /// the inode changed.
    pub(super) fn make_metadata_durable(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let (lost, changes) = {
            let nodes = self.nodes();
            (nodes.lost_at(), nodes.changes(ino))
        };
        if lost.is_some() {
            return self.make_all_durable();
        }
        if changes.is_none() {
            return Ok(());
        }
        self.sync_inode(&inode, changes.as_ref())?;
        self.sync_names(ino, changes)
    }

    /// Syncs one inode: content, attributes, and the names in a directory. Syncs all file systems
    /// instead if it may not be opened, or if it is of another kind and `changes` includes
    /// attributes.
    fn sync_inode(&self, inode: &DirInode, changes: Option<&Changes>) -> Result<()> {
        let result = match inode.kind {
            FileKind::File => self.content(inode, false).and_then(rustix::fs::fsync),
            FileKind::Dir => {
                reopen(&inode.fd, OFlags::RDONLY | OFlags::DIRECTORY).and_then(rustix::fs::fsync)
            }
            // Other kinds cannot be opened for a sync. The sync of the directory that names them
            // makes new ones durable.
            _ if changes.is_some_and(|changes| changes.attrs) => self.sync_file_systems(),
            _ => Ok(()),
        };
        match result {
            // This process may not open the inode.
            Err(Errno::ACCESS | Errno::PERM) => self.sync_file_systems(),
            result => result,
        }
    }

    /// Syncs the directories in which names of an inode changed, then those in which names of these
    /// directories changed, and so on. The caller has synced the inode. Clears the recorded changes
    /// if all syncs succeed.
    fn sync_names(&self, ino: Ino, changes: Option<Changes>) -> Result<()> {
        let mut done = Vec::new();
        let (mut pending, mut met) = (vec![(ino, changes)], HashSet::from([ino]));
        while let Some((ino, changes)) = pending.pop() {
            let Some(changes) = changes else { continue };
            for dir in changes.dirs.iter().copied().filter(|dir| met.insert(*dir)) {
                let dir_changes = self.nodes().changes(dir);
                match self
                    .inode(dir)
                    .and_then(|inode| self.sync_inode(&inode, dir_changes.as_ref()))
                {
                    // A directory that was removed took its names with it.
                    Ok(()) | Err(Errno::STALE) => pending.push((dir, dir_changes)),
                    Err(errno) => return Err(errno),
                }
            }
            done.push((ino, changes));
        }
        {
            let mut nodes = self.nodes();
            done.iter().for_each(|(ino, changes)| nodes.is_durable(*ino, changes));
        }
        self.drop_descriptors();
        Ok(())
    }

    /// Makes everything durable.
    pub(super) fn make_all_durable(&self) -> Result<()> {
        let then = self.nodes().now();
        self.sync_file_systems()?;
        self.nodes().all_is_durable(then);
        self.drop_descriptors();
        Ok(())
    }

    /// Makes everything durable in all file systems below the directory that lookups have met.
    fn sync_file_systems(&self) -> Result<()> {
        rustix::fs::syncfs(&self.locked)?;
        let mounts: Vec<_> = lock(&self.mounts).values().cloned().collect();
        for mount in mounts {
            rustix::fs::syncfs(reopen(&mount, OFlags::RDONLY | OFlags::NONBLOCK)?)?;
        }
        Ok(())
    }
}
