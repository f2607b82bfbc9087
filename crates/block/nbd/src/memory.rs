//! A block device in ordinary memory, which replaces a device of [`pmbd::open`] in tests.

use pmbd::{BlockDevice, BlockSizes, DeviceExtent, Durability, Error, Stats, Zeroing};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The unit of allocation, in bytes.
const CHUNK: u64 = 4096;

/// The largest size, as a multiple of the first.
const GROWTH: u64 = 4;

/// A device in memory, with counts of requests.
pub struct MemoryDevice {
    bytes: Vec<AtomicU8>,
    taken: Vec<AtomicBool>,
    size: AtomicU64,
    /// Whether [`BlockDevice::bytes`] returns its content.
    pub shows: bool,
    /// Whether requests that store are refused.
    pub read_only: bool,
    /// The units of requests.
    pub sizes: BlockSizes,
    /// Requests that reach beyond this offset fail with an error of the medium.
    pub broken_from: AtomicU64,
    /// The number of barriers, and of writes that were durable on return.
    pub persisted: AtomicU64,
}

impl MemoryDevice {
    /// Makes a device of `size` zeros, a multiple of 4096.
    pub fn of(size: u64) -> Self {
        assert!(size.is_multiple_of(CHUNK));
        let most = size * GROWTH;
        Self {
            bytes: (0..most).map(|_| AtomicU8::new(0)).collect(),
            taken: (0..most / CHUNK).map(|_| AtomicBool::new(false)).collect(),
            size: AtomicU64::new(size),
            shows: true,
            read_only: false,
            sizes: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 20, atomic: 0 },
            broken_from: AtomicU64::new(u64::MAX),
            persisted: AtomicU64::new(0),
        }
    }

    /// As [`of`](Self::of), shared.
    pub fn new(size: u64) -> Arc<Self> {
        Arc::new(Self::of(size))
    }

    /// Checks a request and returns its range of bytes.
    fn range(&self, off: u64, len: u64) -> Result<std::ops::Range<usize>, Error> {
        let size = self.size();
        let block = self.sizes.minimum;
        if off.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { off, len, size });
        }
        if !off.is_multiple_of(block.into()) || !len.is_multiple_of(block.into()) {
            return Err(Error::Misaligned { off, len, block });
        }
        assert!(len <= self.sizes.maximum.into(), "the server promised not to ask for more");
        if off + len > self.broken_from.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("the medium is broken there").into());
        }
        Ok(off as usize..(off + len) as usize)
    }

    /// Stores bytes at `off`, and marks their chunks as allocated.
    fn store(&self, off: u64, data: impl ExactSizeIterator<Item = u8>) -> Result<(), Error> {
        let range = self.range(off, data.len() as u64)?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        for chunk in range.start as u64 / CHUNK..(range.end as u64).div_ceil(CHUNK) {
            self.taken[chunk as usize].store(true, Ordering::Relaxed);
        }
        for (byte, value) in self.bytes[range].iter().zip(data) {
            byte.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts a write that is durable on return.
    fn persist(&self, durability: Durability) {
        if durability == Durability::Now {
            self.persisted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn block_sizes(&self) -> BlockSizes {
        self.sizes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), Error> {
        let range = self.range(off, buf.len() as u64)?;
        for (byte, value) in buf.iter_mut().zip(&self.bytes[range]) {
            *byte = value.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&self, off: u64, data: &[u8], durability: Durability) -> Result<(), Error> {
        self.store(off, data.iter().copied())?;
        self.persist(durability);
        Ok(())
    }

    fn barrier(&self) -> Result<(), Error> {
        self.persist(Durability::Now);
        Ok(())
    }

    fn discard(&self, off: u64, len: u64) -> Result<(), Error> {
        self.range(off, len)?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        for chunk in off.div_ceil(CHUNK)..(off + len) / CHUNK {
            let start = (chunk * CHUNK) as usize;
            for byte in &self.bytes[start..start + CHUNK as usize] {
                byte.store(0, Ordering::Relaxed);
            }
            self.taken[chunk as usize].store(false, Ordering::Relaxed);
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
        if how.only_fast && how.keep_space {
            return Err(Error::NotSupported);
        }
        self.store(off, (0..len as usize).map(|_| 0))?;
        if !how.keep_space {
            self.discard(off, len)?;
        }
        self.persist(durability);
        Ok(())
    }

    fn extents(
        &self,
        off: u64,
        len: u64,
        each: &mut dyn FnMut(DeviceExtent) -> bool,
    ) -> Result<(), Error> {
        let mut at = off;
        while at < off + len {
            let next = (at / CHUNK + 1) * CHUNK;
            let allocated = self.taken[(at / CHUNK) as usize].load(Ordering::Relaxed);
            let len = next.min(off + len) - at;
            if !each(DeviceExtent { off: at, len, zero: !allocated, allocated }) {
                break;
            }
            at = next;
        }
        Ok(())
    }

    fn prefetch(&self, off: u64, len: u64) -> Result<(), Error> {
        self.range(off, len).map(|_| ())
    }

    fn bytes(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        let fits = self.shows && len <= self.sizes.maximum.into();
        let range = fits.then(|| self.range(off, len).ok()).flatten()?;
        Some(&self.bytes[range])
    }

    fn grow(&self, size: u64) -> Result<(), Error> {
        let fits = size >= self.size() && size <= self.bytes.len() as u64;
        if !fits || !size.is_multiple_of(CHUNK) {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
        }
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}
