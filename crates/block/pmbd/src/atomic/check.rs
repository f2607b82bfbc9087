//! The check of a map, block by block, and its repair, which does not touch correct blocks.
//!
//! - **check-C1** A correct word, and content that matches its word, are never changed.
//! - **check-C2** Each repair stores one word, after the data block that it names is durable. A
//!   crash leaves the old word or the new one.

use super::layout::{DataNo, Geometry, MapWord, crc32c};
use super::scan::{self, superblock};
use crate::Error;
use pmem::{Medium, Pm};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An impossible state of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The word of a block names no data block.
    NoData {
        /// Number of the block.
        block: u64,
        /// Its word.
        word: u64,
    },
    /// Several blocks share one data block.
    Shared {
        /// Number of the data block.
        number: DataNo,
        /// Numbers of the blocks, ascending.
        blocks: Vec<u64>,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoData { block, word } => {
                write!(f, "the word of block {block}, {word:#018x}, names no data block")
            }
            Self::Shared { number, blocks } => {
                let blocks: Vec<String> = blocks.iter().map(u64::to_string).collect();
                write!(f, "blocks {} have one data block, {number}", blocks.join(" and "))
            }
        }
    }
}

/// The most faults that a message names.
const NAMED: usize = 8;

/// Formats faults for a message.
pub(crate) fn show(faults: &[Fault]) -> String {
    let mut named: Vec<String> = faults.iter().take(NAMED).map(Fault::to_string).collect();
    if faults.len() > NAMED {
        named.push(format!("and {} more", faults.len() - NAMED));
    }
    named.join("; ")
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks that hold data.
    pub used: u64,
    /// Blocks whose content an earlier repair has given up, and that were not written since.
    /// Reading them fails.
    pub lost: u64,
    /// The problems, in the order of the blocks.
    pub problems: Vec<Problem>,
}

/// A problem of a block.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// Its number.
    pub block: u64,
    /// Its offset on the device, in bytes.
    pub off: u64,
    /// The description of the problem.
    pub what: String,
    /// The repair, if any was made.
    pub repair: Option<String>,
}

/// The repair of a block whose content is lost.
const GIVEN_UP: &str = "given up: reading it fails until it is written";

/// Iterates over all words of a map, with the numbers of their blocks.
fn words<M: Medium>(medium: &M, geometry: Geometry) -> impl Iterator<Item = (u64, u64)> + '_ {
    (0..geometry.blocks).map(move |block| (block, Pm(medium).load_u64(geometry.word_at(block))))
}

/// Finds the faults of a map, in the order of the blocks.
pub(super) fn faults(medium: &impl Medium, geometry: &Geometry) -> Vec<Fault> {
    let mut seen = vec![0u64; geometry.data_blocks.div_ceil(64) as usize];
    let mut faults = Vec::new();
    let mut shared: BTreeMap<DataNo, Vec<u64>> = BTreeMap::new();
    for (block, word) in words(medium, *geometry) {
        match MapWord::unpack(word, geometry) {
            Err(_) if word != MapWord::LOST => faults.push(Fault::NoData { block, word }),
            Ok(Some(MapWord { number, .. })) => {
                let (cell, bit) = (number.bit() / 64, 1 << (number.bit() % 64));
                if seen[cell as usize] & bit != 0 {
                    shared.entry(number).or_default();
                }
                seen[cell as usize] |= bit;
            }
            _ => {}
        }
    }
    if !shared.is_empty() {
        for (block, word) in words(medium, *geometry) {
            if let Ok(Some(MapWord { number, .. })) = MapWord::unpack(word, geometry)
                && let Some(blocks) = shared.get_mut(&number)
            {
                blocks.push(block);
            }
        }
    }
    faults.extend(shared.into_iter().map(|(number, blocks)| Fault::Shared { number, blocks }));
    faults.sort_by_key(|fault| match fault {
        Fault::NoData { block, .. } => *block,
        Fault::Shared { blocks, .. } => blocks[0],
    });
    faults
}

/// Checks the map and the content of all blocks. Repairs the map if `repair`: of blocks that share
/// one data block, those with a matching checksum keep the content. A block whose content is lost
/// is given up: reading it fails until it is written. The content of all other blocks stays
/// (check-C1).
pub fn check(medium: &impl Medium, repair: bool) -> Result<CheckReport, Error> {
    let geometry = superblock(medium)
        .verify(medium.len())
        .map_err(|what| Error::Corrupt { what: format!("cannot check the device: {what}") })?;
    if repair {
        scan::persist(medium, &geometry);
    }
    let mut checker = Checker { medium, geometry, repair, free: None, problems: Vec::new() };
    for fault in faults(medium, &geometry) {
        match &fault {
            Fault::NoData { block, .. } => checker.give_up(*block, &fault),
            Fault::Shared { number, blocks } => checker.separate(*number, blocks, &fault),
        }
    }
    let (mut used, mut lost) = (0, 0);
    let known: BTreeSet<u64> = checker.problems.iter().map(|problem| problem.block).collect();
    for (block, word) in words(medium, geometry) {
        lost += u64::from(word == MapWord::LOST && !known.contains(&block));
        let Ok(Some(entry)) = MapWord::unpack(word, &geometry) else { continue };
        used += 1;
        let found = checker.sum(entry.number);
        if found != entry.sum && !known.contains(&block) {
            let damaged = Error::Damaged { block, found, written: entry.sum };
            checker.problem(block, damaged.to_string(), None);
        }
    }
    let mut problems = checker.problems;
    problems.sort_by_key(|problem| problem.block);
    medium.health()?;
    Ok(CheckReport { block_bytes: geometry.block, blocks: geometry.blocks, used, lost, problems })
}

struct Checker<'m, M> {
    medium: &'m M,
    geometry: Geometry,
    repair: bool,
    /// The data blocks that no word names, collected when the first is needed.
    free: Option<Vec<DataNo>>,
    problems: Vec<Problem>,
}

impl<M: Medium> Checker<'_, M> {
    fn medium(&self) -> Pm<&M> {
        Pm(self.medium)
    }

    /// Reads a data block.
    fn content(&self, number: DataNo) -> Vec<u8> {
        let mut content = vec![0; self.geometry.block as usize];
        self.medium().read(self.geometry.data_at(number), &mut content);
        content
    }

    fn sum(&self, number: DataNo) -> u32 {
        crc32c(&self.content(number))
    }

    /// Adds a problem of a block to the report, with its `repair` if repairs are made.
    fn problem(&mut self, block: u64, what: String, repair: Option<&str>) {
        let off = block * u64::from(self.geometry.block);
        let repair = repair.filter(|_| self.repair).map(str::to_owned);
        self.problems.push(Problem { block, off, what, repair });
    }

    /// Stores a word (check-C2).
    fn set(&self, block: u64, word: u64) {
        let ready = self.medium().fence();
        let _ = self.medium().publish(self.geometry.word_at(block), word, ready);
    }

    /// Reports that the content of a block is lost. When repairing, stores [`MapWord::LOST`].
    fn give_up(&mut self, block: u64, fault: &Fault) {
        if self.repair {
            self.set(block, MapWord::LOST);
        }
        self.problem(block, format!("{fault}: its content is lost"), Some(GIVEN_UP));
    }

    /// Gives each block its own data block, if the shared content matches its checksum.
    fn separate(&mut self, number: DataNo, blocks: &[u64], fault: &Fault) {
        let content = self.content(number);
        let sum = crc32c(&content);
        let mut kept = false;
        for &block in blocks {
            let word = self.medium().load_u64(self.geometry.word_at(block));
            if word != (MapWord { number, sum }).pack() {
                self.give_up(block, fault);
                continue;
            }
            let what = format!("{fault}: its content is there");
            let own = if kept && self.repair { self.take_free() } else { None };
            match (kept, own) {
                (false, _) => self.problem(block, what, Some("keeps it")),
                (true, Some(own)) => {
                    self.medium().write_nt(self.geometry.data_at(own), &content);
                    self.set(block, MapWord { number: own, sum }.pack());
                    self.problem(block, what, Some("has a copy of its own"));
                }
                (true, None) => self.problem(block, what, None),
            }
            kept = true;
        }
    }

    /// Takes a data block that no word names. Each block that shares one leaves at least one free.
    fn take_free(&mut self) -> Option<DataNo> {
        if self.free.is_none() {
            let entries = words(self.medium, self.geometry);
            let entries = entries.filter_map(|(_, w)| MapWord::unpack(w, &self.geometry).ok()?);
            let used: BTreeSet<DataNo> = entries.map(|entry| entry.number).collect();
            let all = (0..self.geometry.data_blocks).map(DataNo::of_bit);
            self.free = Some(all.rev().filter(|number| !used.contains(number)).collect());
        }
        self.free.as_mut()?.pop()
    }
}
