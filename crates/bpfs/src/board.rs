//! The board of the mount's server, in the derived state: [`mounts::Board`].
//!
//! Recoveries keep it: the count of changes is not among what they derive anew, executions are counted
//! with the references of the living.

use crate::Bpfs;
use mounts::Board;
use pmem::Medium;
use std::sync::atomic::Ordering::Relaxed;
use vfs::Ino;

impl<M: Medium> Board for Bpfs<M> {
    #[inline]
    fn mount_changes(&self) -> u64 {
        self.core.v.mount_changes().load(Relaxed)
    }

    fn post_mount_change(&self) {
        self.core.v.mount_changes().fetch_add(1, Relaxed);
    }

    fn is_executed(&self, ino: Ino) -> bool {
        self.core.v.vinode(ino).is_ok_and(|v| v.executions.load(Relaxed) > 0)
    }

    fn begin_execution(&self, ino: Ino) {
        self.count_executions(ino, |n| Some(n.saturating_add(1)));
    }

    fn end_execution(&self, ino: Ino) {
        self.count_executions(ino, |n| n.checked_sub(1));
    }
}

impl<M: Medium> Bpfs<M> {
    /// Inside, because a recovery reads the count and writes it again (R2). Whoever cannot get inside
    /// posts nothing.
    fn count_executions(&self, ino: Ino, change: impl Fn(u32) -> Option<u32>) {
        let _ = self.core.op(|core| {
            let v = core.v.vinode(ino)?;
            Ok(v.executions.fetch_update(Relaxed, Relaxed, &change))
        });
    }
}
