//! A device whose bytes are those of the region.
//!
//! - **raw-W1** A request executes its fence before it returns, on its own CPU, as no other CPU can
//!   drain that one's write-combining buffers. There are two exceptions, which leave the fence to
//!   the barrier: the write-back scheme; and ordinary files, for which a fence is an `msync` and
//!   covers the stores of all threads.
//! - **raw-W2** Ranges left to the barrier are marked in memory that all processes of the device
//!   share: another process than that of the request may get the barrier.

use crate::dirty::Dirty;
use crate::frame::{Frame, REQUEST_MAX};
use crate::stats::StatsEvent;
use crate::{BlockDevice, BlockSizes, DeviceExtent, Durability, Error, Scheme, Stats, Zeroing};
use arena::Layout;
use pmem::{Domain, Medium, Tally};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// The most bytes prefetched for one request.
const PREFETCH_MAX: u64 = 64 << 10;

/// The device.
pub struct Raw<M> {
    frame: Frame<M>,
    scheme: Scheme,
    /// The ranges that a barrier has to flush, if flushing is left to it (raw-W2).
    dirty: Option<Dirty>,
    /// Whether a fence covers all threads and costs a system call (raw-W1).
    lazy_fence: bool,
    /// Whether space that holds no data is given back.
    thin: bool,
}

impl<M: Medium> Raw<M> {
    /// Makes a device of a medium.
    pub fn new(medium: M, scheme: Scheme, read_only: bool) -> Result<Self, Error> {
        let blocks = BlockSizes { minimum: 1, preferred: 4096, maximum: REQUEST_MAX, atomic: 0 };
        let size = medium.len();
        let lazy_fence = medium.domain() == Domain::PageCache;
        let left_to_barrier = lazy_fence || scheme == Scheme::Wb;
        let mut layout = Layout::default();
        Ok(Self {
            scheme,
            dirty: left_to_barrier.then(|| Dirty::plan(&mut layout, medium.max_len())),
            lazy_fence,
            thin: false,
            frame: Frame::new(medium, size, blocks, read_only, layout)?,
        })
    }

    /// Adds the cost of the medium's protection to the statistics.
    pub(crate) fn with_tally(self, tally: Arc<Tally>) -> Self {
        Self { frame: self.frame.with_tally(tally), ..self }
    }

    /// Makes the device thin: it gives back space that is discarded, or zeroed without keeping it.
    pub fn thin(self) -> Self {
        Self { thin: true, ..self }
    }

    /// Leaves all data to the first barrier, as processes may have been killed after they confirmed
    /// requests and before their barrier. Skips holes: they have no data, and reading them would
    /// fill them.
    pub fn distrust(&self) {
        let (Some(dirty), end) = (&self.dirty, self.frame.size()) else { return };
        let mut at = 0;
        while at < end {
            let data = self.frame.medium.data_within(at, end - at);
            dirty.note(&self.frame.arena, data.start, data.end - data.start);
            at = data.end;
        }
    }

    /// Makes the data of a request durable, or leaves that to the next barrier. `flushed`: the data
    /// was stored past the cache.
    fn persist(&self, off: u64, len: u64, flushed: bool, durability: Durability) {
        let medium = &self.frame.medium;
        match &self.dirty {
            Some(dirty) if durability == Durability::AtBarrier && (self.lazy_fence || !flushed) => {
                dirty.note(&self.frame.arena, off, len); // raw-W2
            }
            _ => {
                if !flushed {
                    medium.flush(off, len);
                }
                let _ = medium.fence(); // raw-W1
            }
        }
    }
}

impl<M: Medium> BlockDevice for Raw<M> {
    fn size(&self) -> u64 {
        self.frame.size()
    }

    fn block_sizes(&self) -> BlockSizes {
        self.frame.blocks
    }

    fn is_read_only(&self) -> bool {
        self.frame.read_only
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), Error> {
        let frame = &self.frame;
        frame.check(off, buf.len() as u64)?;
        frame.counting.request(StatsEvent::Reads, StatsEvent::BytesRead, buf.len() as u64);
        let mut watch = frame.counting.watch();
        frame.medium.read(off, buf);
        watch.lap(StatsEvent::CyclesLoad);
        Ok(())
    }

    fn write(&self, off: u64, data: &[u8], durability: Durability) -> Result<(), Error> {
        let (frame, len) = (&self.frame, data.len() as u64);
        let _request = frame.begin(off, len, durability)?;
        frame.counting.request(StatsEvent::Writes, StatsEvent::BytesWritten, len);
        let mut watch = frame.counting.watch();
        let nt = self.scheme == Scheme::Nt;
        if nt {
            frame.medium.write_nt(off, data);
        } else {
            frame.medium.write(off, data);
        }
        watch.lap(StatsEvent::CyclesStore);
        self.persist(off, len, nt, durability);
        watch.lap(StatsEvent::CyclesPersist);
        frame.healthy()
    }

    fn barrier(&self) -> Result<(), Error> {
        let medium = &self.frame.medium;
        self.frame.barrier(|| {
            if let Some(dirty) = &self.dirty {
                let flush = |off, len: u64| medium.flush(off, len.min(self.frame.size() - off));
                dirty.take(&self.frame.arena, flush);
                let _ = medium.fence();
            }
        })
    }

    fn discard(&self, off: u64, len: u64) -> Result<(), Error> {
        let _request = self.frame.begin(off, len, Durability::AtBarrier)?;
        self.frame.counting.request(StatsEvent::Discards, StatsEvent::BytesDiscarded, len);
        if self.thin {
            self.frame.medium.release(off, len)?;
        }
        Ok(())
    }

    fn write_zeroes(
        &self,
        off: u64,
        len: u64,
        how: Zeroing,
        durability: Durability,
    ) -> Result<(), Error> {
        let frame = &self.frame;
        let _request = frame.begin(off, len, durability)?;
        let released = match self.thin && !how.keep_space {
            true => frame.medium.release(off, len)?,
            false => off..off,
        };
        if how.only_fast && released.is_empty() {
            return Err(Error::NotSupported);
        }
        frame.counting.request(StatsEvent::Zeroes, StatsEvent::BytesZeroed, len);
        let mut watch = frame.counting.watch();
        for left in [off..released.start, released.end..off + len] {
            if !left.is_empty() {
                frame.medium.zero_nt(left.start, left.end - left.start);
            }
        }
        watch.lap(StatsEvent::CyclesStore);
        self.persist(off, len, true, durability);
        watch.lap(StatsEvent::CyclesPersist);
        frame.healthy()
    }

    fn extents(
        &self,
        off: u64,
        len: u64,
        each: &mut dyn FnMut(DeviceExtent) -> bool,
    ) -> Result<(), Error> {
        self.frame.check(off, len)?;
        let (mut at, end) = (off, off + len);
        while at < end {
            let data = match self.thin {
                true => self.frame.medium.data_within(at, end - at),
                false => at..end,
            };
            let hole = DeviceExtent { off: at, len: data.start - at, zero: true, allocated: false };
            let rest = DeviceExtent {
                off: data.start,
                len: data.end - data.start,
                zero: false,
                allocated: true,
            };
            if !(hole.len == 0 || each(hole)) || !(rest.len == 0 || each(rest)) {
                break;
            }
            at = data.end;
        }
        Ok(())
    }

    fn prefetch(&self, off: u64, len: u64) -> Result<(), Error> {
        self.frame.check(off, len)?;
        self.frame.medium.prefetch(off, len.min(PREFETCH_MAX));
        Ok(())
    }

    fn bytes(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        self.frame.check(off, len).ok()?;
        let bytes = self.frame.medium.mapped(off, len)?;
        self.frame.counting.request(StatsEvent::Reads, StatsEvent::BytesRead, len);
        Some(bytes)
    }

    fn grow(&self, size: u64) -> Result<(), Error> {
        self.frame.grow(size)
    }

    fn stats(&self) -> Stats {
        self.frame.stats()
    }
}
