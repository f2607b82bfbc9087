//! What the mount's server posts, in the derived state: [`mounts::MountEvents`].
//!
//! Recoveries keep it: the count of changes is not among what they derive anew, executions are counted
//! with the references of the living. Mappings are counted twice, by inode for those who ask, and by process and
//! inode, so that what a dead process mapped ends with its references (share-R1, share-R2 in `share.rs`).

use crate::Bpfs;
use mounts::MountEvents;
use pmem::Medium;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;
use vfs::{Ino, Result};

impl<M: Medium> MountEvents for Bpfs<M> {
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

    #[inline]
    fn is_mapped(&self, ino: Ino) -> bool {
        self.core.v.vinode(ino).is_ok_and(|v| v.mappings.load(Acquire) > 0)
    }

    fn begin_mapping(&self, ino: Ino) -> Result<()> {
        self.core.op(|core| {
            let v = core.v.vinode(ino)?;
            core.v.add_mapping(core.v.arena.process()?, ino, v);
            Ok(())
        })
    }

    fn end_mapping(&self, ino: Ino) {
        if let Ok(process) = self.core.v.arena.process() {
            let _ = self.core.end_mappings(process, ino, 1);
        }
    }

    fn end_mappings(&self) {
        if let Ok(process) = self.core.v.arena.process() {
            let _ = self.core.end_all_mappings(process);
        }
    }

    fn begin_opening(&self, ino: Ino) -> Result<u64> {
        let v = &self.core.v;
        Ok(v.openings.begin(&v.arena, v.arena.process()?, ino))
    }

    fn answer_opening(&self, ino: Ino, ticket: u64) {
        self.core.v.openings.answer(&self.core.v.arena, ino, ticket);
    }

    fn end_opening(&self, ticket: u64) {
        self.core.v.openings.end(&self.core.v.arena, ticket);
    }

    fn wait_for_openings(&self, ino: Ino, only_answered: bool) -> bool {
        self.core.v.openings.wait(&self.core.v.arena, ino, only_answered)
    }

    fn wait_for_unnamed(&self, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()> {
        self.core.wait_for_unnamed(patience, tell)
    }

    fn wake(&self) {
        self.core.wake_server();
    }

    fn end_serving(&self) {
        if let Ok(process) = self.core.v.arena.process() {
            self.core.end_server(process);
        }
        self.end_mappings();
    }
}

impl<M: Medium> Bpfs<M> {
    /// Inside, because a recovery reads the count and writes it again (share-R2). Whoever cannot get inside
    /// posts nothing.
    fn count_executions(&self, ino: Ino, change: impl Fn(u32) -> Option<u32>) {
        let _ = self.core.op(|core| {
            let v = core.v.vinode(ino)?;
            Ok(v.executions.fetch_update(Relaxed, Relaxed, &change))
        });
    }
}
