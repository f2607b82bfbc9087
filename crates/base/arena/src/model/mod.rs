//! The arena under the model checker `loom` (`--cfg loom`). It has loom's atomics instead of std's,
//! tables of them instead of mapped memory, and models the system calls that the structures depend
//! on.
//!
//! `make loom` runs the models (`model/*.rs`). Each runs through every schedule with up to
//! `LOOM_MAX_PREEMPTIONS` preemptions, and every value that the memory model allows a load to
//! return.
//!
//! - arena-M1: only a wake ends the sleep of a thread, not time, so a lost wake-up is a deadlock,
//!   which loom reports. An [impatient](set_impatient) thread does not sleep: its time is up at
//!   once.
//! - arena-M2: every loom thread belongs to the process that it [enters](ProcessId::enter), which
//!   is alive until it [dies](die). A thread that sees that a process is dead sees all that it
//!   stored, as after its exit from the kernel.
//! - arena-M3: both sides of the gate execute fences. `membarrier(2)`, which saves one side its
//!   fence, has no counterpart in the memory model of C11. So in the model no process can make
//!   others fence.

#![allow(
    clippy::arc_with_non_send_sync,
    reason = "whether cells are shared in order is what loom checks"
)]

mod bitmap;
mod free_count;
mod hash;
mod pins;
mod rwlock;
mod slab;
mod token;

use crate::{Shared, Span};
use loom::sync::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, fence};
pub(crate) use loom::thread::yield_now as give_way;

/// `std::thread_local!` for values that are made by a `const` block.
macro_rules! thread_locals {
    ($($(#[$doc:meta])* static $name:ident: $of:ty = const $value:block;)*) => {
        loom::thread_local! { $($(#[$doc])* static $name: $of = $value;)* }
    };
}
pub(crate) use thread_locals as thread_local;

/// Explores a model. At most three preemptions unless `LOOM_MAX_PREEMPTIONS` is set.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(model);
}

/// The requirement of the model for types in an arena: a default value, which stands for zeroed
/// bytes.
pub trait Modelled: Default {}
impl<T: Default> Modelled for T {}

/// Returns the number that the thread has [set](set_number), else 1.
pub(crate) fn number() -> u32 {
    NUMBER.with(Cell::get)
}

/// Sets the number of the calling thread.
pub(crate) fn set_number(number: u32) {
    NUMBER.with(|n| n.set(number));
}

/// Returns whether the process [relies](set_relying) on the fences of others (arena-M3).
pub(crate) fn register() -> bool {
    RELIES.with(Cell::get)
}

/// Makes the calling thread's process rely on the fences of others.
pub(crate) fn set_relying() {
    RELIES.with(|r| r.set(true));
}

pub(crate) fn make_all_fence() -> bool {
    false
}

pub(crate) fn make_own_fence() {
    fence(SeqCst);
}

/// Does nothing: the model has no caches.
pub(crate) fn prefetch<T>(_: &T) {}

type Table = Arc<dyn Any + Send + Sync>;

/// A planned table: its length, and the function that makes it.
type Planned = (usize, fn(usize) -> Table);

/// The tables planned so far, by offset.
#[derive(Default)]
pub(crate) struct ModelPlan(BTreeMap<usize, Planned>);

impl ModelPlan {
    pub(crate) fn table<T: Shared>(&mut self, span: Span<T>) {
        let make = |len| Arc::new((0..len).map(|_| T::default()).collect::<Vec<T>>()) as Table;
        self.0.insert(span.offset, (span.len, make));
    }
}

/// The tables by offset, shared by all views.
#[derive(Clone)]
pub(crate) struct Memory(Arc<BTreeMap<usize, Table>>);
pub(crate) struct View(Memory);

pub(crate) const HUGE_PAGE: usize = 2 << 20;

impl Memory {
    pub(crate) fn planned(plan: &ModelPlan) -> Self {
        Self(Arc::new(plan.0.iter().map(|(at, (len, make))| (*at, make(*len))).collect()))
    }

    /// Always fails: files are not modelled.
    pub(crate) fn file(_: &OwnedFd, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn view(&self) -> View {
        View(self.clone())
    }

    pub(crate) fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        self.0[&span.offset].downcast_ref::<Vec<T>>().expect("the span is of this layout")
    }
}

impl View {
    pub(crate) fn address(&self) -> usize {
        0
    }

    pub(crate) fn len(&self) -> usize {
        0
    }

    /// # Safety
    /// None here; mapped memory has obligations.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        self.0.table(span)
    }

    /// Does nothing: pages are not modelled.
    ///
    /// # Safety
    /// As above.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn collapse(&self, _: std::ops::Range<usize>) {}
}

thread_locals! {
    static LAST: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    static IMPATIENT: Cell<bool> = const { Cell::new(false) };
    static NUMBER: Cell<u32> = const { Cell::new(1) };
    static RELIES: Cell<bool> = const { Cell::new(false) };
    static PROCESS: Cell<u64> = const { Cell::new(ProcessId::FIRST) };
}

loom::lazy_static! {
    /// One queue for all words: a wake for another word is a spurious one, which may happen.
    static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    /// A bit for each process that has died.
    static ref DEAD: AtomicU64 = AtomicU64::new(0);
}

/// The key of the session that the thread has used last, and its slot there.
pub(crate) fn last() -> Last {
    Last
}

/// Stands for the thread's cell, as loom has no lasting reference to it.
pub(crate) struct Last;

impl Last {
    pub(crate) fn get(&self) -> (u64, u32) {
        LAST.with(Cell::get)
    }

    pub(crate) fn set(&self, last: (u64, u32)) {
        // Fails in the destructors of an ending thread.
        let _ = LAST.try_with(|cell| cell.set(last));
    }
}

/// Makes the calling thread impatient: when it sleeps, its time is up at once (arena-M1).
pub(crate) fn set_impatient() {
    IMPATIENT.with(|i| i.set(true));
}

/// Sleeps on the queue. As in the kernel, the sleeper reads the word under the queue's lock, which
/// a waking thread takes, too.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, _: &Timespec) -> Result<(), Errno> {
    let (lock, sleepers) = &*QUEUE;
    let queue = lock.lock().unwrap();
    if word.load(SeqCst) != expected {
        return Err(Errno::AGAIN);
    }
    if IMPATIENT.with(Cell::get) {
        drop(queue);
        give_way();
        return Err(Errno::TIMEDOUT);
    }
    drop(sleepers.wait(queue).unwrap());
    Ok(())
}

pub(crate) fn futex_wake(_: &AtomicU32) {
    let (lock, sleepers) = &*QUEUE;
    let _queue = lock.lock().unwrap();
    sleepers.notify_all();
}

pub(crate) fn nap(_: &Timespec) {
    give_way();
}

/// Does nothing: memory of the model is never short.
pub(crate) fn watch(_: &crate::session::Session, _: bool) {}

/// Memory of the model is never gone.
pub(crate) fn is_any_lost() -> bool {
    false
}

/// As above.
pub(crate) const RESERVE: u64 = 0;

/// As above.
pub(crate) fn was_short(_: usize) -> bool {
    false
}

/// As above.
pub(crate) fn unwatch(_: usize) {}

/// As above.
pub(crate) fn take_reserve(_: rustix::fd::BorrowedFd<'_>, _: u64) -> Result<(), Errno> {
    Ok(())
}

/// As [`crate::process::ProcessId`], for processes of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub u64);

impl ProcessId {
    /// Above the values that a session uses for slots without a process.
    const FIRST: u64 = 2;

    /// Returns process `n`, which is below 62.
    pub(crate) fn numbered(n: u64) -> Self {
        Self(Self::FIRST + n)
    }

    /// Makes the calling thread one of process `n`.
    pub(crate) fn enter(n: u64) {
        PROCESS.with(|p| p.set(Self::numbered(n).0));
    }

    /// Returns the calling process.
    pub fn own() -> Self {
        Self(PROCESS.with(Cell::get))
    }

    /// The process number.
    pub fn pid(self) -> u32 {
        self.0 as u32
    }

    /// Whether the process has died.
    pub fn is_dead(self) -> bool {
        self.0 < Self::FIRST || DEAD.load(Acquire) & 1 << self.0 != 0
    }

    /// As `is_dead`: in the model each dead process was waited for, and numbers are not reused.
    pub fn is_gone(self) -> bool {
        self.is_dead()
    }

    /// As above.
    pub fn life(self) -> Life {
        if self.is_dead() { Life::Dead } else { Life::Alive }
    }
}

/// As [`crate::process::Life`]; in the model it is never unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "of the original")]
pub enum Life {
    Alive,
    Dead,
    #[allow(dead_code, reason = "matched where the original is")]
    Unknown,
}

/// Processes of the model do not fork, and time does not pass.
pub(crate) fn after_fork_child() {}

pub(crate) const UNITS_PER_SECOND: u64 = 100;

pub(crate) fn now() -> u64 {
    0
}

/// Ends the calling thread's process (arena-M2).
pub(crate) fn die() {
    DEAD.fetch_or(1 << ProcessId::own().0, Release);
}
