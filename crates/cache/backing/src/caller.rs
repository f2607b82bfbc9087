//! The user, group and umask with which a thread creates files and stores data.

use crate::sys;
use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::cell::Cell;
use std::marker::PhantomData;
use vfs::{Caller, Result};

thread_local! {
    /// Whether this thread has a umask of its own.
    static HAS_OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// A guard under which this thread creates files as another user. It is held only during a call
/// that creates something (dirfs-B4 in `dirfs`). The kernel checks the permissions of this process,
/// not of that user; the front end has checked the user's permissions (vfs-C3).
pub struct Acting {
    umask: Mode,
    /// The user, the group and the capabilities to restore.
    was: Option<(u32, u32, CapabilitySets)>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Acting {
    /// Acts as `caller` if this process is the superuser, else as itself; with this umask.
    pub fn new(caller: &Caller, umask: u32) -> Result<Self> {
        if !HAS_OWN_UMASK.get() {
            sys::unshare_umask()?;
            HAS_OWN_UMASK.set(true);
        }
        let umask = rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
        let mut acting = Self { umask, was: None, _of_this_thread: PhantomData };
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if own.0 == 0 && own != (caller.uid, caller.gid) {
            let capabilities = capabilities(None)?;
            acting.was = Some((own.0, own.1, capabilities));
            sys::set_fs_ids(caller.uid, caller.gid)?;
            // The kernel drops file capabilities when a thread's user is no longer 0. Blocks that
            // are reserved for the superuser are not available to this caller.
            let effective = capabilities.effective - CapabilitySet::SYS_RESOURCE;
            set_capabilities(None, CapabilitySets { effective, ..capabilities })?;
        }
        Ok(acting)
    }
}

/// The user as which the data of users is stored. No file system reserves blocks for it.
const UNPRIVILEGED: u32 = 65_534;

/// A guard under which this thread gets no blocks that a file system reserves for the superuser:
/// ext4 reserves them for user 0 and for `CAP_SYS_RESOURCE`. The thread keeps its other
/// capabilities.
pub struct Unreserved {
    was: Option<CapabilitySets>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Unreserved {
    /// Makes the guard. Does nothing if this process is not the superuser.
    pub fn new() -> Result<Self> {
        let mut this = Self { was: None, _of_this_thread: PhantomData };
        if rustix::process::geteuid().is_root() && rustix::process::getegid().is_root() {
            let was = capabilities(None)?;
            this.was = Some(was);
            sys::set_fs_ids(UNPRIVILEGED, UNPRIVILEGED)?;
            let effective = was.effective - CapabilitySet::SYS_RESOURCE;
            set_capabilities(None, CapabilitySets { effective, ..was })?;
        }
        Ok(this)
    }
}

impl Drop for Unreserved {
    fn drop(&mut self) {
        if let Some(was) = self.was {
            sys::set_fs_ids(0, 0).expect("a thread can be again who it was");
            let _ = set_capabilities(None, was);
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some((uid, gid, capabilities)) = self.was {
            sys::set_fs_ids(uid, gid).expect("a thread can be again who it was");
            // The kernel itself restores the capabilities that it dropped when the user changed.
            let _ = set_capabilities(None, capabilities);
        }
        rustix::process::umask(self.umask);
    }
}
