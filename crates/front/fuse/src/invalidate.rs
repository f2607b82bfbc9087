//! Makes the kernel forget parts of a mount before their lifetime ends.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use vfs::{Errno, Ino};

use crate::server::ATTRIBUTES_ONLY;

/// A handle that notifies the kernel of things to forget. Not for threads that answer requests,
/// unless a method allows it: the kernel may wait for an answer meanwhile.
#[derive(Clone)]
pub struct Invalidator(pub(crate) Arc<OnceLock<Notifier>>);

impl Invalidator {
    /// Drops the attributes of an inode, and pages of a file if the attributes have changed then.
    pub fn attributes(&self, ino: Ino) {
        self.tell(|kernel| kernel.inval_inode(INodeNo(ino.0), ATTRIBUTES_ONLY, 0));
    }

    /// Drops attributes and all pages, including those that programs have mapped.
    pub fn content(&self, ino: Ino) {
        self.tell(|kernel| kernel.inval_inode(INodeNo(ino.0), 0, 0));
    }

    /// Drops a name in a directory, also an absent one, and the directory's listing.
    pub fn name(&self, dir: Ino, name: &[u8]) {
        self.tell(|kernel| kernel.inval_entry(INodeNo(dir.0), OsStr::from_bytes(name)));
        self.content(dir);
    }

    /// Drops all of a file, and returns when the kernel has forgotten it. For a thread that answers
    /// requests while others continue to answer.
    ///
    /// # Errors
    /// The kernel may not have forgotten the file.
    pub fn forget(&self, ino: Ino) -> vfs::Result<()> {
        match self.0.get().ok_or(Errno::NOTCONN)?.inval_inode(INodeNo(ino.0), 0, 0) {
            // The kernel does not know the inode.
            Err(err) if err.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map_err(|_| Errno::IO),
        }
    }

    /// Calls `what` while the mount exists. Before and after, the kernel keeps nothing.
    fn tell(&self, what: impl FnOnce(&Notifier) -> io::Result<()>) {
        if let Some(Err(err)) = self.0.get().map(what) {
            tracing::debug!("the kernel does not forget: {err}");
        }
    }
}
