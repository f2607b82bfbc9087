//! As whom, and with which umask, a thread creates something.

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

/// While it lives, this thread creates as somebody else: no longer than a call that creates (dirfs-B4 in `dirfs`). What is
/// permitted is not his, but ours: the front end has checked it (vfs-C3).
pub struct Acting {
    umask: Mode,
    /// The user, the group and the capabilities to go back to.
    was: Option<(u32, u32, CapabilitySets)>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Acting {
    /// As `caller`, where this process is the superuser, else as ourselves; with this umask.
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
            // The kernel takes away what concerns files when a thread's user is 0 no more. Blocks that are kept for the superuser
            // are not for this caller.
            let effective = capabilities.effective - CapabilitySet::SYS_RESOURCE;
            set_capabilities(None, CapabilitySets { effective, ..capabilities })?;
        }
        Ok(acting)
    }
}

/// The user as which data of users is stored: no file system keeps blocks for it.
const UNPRIVILEGED: u32 = 65_534;

/// While it lives, this thread gets no blocks that a file system keeps for the superuser: ext4 keeps them for user 0, and for
/// `CAP_SYS_RESOURCE`. Its other capabilities stay.
pub struct Unreserved {
    was: Option<CapabilitySets>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Unreserved {
    /// Does nothing where this process is not the superuser.
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
            // The kernel gives back itself what it took when the user changed.
            let _ = set_capabilities(None, capabilities);
        }
        rustix::process::umask(self.umask);
    }
}
