//! Set-user-ID, set-group-ID and capabilities, which are cleared before content changes.
//!
//! The kernel requests that by a `FUSE_SETATTR` that sets nothing. A `chown` by any user that
//! changes neither owner nor group sends the same request, so the server checks the requester's
//! rights. A write by root must clear only `security.capability`: just before, the kernel removes
//! that by a request of its own. So the server remembers that request.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fuser::{INodeNo, Request};
use vfs::{FileSystem, Ino, Result};

use crate::server::Server;
use crate::setgid;

/// The file whose capability root has removed last, and the thread that did.
#[derive(Debug, Default)]
pub(crate) struct Privileges(AtomicU64);

impl Privileges {
    fn mark(req: &Request, ino: u64) -> u64 {
        ino << 32 | u64::from(req.pid())
    }

    /// Notes that an attribute was removed.
    pub fn note_removed(&self, req: &Request, ino: INodeNo, name: &OsStr) {
        if req.uid() == 0 && name.as_bytes() == b"security.capability" {
            self.0.store(Self::mark(req, ino.0), Relaxed);
        }
    }

    /// Returns whether the requester has just removed the capability of the file, and forgets that.
    fn has_removed(&self, req: &Request, ino: Ino) -> bool {
        self.0.compare_exchange(Self::mark(req, ino.0), 0, Relaxed, Relaxed).is_ok()
    }
}

impl Server {
    /// Clears set-user-ID, set-group-ID and capabilities, for a `FUSE_SETATTR` that sets nothing. A
    /// write follows, or it is a `chown` that changes nothing. Does nothing if the user may not
    /// change the file, or if root has just removed the capability. The caller answers with the
    /// attributes, from which the kernel takes the mode.
    pub(crate) fn drop_before_write(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        ino: Ino,
    ) -> Result<()> {
        if self.privileges.has_removed(req, ino) {
            return Ok(());
        }
        let attr = fs.getattr(ino)?;
        let may_write = [0, attr.uid].contains(&req.uid()) || setgid::may_write(fs, req, &attr)?;
        if may_write { fs.drop_privileges(ino) } else { Ok(()) }
    }
}
