//! A model of data-TLB misses: the translations that reading a file needs, at the real addresses of
//! its bytes.
//!
//! Virtual machines have no counters of misses, so these are computed: requests are made on a pool,
//! the engine returns the addresses of their bytes ([`pool::Engine::get_read_buf`]), and every page
//! touched goes through a set-associative TLB with least-recently-used replacement. Left out are
//! the caller's buffer, metadata, instructions, the walk's own caches, and speculation. So the
//! model ranks mappings, and does not predict a counter.
//!
//! Three mappings of the same requests are compared:
//! - *huge pages*: the pool as it lies, in pages of 2 MiB: what a pool on a DAX device or on
//!   collapsed tmpfs has.
//! - *small pages*: the same addresses in pages of 4 KiB: what the paper's SCMFS has (§4.2).
//! - *scattered*: each 4 KiB of the file anywhere in 4 GiB that are mapped by 2 MiB pages: a page
//!   cache, which the kernel reaches by its linear map. The places are a permutation of the file's
//!   own pages.

use crate::engine::size;
use crate::iozone::Workload;
use crate::store::Store as _;
use crate::subjects::Subject;
use crate::workload::Buffer;
use anyhow::Result;
use rng::Rng;
use serde::{Deserialize, Serialize};
use std::path::Path;

const SMALL: u32 = 12;
const HUGE: u32 = 21;

/// A TLB for one size of pages.
pub struct Tlb {
    /// Page numbers of each set, the last used first.
    sets: Vec<Vec<u64>>,
    ways: usize,
    page_bits: u32,
    misses: u64,
}

impl Tlb {
    /// Makes a TLB of `entries`, a multiple of `ways`, for pages of 2^`page_bits` bytes.
    pub fn new(entries: usize, ways: usize, page_bits: u32) -> Self {
        Self {
            sets: vec![Vec::with_capacity(ways + 1); entries / ways],
            ways,
            page_bits,
            misses: 0,
        }
    }

    /// Looks up the page of an address, and keeps it.
    pub fn access(&mut self, address: u64) {
        let page = address >> self.page_bits;
        let index = (page % self.sets.len() as u64) as usize;
        let set = &mut self.sets[index];
        match set.iter().position(|held| *held == page) {
            Some(place) => set[..=place].rotate_right(1),
            None => {
                self.misses += 1;
                set.insert(0, page);
                set.truncate(self.ways);
            }
        }
    }
}

/// The last level of a CPU's data TLB: entries and ways for small and for huge pages.
struct Cpu {
    name: &'static str,
    small: (usize, usize),
    huge: (usize, usize),
}

const CPUS: [Cpu; 2] = [
    Cpu { name: "Core 2 (the paper's)", small: (256, 4), huge: (32, 4) },
    Cpu { name: "2048 entries, 8 ways", small: (2048, 8), huge: (2048, 8) },
];

/// Misses by mapping, per MiB that was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The subject of the addresses.
    pub subject: String,
    /// The name of the CPU.
    pub cpu: String,
    /// Requests: workload and bytes.
    pub requests: String,
    /// The pool as it lies, in pages of 2 MiB.
    pub huge: f64,
    /// The same in pages of 4 KiB.
    pub small: f64,
    /// Pages of 4 KiB scattered over memory in pages of 2 MiB.
    pub scattered: f64,
}

/// The amount that is traced.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Bytes of the file.
    pub file: u64,
    /// Bytes that requests of one kind read.
    pub traced: u64,
}

impl Scale {
    /// The full scale: more than the TLBs reach.
    pub const FULL: Self = Self { file: 256 << 20, traced: 512 << 20 };
    /// The scale for tests.
    pub const TINY: Self = Self { file: 4 << 20, traced: 4 << 20 };
}

/// Reads files in new pools, made in `dir`, and counts the misses of each CPU and mapping.
pub fn run(subjects: &[Subject], scale: Scale, dir: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for subject in subjects {
        let pool = subject.pool(dir, (2 * scale.file).max(64 << 20))?;
        let file = pool.create(&pool.root()?, c"traced")?;
        let chunk = Buffer::new(1 << 20);
        for offset in (0..scale.file).step_by(1 << 20) {
            pool.write(&file, offset, chunk.get())?;
        }
        let ino = pool.ino(file)?;
        for workload in [Workload::Read, Workload::RandomRead, Workload::StridedRead] {
            for len in [4 << 10, 64 << 10, 1 << 20] {
                let mut models: Vec<_> = CPUS.iter().map(Model::new).collect();
                let mut rng = Rng::new(13);
                for i in 0..scale.traced / len {
                    let start = workload.record(i, scale.file / len, &mut rng) * len;
                    let mut at = start;
                    while at < start + len {
                        let piece = pool.engine().get_read_buf(ino, at, start + len - at)?;
                        anyhow::ensure!(!piece.is_empty(), "the file ends at {at}");
                        let address = piece.as_ptr() as u64;
                        for byte in (0..piece.len() as u64).step_by(1 << SMALL) {
                            models
                                .iter_mut()
                                .for_each(|model| model.touch(at + byte, address + byte));
                        }
                        at += piece.len() as u64;
                    }
                }
                let mib = (scale.traced >> 20) as f64;
                let requests = format!("{} {}", workload.name(), size(len as usize));
                rows.extend(models.iter().map(|model| model.row(subject.name, &requests, mib)));
            }
        }
    }
    Ok(rows)
}

/// The three mappings on one CPU.
struct Model {
    cpu: &'static str,
    huge: Tlb,
    small: Tlb,
    scattered: Tlb,
}

impl Model {
    fn new(cpu: &Cpu) -> Self {
        let tlb = |(entries, ways), bits| Tlb::new(entries, ways, bits);
        Self {
            cpu: cpu.name,
            huge: tlb(cpu.huge, HUGE),
            small: tlb(cpu.small, SMALL),
            scattered: tlb(cpu.huge, HUGE),
        }
    }

    /// Notes a read of the page of the file at `offset`, at `address`.
    fn touch(&mut self, offset: u64, address: u64) {
        self.huge.access(address);
        self.small.access(address);
        self.scattered.access(scattered(offset));
    }

    /// Returns the misses per MiB, of `mib` that were read.
    fn row(&self, subject: &str, requests: &str, mib: f64) -> Row {
        let per_mib = |tlb: &Tlb| tlb.misses as f64 / mib;
        Row {
            subject: subject.to_owned(),
            cpu: self.cpu.to_owned(),
            requests: requests.to_owned(),
            huge: per_mib(&self.huge),
            small: per_mib(&self.small),
            scattered: per_mib(&self.scattered),
        }
    }
}

/// Returns a place that a page cache might have for a page of a file: anywhere in 4 GiB, each page
/// at its own.
fn scattered(offset: u64) -> u64 {
    const PAGES: u64 = (4 << 30) >> SMALL;
    // An odd factor permutes the numbers below a power of two.
    let page = (offset >> SMALL).wrapping_mul(0x9e37_79b9_7f4a_7c15 >> 7 | 1) % PAGES;
    page << SMALL
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_fits_is_missed_once_and_what_does_not_always() {
        let mut tlb = Tlb::new(64, 4, SMALL);
        for _ in 0..10 {
            (0..64).for_each(|page| tlb.access(page << SMALL));
        }
        assert_eq!(tlb.misses, 64);
        let mut tlb = Tlb::new(64, 4, SMALL);
        for _ in 0..10 {
            (0..128).for_each(|page| tlb.access(page << SMALL));
        }
        assert_eq!(tlb.misses, 1280, "the least recently used goes");
    }

    #[test]
    fn ways_of_a_set_conflict() {
        let mut tlb = Tlb::new(64, 4, SMALL);
        for _ in 0..10 {
            // All in one set of 16: five pages for four ways.
            (0..5).for_each(|i| tlb.access((i * 16) << SMALL));
        }
        assert_eq!(tlb.misses, 50);
        tlb.access((4 * 16) << SMALL);
        assert_eq!(tlb.misses, 50, "the last used stays");
    }

    #[test]
    fn addresses_of_a_page_are_one_entry() {
        let mut tlb = Tlb::new(16, 4, HUGE);
        for address in (0..2 << 20).step_by(4096) {
            tlb.access(address);
        }
        assert_eq!(tlb.misses, 1);
    }

    #[test]
    fn scattered_pages_have_places_of_their_own() {
        let places: BTreeSet<u64> = (0..10_000).map(|page| scattered(page << SMALL)).collect();
        assert_eq!(places.len(), 10_000);
        assert!(places.iter().all(|place| place % 4096 == 0 && *place < 4 << 30));
        let huge: BTreeSet<u64> = places.iter().map(|place| place >> HUGE).collect();
        assert!(huge.len() > 1500, "they lie everywhere: {}", huge.len());
    }
}
