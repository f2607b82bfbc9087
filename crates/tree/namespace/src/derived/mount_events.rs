//! The events of a mount in the derived state, as the server announces them:
//! [`mounts::MountEvents`].
//!
//! A recovery preserves them: the count of changes is not derived again, and executions are
//! restored with the references of living processes. Mappings are counted twice: by inode, for
//! queries, and by process and inode, so that the mappings of a dead process end with its
//! references (sharing-R1, sharing-R2 in `sharing.rs`).

use crate::derived::admission;
use crate::derived::inodes::Mapper;
use crate::derived::openings;
use crate::derived::sharing::{self, SharedPool};
use crate::derived::state::State;
use crate::derived::unnamed;
use arena::Look;
use arena::atomic::AtomicU64;
use mounts::{MountEvents, Opening, Requester, Ticket};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use vfs::{Errno, Ino, Result};

/// The mount events of a shared pool.
pub struct PoolEvents<'p, P>(pub &'p P);

impl<'p, P: SharedPool> PoolEvents<'p, P> {
    #[inline]
    fn state(&self) -> &'p State<P::Inode> {
        self.0.state()
    }

    /// Changes the count inside an operation, because a recovery reads the count and writes it
    /// again (sharing-R2). If the process cannot enter, it announces nothing.
    fn count_executions(&self, ino: Ino, change: impl Fn(u32) -> Option<u32>) {
        let _ = self.0.op(|pool| {
            let v = pool.state().vinode(ino)?;
            Ok(v.executions.fetch_update(Relaxed, Relaxed, &change))
        });
    }
}

/// Returns the word of a process that serves a mount with this `st_dev`; other processes have 0.
fn serving(device: u64) -> u64 {
    device.wrapping_add(1)
}

impl<P: SharedPool + Send> MountEvents for PoolEvents<'_, P> {
    #[inline]
    fn mount_changes(&self) -> u64 {
        self.state().mount_changes().load(Relaxed)
    }

    fn announce_mount_change(&self) {
        self.state().mount_changes().fetch_add(1, Relaxed);
    }

    fn is_executed(&self, ino: Ino) -> bool {
        self.state().vinode(ino).is_ok_and(|v| v.executions.load(Relaxed) > 0)
    }

    fn begin_execution(&self, ino: Ino) {
        self.count_executions(ino, |n| Some(n.saturating_add(1)));
    }

    fn end_execution(&self, ino: Ino) {
        self.count_executions(ino, |n| n.checked_sub(1));
    }

    #[inline]
    fn is_mapped(&self, ino: Ino) -> bool {
        self.state().vinode(ino).is_ok_and(|v| v.mappings.are_kernels())
    }

    fn is_mapped_directly(&self, ino: Ino) -> bool {
        self.state().vinode(ino).is_ok_and(|v| v.mappings.are_direct())
    }

    fn is_stored_to_directly(&self, ino: Ino) -> bool {
        self.state().vinode(ino).is_ok_and(|v| v.mappings.may_store())
    }

    fn begin_mapping(&self, ino: Ino) -> Result<()> {
        let begin = || {
            self.0.op(|pool| {
                let state = pool.state();
                state.add_mapping(ino, state.vinode(ino)?, Mapper::Kernel)
            })
        };
        match begin() {
            // Dead processes may hold the mappings that are in the way.
            Err(Errno::BUSY) => {
                self.0.reap_processes(Look::Thorough)?;
                begin()
            }
            begun => begun,
        }
    }

    fn end_mapping(&self, ino: Ino) {
        if let Ok(process) = self.state().arena.process() {
            let _ = sharing::end_mappings(self.0, process, ino, (Mapper::Kernel, 1), false);
        }
    }

    fn end_mappings(&self) {
        if let Ok(process) = self.state().arena.process() {
            let _ = sharing::end_all_mappings(self.0, process);
        }
    }

    fn begin_opening(&self, opening: Opening, by: Requester) -> Result<Ticket> {
        let state = self.state();
        let process = state.arena.process()?;
        state.openings().begin(&state.arena, process, opening, by, openings::now())
    }

    fn answer_opening(&self, ticket: Ticket, by: Requester) -> Option<Opening> {
        let state = self.state();
        state.openings().answer(&state.arena, ticket, by, openings::now())
    }

    fn end_opening(&self, ticket: Ticket) -> bool {
        let state = self.state();
        state.openings().end(&state.arena, ticket)
    }

    fn wait_for_openings(&self, ino: Ino, only_answered: bool) -> bool {
        let state = self.state();
        state.openings().wait(&state.arena, ino, only_answered, openings::PATIENCE)
    }

    fn wait_for_unnamed(&self, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()> {
        unnamed::wait(self.0, patience, tell)
    }

    fn wake(&self) {
        unnamed::wake(self.state());
    }

    fn has_company(&self) -> bool {
        self.state().arena.has_company()
    }

    fn is_user(&self, process: u32) -> bool {
        self.state().arena.has_process(process)
    }

    fn let_kernel_keep(&self, keeps: bool) -> Result<bool> {
        admission::set(self.state(), keeps)
    }

    fn begin_serving(&self, device: u64) -> Result<()> {
        let state = self.state();
        state.serving()[state.arena.process()?].store(serving(device), SeqCst);
        Ok(())
    }

    fn is_served_at(&self, device: u64) -> bool {
        let state = self.state();
        let is_it = |word: &AtomicU64| word.load(SeqCst) == serving(device);
        let mut words = state.serving().iter().enumerate();
        words.any(|(process, word)| is_it(word) && !state.arena.is_process_dead(process))
    }

    fn end_serving(&self) {
        if let Ok(process) = self.state().arena.process() {
            self.state().serving()[process].store(0, Release);
            unnamed::end_server(self.state(), process);
        }
        self.end_mappings();
    }
}
