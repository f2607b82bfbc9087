//! The chunks of a mapping, which are made writable for stores and then read-only again.
//!
//! Each chunk has a state word ([`GuardState`]): the number of threads that store to it, and flags.
//!
//! - chunk-K1: A thread changes the protection of a chunk only if it has set `CHANGING`, while no
//!   thread stores to the chunk (guard-G2).
//! - chunk-K2: A thread stores to a chunk only while it is counted among its users, and they are
//!   counted only while it is `OPEN` (guard-G1).
//! - chunk-K3: An open chunk is in the list of open chunks, which the closer goes through; then its
//!   flag `LISTED` is set.
//!
//! The closer is a thread that sleeps while no chunk is open. Every [`LOOK`] it closes the chunks
//! that were not used since its last check. A chunk that is in use all the time is closed after
//! [`LOOKS_MAX`] checks: `DRAIN` then keeps new users out until the last user leaves, which closes
//! it.
//!
//! A chunk that stays open for several stores is called a window. A store to a closed chunk may do
//! without: it goes through the file, or lifts the protection for itself alone. The cost of stores
//! without a window is added up for each chunk, over [`ERA`] such stores of all chunks. A chunk
//! gets a window when its sum reaches the cost of opening and closing one. So scattered stores,
//! which would use a window only once, are cheaper; and a window that is worth its cost opens late
//! by at most that cost. The cost is measured, as it depends on whether huge pages map the chunk.

#![allow(unsafe_code)]

use super::Tally;
use super::state::{Entered, Found, GuardState};
use crate::Region;
use crate::cpu::tsc;
use rustix::mm::{self, MprotectFlags};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// Bytes of a chunk, unless the region's pages are larger. One entry of the page middle directory
/// maps that much.
const CHUNK: u64 = 2 << 20;

/// The time between two checks of the closer.
const LOOK: Duration = Duration::from_micros(100);

/// Checks after which a chunk that is always in use is closed, at some 0.15 ms each.
const LOOKS_MAX: u32 = 12;

/// The most chunks that are open, besides those that threads are just storing to. Each splits the
/// mapping, and a process may have 65 530 pieces of mappings.
const OPEN_MAX: usize = 64;

/// If opening and closing a chunk takes more cycles than this, small pages map it. A huge page must
/// not be split to make part of it writable: it would never be mapped as one again.
const SMALL_PAGES_FROM: u64 = 30_000;

/// The number of stores without a window whose cost is added up.
const ERA: u32 = 256;

/// The least assumed cost of a window, in cycles. The measurement lacks the closing, which another
/// thread does.
const PRICE_MIN: u64 = 40_000;

/// A piece of the mapping whose protection is changed as a whole.
#[derive(Debug, Default)]
struct Chunk {
    state: GuardState,
    /// The era, and the cycles spent in it on stores without a window.
    cold: AtomicU64,
}

/// The chunks of a mapping.
#[derive(Debug)]
pub(super) struct ChunkTable {
    base: *mut u8,
    /// Length of the mapping in bytes.
    len: u64,
    chunk_bytes: u64,
    /// The unit of changes of protection, in bytes.
    grain: u64,
    chunks: Box<[Chunk]>,
    open: Mutex<Listed>,
    stopping: AtomicBool,
    /// The number of stores without a window so far.
    others: AtomicU32,
    /// The cycles for opening and closing a chunk: a moving average.
    price: AtomicU64,
    tally: Arc<Tally>,
}

// SAFETY: `base` is an address of a mapping that outlives the table; the states of the chunks order
// its uses (chunk-K1).
unsafe impl Send for ChunkTable {}
// SAFETY: as above.
unsafe impl Sync for ChunkTable {}

/// The open chunks, and the thread that closes them.
#[derive(Debug, Default)]
struct Listed {
    chunks: Vec<(usize, u32)>,
    closer: Option<Closer>,
}

#[derive(Debug)]
struct Closer {
    /// The process of the thread: a forked child does not have it.
    process: u32,
    thread: Thread,
    handle: JoinHandle<()>,
}

impl ChunkTable {
    /// Makes the table of a region whose chunks are all closed. Starts no thread.
    pub(super) fn new(region: &Region, tally: Arc<Tally>) -> Self {
        let grain = region.grain();
        let len = region.mapped_len();
        let chunk_bytes = CHUNK.max(grain);
        Self {
            base: region.base(),
            len,
            chunk_bytes,
            grain,
            chunks: (0..len.div_ceil(chunk_bytes)).map(|_| Chunk::default()).collect(),
            open: Mutex::default(),
            stopping: AtomicBool::new(false),
            others: AtomicU32::new(0),
            // The cost with a huge page, until it is measured.
            price: AtomicU64::new(10_000),
            tally,
        }
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn chunk_of(&self, off: u64) -> usize {
        (off / self.chunk_bytes) as usize
    }

    /// Calls `each` with the parts of a range by chunk.
    pub(super) fn each_chunk(&self, off: u64, len: u64, mut each: impl FnMut(usize, u64, u64)) {
        let (mut at, end) = (off, off + len);
        while at < end {
            let next = (at - at % self.chunk_bytes + self.chunk_bytes).min(end);
            each(self.chunk_of(at), at, next - at);
            at = next;
        }
    }

    /// Makes the pages of a range writable for `put`. The range lies in the chunk.
    pub(super) fn lift_pages(&self, chunk: usize, off: u64, len: u64, put: impl FnOnce()) {
        let start = off - off % self.grain;
        let end = (off + len).next_multiple_of(self.grain);
        self.alone(chunk, start, end, put);
    }

    /// Makes the chunk writable for `put`.
    pub(super) fn lift_chunk(&self, chunk: usize, put: impl FnOnce()) {
        let start = chunk as u64 * self.chunk_bytes;
        self.alone(chunk, start, (start + self.chunk_bytes).min(self.len), put);
    }

    /// Makes `start..end` writable for `put`, and read-only again. Before that, waits until the
    /// chunk is closed and no other thread changes it (chunk-K1).
    fn alone(&self, chunk: usize, start: u64, end: u64, put: impl FnOnce()) {
        let mut waiting = Waiting::default();
        while !self.chunks[chunk].state.begin_change() {
            waiting.pause();
        }
        self.open_range(start, end);
        put();
        self.close_range(start, end);
        self.chunks[chunk].state.end_change();
    }

    /// Makes the pages of a range writable for `put` only, or the whole chunk if a huge page maps
    /// it. Does so only if the chunk is closed, and returns whether it did.
    pub(super) fn rather_lift(&self, chunk: usize, off: u64, len: u64, put: &impl Fn()) -> bool {
        if !self.chunks[chunk].state.begin_change() {
            return false;
        }
        let (start, end) = match self.price.load(Relaxed) < SMALL_PAGES_FROM {
            true => self.range(chunk),
            false => (off - off % self.grain, (off + len).next_multiple_of(self.grain)),
        };
        let mut took = 0;
        let mut clocked = |change: &dyn Fn()| {
            let began = tsc();
            change();
            took += tsc().saturating_sub(began);
        };
        clocked(&|| self.open_range(start, end));
        put();
        clocked(&|| self.close_range(start, end));
        self.chunks[chunk].state.end_change();
        self.note_spent(chunk, took);
        true
    }

    /// Makes the chunk writable, if it is not, for `put` and some time after it.
    pub(super) fn keep(table: &Arc<Self>, chunk: usize, put: impl FnOnce()) {
        let state = &table.chunks[chunk].state;
        let mut waiting = Waiting::default();
        loop {
            match state.enter() {
                Entered::Counted => break,
                Entered::Busy => waiting.pause(),
                Entered::ToOpen => {
                    Self::open_kept(table, chunk); // chunk-K1
                    break;
                }
            }
        }
        put();
        if let Some(seen) = state.leave() {
            table.close_kept(chunk, seen);
        }
    }

    /// Opens a chunk that the caller has set `CHANGING`, and counts the caller among its users.
    fn open_kept(table: &Arc<Self>, chunk: usize) {
        let (start, end) = table.range(chunk);
        let began = tsc();
        table.open_range(start, end);
        table.learn(2 * tsc().saturating_sub(began));
        let mut open = table.listed();
        if !table.chunks[chunk].state.opened() {
            open.chunks.push((chunk, 0)); // chunk-K3
        }
        if open.chunks.len() > OPEN_MAX {
            open.chunks.iter().any(|&(other, _)| {
                let state = &table.chunks[other].state;
                state.is_open() && table.close_kept(other, state.seen())
            });
        }
        let process = std::process::id();
        match &open.closer {
            Some(closer) if closer.process == process => closer.thread.unpark(),
            _ => {
                let mine = table.clone();
                let named = std::thread::Builder::new().name("pm-closer".into());
                match named.spawn(move || mine.close_idle()) {
                    Ok(handle) => {
                        let thread = handle.thread().clone();
                        open.closer = Some(Closer { process, thread, handle });
                    }
                    Err(e) => tracing::error!(error = %e, "no thread to close windows with"),
                }
            }
        }
    }

    /// Closes a chunk that was open without users when `seen` was read. Returns whether it did.
    fn close_kept(&self, chunk: usize, seen: u32) -> bool {
        let state = &self.chunks[chunk].state;
        if !state.begin_close(seen) {
            return false;
        }
        let (start, end) = self.range(chunk);
        self.close_range(start, end); // chunk-K1
        state.end_close();
        true
    }

    /// Runs the closer.
    fn close_idle(&self) {
        while !self.stopping.load(Acquire) {
            if self.look() {
                std::thread::park_timeout(LOOK);
            } else {
                std::thread::park();
            }
        }
    }

    /// Checks the open chunks. Returns whether any is left.
    fn look(&self) -> bool {
        let mut open = self.listed();
        open.chunks.retain_mut(|(chunk, looks)| {
            *looks += 1;
            match self.chunks[*chunk].state.look(*looks >= LOOKS_MAX) {
                Found::Unlisted => return false, // chunk-K3
                Found::Busy => {}
                Found::Idle(seen) => {
                    self.close_kept(*chunk, seen);
                    *looks = 0;
                }
            }
            true
        });
        !open.chunks.is_empty()
    }

    /// Ends the closer. No thread stores any more.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Release);
        let closer = self.listed().closer.take();
        if let Some(closer) = closer.filter(|c| c.process == std::process::id()) {
            closer.thread.unpark();
            // Nothing in it panics.
            let _ = closer.handle.join();
        }
    }

    /// Returns whether a store to the chunk should do without a window: it is closed, and such
    /// stores have not yet cost as much as a window in this era.
    pub(super) fn is_cold(&self, chunk: usize) -> bool {
        let chunk = &self.chunks[chunk];
        if chunk.state.is_open() {
            return false;
        }
        let (era, spent) = unpack(chunk.cold.load(Relaxed));
        let price = self.price.load(Relaxed).max(PRICE_MIN);
        era != self.others.load(Relaxed) / ERA || u64::from(spent) < price
    }

    /// Does a store without a window, and adds up its cost.
    pub(super) fn rather(&self, chunk: usize, store: impl FnOnce()) {
        let began = tsc();
        store();
        self.note_spent(chunk, tsc().saturating_sub(began));
    }

    /// Adds the cycles of a store without a window to the sum of the chunk in this era.
    fn note_spent(&self, chunk: usize, took: u64) {
        let took = u32::try_from(took).unwrap_or(u32::MAX);
        let now = self.others.fetch_add(1, Relaxed) / ERA;
        let cold = &self.chunks[chunk].cold;
        let (era, spent) = unpack(cold.load(Relaxed));
        let before = if era == now { spent } else { 0 };
        // Another thread may overwrite this value: that does no harm.
        cold.store(u64::from(now) << 32 | u64::from(before.saturating_add(took)), Relaxed);
    }

    fn learn(&self, price: u64) {
        let before = self.price.load(Relaxed);
        self.price.store(before - before / 4 + price / 4, Relaxed);
    }

    fn range(&self, chunk: usize) -> (u64, u64) {
        let start = chunk as u64 * self.chunk_bytes;
        (start, (start + self.chunk_bytes).min(self.len))
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        // Nothing panics while holding it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a range writable, and counts that. Panics if the kernel refuses. The caller has set
    /// `CHANGING`.
    fn open_range(&self, start: u64, end: u64) {
        self.tally.count();
        let opened = self.change(start, end, MprotectFlags::READ | MprotectFlags::WRITE);
        if let Err(e) = opened {
            panic!(
                "cannot make {} bytes of a region writable: {e}; raise vm.max_map_count",
                end - start
            );
        }
    }

    /// Makes a range read-only. If the kernel refuses, logs that. The caller has set `CHANGING`.
    fn close_range(&self, start: u64, end: u64) {
        if let Err(e) = self.change(start, end, MprotectFlags::READ) {
            tracing::error!(start, end, error = %e, "a window stays open: stray writes there go unnoticed");
        }
    }

    /// Changes the protection of a range. The caller has set `CHANGING` on its chunk (chunk-K1).
    fn change(&self, start: u64, end: u64, prot: MprotectFlags) -> rustix::io::Result<()> {
        let at = self.base.wrapping_add(start as usize).cast();
        // SAFETY: the range lies in the mapping; no reference exists that the change could
        // invalidate, and loads stay allowed.
        self.tally.timed(|| unsafe { mm::mprotect(at, (end - start) as usize, prot) })
    }
}

fn unpack(cold: u64) -> (u32, u32) {
    ((cold >> 32) as u32, cold as u32)
}

/// Waits for a system call of another thread.
#[derive(Default)]
struct Waiting(u32);

impl Waiting {
    fn pause(&mut self) {
        self.0 += 1;
        if self.0 < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}
