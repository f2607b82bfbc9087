//! Recognition of descriptors that the kernel has and this library has not opened: redirections of
//! a shell, and descriptors that exec inherits.
//!
//! - **recognize-I1** Such a descriptor is recognised by attributes that the kernel has without
//!   asking a server. From then on its description is like a promoted one (promote-M1): its offset
//!   and flags are the kernel's, shared with other processes that have it, and its data is served
//!   here.
//! - **recognize-I2** Descriptors that the kernel has on one description are one description here.

use crate::content::FileContents;
use crate::family::{ON_KERNEL, OfdInit, PROMOTED};
use crate::mount::ServedMount;
use crate::open::SHOWN_BY_KERNEL;
use crate::served::{CallResult, CallStop};
use crate::table::OfdRef;
use std::sync::atomic::Ordering::*;
use vfs::{FileKind, Ino};

impl FileContents {
    /// Returns the mount of the regular file that `fd` refers to, with its index and the inode, if
    /// the kernel knows them. `None` for a file of a snapshot.
    fn mount_of(&self, fd: i32) -> Option<(usize, &ServedMount, Ino)> {
        let (device, ino, kind) = self.task().kernel.identity(fd).ok()?;
        let (index, mount) = self.task().mounts().find(|(_, mount)| mount.spec.dev == device)?;
        let is_served = kind == libc::S_IFREG && !mounts::is_in_snapshots(Ino(ino));
        is_served.then_some((index, mount, Ino(ino)))
    }

    /// Whether a descriptor that was not opened here refers to a regular file in a pool.
    pub fn is_in_pool(&self, fd: i32) -> bool {
        fd >= 0
            && self.table().entry(fd).is_some()
            && !self.table().owns(fd)
            && self.mount_of(fd).is_some()
    }

    /// Whether a descriptor that is not served here refers to an inode of a mount.
    pub fn is_of_pool(&self, fd: i32) -> bool {
        let device = || self.task().kernel.identity(fd).map(|(device, _, _)| device);
        fd >= 0
            && !self.table().owns(fd)
            && device()
                .is_ok_and(|device| self.task().mounts().any(|(_, mount)| mount.spec.dev == device))
    }

    /// Whether a mount, or all paths, are left to the kernel in this process.
    pub fn leaves_to_kernel(&self) -> bool {
        self.path_walk().foreign_namespace.load(Relaxed)
            || self.task().mounts().any(|(_, mount)| mount.is_refused())
    }

    /// Whether an absolute path leads into a mount by its text.
    pub fn leads_to_pool(&self, path: &[u8]) -> bool {
        self.task().mounts().any(|(_, mount)| mount.strip(path).is_some())
    }

    /// Whether this process already uses the pool of a descriptor's file.
    pub fn is_attached(&self, fd: i32) -> bool {
        self.mount_of(fd).is_some_and(|(_, mount, _)| mount.if_attached().is_some())
    }

    /// Serves a descriptor of a regular file in a pool from now on (recognize-I1). Returns whether
    /// that succeeded.
    pub fn recognize(&self, fd: i32) -> bool {
        self.recognize_call(fd).is_ok()
    }

    fn recognize_call(&self, fd: i32) -> CallResult<()> {
        let (index, mount, ino) = self.mount_of(fd).ok_or(CallStop::Kernel)?;
        let attached = self.path_walk().attach(mount)?;
        let flags = self.task().kernel.status(fd)?;
        if flags & libc::O_PATH != 0 || self.table().entry(fd).is_none() {
            return Err(CallStop::Kernel);
        }
        // A reference for the description. Until then, the kernel's description keeps the inode.
        let attr = attached.fs.lookup(ino, b".")?;
        let give_back = |stop: CallStop| {
            attached.fs.forget(ino, 1);
            stop
        };
        if attr.kind != FileKind::File {
            return Err(give_back(CallStop::Kernel));
        }
        let table = self.table().lock_table();
        let ofd = match self.same_description(fd, index, ino) {
            Some(same) => {
                attached.fs.forget(ino, 1);
                same
            }
            None => {
                let init = OfdInit {
                    mount: index as u32,
                    ino,
                    generation: attr.generation,
                    kind: attr.kind,
                    flags: flags & SHOWN_BY_KERNEL,
                    state: PROMOTED,
                };
                self.table().describe(&init).map_err(|errno| give_back(errno.into()))?
            }
        };
        // Another thread may have put another file there meanwhile.
        if self.table().owns(fd) || self.mount_of(fd).is_none_or(|(_, _, now)| now != ino) {
            drop((table, ofd));
            return Err(CallStop::Kernel);
        }
        let before = self.table().install(&table, fd, ofd, ON_KERNEL);
        drop((table, before));
        Ok(())
    }

    /// Finds the description of another descriptor that shares the kernel's description with `fd`
    /// (recognize-I2).
    fn same_description(&self, fd: i32, mount: usize, ino: Ino) -> Option<OfdRef<'_>> {
        (0..self.table().fd_end()).find_map(|other| {
            let entry = self.table().entry(other)?;
            if entry.load(Acquire) & ON_KERNEL == 0 {
                return None;
            }
            let ofd = self.table().get_entry(entry).ok()?;
            let is_same = ofd.mount_index() == mount
                && ofd.ino() == ino
                && self.task().kernel.is_same_description(fd, other);
            is_same.then_some(ofd)
        })
    }
}
