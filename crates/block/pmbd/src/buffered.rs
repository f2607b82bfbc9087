//! Write buffers in DRAM in front of a device. The paper tried them to make page protection cheaper
//! (§IV-B1, optimisations 1 and 2), and found them insufficient.
//!
//! A write puts its pages into a circular buffer. Each buffer has a syncer thread. When the buffer
//! is full to a high watermark, the syncer writes the oldest pages to the device, until a low one
//! is reached. It sorts the pages and writes contiguous ones by one request, which needs one change
//! of protection. Reads check the buffers; a barrier empties them.
//!
//! The paper distributes writes over the buffers round-robin. Here a run of [`RUN_PAGES`] pages
//! belongs to one buffer, so that a page is in at most one buffer, and contiguous pages are in the
//! same.
//!
//! - **buffered-U1** A page is in its buffer from the write until the device has it. So a reader
//!   that finds the page there has the latest content, and otherwise the device has it.
//! - **buffered-U2** A page that is being written to the device does not change: requests that
//!   write it wait.
//! - **buffered-U3** The pages of a buffer are written to the device in the order in which they
//!   entered it, or together.

use crate::frame::check_range;
use crate::stats::{Counting, Guarding, StatsEvent};
use crate::{BlockDevice, BlockSizes, DeviceExtent, Durability, Error, Stats, Zeroing};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of a page. Blocks of the device must not be larger.
pub(crate) const PAGE: usize = 4096;

/// Contiguous pages that share a buffer.
const RUN_PAGES: u64 = 64;

/// The most pages written to the device together; their places become free afterwards.
const BATCH_PAGES: usize = 256;

/// The configuration of write buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Number of buffers, each with a syncer thread.
    pub buffers: usize,
    /// Size of all buffers together, in bytes.
    pub bytes: usize,
    /// The share, in percent, from which on a buffer is emptied.
    pub high_percent: u8,
    /// The share, in percent, down to which it is emptied; at least one page below the high one.
    pub low_percent: u8,
    /// Whether pages are sorted, and contiguous ones written by one request.
    pub batching: bool,
}

impl Default for Buffering {
    /// Returns 16 buffers of 1 MiB, as in the paper.
    fn default() -> Self {
        Self { buffers: 16, bytes: 16 << 20, high_percent: 70, low_percent: 30, batching: true }
    }
}

impl fmt::Display for Buffering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, bytes, high_percent, low_percent, batching } = self;
        let order = if *batching { "sorted" } else { "unsorted" };
        write!(
            f,
            "{buffers}, of {bytes} bytes together, emptied from {high_percent}% to {low_percent}%, {order}"
        )
    }
}

/// A device with write buffers. Its threads do not survive a fork.
struct Buffered {
    shared: Arc<Shared>,
    syncers: Vec<JoinHandle<()>>,
    counting: Counting,
}

/// Puts write buffers in front of a device.
pub fn buffered(device: Arc<dyn BlockDevice>, how: Buffering) -> io::Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(Buffered::new(device, how)?))
}

struct Shared {
    device: Arc<dyn BlockDevice>,
    how: Buffering,
    buffers: Box<[Buffer]>,
    stopping: AtomicBool,
}

/// One circular buffer.
struct Buffer {
    state: Mutex<BufferState>,
    /// Signalled when there may be pages to write to the device.
    work: Condvar,
    /// Signalled when pages have left.
    left: Condvar,
    places: usize,
}

struct BufferState {
    /// The place of each page.
    pages: HashMap<u64, BufferedPage>,
    /// Pages by age, each with the number of pages that came before it.
    order: VecDeque<(u64, u64)>,
    came: u64,
    free: Vec<usize>,
    memory: Box<[u8]>,
    failed: Option<Arc<Error>>,
}

#[derive(Clone, Copy)]
struct BufferedPage {
    at: usize,
    leaving: bool,
}

impl Buffered {
    /// Makes the buffers and their threads.
    fn new(device: Arc<dyn BlockDevice>, how: Buffering) -> io::Result<Self> {
        let places = (how.bytes / PAGE / how.buffers.max(1)).max(1);
        let buffer = || Buffer {
            state: Mutex::new(BufferState {
                pages: HashMap::with_capacity(places),
                order: VecDeque::with_capacity(places),
                came: 0,
                free: (0..places).rev().collect(),
                memory: vec![0; places * PAGE].into(),
                failed: None,
            }),
            work: Condvar::new(),
            left: Condvar::new(),
            places,
        };
        let shared = Arc::new(Shared {
            device,
            how,
            buffers: (0..how.buffers.max(1)).map(|_| buffer()).collect(),
            stopping: AtomicBool::new(false),
        });
        let syncer = |n: usize| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("pm-sync-{n}")).spawn(move || shared.sync(n))
        };
        let syncers = (0..shared.buffers.len()).map(syncer).collect::<io::Result<_>>()?;
        Ok(Self { shared, syncers, counting: Counting::default() })
    }

    /// Checks that a range consists of blocks of the device.
    fn check(&self, off: u64, len: u64) -> Result<(), Error> {
        let device = &self.shared.device;
        check_range(off, len, device.size(), device.block_sizes())
    }
}

/// Splits a range by page: number of the page, first byte in it, bytes.
fn pages(off: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = off + len;
    (off / PAGE as u64..end.div_ceil(PAGE as u64)).map(move |page| {
        let start = page * PAGE as u64;
        let from = off.max(start) - start;
        let to = end.min(start + PAGE as u64) - start;
        (page, from as usize, (to - from) as usize)
    })
}

impl Shared {
    fn buffer(&self, page: u64) -> &Buffer {
        &self.buffers[(page / RUN_PAGES % self.buffers.len() as u64) as usize]
    }

    /// Returns the bytes of a page that lie within the device.
    fn page_len(&self, page: u64) -> usize {
        (self.device.size() - page * PAGE as u64).min(PAGE as u64) as usize
    }

    /// Puts part of a page into its buffer, where it stays until the device has it (buffered-U1).
    fn put(&self, page: u64, from: usize, data: &[u8]) -> Result<(), Error> {
        let buffer = self.buffer(page);
        let mut state = buffer.lock();
        let at = loop {
            state.healthy()?;
            match state.pages.get(&page) {
                Some(place) if !place.leaving => break place.at,
                // buffered-U2
                Some(_) => state = buffer.wait_left(state),
                None => match state.free.last().copied() {
                    Some(at) => {
                        let BufferState { pages, order, free, memory, came, .. } = &mut *state;
                        if data.len() < self.page_len(page) {
                            let rest = &mut memory[at * PAGE..][..self.page_len(page)];
                            self.device.read(page * PAGE as u64, rest)?;
                        }
                        free.pop();
                        pages.insert(page, BufferedPage { at, leaving: false });
                        order.push_back((page, *came));
                        *came += 1;
                        break at;
                    }
                    None => {
                        buffer.work.notify_one();
                        state = buffer.wait_left(state);
                    }
                },
            }
        };
        state.memory[at * PAGE + from..][..data.len()].copy_from_slice(data);
        if state.pages.len() * 100 >= buffer.places * usize::from(self.how.high_percent) {
            buffer.work.notify_one();
        }
        Ok(())
    }

    /// Reads part of a page from its buffer, or from the device.
    fn get(&self, page: u64, from: usize, buf: &mut [u8]) -> Result<(), Error> {
        let state = self.buffer(page).lock();
        match state.pages.get(&page) {
            Some(place) => {
                buf.copy_from_slice(&state.memory[place.at * PAGE + from..][..buf.len()]);
                Ok(())
            }
            None => {
                drop(state);
                self.device.read(page * PAGE as u64 + from as u64, buf)
            }
        }
    }

    /// Runs the syncer of buffer `n`, until `stopping`. When the buffer is full to the high
    /// watermark, writes its oldest pages to the device, down to the low one.
    fn sync(&self, n: usize) {
        let buffer = &self.buffers[n];
        let share = |percent: u8| buffer.places * usize::from(percent) / 100;
        let high = share(self.how.high_percent).max(1);
        let low = share(self.how.low_percent).min(high - 1);
        let mut state = buffer.lock();
        while !self.stopping.load(SeqCst) {
            if state.pages.len() < high || state.failed.is_some() {
                state = buffer.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            while state.pages.len() > low && state.failed.is_none() {
                let n = (state.pages.len() - low).min(BATCH_PAGES);
                state = self.write_oldest(buffer, state, n);
            }
        }
    }

    /// Writes up to `n` of the oldest pages to the device (buffered-U3).
    fn write_oldest<'b>(
        &self,
        buffer: &'b Buffer,
        mut state: MutexGuard<'b, BufferState>,
        n: usize,
    ) -> MutexGuard<'b, BufferState> {
        let mut batch: Vec<u64> = Vec::with_capacity(n);
        let BufferState { pages, order, .. } = &mut *state;
        for (page, _) in order.iter() {
            let Some(place) = pages.get_mut(page) else { continue };
            if batch.len() < n && !place.leaving {
                place.leaving = true;
                batch.push(*page);
            }
        }
        if batch.is_empty() {
            // Another thread is writing them.
            return buffer.wait_left(state);
        }
        if self.how.batching {
            batch.sort_unstable();
        }
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for page in &batch {
            let bytes = &state.memory[state.pages[page].at * PAGE..][..self.page_len(*page)];
            let off = page * PAGE as u64;
            match runs.last_mut() {
                Some((start, run)) if self.how.batching && *start + run.len() as u64 == off => {
                    run.extend_from_slice(bytes);
                }
                _ => runs.push((off, bytes.to_vec())),
            }
        }
        drop(state);
        let write =
            |(off, run): &(u64, Vec<u8>)| self.device.write(*off, run, Durability::AtBarrier);
        let done: Result<(), Error> = runs.iter().try_for_each(write);
        let mut state = buffer.lock();
        match done {
            Ok(()) => {
                for page in &batch {
                    if let Some(place) = state.pages.remove(page) {
                        state.free.push(place.at);
                    }
                }
                let BufferState { pages, order, .. } = &mut *state;
                order.retain(|(page, _)| pages.contains_key(page));
            }
            Err(e) => {
                state.failed.get_or_insert(Arc::new(e));
            }
        }
        buffer.left.notify_all();
        state
    }

    /// Writes all pages that are in the buffers now to the device.
    fn empty(&self) -> Result<(), Error> {
        for buffer in &self.buffers {
            let mut state = buffer.lock();
            let came = state.came;
            while state.order.front().is_some_and(|(_, before)| *before < came) {
                state.healthy()?;
                state = self.write_oldest(buffer, state, BATCH_PAGES);
            }
            state.healthy()?;
        }
        Ok(())
    }
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_left<'b>(&'b self, state: MutexGuard<'b, BufferState>) -> MutexGuard<'b, BufferState> {
        self.left.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl BufferState {
    /// Fails for good once a page could not be written: clients already got success for it.
    fn healthy(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(e) => Err(Error::Io(io::Error::other(e.to_string()))),
        }
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        if let Err(e) = self.shared.empty() {
            tracing::error!(error = %e, "buffered writes are lost");
        }
        self.shared.stopping.store(true, SeqCst);
        for buffer in &self.shared.buffers {
            // Under the lock, so that no syncer is between its check and its sleep.
            let _state = buffer.lock();
            buffer.work.notify_all();
        }
        for syncer in self.syncers.drain(..) {
            let _ = syncer.join();
        }
    }
}

impl BlockDevice for Buffered {
    fn size(&self) -> u64 {
        self.shared.device.size()
    }

    fn block_sizes(&self) -> BlockSizes {
        self.shared.device.block_sizes()
    }

    fn is_read_only(&self) -> bool {
        self.shared.device.is_read_only()
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.check(off, buf.len() as u64)?;
        self.counting.request(StatsEvent::Reads, StatsEvent::BytesRead, buf.len() as u64);
        let mut rest = buf;
        for (page, from, len) in pages(off, rest.len() as u64) {
            let (part, more) = rest.split_at_mut(len);
            self.shared.get(page, from, part)?;
            rest = more;
        }
        Ok(())
    }

    fn write(&self, off: u64, data: &[u8], durability: Durability) -> Result<(), Error> {
        self.check(off, data.len() as u64)?;
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.counting.request(StatsEvent::Writes, StatsEvent::BytesWritten, data.len() as u64);
        let mut rest = data;
        for (page, from, len) in pages(off, data.len() as u64) {
            let (part, more) = rest.split_at(len);
            self.shared.put(page, from, part)?;
            rest = more;
        }
        if durability == Durability::Now {
            self.counting.add(StatsEvent::FuaWrites, 1);
            self.shared.empty()?;
            self.shared.device.barrier()?;
        }
        Ok(())
    }

    fn barrier(&self) -> Result<(), Error> {
        self.shared.empty()?;
        self.shared.device.barrier()
    }

    fn discard(&self, off: u64, len: u64) -> Result<(), Error> {
        self.shared.empty()?;
        self.shared.device.discard(off, len)
    }

    fn write_zeroes(
        &self,
        off: u64,
        len: u64,
        how: Zeroing,
        durability: Durability,
    ) -> Result<(), Error> {
        self.shared.empty()?;
        self.shared.device.write_zeroes(off, len, how, durability)
    }

    fn extents(
        &self,
        off: u64,
        len: u64,
        each: &mut dyn FnMut(DeviceExtent) -> bool,
    ) -> Result<(), Error> {
        self.shared.empty()?;
        self.shared.device.extents(off, len, each)
    }

    fn prefetch(&self, off: u64, len: u64) -> Result<(), Error> {
        self.shared.device.prefetch(off, len)
    }

    fn bytes(&self, _off: u64, _len: u64) -> Option<&[AtomicU8]> {
        // The latest content may be in a buffer.
        None
    }

    fn grow(&self, size: u64) -> Result<(), Error> {
        // If the last page was partly beyond the end, its length changes.
        self.shared.empty()?;
        self.shared.device.grow(size)
    }

    fn stats(&self) -> Stats {
        // Combine the requests of clients with those that the buffers made.
        let below = self.shared.device.stats();
        let asked = self.counting.snapshot(below.medium, Guarding::default());
        Stats {
            reads: asked.reads,
            bytes_read: asked.bytes_read,
            writes: asked.writes,
            bytes_written: asked.bytes_written,
            fua_writes: asked.fua_writes + below.fua_writes,
            ..below
        }
    }
}
