//! The processes and threads that use a shared arena, and how all of them stop for a repair.
//!
//! A thread marks its own slot while it is inside an operation. No thread waits for another to
//! enter or leave, so each costs one store. The rules for a process that is killed:
//!
//! - session-E1: if it dies outside of operations, only its slots and references are left. Any
//!   process clears them, at the latest one that needs the slot.
//! - session-E2: if it dies inside an operation, locks stay taken and derived state may be
//!   half-changed. A thread that finds that out closes the *gate*, waits until every living thread
//!   is outside, and derives the whole state again.
//! - session-E3: threads that wait for a lock check from time to time whether the gate is closed or
//!   a process died inside. Then they give up, undo what they prepared, leave, and start over.
//! - session-E4: the mark and the gate are two words, written by one side and read by the other.
//!   The side that closes the gate executes the fence for both (`membarrier(2)`, the expedited
//!   kind). A process that the kernel has registered may *rely* on that, and its slot records it.
//!   The threads of a process that cannot be registered (an old kernel, a filter of system calls)
//!   fence themselves. If a process that closes the gate cannot make others fence, and any process
//!   relies on that, it opens the gate again. It leaves the repair to processes that can.
//! - session-E5: the slot of a dead process is either cleared by its *sweeper*, or taken over
//!   uncleared by a new process. Each stores its mark (`sweeper`, `who`), fences, and checks for
//!   the other's mark. Both may back off, but not both go on. A slot becomes free before its
//!   sweeper is reset.
//! - session-E6: a child of a fork takes references for what it inherits, and until then those of
//!   its parent count for both. So the slot of a parent that has died has a time before which no
//!   process clears it. A child that takes its references later (it was stopped right after the
//!   fork) may find removed files gone.
//!
//! This module has the slots of processes and threads: how they are claimed and released. [`gate`]
//! stops all threads, [`dead`] clears what dead processes leave, and [`doubt`] handles overwritten
//! words.

#![allow(unsafe_code)]

mod dead;
mod doubt;
mod gate;

pub use dead::{Census, Look};
pub use doubt::Wait;
pub use gate::{Inside, Paused, Stopped};

use crate::process::{self, ProcessId, UNITS_PER_SECOND};
use crate::sync::{self, AtomicBool, AtomicU32, AtomicU64, fence, thread_local};
use crate::{Arena, Layout, Memory, Shared, Span, room};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::cell::RefCell;
use std::io;
use std::mem::offset_of;
use std::sync::atomic::{self, Ordering::*};
use std::sync::{Arc, Once};

/// Processes that can use one arena at a time.
pub const PROCESSES: usize = if cfg!(loom) { 3 } else { 256 };
/// Threads that can use one arena at a time.
const THREADS: usize = if cfg!(loom) { 3 } else { 4096 };
/// The owner of locks that a thread took without a slot; it counts as alive.
const UNKNOWN: u32 = u32::MAX;
/// The value of the gate of an arena whose memory is gone (room-O4): closed for good, without an
/// owner.
pub(crate) const LOST: u32 = u32::MAX;
/// The unit of the number of closings in the word of the gate; larger than any owner.
const CLOSING: u32 = (THREADS as u32 + 1).next_power_of_two();
/// Flag in the count of pauses: the slot of this process holds leftovers of a dead process.
const LEFTOVERS: u64 = 1 << 31;
/// Flag in the count of pauses: this process has just come, and has not been admitted
/// ([`Arena::hold_newcomers`]).
const ARRIVED: u64 = 1 << 30;
/// The process of a slot that was released without being cleared; it counts as dead.
const GONE: u64 = 1;
/// The sleep between two checks, if no thread would wake this one.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const NAPS_TO_DOUBT: u32 = if cfg!(loom) { 1 } else { 20 };
/// The time in which a child takes references for what it inherits from a dead parent (session-E6):
/// half a minute.
const FORK_UNITS: u64 = 30 * UNITS_PER_SECOND;
/// Naps to wait for a thread inside whose process may be alive or dead (`Life::Unknown`). After
/// that the process that has closed the gate opens it again.
const NAPS_TO_DESPAIR: u32 = 1_000;
/// Attempts of a process that cannot stop the world before it gives up. Between them it lets others
/// try, for a nap or more.
const UNABLE_TRIES: u32 = if cfg!(loom) { u32::MAX } else { 5_000 };

/// The first bytes of a shared arena.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Header {
    /// The format of layout and version; 0 until the derived state is complete.
    pub(crate) ready: AtomicU64,
    /// The namespaces to which process numbers and start times belong.
    pub(crate) namespaces: AtomicU64,
    /// The owner that has closed the gate (below [`CLOSING`]), plus the number of this closing
    /// times [`CLOSING`], so that each closing has a different value. 0: open. Or [`LOST`].
    pub(crate) gate: AtomicU32,
    /// The number of times that the gate was closed.
    closings: AtomicU32,
    /// The number of slots of the thread table that were ever used.
    threads_used: AtomicU32,
    /// The number of times that the derived state was rebuilt after a process died.
    recoveries: AtomicU32,
    /// 1 if the tmpfs had no room for a page of the arena (room-O2 in `room.rs`).
    pub(crate) short: AtomicU32,
    /// 1 if its words are in doubt (doubt-W1).
    doubted: AtomicU32,
}
// SAFETY: atomics only; zero means "nothing yet".
unsafe impl Shared for Header {}

impl Header {
    /// Whether memory of the arena is gone (room-O4).
    pub(crate) fn is_lost(&self) -> bool {
        self.gate.load(Acquire) == LOST
    }
}

#[derive(Default)]
#[repr(C, align(64))]
struct ProcessSlot {
    /// [`ProcessId`]; 0: free.
    who: AtomicU64,
    /// The owner that clears the slot after the process died; 0: none.
    sweeper: AtomicU32,
    /// 1 if its threads do not fence: a process that closes the gate does so for them (session-E4).
    relies: AtomicU32,
    /// The time, as of [`process::now`], until which a child may still take references for what it
    /// inherits (session-E6); 0: no fork is going on.
    forking: AtomicU64,
}
// SAFETY: as above.
unsafe impl Shared for ProcessSlot {}

impl ProcessSlot {
    /// Whether no living process has it.
    fn is_left(&self) -> bool {
        is_nobody(self.who.load(Acquire))
    }

    /// Whether its process is dead, and no child needs what that has left in it (session-E6).
    fn is_abandoned(&self, who: u64) -> bool {
        self.is_abandoned_by(who, Look::Thorough)
    }

    /// As [`is_abandoned`](Self::is_abandoned), with a check of this kind.
    fn is_abandoned_by(&self, who: u64, look: Look) -> bool {
        let is_dead = match look {
            Look::Quick => ProcessId::is_gone,
            Look::Thorough => ProcessId::is_dead,
        };
        who != 0 && is_dead(ProcessId(who)) && self.forking.load(Acquire) <= process::now()
    }

    /// Resets the sweeper, which has cleared the slot.
    fn release(&self, sweeper: u32) {
        let _ = self.sweeper.compare_exchange(sweeper, 0, AcqRel, Relaxed);
    }
}

#[derive(Default)]
#[repr(C, align(64))]
struct ThreadSlot {
    /// [`ProcessId`] of the process it belongs to; 0: free.
    who: AtomicU64,
    /// Whether the thread is inside an operation.
    inside: AtomicU32,
    /// Slot of the process plus one, in the thread's session: a process may have several sessions,
    /// of which one detaches.
    process: AtomicU32,
}
// SAFETY: as above.
unsafe impl Shared for ThreadSlot {}

/// Whether a slot of this process is free, or the process is certainly dead.
fn is_nobody(who: u64) -> bool {
    who == 0 || ProcessId(who).is_dead()
}

/// The tables of a session.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) header: Span<Header>,
    processes: Span<ProcessSlot>,
    threads: Span<ThreadSlot>,
}

impl Tables {
    pub(crate) fn plan(layout: &mut Layout) -> Self {
        Self {
            header: layout.table(1),
            processes: layout.table(PROCESSES),
            threads: layout.table(THREADS + 1),
        }
    }

    /// Reads the header of an arena's file without a mapping (attach-A6). Missing bytes are zeros.
    pub(crate) fn read_header(&self, file: &OwnedFd) -> io::Result<Header> {
        let mut bytes = [0; size_of::<Header>()];
        read_at(file, &mut bytes, self.header.offset)?;
        let half =
            |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        Ok(Header {
            ready: AtomicU64::new(word(offset_of!(Header, ready))),
            namespaces: AtomicU64::new(word(offset_of!(Header, namespaces))),
            gate: AtomicU32::new(half(offset_of!(Header, gate))),
            ..Header::default()
        })
    }

    /// As [`is_used`](Self::is_used), read without a mapping.
    pub(crate) fn is_used_in(&self, file: &OwnedFd) -> io::Result<bool> {
        let mut bytes = vec![0; PROCESSES * size_of::<ProcessSlot>()];
        read_at(file, &mut bytes, self.processes.offset)?;
        let at = offset_of!(ProcessSlot, who);
        let who =
            |slot: &[u8]| u64::from_ne_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
        Ok(bytes.chunks_exact(size_of::<ProcessSlot>()).any(|slot| !is_nobody(who(slot))))
    }

    /// Whether any process that may be alive has a slot.
    pub(crate) fn is_used(&self, memory: &Memory) -> bool {
        memory.table(self.processes).iter().any(|p| !p.is_left())
    }
}

/// Reads from a file at `offset`. If the file ends before `bytes`, the rest of `bytes` stays as it
/// is.
fn read_at(file: &OwnedFd, bytes: &mut [u8], offset: usize) -> io::Result<()> {
    let mut done = 0;
    loop {
        match rustix::io::pread(file, &mut bytes[done..], (offset + done) as u64) {
            Ok(0) => return Ok(()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The number of forks since the start, in this process and its ancestors.
static FORKS: atomic::AtomicU32 = atomic::AtomicU32::new(0);
static NEXT_NUMBER: atomic::AtomicU32 = atomic::AtomicU32::new(1);

extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
    process::after_fork_child();
}

/// Counts forks from now on.
pub(crate) fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to atomics and makes a system call.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// Registers the process with the kernel for `membarrier(2)` before the first shared arena needs it
/// (session-E4). Later, when the process has several threads, that takes some ten milliseconds.
pub fn prepare() {
    sync::register();
}

/// This process's use of a shared arena.
pub(crate) struct Session {
    memory: Memory,
    pub(crate) tables: Tables,
    /// Holds the lock (attach-A1). Other accesses first check that it still is the arena's file.
    pub(crate) file: OwnedFd,
    /// Device and inode of the file.
    pub(crate) id: (u64, u64),
    /// A number that no other session of this process has.
    number: u32,
    /// Slot of this process plus one, in the lower half; above it the value of [`FORKS`] when the
    /// slot was taken.
    process: AtomicU64,
    detached: AtomicBool,
    /// The lower half has the number of threads that keep the others of this process outside
    /// ([`Arena::pause`]), and the flags [`LEFTOVERS`] and [`ARRIVED`], which keep them outside,
    /// too. The upper half has the value of [`FORKS`] for which the lower one holds: threads that
    /// paused the parent do not exist in a child.
    paused: AtomicU64,
    /// Whether a process that gets a slot must be admitted before it enters.
    holds_newcomers: AtomicBool,
    /// Whether the threads of this process fence themselves (session-E4): the kernel has not
    /// registered it.
    fences: AtomicBool,
    /// During a fork: slot of the parent plus one, in parent and child; 0: no fork.
    forking: AtomicU32,
    /// The number of times in a row that this process could not stop the world
    /// ([`Refused::Unable`]).
    unable: AtomicU32,
}

/// A thread's slot in one session.
struct Membership {
    session: Arc<Session>,
    key: u64,
    slot: u32,
}

impl Membership {
    /// Whether this process has detached from the session.
    fn is_over(&self) -> bool {
        self.session.detached.load(Acquire)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        sync::last().set((0, 0));
        // After a fork the slot is the parent's; after a detach it may belong to any thread.
        if self.key == self.session.key() && !self.is_over() {
            self.session.threads()[self.slot as usize].who.store(0, Release);
        }
    }
}

thread_local! {
    static ALL: RefCell<Vec<Membership>> = const { RefCell::new(Vec::new()) };
}

/// Drops the calling thread's references to detached sessions, and so their memory and files.
pub(crate) fn forget_left() {
    let _ = ALL.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut() {
            all.retain(|m| !m.is_over());
        }
    });
}

/// The reason why a thread could not enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All slots of processes or threads are taken.
    Full,
    /// The process that closed the gate has died: [`Arena::stop_the_world`] takes over.
    Stopped,
    /// The process has just got the slot of a dead process, and must clear what that has left.
    /// Returned once.
    Leftovers,
    /// The process has just come. It must first wait until processes that were alone so far have
    /// ended what needs that ([`Arena::hold_newcomers`]). Then [`Arena::admit`] lets it in.
    Arrived,
    /// A process has to stop the world, and this one cannot: a filter forbids it system calls
    /// (session-E4), or it cannot find out which processes are alive (process-L3 in `process.rs`).
    /// No other process has done it for seconds.
    Unable,
    /// Memory of the arena is gone (room-O4).
    Lost,
}

impl Drop for Session {
    fn drop(&mut self) {
        room::unwatch(self.memory.view().address());
    }
}

impl Session {
    pub(crate) fn new(memory: Memory, tables: Tables, file: OwnedFd) -> io::Result<Arc<Self>> {
        count_forks();
        let stat = rustix::fs::fstat(&file)?;
        Ok(Arc::new(Self {
            memory,
            tables,
            file,
            id: (stat.st_dev, stat.st_ino),
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            process: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            paused: AtomicU64::new(0),
            holds_newcomers: AtomicBool::new(false),
            fences: AtomicBool::new(true),
            forking: AtomicU32::new(0),
            unable: AtomicU32::new(0),
        }))
    }

    /// Whether a descriptor belongs to the session's file.
    pub(crate) fn is_file(&self, fd: BorrowedFd<'_>) -> bool {
        rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.id)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    #[inline]
    fn key(&self) -> u64 {
        u64::from(self.number) << 32 | u64::from(FORKS.load(Relaxed))
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        &self.memory.table(self.tables.header)[0]
    }

    #[inline]
    fn threads(&self) -> &[ThreadSlot] {
        self.memory.table(self.tables.threads)
    }

    fn processes(&self) -> &[ProcessSlot] {
        self.memory.table(self.tables.processes)
    }

    /// Returns the calling thread's slot, which it claims at first use.
    #[inline]
    fn slot(self: &Arc<Self>) -> Result<u32, Refused> {
        let (key, slot) = sync::last().get();
        if key == self.key() { Ok(slot) } else { self.join() }
    }

    /// Returns the calling thread's slot from its list of sessions, or claims one. Stores it in the
    /// thread's cell.
    #[cold]
    fn join(self: &Arc<Self>) -> Result<u32, Refused> {
        let key = self.key();
        let known = |all: &Vec<Membership>| all.iter().find(|m| m.key == key).map(|m| m.slot);
        let slot = match ALL.try_with(|all| known(&all.borrow())) {
            Ok(Some(slot)) => slot,
            _ => {
                let process = self.process()?;
                let slot = self.claim_thread(process)?;
                let mut membership = Some(Membership { session: self.clone(), key, slot });
                let _ = ALL.try_with(|all| {
                    let mut all = all.borrow_mut();
                    // Memberships from before a fork, and of detached sessions, are useless.
                    all.retain(|m| m.key as u32 == key as u32 && !m.is_over());
                    all.extend(membership.take());
                });
                // A thread that is ending keeps the slot until its process detaches or dies.
                std::mem::forget(membership);
                slot
            }
        };
        sync::last().set((key, slot));
        Ok(slot)
    }

    /// Claims a thread slot: a free one, or one of a dead process that is outside. Fails with
    /// [`Refused::Full`].
    fn claim_thread(&self, process: usize) -> Result<u32, Refused> {
        let me = ProcessId::own().0;
        let used = &self.header().threads_used;
        let slots = self.threads();
        let take =
            |i: &usize, from| slots[*i].who.compare_exchange(from, me, AcqRel, Relaxed).is_ok();
        // Slot 0 stays empty: an owner is never 0.
        let top = (used.load(Acquire) as usize).min(THREADS);
        let is_left = |i: &usize| {
            let who = slots[*i].who.load(Acquire);
            let is_outside = slots[*i].inside.load(Acquire) == 0;
            is_outside && who != 0 && ProcessId(who).is_dead() && take(i, who)
        };
        let is_free = |i: &usize| slots[*i].who.load(Relaxed) == 0 && take(i, 0);
        // The search begins at a different slot for each process, so it rarely meets slots that
        // others have taken.
        let (first, rest) = (1 + process..=THREADS, 1..=process);
        let slot = first.chain(rest).find(is_free).or_else(|| (1..=top).find(is_left));
        let slot = slot.ok_or(Refused::Full)?;
        used.fetch_max(slot as u32, AcqRel);
        slots[slot].process.store(process as u32 + 1, Relaxed);
        slots[slot].inside.store(0, Release);
        Ok(slot as u32)
    }

    /// Returns the slot of this process, which it claims at first use.
    pub(crate) fn process(&self) -> Result<usize, Refused> {
        let forks = u64::from(FORKS.load(Relaxed)) << 32;
        let known = self.process.load(Acquire);
        if known != 0 && known & !0xffff_ffff == forks {
            return Ok((known as u32 - 1) as usize);
        }
        let paused = self.paused.load(Acquire);
        if paused & !0xffff_ffff != forks {
            // If another thread was first, the value is set already.
            let _ = self.paused.compare_exchange(paused, forks, AcqRel, Relaxed);
        }
        let me = ProcessId::own().0;
        let slots = self.processes();
        let take =
            |i: &usize, from| slots[*i].who.compare_exchange(from, me, AcqRel, Relaxed).is_ok();
        let is_left = |i: &usize, look| {
            let who = slots[*i].who.load(Acquire);
            let is_abandoned = slots[*i].is_abandoned_by(who, look);
            is_abandoned && slots[*i].sweeper.load(Acquire) == 0 && take(i, who) && {
                self.free_threads(who);
                // session-E5
                fence(SeqCst);
                let is_ours = slots[*i].sweeper.load(Acquire) == 0;
                if !is_ours {
                    slots[*i].who.store(GONE, Release);
                }
                is_ours
            }
        };
        let fresh = (0..PROCESSES).find(|i| slots[*i].who.load(Relaxed) == 0 && take(i, 0));
        let looks = [Look::Quick, Look::Thorough].into_iter();
        let left = |look| (0..PROCESSES).find(|i| is_left(i, look));
        let slot = fresh.or_else(|| looks.clone().find_map(left)).ok_or(Refused::Full)?;
        // Before any thread of the process is inside: a process that closes the gate must see this
        // slot, or this one must see the gate closed (session-E4).
        let is_registered = sync::register();
        slots[slot].relies.store(is_registered.into(), Relaxed);
        slots[slot].forking.store(0, Relaxed);
        self.fences.store(!is_registered, Relaxed);
        if self.holds_newcomers.load(Acquire) {
            self.paused.fetch_or(ARRIVED, AcqRel);
        }
        fence(SeqCst);
        match self.process.compare_exchange(known, forks | (slot as u64 + 1), AcqRel, Acquire) {
            Ok(_) => {
                if fresh.is_none() {
                    self.paused.fetch_or(LEFTOVERS, AcqRel);
                }
                Ok(slot)
            }
            Err(other) => {
                // Another thread was first.
                slots[slot].who.store(GONE, Release);
                Ok((other as u32 - 1) as usize)
            }
        }
    }

    /// Gives back this process's slots: it no longer uses the arena. Returns whether it had any.
    pub(crate) fn detach(&self) -> bool {
        let known = self.process.load(Acquire);
        self.detached.store(true, Release);
        if known == 0 || (known >> 32) as u32 != FORKS.load(Relaxed) {
            return false;
        }
        let me = ProcessId::own().0;
        let own = |t: &&ThreadSlot| t.process.load(Relaxed) == known as u32;
        for t in self.used_threads().iter().filter(own) {
            let _ = t.who.compare_exchange(me, 0, AcqRel, Relaxed);
        }
        // References of the process may be left in the arena.
        self.processes()[(known as u32 - 1) as usize].who.store(GONE, Release);
        true
    }

    /// Gives back the thread slots of a dead process, except those of threads that died inside:
    /// these slots show that (session-E2).
    fn free_threads(&self, who: u64) {
        let is_outside = |t: &&ThreadSlot| t.inside.load(Acquire) == 0;
        let of_it = self.used_threads().iter().filter(|t| t.who.load(Acquire) == who);
        for t in of_it.filter(is_outside) {
            let _ = t.who.compare_exchange(who, 0, AcqRel, Relaxed);
        }
    }

    fn used_threads(&self) -> &[ThreadSlot] {
        let used = (self.header().threads_used.load(Acquire) as usize).min(THREADS);
        &self.threads()[1..=used]
    }
}

impl Arena {
    /// Announces a fork: until [`end_fork`](Self::end_fork), the references of this process stay
    /// even if it dies (session-E6). A process may do only one fork at a time.
    pub fn begin_fork(&self) {
        if let Some(s) = self.session()
            && let Ok(process) = s.process()
        {
            s.forking.store(process as u32 + 1, Relaxed);
            s.processes()[process].forking.store(process::now() + FORK_UNITS, Release);
        }
    }

    /// Ends the fork: the child has references for what it inherits, or there is no child. To be
    /// called in parent and child; the first call counts for both.
    pub fn end_fork(&self) {
        if let Some(s) = self.session() {
            let slot = s.forking.swap(0, Relaxed) as usize;
            if slot > 0 {
                s.processes()[slot - 1].forking.store(0, Release);
            }
        }
    }

    /// Keeps new processes outside from now on, also forked ones: they get [`Refused::Arrived`]
    /// until they are [admitted](Self::admit).
    pub fn hold_newcomers(&self) {
        let Some(s) = self.session() else { return };
        s.holds_newcomers.store(true, Release);
        if s.process.load(Acquire) != 0 {
            s.paused.fetch_or(ARRIVED, AcqRel);
        }
    }

    /// Lets the threads of this process enter.
    pub fn admit(&self) {
        if let Some(s) = self.session() {
            s.paused.fetch_and(!ARRIVED, AcqRel);
        }
    }

    /// Whether another process has a slot. A process that has just died still counts.
    ///
    /// A new process takes its slot before it gets [`Refused::Arrived`]. So of two processes, which
    /// each store a word of their own and then check for the other's, at least one sees it.
    pub fn has_company(&self) -> bool {
        let Some(s) = self.session() else { return false };
        fence(SeqCst);
        let own = s.process();
        let is_other = |(slot, process): (usize, &ProcessSlot)| {
            own != Ok(slot) && ![0, GONE].contains(&process.who.load(Acquire))
        };
        s.processes().iter().enumerate().any(is_other)
    }

    /// Whether a process with this number has a slot, and is not known to have ended.
    pub fn has_process(&self, pid: u32) -> bool {
        let Some(s) = self.session() else { return false };
        let mut all = s.processes().iter().map(|process| process.who.load(Acquire));
        all.any(|who| ![0, GONE].contains(&who) && ProcessId(who).pid() == pid && !is_nobody(who))
    }

    /// Whether no living process has this slot.
    pub fn is_process_dead(&self, slot: usize) -> bool {
        let Some(s) = self.session() else { return false };
        s.processes().get(slot).is_none_or(|process| is_nobody(process.who.load(Acquire)))
    }

    /// Returns the slot of the calling process, which no other process has: a number below
    /// [`PROCESSES`]. In an arena for one process it is 0.
    pub fn process(&self) -> Result<usize, Refused> {
        self.session().map_or(Ok(0), |s| s.process())
    }

    /// Returns the number of times that the derived state was rebuilt because a process died
    /// inside.
    pub fn recoveries(&self) -> u32 {
        self.session().map_or(0, |s| s.header().recoveries.load(Relaxed))
    }

    /// Counts a recovery.
    pub fn count_recovery(&self) {
        if let Some(s) = self.session() {
            s.header().recoveries.fetch_add(1, Relaxed);
        }
    }
}

/// The error of the system call layer for a thread that could not enter.
impl From<Refused> for Errno {
    fn from(r: Refused) -> Self {
        match r {
            Refused::Full => Errno::USERS,
            Refused::Stopped | Refused::Leftovers | Refused::Arrived => Errno::RESTART,
            Refused::Unable | Refused::Lost => Errno::IO,
        }
    }
}

#[cfg(loom)]
#[path = "../model/session.rs"]
pub(crate) mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Attached, Place};
    use rustix::thread::{MembarrierCommand, membarrier};

    /// The place of a shared arena that no other test uses.
    fn place(name: &str) -> Place {
        Place::private("/dev/shm", &format!("arena-{name}-{}", std::process::id()), 2)
    }

    fn attach(place: &Place) -> Arena {
        match place.attach(&Layout::shared(), &|_| Ok(())).unwrap() {
            Attached::Fresh(arena) => {
                arena.publish().unwrap();
                arena
            }
            Attached::Joined(arena) => arena,
        }
    }

    /// Runs `body` in a forked process. Returns whether it returned true there.
    fn in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child has one thread, and ends without running code of the test.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
                libc::_exit(i32::from(!result.unwrap_or(false)));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }

    /// Makes `membarrier(2)` fail with `EPERM` in this process.
    fn forbid_membarrier() {
        os::syscalls::forbid(libc::SYS_membarrier);
        assert_eq!(membarrier(MembarrierCommand::PrivateExpedited), Err(Errno::PERM));
    }

    fn fences(arena: &Arena) -> bool {
        drop(arena.enter().unwrap());
        arena.session().unwrap().fences.load(Relaxed)
    }

    #[test]
    fn who_attaches_is_registered_and_so_are_its_children() {
        let arena = attach(&place("registered"));
        let is_registered = || {
            !fences(&arena)
                && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
                && arena.stop_the_world().unwrap().is_some()
        };
        assert!(is_registered());
        assert!(in_child(is_registered));
    }

    /// More processes than have slots come and go, and each has a thread that ends with it.
    #[test]
    fn the_dead_take_the_slots_of_their_threads_with_them() {
        let arena = attach(&place("dead-threads"));
        drop(arena.enter().unwrap());
        for _ in 0..PROCESSES + 50 {
            assert!(in_child(|| {
                // A process that gets the slot of a dead process is refused once (`Leftovers`).
                arena.enter().or_else(|_| arena.enter()).is_ok()
            }));
        }
        let session = arena.session().unwrap();
        let taken = session.threads().iter().filter(|t| t.who.load(Relaxed) != 0).count();
        assert!(taken <= PROCESSES, "{taken} slots of threads are taken");
    }

    /// A thread that has used an arena does not keep its memory and file open after the detach.
    #[test]
    fn a_thread_lets_go_of_arenas_that_were_left() {
        const NAME: &str = "left-behind";
        let open = || {
            let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let target = |fd: std::fs::DirEntry| std::fs::read_link(fd.path()).ok();
            let is_it = |path: &std::path::PathBuf| path.to_string_lossy().contains(NAME);
            files.filter_map(target).filter(is_it).count()
        };
        for _ in 0..5 {
            let arena = attach(&place(NAME));
            drop(arena.enter().unwrap());
        }
        assert_eq!(open(), 0);
    }

    #[test]
    fn who_cannot_be_registered_fences_itself_and_may_stop_its_likes() {
        let place = place("alone");
        assert!(in_child(|| {
            forbid_membarrier();
            // The test is registered, but a program of its own would not be.
            let arena = attach(&place);
            fences(&arena) && arena.stop_the_world().unwrap().is_some()
        }));
    }

    #[test]
    fn who_cannot_make_others_fence_leaves_the_gate_to_those_who_can() {
        let place = place("filtered");
        let arena = attach(&place);
        assert!(!fences(&arena));
        assert!(in_child(|| {
            forbid_membarrier();
            let filtered = attach(&place);
            fences(&filtered)
                && filtered.stop_the_world().unwrap().is_none()
                && filtered.wait_outside().is_ok()
        }));
        assert!(arena.stop_the_world().unwrap().is_some());
    }
}
