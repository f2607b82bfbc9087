//! Set-user-ID and its like, which go before content changes.
//!
//! The kernel takes them away by a change of attributes that sets nothing. By the same request comes a change of owner to nobody
//! by anybody. A write by root takes only `security.capability`, which the kernel removes by a request of its own just before: so
//! that one is remembered.

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

    /// Whether the requester has just removed the capability of the file. Says so once.
    fn has_removed(&self, req: &Request, ino: Ino) -> bool {
        self.0.compare_exchange(Self::mark(req, ino.0), 0, Relaxed, Relaxed).is_ok()
    }
}

impl Server {
    /// Clears set-user-ID and its like by a request that sets nothing. It is a change of owner to nobody, by anybody; or it
    /// comes before a write, and the kernel believes of the mode what the answer says.
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
