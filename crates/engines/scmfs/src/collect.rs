//! The collector (§3.5): frees pre-allocated blocks, and restores whole free units.
//!
//! - collect-G1: between two files it holds no lock, and no work is half-done. So it can stop
//!   there, and several threads may collect at once. If a process dies during a step, the state is
//!   one that a crash can leave.
//! - collect-G2: it changes a file as a truncation or a growing file does, and in the same order: a
//!   shorter run is durable before its blocks can be claimed again, a copy before the map word that
//!   names it.
//! - collect-G3: an operation that finds no space is refused only after all reclaimable blocks were
//!   freed.
//!
//! It has two triggers. First, free space is short (§3.5). Second, too little of it lies in whole
//! units (in the paper: unmapped virtual space is short; here contiguous space in the pool takes
//! its place). In the second case, surplus null files and the blocks of cold files beyond their
//! size are in the way, and are freed. Then cold files that keep units from being whole move
//! together towards the end of the pool. So small long-lived files come to have a region of their
//! own.

use crate::layout::{Map, Run};
use crate::space::{KEEP, Txn};
use crate::store::Store;
use namespace::layout::Word;
use namespace::{Storage, VInode};
use pmem::Medium;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use vfs::{Errno, FileKind, Ino, Result};

/// The fewest blocks that are collected at once for an operation that lacks some.
const AT_ONCE: u64 = 1024;

/// Blocks beyond the sizes of files from which on a thin pool frees those of cold files: 32 MiB.
const THIN_PREALLOCATED: u64 = 8192;

/// Blocks that are in use in each aligned unit, and whether too few units are whole.
struct Units {
    used: Vec<u64>,
    are_scarce: bool,
}

/// A small file that could be moved, and its blocks in a unit.
struct Candidate {
    ino: Ino,
    blocks: u64,
    is_cold: bool,
}

impl<M: Medium> Store<M> {
    /// Frees reclaimable blocks for an operation that found no space (collect-G3); returns whether
    /// it freed any.
    pub fn collect_for_space(&self) -> Result<bool> {
        let all = self.v.reclaimable();
        if all == 0 || self.check_writable().is_err() {
            return Ok(false);
        }
        let wanted = AT_ONCE.max(all / 2);
        Ok(self.collect(wanted, 0)? > 0)
    }

    /// Does a bounded step of the background work (§3.5). Returns whether more is to be done;
    /// `false` without pre-allocation or in a read-only pool.
    pub fn maintain_step(&self) -> Result<bool> {
        let s = &self.v.settings.prealloc;
        if !s.enabled || self.check_writable().is_err() {
            return Ok(false);
        }
        let (free, wanted) = (self.v.free_blocks(), self.v.blocks_kept_free());
        if free < wanted {
            let missing = (wanted - free).min(s.step);
            // Null files up to the wanted number are freed last.
            let freed = match self.collect(missing, s.null_min)? {
                0 => self.v.free_nulls(0, missing),
                freed => freed,
            };
            if freed > 0 {
                return Ok(true);
            }
        }
        if self.v.unprovisioned() > 0 && self.is_much_preallocated() {
            // A thin pool gives it back.
            let freed = self.collect_preallocated(s.step, |v| self.is_cold(v))?;
            if freed > 0 {
                return Ok(true);
            }
        }
        let units = self.units();
        self.v.note_scarce(units.are_scarce);
        if free >= wanted {
            let is_more = units.are_scarce && self.clear_the_way()? || self.make_nulls();
            if is_more {
                return Ok(true);
            }
        }
        if units.are_scarce { self.relocate(&units.used) } else { Ok(false) }
    }

    /// Frees pre-allocated blocks that are not likely to be used soon: null files beyond the least
    /// number, and blocks of cold files beyond their size. Returns whether it freed any.
    fn clear_the_way(&self) -> Result<bool> {
        let s = &self.v.settings.prealloc;
        Ok(match self.v.free_nulls(s.null_min, s.step) {
            0 => self.collect_preallocated(s.step, |v| self.is_cold(v))?,
            freed => freed,
        } > 0)
    }

    /// Returns whether files have more than [`THIN_PREALLOCATED`] blocks beyond their sizes.
    fn is_much_preallocated(&self) -> bool {
        let nulls = self.v.null_files() * self.v.settings.prealloc.null_blocks;
        self.v.reclaimable() > nulls + THIN_PREALLOCATED
    }

    /// Makes null files if there are too few; returns whether it made any.
    fn make_nulls(&self) -> bool {
        let missing = self.v.settings.prealloc.null_min.saturating_sub(self.v.null_files());
        (0..missing).take_while(|_| self.v.make_null()).count() > 0
    }

    /// Frees this many blocks, if possible: first null files, except `nulls` of them, then blocks
    /// of files beyond their size, of cold files first. Returns the number freed.
    pub fn collect(&self, blocks: u64, nulls: u64) -> Result<u64> {
        let freed = self.v.free_nulls(nulls, blocks);
        Ok(if freed < blocks {
            freed + self.collect_preallocated(blocks - freed, |_| true)?
        } else {
            freed
        })
    }

    /// Frees this many blocks beyond the size of matching files, of the coldest first. Returns the
    /// number freed.
    fn collect_preallocated(&self, blocks: u64, of: impl Fn(&VInode) -> bool) -> Result<u64> {
        let mut files: Vec<(u64, Ino)> = self
            .files()
            .filter(|(_, v)| self.v.preallocated(v) > 0 && of(v))
            .map(|(ino, v)| (self.load(v, Word::Mtime), ino))
            .collect();
        // The coldest files first.
        files.sort_unstable_by_key(|(mtime, ino)| (*mtime as i64, ino.0));
        let mut freed = 0;
        for (_, ino) in files {
            if freed >= blocks {
                break;
            }
            freed += self.collect_file(ino)?;
        }
        Ok(freed)
    }

    /// Frees the blocks of a file beyond its size; returns their number.
    fn collect_file(&self, ino: Ino) -> Result<u64> {
        let _lock = self.v.lock_exclusive(&[ino])?;
        let v = self.v.vinode(ino)?;
        let blocks = self.v.preallocated(v);
        if !is_file(v) || blocks == 0 {
            return Ok(0);
        }
        self.trim(v, self.load(v, Word::Size))?;
        Ok(blocks)
    }

    /// Returns the regular files, read without a lock.
    fn files(&self) -> impl Iterator<Item = (Ino, &VInode)> {
        let numbers = 1..self.v.inode_slots();
        numbers
            .filter_map(|i| Some((Ino(i), self.v.vinode(Ino(i)).ok()?)))
            .filter(|(_, v)| is_file(v))
    }

    // --- relocation -----------------------------------------------------------------------------

    /// Returns the use of the pool, by aligned units.
    fn units(&self) -> Units {
        let s = &self.v.settings.prealloc;
        let used: Vec<u64> =
            (0..self.v.blocks.len() / s.unit).map(|unit| self.used_of(unit)).collect();
        let whole = used.iter().filter(|used| **used == 0).count() as u64;
        // Space that the pool has not taken from the file below is whole.
        let more = self.v.unprovisioned();
        let (whole, free) = (whole * s.unit + more, self.v.free_blocks() + more);
        let are_scarce = whole * 100 <= free * s.whole_below;
        Units { used, are_scarce }
    }

    /// Empties aligned units that are used little, if whole units are scarce. Moves the small cold
    /// files in them towards the end of the pool, where such files come together. Does a bounded
    /// step; returns whether more is to be done.
    fn relocate(&self, used: &[u64]) -> Result<bool> {
        let s = &self.v.settings.prealloc;
        let most = s.unit * s.relocate / 100;
        if most == 0 {
            return Ok(false);
        }
        let is_sparse = |unit: usize| used.get(unit).is_some_and(|used| (1..=most).contains(used));
        let mut units: BTreeMap<usize, Vec<Candidate>> = BTreeMap::new();
        for (ino, v) in self.files() {
            for (unit, candidate) in self.candidates(ino, v) {
                if is_sparse(unit) {
                    units.entry(unit).or_default().push(candidate);
                }
            }
        }
        let mut moved = 0;
        for (unit, files) in units {
            let movable: u64 = files.iter().map(|file| file.blocks).sum();
            if movable < used[unit] || files.iter().any(|file| !file.is_cold) {
                continue;
            }
            for file in files {
                if moved >= s.step {
                    return Ok(true);
                }
                match self.relocate_file(file.ino, unit as u64)? {
                    0 => break,
                    blocks => moved += blocks,
                }
            }
        }
        Ok(false)
    }

    /// Returns the number of used blocks of an aligned unit.
    fn used_of(&self, unit: u64) -> u64 {
        let each = self.v.settings.prealloc.unit;
        self.v.blocks.count_range(&self.v.arena, unit * each..(unit + 1) * each)
    }

    /// Returns the units that a file lies in, if it is a single run of at most a unit's blocks.
    /// There are one or two; moving the file takes the returned number of blocks out of each. Read
    /// without a lock, so only a hint.
    fn candidates(&self, ino: Ino, v: &VInode) -> SmallVec<[(usize, Candidate); 2]> {
        let each = self.v.settings.prealloc.unit;
        let run = match self.map(v) {
            Ok(Map::Run(run)) if run.count <= each => run,
            _ => return SmallVec::new(),
        };
        let (bits, is_cold) = (run.bits(), self.is_cold(v));
        (bits.start / each..bits.end.div_ceil(each))
            .map(|unit| {
                let within = bits.start.max(unit * each)..bits.end.min((unit + 1) * each);
                let blocks = within.end - within.start;
                (unit as usize, Candidate { ino, blocks, is_cold })
            })
            .collect()
    }

    fn is_cold(&self, v: &VInode) -> bool {
        let age = self.now().0.saturating_sub(self.load(v, Word::Mtime) as i64);
        age >= (self.v.settings.prealloc.cold_after as i64).saturating_mul(1_000_000_000)
    }

    /// Moves a file out of a unit, towards the end of the pool; returns the number of blocks moved,
    /// 0 if it cannot be moved.
    fn relocate_file(&self, ino: Ino, unit: u64) -> Result<u64> {
        let _lock = self.v.lock_exclusive(&[ino])?;
        let v = self.v.vinode(ino)?;
        if !is_file(v) {
            return Ok(0);
        }
        let is_there = self.candidates(ino, v).iter().any(|(at, _)| *at as u64 == unit);
        // No process may be reading it in place.
        let is_held =
            self.v.pins().any(&self.v.arena) || v.mappings.are_direct() || v.mappings.are_kernels();
        if !is_there || is_held {
            return Ok(0);
        }
        let size = self.load(v, Word::Size);
        self.trim(v, size)?;
        let Map::Run(run) = self.map(v)? else { return Ok(1) };
        let moved = self.v.transact(run.count, KEEP, |txn| {
            let Some(new) = self.place_towards_end(txn, unit, run.count) else {
                return Ok(0);
            };
            // The copy is durable before the map word (collect-G2).
            self.medium.copy_nt(new.at(0), run.at(0), size.min(run.bytes()));
            self.publish_map(self.word_at(v, Word::Root), Map::Run(new));
            txn.free(run);
            Ok(run.count)
        });
        match moved {
            Err(Errno::NOSPC) => Ok(0),
            other => other,
        }
    }

    /// Finds a run behind a unit, as far behind as possible: in a broken unit that is used much,
    /// else in one that is used little and may be emptied itself, else in a whole unit.
    fn place_towards_end(&self, txn: &mut Txn<'_>, unit: u64, blocks: u64) -> Option<Run> {
        let s = &self.v.settings.prealloc;
        let each = s.unit;
        let units = || (unit + 1..self.v.blocks.len() / each).rev();
        let within = |unit: u64| unit * each..(unit + 1) * each;
        let much = each * s.relocate / 100;
        let full = units().filter(|unit| self.used_of(*unit) > much);
        let sparse = units().filter(|unit| (1..=much).contains(&self.used_of(*unit)));
        let whole = units().filter(|unit| self.used_of(*unit) == 0);
        full.chain(sparse).chain(whole).find_map(|unit| txn.take_within(within(unit), blocks))
    }
}

/// Returns whether an inode is a live regular file.
fn is_file(v: &VInode) -> bool {
    v.is_live() && v.kind() == FileKind::File
}
