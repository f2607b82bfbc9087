//! Inodes without a name that the kernel remembers: told to the mount's server.
//!
//! The kernel keeps what it has once looked up, and with it the server's references, until it is told that the
//! name is gone. Names that go through the mount it takes away itself. Whoever removes the last name of an inode
//! beside the mount looks at one word more, the references that the server counts, and only where there are any
//! notifies the servers.
//!
//! - unnamed-U1: which inode it was is remembered in a word that is picked by the inode's number. Where two meet in one, the
//!   server looks at all that it holds. So nobody waits for anybody, and who is killed leaves nothing half-done.
//! - unnamed-U2: a notification is counted after its word was stored, and the server sleeps only as long as the count is what it
//!   was before it looked at the words. Nobody calls the kernel to wake a server that is awake.
//! - unnamed-U3: notifications up to `told` have reached the kernel. As long as there are others, space that is missing may
//!   come back at any moment.
//! - unnamed-U4: the kernel may let go of the inode by itself, and its number be used again. So the server holds an inode
//!   while it tells of it, and only where it held it before and the name is gone *now*.

use crate::derived::inodes::Inode;
use crate::derived::sharing::SharedPool;
use crate::derived::state::State;
use arena::atomic::{self, AtomicU32};
use rustix::thread::{Timespec, futex, nanosleep};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use vfs::{Errno, Ino, Result};

/// Inodes that can wait to be told without looking at all.
const WORDS: usize = 1022;
/// How long to wait for what another process or the kernel does next.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// How often to wait for the kernel to let an inode go that it was told to forget: what is open stays.
const NAPS_FOR_KERNEL: usize = 5;
/// How often to wait for space that is about to come back.
const NAPS_FOR_SPACE: u32 = 100;

/// Servers that can be told: a pool may be mounted at several places.
pub const SERVERS: usize = 4;

/// What one server is notified of.
#[repr(C, align(64))]
pub struct Unnamed {
    /// Slot of the server's process plus one; 0: there is none.
    server: AtomicU32,
    /// Whether the server sleeps.
    asleep: AtomicU32,
    /// Notifications so far: the server sleeps on it.
    notified: AtomicU32,
    /// Those that the kernel has been told.
    told: AtomicU32,
    /// Whether a word was needed twice.
    overflowed: AtomicU32,
    /// Whether the kernel may keep what the server answers ([`crate::derived::admission`]).
    pub(crate) keeps: AtomicU32,
    inos: [AtomicU32; WORDS],
}

impl Unnamed {
    /// The slot of the server's process, if there is a server.
    pub(crate) fn server(&self) -> Option<usize> {
        (self.server.load(Acquire) as usize).checked_sub(1)
    }

    /// Lets those in who wait for that.
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

    fn notify(&self, ino: Ino) {
        let before = self.inos[ino.0 as usize % WORDS].swap(ino.0 as u32, AcqRel);
        if before != 0 && before != ino.0 as u32 {
            self.overflowed.store(1, Release);
        }
        self.count();
    }

    /// Whether a notification is on its way to the kernel (unnamed-U3).
    fn is_pending(&self) -> bool {
        self.server.load(Relaxed) != 0 && self.notified.load(Acquire) != self.told.load(Acquire)
    }

    /// Begins to notify another server, or ends that; whether it did.
    fn change_server(&self, from: u32, to: u32) -> bool {
        self.server.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Sleeps until there is a notification that the kernel was not told, or `patience` has passed.
    fn sleep(&self, patience: Duration) {
        let told = self.told.load(Relaxed);
        let patience = Timespec::try_from(patience).unwrap_or(NAP);
        self.asleep.store(1, SeqCst);
        let notified = atomic::futex(&self.notified);
        let _ = futex::wait(notified, futex::Flags::empty(), told, Some(&patience));
        self.asleep.store(0, Relaxed);
    }
}

/// Waits for space that the kernel is about to give back (unnamed-U3); `false` where that is no use.
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

/// This process as a server.
fn own_server<V: Inode>(state: &State<V>) -> Result<u32> {
    Ok(state.arena.process()? as u32 + 1)
}

/// What this process is notified of.
pub(crate) fn own_unnamed<V: Inode>(state: &State<V>) -> Result<&Unnamed> {
    let own = own_server(state)?;
    let mut all = state.unnamed().iter();
    let known = all.clone().find(|unnamed| unnamed.server.load(Relaxed) == own);
    known.or_else(|| all.find(|unnamed| unnamed.change_server(0, own))).ok_or(Errno::USERS)
}

/// The process in this slot is dead, or its mount has ended.
pub fn end_server<V: Inode>(state: &State<V>, process: usize) {
    let its = |unnamed: &&Unnamed| unnamed.server() == Some(process);
    if let Some(unnamed) = state.unnamed().iter().find(its) {
        // Its mount is as dead as it, and nobody is to wait for it.
        unnamed.keeps_nothing();
        unnamed.change_server(process as u32 + 1, 0);
    }
}

/// [`mounts::MountEvents::wait_for_unnamed`].
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
        // unnamed-U4.
        let may = |v: &P::Inode| v.has_no_name() && pool.state().holds(process, *ino);
        let is_told = pool.hold_if(*ino, may).unwrap_or(false);
        if is_told {
            tell(*ino);
            pool.forget(*ino, 1);
        }
        is_told
    });
    // The kernel answers by requests of its own.
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

/// [`mounts::MountEvents::wake`].
pub fn wake<V: Inode>(state: &State<V>) {
    if let Ok(unnamed) = own_unnamed(state) {
        unnamed.count();
    }
}
