//! Mounts of which the kernel may keep what it was told, as nobody but their server uses the pool.
//!
//! - admission-A1: a server says so in a word before it lets the kernel keep anything, and then looks whether somebody else is
//!   there. Who comes has a slot before it looks at these words (`Arena::has_company`). So one of the two sees the other.
//! - admission-A2: who comes and finds such a word set notifies the server, and does nothing in the pool until it is cleared. The
//!   server clears it when the kernel has forgotten everything, and keeps nothing from then on.
//! - admission-A3: that also holds for a child of a fork whose parent has gone: each new slot is held up (`Arena::hold_newcomers`).
//! - admission-A4: the mount of a server that died is dead, and its word means nothing.

use crate::derived::inodes::Inode;
use crate::derived::state::State;
use crate::derived::unnamed::{self, Unnamed};
use arena::atomic;
use rustix::thread::{Timespec, futex};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use vfs::{Errno, Result};

/// How long a server has, before who comes gives up: it may be stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to sleep before looking whether the server is alive.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Waits until no kernel keeps anything of the pool (admission-A2), except for the mount of this process.
///
/// # Errors
/// `ETIMEDOUT` where a server lives and does not answer.
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
                // admission-A4.
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

/// Says whether the kernel may keep what this server answers; whether it may: not where there is company (admission-A1).
///
/// # Errors
/// There are too many servers.
pub fn set<V: Inode>(state: &State<V>, keeps: bool) -> Result<bool> {
    let unnamed = unnamed::own_unnamed(state)?;
    unnamed.keeps.store(keeps.into(), SeqCst);
    if keeps && !state.arena.has_company() {
        return Ok(true);
    }
    unnamed.keeps_nothing();
    Ok(false)
}
