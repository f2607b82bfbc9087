//! What the kernel is to forget of a mount although it may still believe it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use vfs::{Errno, Ino};

use crate::server::ATTRIBUTES_ONLY;

/// Tells the kernel what to forget. Not for threads that answer requests, where nothing else is said: the kernel may wait for an
/// answer meanwhile.
#[derive(Clone)]
pub struct Invalidator(pub(crate) Arc<OnceLock<Notifier>>);

impl Invalidator {
    /// Attributes of an inode; pages of a file where those have changed then.
    pub fn attributes(&self, ino: Ino) {
        self.tell(|kernel| kernel.inval_inode(INodeNo(ino.0), ATTRIBUTES_ONLY, 0));
    }

    /// The same, and all pages: also those that programs have mapped.
    pub fn content(&self, ino: Ino) {
        self.tell(|kernel| kernel.inval_inode(INodeNo(ino.0), 0, 0));
    }

    /// A name in a directory, be it that it is absent, and the directory's listing.
    pub fn name(&self, dir: Ino, name: &[u8]) {
        self.tell(|kernel| kernel.inval_entry(INodeNo(dir.0), OsStr::from_bytes(name)));
        self.content(dir);
    }

    /// All that it keeps of a file, which it has forgotten when this returns. For a thread that answers requests where others go on
    /// answering.
    ///
    /// # Errors
    /// It may not have forgotten.
    pub fn forget(&self, ino: Ino) -> vfs::Result<()> {
        match self.0.get().ok_or(Errno::NOTCONN)?.inval_inode(INodeNo(ino.0), 0, 0) {
            // It knows nothing of it.
            Err(err) if err.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map_err(|_| Errno::IO),
        }
    }

    /// Before it is mounted there is nothing to forget, and afterwards neither.
    fn tell(&self, what: impl FnOnce(&Notifier) -> io::Result<()>) {
        if let Some(Err(err)) = self.0.get().map(what) {
            tracing::debug!("the kernel does not forget: {err}");
        }
    }
}
