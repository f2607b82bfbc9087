//! Exclusive mounts: the kernel may cache answers because no process but the server uses the pool.
//!
//! - admission-A1: a server sets a word before it lets the kernel cache anything, and then checks
//!   for other processes. A newcomer takes a slot before it reads these words
//!   (`Arena::has_company`). So one of the two sees the other.
//! - admission-A2: a newcomer that finds such a word set notifies the server, and does nothing in
//!   the pool until it is cleared. The server clears it when the kernel has dropped everything, and
//!   lets the kernel cache nothing from then on.
//! - admission-A3: the same holds for a child of a fork whose parent has gone: each new slot is
//!   held up (`Arena::hold_newcomers`).
//! - admission-A4: the mount of a server that died is dead, and its word means nothing.

use crate::derived::inodes::Inode;
use crate::derived::state::State;
use crate::derived::unnamed::{self, Unnamed};
use arena::atomic;
use rustix::thread::{Timespec, futex};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use vfs::{Errno, Result};

/// The time that a server has before a newcomer gives up: the server may be stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a newcomer checks again that the server is alive.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Waits until no kernel caches anything of the pool (admission-A2), except for the mount of this
/// process.
///
/// # Errors
/// `ETIMEDOUT` if a server lives and does not answer.
#[cold]
pub fn wait_until_ended<V: Inode>(state: &State<V>) -> Result<()> {
    let own = state.arena.process()?;
    let is_other = |unnamed: &&Unnamed| unnamed.server().is_some_and(|server| server != own);
    let mut begun = None;
    for unnamed in state.unnamed().iter().filter(is_other) {
        while unnamed.keeps.load(SeqCst) != 0 {
            let Some(server) =
                unnamed.server().filter(|server| !state.arena.is_process_dead(*server))
            else {
                // The server is dead (admission-A4).
                break;
            };
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                tracing::warn!(
                    "the server of a mount of the pool (process slot {server}) does not answer"
                );
                return Err(Errno::TIMEDOUT);
            }
            unnamed.count();
            let _ =
                futex::wait(atomic::futex(&unnamed.keeps), futex::Flags::empty(), 1, Some(&NAP));
        }
    }
    Ok(())
}

/// Records whether the kernel may cache this server's answers. Returns whether it may: not if there
/// is company (admission-A1).
///
/// # Errors
/// `EUSERS` if there are too many servers.
pub fn set<V: Inode>(state: &State<V>, keeps: bool) -> Result<bool> {
    let unnamed = unnamed::own_unnamed(state)?;
    unnamed.keeps.store(keeps.into(), SeqCst);
    if keeps && !state.arena.has_company() {
        return Ok(true);
    }
    unnamed.keeps_nothing();
    Ok(false)
}
