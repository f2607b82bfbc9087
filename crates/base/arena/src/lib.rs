//! Volatile state that engines derive from persistent memory, in offset-based structures.
//!
//! BPFS keeps only simple, non-redundant data in PM and derives the rest at mount (§3.3): free
//! lists, directory index, link counts. That derived state lives here: in zeroed memory, addressed
//! by index and never by pointer, made of atomics only. So the same code serves one process
//! (anonymous memory) or many processes (a file, attached by name: [`Place`]).
//!
//! The crate has the memory ([`Arena`], [`Layout`], [`Span`]) and the structures that work in it:
//! [`Bitmap`], [`FreeRuns`], [`RwLock`], [`Slab`], [`HashIndex`], [`FreeCount`], [`Pins`],
//! [`Token`]. It also records which processes use an arena, so that a killed process does no harm
//! (`session`, `attach`). Data that must survive the last process does not belong here.
//!
//! `unsafe` is confined to `memory` (mapping it, turning a span into a slice), one call of
//! `pthread_atfork`, and the implementations of [`Shared`].

#[cfg(not(loom))]
pub mod atomic;
mod attach;
mod bitmap;
mod directory;
mod free_count;
mod free_runs;
mod hash;
#[cfg(not(loom))]
mod memory;
#[cfg(loom)]
mod model;
mod pins;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod room;
mod rwlock;
mod session;
mod slab;
mod sync;
mod token;

#[cfg(loom)]
use model as memory;
#[cfg(loom)]
use model as process;
#[cfg(loom)]
use model as room;

pub use attach::{Attached, Hold, Place, remove_abandoned};
pub use bitmap::Bitmap;
pub use free_count::FreeCount;
pub use free_runs::{FreeRuns, Search};
pub use hash::{HashEntry, HashIndex, Link};
pub use pins::Pins;
pub use process::{Life, ProcessId};
#[cfg(not(loom))]
pub use room::{handle_fault, is_mapped};
pub use rwlock::{LockMode, PATIENCE_MS, RwLock, Ticket};
pub use session::{Census, Inside, Look, PROCESSES, Paused, Refused, Stopped, Wait, prepare};
pub use slab::{Handle, Slab};
pub use token::{TOKEN_WORDS, Token};

use attach::Located;
use memory::{HUGE_PAGE, Memory, View};
use rustix::fs::{FallocateFlags, SeekFrom};
use session::Session;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use sync::{AtomicU16, AtomicU32, AtomicU64};

/// A type that may live in an arena.
///
/// # Safety
/// 1. Every field is an atomic or itself `Shared`, so that any number of threads may hold `&Self`.
/// 2. All-zero bytes are a valid value.
/// 3. It holds no pointer and needs no `Drop`.
#[allow(unsafe_code)]
pub unsafe trait Shared: Send + Sync + sync::Modelled + 'static {}

#[allow(unsafe_code)]
mod shared {
    use super::*;

    // SAFETY: 1–3 hold for plain atomics.
    unsafe impl Shared for AtomicU16 {}
    // SAFETY: as above.
    unsafe impl Shared for AtomicU32 {}
    // SAFETY: as above.
    unsafe impl Shared for AtomicU64 {}
    // SAFETY: as above.
    unsafe impl Shared for os::threads::OwnU64 {}
    // SAFETY: as above, in a transparent structure.
    #[cfg(all(not(loom), any(debug_assertions, atomic_steps)))]
    unsafe impl Shared for atomic::AtomicU32 {}
    // SAFETY: as above.
    #[cfg(all(not(loom), any(debug_assertions, atomic_steps)))]
    unsafe impl Shared for atomic::AtomicU64 {}
    // SAFETY: an array of `Shared` has no fields but `Shared` ones.
    #[cfg(not(loom))]
    unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}
}

/// The location of a table of `T` in an arena: offset in bytes and number of elements.
pub struct Span<T> {
    offset: usize,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Span<T> {}

/// Plans the tables of an arena before it is mapped.
#[derive(Default)]
pub struct Layout {
    bytes: usize,
    session: Option<session::Tables>,
    derived: usize,
    #[cfg(loom)]
    plan: model::ModelPlan,
}

impl Layout {
    /// Begins the layout of an arena for several processes.
    pub fn shared() -> Self {
        let mut layout = Self::default();
        layout.session = Some(session::Tables::plan(&mut layout));
        layout
    }

    /// Reserves a table of `len` elements, aligned to a cache line.
    pub fn table<T: Shared>(&mut self, len: usize) -> Span<T> {
        let offset = self.bytes.next_multiple_of(64.max(align_of::<T>()));
        self.bytes = offset + len * size_of::<T>();
        let span = Span { offset, len, of: PhantomData };
        #[cfg(loom)]
        self.plan.table(span);
        span
    }

    /// Begins the derived part: [`Arena::clear_derived`] zeroes all tables that are reserved from
    /// now on.
    pub fn begin_derived(&mut self) {
        self.bytes = self.bytes.next_multiple_of(HUGE_PAGE);
        self.derived = self.bytes;
    }

    /// Returns the bytes reserved so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The memory that the structures of this crate work in.
pub struct Arena {
    /// The address and length of the memory that `kind` keeps mapped.
    view: View,
    derived: usize,
    kind: ArenaKind,
}

enum ArenaKind {
    Alone(#[allow(dead_code, reason = "keeps the memory")] Memory),
    Shared(Arc<Session>, Located),
}

impl Arena {
    /// Makes an arena for one process: private anonymous memory, reserved but not committed.
    pub fn anonymous(layout: &Layout) -> io::Result<Self> {
        #[cfg(not(loom))]
        let memory = Memory::anonymous(layout.bytes())?;
        #[cfg(loom)]
        let memory = Memory::planned(&layout.plan);
        Ok(Self { view: memory.view(), derived: layout.derived, kind: ArenaKind::Alone(memory) })
    }

    /// Makes an arena for one process and its forked children. None of them may die while it holds
    /// a lock.
    #[cfg(not(loom))]
    pub fn inherited(layout: &Layout) -> io::Result<Self> {
        let memory = Memory::inherited(layout.bytes())?;
        Ok(Self { view: memory.view(), derived: layout.derived, kind: ArenaKind::Alone(memory) })
    }

    fn shared(session: Arc<Session>, at: Located, derived: usize) -> Self {
        Self { view: session.memory().view(), derived, kind: ArenaKind::Shared(session, at) }
    }

    /// Returns the session of a shared arena; `None` if the memory belongs to one process.
    #[inline]
    fn session(&self) -> Option<&Arc<Session>> {
        match &self.kind {
            ArenaKind::Alone(_) => None,
            ArenaKind::Shared(session, _) => Some(session),
        }
    }

    /// Whether this process has touched memory of a shared arena that is gone (room-O4). The caller
    /// must discard what the operation has read.
    #[inline]
    pub fn has_met_loss(&self) -> bool {
        room::is_any_lost() && self.is_lost()
    }

    /// Whether any process has found memory of the arena gone (room-O4).
    pub fn is_lost(&self) -> bool {
        self.session().is_some_and(|s| s.header().is_lost())
    }

    /// Returns the descriptor that a shared arena keeps open.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.session().map(|session| session.file.as_fd())
    }

    /// Returns the table at `span` as a slice, so that an index that was read from the arena is
    /// checked (doubt-W3).
    #[inline]
    #[allow(unsafe_code)]
    pub fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        // SAFETY: 1: `kind` keeps the memory mapped. 2: spans have no source but its layout.
        unsafe { self.view.table(span) }
    }

    /// Prefetches an element of a table into the CPU's cache.
    #[inline]
    pub fn prefetch<T: Shared>(&self, span: Span<T>, index: usize) {
        if let Some(element) = self.table(span).get(index) {
            memory::prefetch(element);
        }
    }

    /// Backs part of a table in a shared arena with huge pages, as far as the kernel has any. Such
    /// a page may also hold neighbours of the part.
    #[allow(unsafe_code)]
    pub fn back<T: Shared>(&self, span: Span<T>, range: Range<usize>) {
        if self.session().is_some() {
            let at = |i: usize| span.offset + i.min(span.len) * size_of::<T>();
            // SAFETY: `kind` keeps the memory mapped.
            unsafe { self.view.collapse(at(range.start)..at(range.end)) };
        }
    }

    /// Zeroes the derived part of a shared arena ([`Layout::begin_derived`]). No thread may be
    /// inside.
    pub fn clear_derived(&self) -> io::Result<()> {
        self.clear_bytes(self.derived..self.view.len())
    }

    /// Zeroes part of a table in a shared arena and gives its memory back.
    pub fn clear<T: Shared>(&self, span: Span<T>, range: Range<usize>) -> io::Result<()> {
        let at = |i: usize| span.offset + i * size_of::<T>();
        self.clear_bytes(at(range.start)..at(range.end))
    }

    /// Punches a hole into the file of a shared arena, so that the bytes are zero.
    fn clear_bytes(&self, range: Range<usize>) -> io::Result<()> {
        let ArenaKind::Shared(session, at) = &self.kind else { return Ok(()) };
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (from, len) = (range.start as u64, (range.end - range.start) as u64);
        at.with_file(session, |file| rustix::fs::fallocate(file, how, from, len))
    }

    /// Calls `each(index, value)` for part of a table. Skips values on pages of a shared arena that
    /// were never touched: they are zeros. Returns the number of calls.
    pub fn for_each_backed<T: Shared>(
        &self,
        span: Span<T>,
        range: Range<usize>,
        mut each: impl FnMut(usize, &T),
    ) -> usize {
        let table = self.table(span);
        let mut visited = 0;
        let mut visit = |range: Range<usize>| {
            visited += range.len();
            for i in range {
                each(i, &table[i]);
            }
        };
        let ArenaKind::Shared(session, at) = &self.kind else {
            visit(range);
            return visited;
        };
        let index = |at: u64| (at as usize).saturating_sub(span.offset) / size_of::<T>();
        let visit_data = |file: BorrowedFd<'_>| {
            let mut next = range.start;
            while next < range.end {
                let from = span.offset + next * size_of::<T>();
                let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(from as u64)) else { break };
                let hole =
                    rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(self.view.len() as u64);
                let start = index(data).max(next);
                // Stop exactly at the hole: reading in it would allocate pages.
                let end = index(hole).clamp(start, range.end.max(start));
                visit(start.min(range.end)..end.min(range.end));
                next = end.max(next + 1);
            }
            Ok(())
        };
        if at.look_at_file(session, visit_data).is_err() {
            visit(range.clone());
        }
        visited
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let ArenaKind::Shared(session, at) = &self.kind {
            at.leave(session);
            session::forget_left();
            room::unwatch(session.memory().view().address());
        }
    }
}
