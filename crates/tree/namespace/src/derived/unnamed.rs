//! Inodes without a name that the kernel still caches: notifying the mount's server.
//!
//! The kernel keeps an inode that it has looked up, and with it the server's references, until it
//! learns that the name is gone. It drops names that are removed through the mount by itself. A
//! process that removes the last name of an inode by direct access reads one more word: the
//! references that the server counts. Only if there are any, it notifies the servers.
//!
//! - unnamed-U1: the inode is recorded in a word that is picked by the inode's number. If two
//!   inodes meet in one word, the server checks all inodes that it holds. So no process waits for
//!   another, and a killed process leaves nothing half-done.
//! - unnamed-U2: a notification is counted after its word was stored. The server sleeps only while
//!   the count equals the one that it read before it checked the words. A notifier makes no system
//!   call for a server that is awake.
//! - unnamed-U3: notifications up to `told` have reached the kernel. While there are later ones,
//!   missing space may come back at any moment.
//! - unnamed-U4: the kernel may drop the inode by itself, and its number may be used again. So the
//!   server holds an inode while it notifies the kernel of it. It does so only if it held the inode
//!   before and the name is gone *now*.

use crate::derived::inodes::Inode;
use crate::derived::sharing::SharedPool;
use crate::derived::state::State;
use arena::atomic::{self, AtomicU32};
use rustix::thread::{Timespec, futex, nanosleep};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use vfs::{Errno, Ino, Result};

/// Inodes that can wait for their notification before the server has to check all inodes that it
/// holds.
const WORDS: usize = 1022;
/// The pause while another process or the kernel does its next step.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// The number of pauses for the kernel to drop an inode after its notification: open inodes stay.
const NAPS_FOR_KERNEL: usize = 5;
/// The number of pauses for space that is about to come back.
const NAPS_FOR_SPACE: u32 = 100;

/// Servers that can be notified: a pool and its branches may be mounted at several places. Each
/// removal of a last name looks at all of them.
pub const SERVERS: usize = 8;

/// The notifications for one server.
#[repr(C, align(64))]
pub struct Unnamed {
    /// Slot of the server's process plus one; 0: no server.
    server: AtomicU32,
    /// Whether the server sleeps.
    asleep: AtomicU32,
    /// Notifications so far; the server sleeps on this word.
    notified: AtomicU32,
    /// Notifications that the kernel has received.
    told: AtomicU32,
    /// Whether two inodes needed the same word.
    overflowed: AtomicU32,
    /// Whether the kernel may keep what the server answers ([`crate::derived::admission`]).
    pub(crate) keeps: AtomicU32,
    inos: [AtomicU32; WORDS],
}

impl Unnamed {
    /// Returns the slot of the server's process, if there is a server.
    pub(crate) fn server(&self) -> Option<usize> {
        (self.server.load(Acquire) as usize).checked_sub(1)
    }

    /// Records that the kernel caches nothing, and wakes the processes that wait for that.
    pub(crate) fn keeps_nothing(&self) {
        self.keeps.store(0, SeqCst);
        let _ = futex::wake(atomic::futex(&self.keeps), futex::Flags::empty(), u32::MAX);
    }

    /// Counts a notification (unnamed-U2).
    pub(crate) fn count(&self) {
        self.notified.fetch_add(1, SeqCst);
        if self.asleep.load(SeqCst) != 0 {
            let _ = futex::wake(atomic::futex(&self.notified), futex::Flags::empty(), 1);
        }
    }

    /// Records an inode that has lost its last name, and counts the notification (unnamed-U1,
    /// unnamed-U2).
    fn notify(&self, ino: Ino) {
        let before = self.inos[ino.0 as usize % WORDS].swap(ino.0 as u32, AcqRel);
        if before != 0 && before != ino.0 as u32 {
            self.overflowed.store(1, Release);
        }
        self.count();
    }

    /// Returns whether a notification is on its way to the kernel (unnamed-U3).
    fn is_pending(&self) -> bool {
        self.server.load(Relaxed) != 0 && self.notified.load(Acquire) != self.told.load(Acquire)
    }

    /// Changes [`server`](Self#structfield.server) from `from` to `to` (0: no server). Returns
    /// whether it was `from`.
    fn change_server(&self, from: u32, to: u32) -> bool {
        self.server.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Sleeps until there is a notification that the kernel has not received, or until `patience`
    /// has passed.
    fn sleep(&self, patience: Duration) {
        let told = self.told.load(Relaxed);
        let patience = Timespec::try_from(patience).unwrap_or(NAP);
        self.asleep.store(1, SeqCst);
        let notified = atomic::futex(&self.notified);
        let _ = futex::wait(notified, futex::Flags::empty(), told, Some(&patience));
        self.asleep.store(0, Relaxed);
    }
}

/// Waits for space that the kernel is about to give back (unnamed-U3); `false` if waiting is of no
/// use.
pub fn nap_for_space<V: Inode>(state: &State<V>, naps: &mut u32) -> bool {
    if *naps == NAPS_FOR_SPACE || !state.unnamed().iter().any(Unnamed::is_pending) {
        return false;
    }
    *naps += 1;
    let _ = nanosleep(&NAP);
    true
}

/// As [`SharedPool::notify_unnamed`].
pub fn notify<V: Inode>(state: &State<V>, ino: Ino) {
    for unnamed in state.unnamed() {
        let server = unnamed.server.load(Relaxed);
        let is_other = server != 0 && own_server(state) != Ok(server);
        if is_other && state.holds(server as usize - 1, ino) {
            unnamed.notify(ino);
        }
    }
}

/// Lets all servers check all inodes that they hold: any of them may have lost its last name.
pub fn notify_all<V: Inode>(state: &State<V>) {
    for unnamed in state.unnamed().iter().filter(|unnamed| unnamed.server.load(Relaxed) != 0) {
        unnamed.overflowed.store(1, Release);
        unnamed.count();
    }
}

/// Returns the identity of this process as a server.
fn own_server<V: Inode>(state: &State<V>) -> Result<u32> {
    Ok(state.arena.process()? as u32 + 1)
}

/// Returns the notifications for this process; claims them for it at the first call. Only servers
/// call this.
///
/// # Errors
/// `EUSERS` if the pool has [`SERVERS`] servers already.
pub(crate) fn own_unnamed<V: Inode>(state: &State<V>) -> Result<&Unnamed> {
    let own = own_server(state)?;
    let all = || state.unnamed().iter();
    let known = || all().find(|unnamed| unnamed.server.load(Relaxed) == own);
    if let Some(unnamed) = known() {
        return Ok(unnamed);
    }
    // Threads may come here at the same time; only the first claims an entry for the process.
    let _turn = state.claiming.lock().unwrap_or_else(PoisonError::into_inner);
    known().or_else(|| all().find(|unnamed| unnamed.change_server(0, own))).ok_or(Errno::USERS)
}

/// Ends the notifications for the process in this slot, which is dead or has ended its mount.
pub fn end_server<V: Inode>(state: &State<V>, process: usize) {
    let its = |unnamed: &&Unnamed| unnamed.server() == Some(process);
    if let Some(unnamed) = state.unnamed().iter().find(its) {
        // Its mount has ended with it, and no process must wait for it.
        unnamed.keeps_nothing();
        unnamed.change_server(process as u32 + 1, 0);
    }
}

/// Implements [`mounts::MountEvents::wait_for_unnamed`].
pub fn wait<P: SharedPool>(pool: &P, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()> {
    let state = pool.state();
    let process = state.arena.process()?;
    let unnamed = own_unnamed(state)?;
    unnamed.sleep(patience);
    let notified = unnamed.notified.load(Acquire);
    let mut inos = Vec::new();
    if unnamed.overflowed.swap(0, AcqRel) != 0 {
        state.for_each_ref(process, |ino, _| inos.push(ino));
    }
    let words = unnamed.inos.iter().map(|word| Ino(word.swap(0, AcqRel).into()));
    inos.extend(words.filter(|ino| ino.0 != 0));
    inos.retain(|ino| {
        // Only inodes that were held and have no name now (unnamed-U4).
        let may = |v: &P::Inode| v.has_no_name() && pool.state().holds(process, *ino);
        let is_told = pool.hold_if(*ino, may).unwrap_or(false);
        if is_told {
            tell(*ino);
            pool.forget(*ino, 1);
        }
        is_told
    });
    // The kernel answers by separate requests.
    for _ in 0..NAPS_FOR_KERNEL {
        inos.retain(|ino| state.holds(process, *ino));
        if inos.is_empty() {
            break;
        }
        let _ = nanosleep(&NAP);
    }
    unnamed.told.store(notified, Release);
    Ok(())
}

/// Implements [`mounts::MountEvents::wake`].
pub fn wake<V: Inode>(state: &State<V>) {
    if let Ok(unnamed) = own_unnamed(state) {
        unnamed.count();
    }
}
