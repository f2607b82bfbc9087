//! Regions protected from stray writes: stores through wild pointers (PMBD §IV-B).
//!
//! A [`Guarded`] region is mapped for reading only, or not at all. A store of [`Medium`] lifts the
//! protection of its range, in the way of the [`Protection`]. Any other store hits a mapping that
//! is not writable and raises SIGSEGV, which [`stray`] reports. Flushes work through read-only
//! mappings.
//!
//! - guard-G1: The address that a store gets stays writable, at least for its thread, until the
//!   store is done.
//! - guard-G2: One thread at a time changes the protection of a chunk.
//! - guard-G3: Every mode stores a word by a single store instruction (failure atomicity).
//!
//! Each [`Protection`] documents the bytes that stay exposed, to which threads, and for how long.

mod chunk;
mod file;
mod key;
mod private;
mod protection;
mod state;
mod windows;

pub use protection::{Protection, UnknownProtection};

use crate::{Counters, Domain, Error, Fenced, Medium, Region, Sharded, stray};
use file::ByFile;
use key::Keyed;
use private::Private;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use windows::{WindowPolicy, Windows};

/// A protected region.
#[derive(Debug)]
pub struct Guarded {
    // Dropped before the mapping whose protection it changes.
    door: Door,
    /// The region's mappings: faults there are stray writes.
    _watched: Vec<stray::Watched>,
    protection: Protection,
    tally: Arc<Tally>,
    region: Region,
}

/// The way in which stores get access.
#[derive(Debug)]
enum Door {
    /// The region's own mapping is writable, or never stored to.
    Open,
    Windows(Windows),
    Keyed(Keyed),
    Private(Private),
}

/// The cost of the protection.
#[derive(Default)]
pub struct Tally(Sharded<2>);

impl Tally {
    const TIMES: usize = 0;
    const CYCLES: usize = 1;

    /// Returns the number of times that protection was lifted, or a range mapped for one access.
    pub fn times(&self) -> u64 {
        self.0.sum(Self::TIMES)
    }

    /// Returns the TSC cycles spent on lifting and restoring it. With protection keys the time is
    /// too short to be measured, so this is 0.
    pub fn cycles(&self) -> u64 {
        self.0.sum(Self::CYCLES)
    }

    #[inline]
    fn count(&self) {
        self.0.add(Self::TIMES, 1);
    }

    /// Does `op` and adds its cycles.
    fn timed<R>(&self, op: impl FnOnce() -> R) -> R {
        let start = crate::cpu::tsc();
        let result = op();
        self.0.add(Self::CYCLES, crate::cpu::tsc().saturating_sub(start));
        result
    }
}

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tally").field("times", &self.times()).finish_non_exhaustive()
    }
}

impl Guarded {
    /// Protects a region. One opened read-only is protected already.
    pub fn new(region: Region, protection: Protection) -> Result<Self, Error> {
        let tally = Arc::new(Tally::default());
        let mut watched = Vec::new();
        let door = if region.access() == crate::Access::ReadOnly {
            Door::Open
        } else {
            let windows = |policy| Windows::new(&region, policy, tally.clone()).map(Door::Windows);
            match protection {
                Protection::None => Door::Open,
                Protection::Pages => windows(WindowPolicy::Pages)?,
                Protection::ChunkStrict => windows(WindowPolicy::Strict)?,
                Protection::Chunk => windows(WindowPolicy::Kept)?,
                Protection::Pwrite => {
                    ByFile::usable(&region)?;
                    windows(WindowPolicy::File)?
                }
                Protection::Window => Door::Private(Private::new(&region, tally.clone())?),
                Protection::Pkey => {
                    let keyed = Keyed::new(&region, tally.clone())?;
                    watched.push(stray::Watched::new(
                        region.path(),
                        keyed.base(),
                        region.mapped_len(),
                    )?);
                    Door::Keyed(keyed)
                }
            }
        };
        if !matches!(door, Door::Open) {
            watched.push(stray::Watched::new(region.path(), region.base(), region.mapped_len())?);
        }
        Ok(Self { door, _watched: watched, protection, tally, region })
    }

    /// Returns the protection.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Returns the region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the cost of the protection, which keeps counting.
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// Stores to `off..off + len` piece by piece. For each piece calls `put` with the address at
    /// which offset 0 is (or would be) mapped, or `by_file` with the file.
    #[inline]
    fn bulk(
        &self,
        off: u64,
        len: u64,
        put: impl Fn(*mut u8, u64, u64),
        by_file: impl Fn(&ByFile, u64, u64),
    ) {
        self.region.check_store(off, len);
        match &self.door {
            Door::Open => put(self.region.base(), off, len),
            Door::Keyed(keyed) => keyed.with(off, |base| put(base, off, len)),
            Door::Private(private) => private.store(off, len, |base| put(base, off, len)),
            Door::Windows(windows) => windows.bulk(off, len, put, by_file),
        }
    }
}

/// Returns the part of a request's data for a piece; the request begins at `start`.
fn piece(data: &[u8], start: u64, off: u64, len: u64) -> &[u8] {
    let at = (off - start) as usize;
    &data[at..at + len as usize]
}

#[allow(unsafe_code)]
impl Medium for Guarded {
    fn len(&self) -> u64 {
        self.region.len()
    }

    fn domain(&self) -> Domain {
        self.region.domain()
    }

    fn health(&self) -> io::Result<()> {
        if let Door::Windows(windows) = &self.door {
            windows.health()?;
        }
        self.region.health()
    }

    fn counters(&self) -> &Counters {
        self.region.counters()
    }

    fn grow(&self, len: u64) -> Result<(), Error> {
        self.region.grow(len)
    }

    fn max_len(&self) -> u64 {
        self.region.max_len()
    }

    fn release(&self, off: u64, len: u64) -> io::Result<Range<u64>> {
        self.region.release(off, len)
    }

    fn provision(&self, off: u64, len: u64) -> io::Result<()> {
        self.region.provision(off, len)
    }

    fn data_within(&self, off: u64, len: u64) -> Range<u64> {
        self.region.data_within(off, len)
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) {
        let Door::Private(private) = &self.door else {
            return self.region.read(off, buf);
        };
        self.region.check_load(off, buf.len() as u64);
        // SAFETY: 1. just checked. 2. guard-G1.
        private.load(off, buf.len() as u64, |base| unsafe { self.region.read_at(base, off, buf) });
    }

    #[inline]
    fn load_u64(&self, off: u64) -> u64 {
        let Door::Private(private) = &self.door else {
            return self.region.load_u64(off);
        };
        self.region.check_load(off, 8);
        // SAFETY: 1. just checked. 2. guard-G1.
        private.load(off, 8, |base| unsafe { self.region.load_u64_at(base, off) })
    }

    fn prefetch(&self, off: u64, len: u64) {
        self.region.prefetch(off, len);
    }

    fn mapped(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        match &self.door {
            Door::Private(_) => None,
            _ => self.region.mapped(off, len),
        }
    }

    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        let Door::Private(private) = &self.door else {
            return self.region.equals(off, bytes);
        };
        self.region.check_load(off, bytes.len() as u64);
        let len = bytes.len() as u64;
        // SAFETY: 1. just checked. 2. guard-G1.
        private.load(off, len, |base| unsafe { self.region.equals_at(base, off, bytes) })
    }

    #[inline]
    fn write(&self, off: u64, data: &[u8]) {
        let region = &self.region;
        self.bulk(
            off,
            data.len() as u64,
            // SAFETY: 1. `bulk` has checked. 2. guard-G1.
            |base, o, n| unsafe { region.write_at(base, o, piece(data, off, o, n)) },
            |file, o, n| region.count_write_by(o, n, || file.write(o, piece(data, off, o, n))),
        );
    }

    #[inline]
    fn write_nt(&self, off: u64, data: &[u8]) {
        let region = &self.region;
        self.bulk(
            off,
            data.len() as u64,
            // SAFETY: 1. `bulk` has checked. 2. guard-G1.
            |base, o, n| unsafe { region.write_nt_at(base, o, piece(data, off, o, n)) },
            |file, o, n| region.count_nt_by(o, n, || file.write(o, piece(data, off, o, n))),
        );
    }

    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        let region = &self.region;
        region.check_copy(dst, src, len);
        if let Door::Private(private) = &self.door {
            return private.load(src, len, |from| {
                // SAFETY: 1. just checked. 2. guard-G1, for both windows.
                let put = |base: *mut u8| unsafe { region.copy_nt_at(base, dst, from, src, len) };
                private.store(dst, len, put);
            });
        }
        let source = |o: u64| src + (o - dst);
        self.bulk(
            dst,
            len,
            // SAFETY: 1. just checked. 2. guard-G1; the source is readable at the region's own
            // mapping.
            |base, o, n| unsafe { region.copy_nt_at(base, o, region.base(), source(o), n) },
            |file, o, n| region.count_nt_by(o, n, || file.copy(o, region, source(o), n)),
        );
    }

    fn zero_nt(&self, off: u64, len: u64) {
        let region = &self.region;
        self.bulk(
            off,
            len,
            // SAFETY: 1. `bulk` has checked. 2. guard-G1.
            |base, o, n| unsafe { region.zero_nt_at(base, o, n) },
            |file, o, n| region.count_nt_by(o, n, || file.zero(o, n)),
        );
    }

    #[inline]
    fn store_u64(&self, off: u64, value: u64) {
        self.region.check_store(off, 8);
        // SAFETY: 1. just checked. 2. guard-G1.
        let put = |base: *mut u8| unsafe { self.region.store_u64_at(base, off, value) };
        match &self.door {
            Door::Open => put(self.region.base()),
            Door::Keyed(keyed) => keyed.with(off, put),
            Door::Private(private) => private.store(off, 8, put),
            Door::Windows(windows) => windows.word(off, put),
        }
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        let Door::Private(private) = &self.door else {
            return self.region.flush(off, len);
        };
        self.region.check_load(off, len);
        // SAFETY: 1. just checked. 2. guard-G1.
        private.load(off, len, |base| unsafe { self.region.flush_at(base, off, len) });
    }

    #[inline]
    fn fence(&self) -> Fenced {
        self.region.fence()
    }
}
