//! What a mount's server posts for those who use the pool beside it.

use vfs::Ino;

/// What the kernel tells the server of a mount and nobody else, posted where all can see it who use the
/// pool.
///
/// What is posted makes others look for themselves, or leave a call to the kernel: it may come late, and
/// what a server leaves that was killed, or unmounted before the kernel had told it all, does no harm.
pub trait Board: Send + Sync {
    /// How often the kernel's table of mounts has said something else of the mount: other
    /// [`Terms`](crate::Terms), or nothing any more. One load.
    fn mount_changes(&self) -> u64;

    /// Posts such a change.
    fn post_mount_change(&self);

    /// Whether the kernel may be executing the file: whether somebody may write to it is the kernel's
    /// to say then (`ETXTBSY`). One load.
    fn is_executed(&self, ino: Ino) -> bool;

    /// Posts that the kernel has opened the file to execute it. The caller holds the inode.
    fn begin_execution(&self, ino: Ino);

    /// Posts that it has closed what it opened so.
    fn end_execution(&self, ino: Ino);
}
