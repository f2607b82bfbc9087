//! The work for a request that all kinds of devices share: checks, counting, waiting.
//!
//! - **frame-P1** The arena has the state on which all processes that share a device must agree:
//!   the requests under way, the size of the device, and the first failure of the medium. Each
//!   process has its own view of the medium, and updates it when the device has grown.

use crate::inflight::{InFlight, InflightRequest};
use crate::stats::{Counting, Guarding, StatsEvent};
use crate::{BlockSizes, Durability, Error, Stats};
use arena::{Arena, Layout, Span};
use pmem::{Medium, Tally};
use std::io;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of the longest request: the length that NBD clients may assume.
pub(crate) const REQUEST_MAX: u32 = 32 << 20;

/// The part of a device that does not depend on where blocks lie.
pub(crate) struct Frame<M> {
    pub(crate) medium: M,
    /// In bytes; it only grows (frame-P1).
    size: Span<AtomicU64>,
    growing: Mutex<()>,
    pub(crate) blocks: BlockSizes,
    pub(crate) read_only: bool,
    pub(crate) counting: Counting,
    /// State of the device outside the medium, shared with processes forked later.
    pub(crate) arena: Arena,
    inflight: InFlight,
    /// Errno of the first failure of the medium, or 0 (frame-P1).
    failed: Span<AtomicU32>,
    /// The cost of the medium's protection, if it is protected.
    tally: Option<Arc<Tally>>,
}

impl<M: Medium> Frame<M> {
    /// Makes a frame. `layout` has the tables that the caller needs in the arena, besides those of
    /// the frame.
    pub(crate) fn new(
        medium: M,
        size: u64,
        blocks: BlockSizes,
        read_only: bool,
        mut layout: Layout,
    ) -> Result<Self, Error> {
        let inflight = InFlight::plan(&mut layout);
        let (length, failed) = (layout.table(1), layout.table(1));
        let arena = Arena::inherited(&layout)?;
        arena.table::<AtomicU64>(length)[0].store(size, Release);
        Ok(Self {
            arena,
            medium,
            size: length,
            growing: Mutex::default(),
            blocks,
            read_only,
            counting: Counting::default(),
            inflight,
            failed,
            tally: None,
        })
    }

    /// Adds the cost of protection to the statistics.
    pub(crate) fn with_tally(self, tally: Arc<Tally>) -> Self {
        Self { tally: Some(tally), ..self }
    }

    pub(crate) fn size(&self) -> u64 {
        let size = self.arena.table(self.size)[0].load(Acquire);
        if size <= self.medium.len() { size } else { self.follow(size) }
    }

    /// Updates this process's view of a medium that another process has extended to `size` bytes.
    /// Returns the length of the view.
    #[cold]
    fn follow(&self, size: u64) -> u64 {
        // Nothing panics while holding it.
        let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.medium.grow(size) {
            Ok(()) => size,
            Err(e) => {
                tracing::error!(size, error = %e, "the device has grown elsewhere, but not here");
                self.medium.len()
            }
        }
    }

    /// Extends the medium and the device, which is as long as the medium.
    pub(crate) fn grow(&self, size: u64) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        // Nothing panics while holding it.
        let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        self.medium.grow(size)?;
        self.arena.table(self.size)[0].store(size, Release);
        Ok(())
    }

    /// Checks that a range consists of blocks of the device.
    pub(crate) fn check(&self, off: u64, len: u64) -> Result<(), Error> {
        check_range(off, len, self.size(), self.blocks)
    }

    /// Begins a request that stores.
    pub(crate) fn begin(
        &self,
        off: u64,
        len: u64,
        durability: Durability,
    ) -> Result<InflightRequest<'_>, Error> {
        self.check(off, len)?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if durability == Durability::Now {
            self.counting.add(StatsEvent::FuaWrites, 1);
        }
        Ok(self.inflight.begin(&self.arena))
    }

    /// Does a barrier (device-B2): waits for requests in flight, then calls `persist` to make their
    /// data durable.
    pub(crate) fn barrier(&self, persist: impl FnOnce()) -> Result<(), Error> {
        let mut watch = self.counting.watch();
        self.counting.add(StatsEvent::Barriers, 1);
        self.inflight.wait(&self.arena, persist);
        watch.lap(StatsEvent::CyclesBarrier);
        self.healthy()
    }

    /// Fails if a fence has failed in any process: the kernel reports a failed write-back once, to
    /// one of them (frame-P1).
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        let failed = &self.arena.table(self.failed)[0];
        if let Err(e) = self.medium.health() {
            failed.store(e.raw_os_error().map_or(u32::MAX, i32::cast_unsigned), Relaxed);
            return Err(e.into());
        }
        match failed.load(Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.cast_signed()).into()),
        }
    }

    /// Returns the statistics of requests, medium and protection.
    pub(crate) fn stats(&self) -> Stats {
        let guarding = self.tally.as_ref().map(|tally| Guarding {
            strays: pmem::stray::count(),
            opened: tally.times(),
            cycles: tally.cycles(),
        });
        self.counting.snapshot(self.medium.counters().snapshot(), guarding.unwrap_or_default())
    }
}

/// Checks that a range consists of blocks of a device of `size` bytes.
pub(crate) fn check_range(off: u64, len: u64, size: u64, blocks: BlockSizes) -> Result<(), Error> {
    let block = blocks.minimum;
    if off.checked_add(len).is_none_or(|end| end > size) {
        return Err(Error::OutOfRange { off, len, size });
    }
    match (off | len) % u64::from(block) {
        0 => Ok(()),
        _ => Err(Error::Misaligned { off, len, block }),
    }
}
