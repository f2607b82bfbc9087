//! The places of file contents: map words, and the tables that they lead to (the mapping table of
//! §3.2).
//!
//! - map-M1: blocks that a map word names are inside the pool and behind the fixed ones. In a table
//!   of level *n* a word is a hole, a table of level *n* − 1, or a run of no more blocks than the
//!   word maps. A word is checked before it is followed.
//! - map-M2: blocks that come into a map below the size of their file already have, durably, the
//!   content that they are to read as. Only then is the word stored that names them. Beyond the
//!   size their content is unspecified.
//! - map-M3: a word of a table changes by one store, which changes only bytes of the content that
//!   the operation changes. So none of these stores needs to be atomic with another one.

use crate::layout::*;
use crate::space::Txn;
use pmem::{Medium, Pm, PmOff};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Errno, Result};
use zerocopy::IntoBytes;

/// A pool's medium, and the functions that follow and change maps in it.
pub struct Maps<M> {
    pub medium: Pm<M>,
    /// Bytes that were formatted.
    pub bytes: u64,
}

/// A contiguous part of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This number of blocks, which read as zeros.
    Hole(u64),
    /// Blocks of the pool.
    Run(Run),
}

impl Piece {
    /// Returns the number of blocks.
    pub fn count(self) -> u64 {
        match self {
            Self::Hole(n) => n,
            Self::Run(run) => run.count,
        }
    }

    /// Returns its first blocks, at most this number.
    fn first(self, most: u64) -> Self {
        match self {
            Self::Hole(n) => Self::Hole(n.min(most)),
            Self::Run(run) => Self::Run(run.first(most)),
        }
    }
}

/// The content of new blocks of a file: data at an offset, zeros around it.
#[derive(Clone, Copy)]
pub struct Fill<'a> {
    pub offset: u64,
    pub data: &'a [u8],
}

impl Fill<'_> {
    /// Zeros only.
    pub const ZEROS: Self = Fill { offset: 0, data: &[] };

    /// Returns the part of the data in a range of bytes of the file, and its offset.
    pub fn within(&self, range: &Range<u64>) -> (u64, &[u8]) {
        let end = self.offset + self.data.len() as u64;
        let (start, end) = (range.start.max(self.offset), range.end.min(end));
        if start >= end {
            return (range.end, &[]);
        }
        (start, &self.data[(start - self.offset) as usize..(end - self.offset) as usize])
    }
}

/// Holes of a file that are to be mapped.
pub struct Holes {
    /// The blocks of the file, of which the holes are mapped.
    pub range: Range<u64>,
    /// Blocks to map in addition, if the range ends in a run that can be extended; their content is
    /// unspecified.
    pub prealloc: u64,
    /// Whether an extent that begins in the range is worth a unit, as more is likely to follow.
    pub is_worth_a_unit: bool,
}

/// A word of a map: its place, and the blocks that it maps.
#[derive(Clone, Copy)]
struct Word {
    slot: PmOff,
    /// The level of a table that it may name; 0: it maps one block.
    below: u8,
    /// Its first block of the file.
    base: u64,
}

impl Word {
    fn blocks(self) -> u64 {
        table_blocks(self.below)
    }
}

/// Returns the number of blocks that a table of this level maps; level 0 stands for a single block.
const fn table_blocks(level: u8) -> u64 {
    table_bytes(level) / BLOCK
}

/// Returns the most blocks of tables that a change to this number of neighbouring blocks of a file
/// needs.
pub fn tables_for(blocks: u64) -> u64 {
    let mut sum = 0;
    let mut level = 1;
    while level <= LEVEL_MAX {
        sum += blocks / table_blocks(level) + 2;
        level += 1;
    }
    sum
}

impl<M: Medium> Maps<M> {
    /// Checks a block number before it is followed.
    #[inline]
    fn check_block(&self, block: u64) -> Result<BlockNo> {
        match BlockNo::new(block) {
            Some(no) if block >= FIRST_BLOCK && block < self.bytes / BLOCK => Ok(no),
            _ => Err(Errno::UCLEAN),
        }
    }

    /// Checks a map word (map-M1): `most` is the highest level of a table it may name.
    #[inline]
    pub fn check_map(&self, word: Unverified, most: u8) -> Result<Map> {
        match word {
            Unverified::Hole => Ok(Map::Hole),
            Unverified::Run { start, count } => {
                let run = Run { start: self.check_block(start)?, count };
                let is_inside = count > 0 && start + count <= self.bytes / BLOCK;
                if is_inside { Ok(Map::Run(run)) } else { Err(Errno::UCLEAN) }
            }
            Unverified::Table { block, level } => {
                let block = self.check_block(block)?;
                let is_level = (1..=most).contains(&level);
                if is_level { Ok(Map::Table { block, level }) } else { Err(Errno::UCLEAN) }
            }
        }
    }

    /// Loads the map word at `slot`, unchecked.
    #[inline]
    pub fn load_map(&self, slot: PmOff) -> Unverified {
        Unverified::unpack(self.medium.load_u64(slot))
    }

    /// Loads and checks the map word of a content at `slot`.
    #[inline(always)]
    pub fn map_at(&self, slot: PmOff) -> Result<Map> {
        self.check_map(self.load_map(slot), LEVEL_MAX)
    }

    /// Loads and checks the `index`th word of a table.
    fn table_word(&self, block: BlockNo, level: u8, index: u64) -> Result<Map> {
        self.check_entry(self.load_map(block.at(index * 8)), level)
    }

    /// Checks a word in a table of this level.
    pub fn check_entry(&self, word: Unverified, level: u8) -> Result<Map> {
        let map = self.check_map(word, level - 1)?;
        match map {
            Map::Run(run) if run.count > table_blocks(level - 1) => Err(Errno::UCLEAN),
            // Levels decrease one by one.
            Map::Table { level: below, .. } if below + 1 != level => Err(Errno::UCLEAN),
            _ => Ok(map),
        }
    }

    /// Returns the piece that begins at the `index`th block of a file, up to the end of its word.
    /// Of single blocks in a table of level 1, the contiguous ones, at most `most` of them.
    #[inline]
    pub fn piece(&self, map: Map, index: u64, most: u64) -> Result<Piece> {
        match map {
            Map::Run(run) if index < run.count => Ok(Piece::Run(run.skip(index))),
            Map::Hole | Map::Run(_) => Ok(Piece::Hole(u64::MAX - index)),
            Map::Table { block, level } => self.piece_of_table(block, level, index, most),
        }
    }

    /// Finds the piece at block `index` of a table: contiguous blocks or a hole from there on,
    /// searched for at most `most` blocks.
    fn piece_of_table(
        &self,
        mut block: BlockNo,
        mut level: u8,
        mut index: u64,
        most: u64,
    ) -> Result<Piece> {
        if index >= table_blocks(level) {
            return Ok(Piece::Hole(u64::MAX - index));
        }
        loop {
            let each = table_blocks(level - 1);
            let (nth, within) = (index / each, index % each);
            match self.table_word(block, level, nth)? {
                Map::Run(run) if level == 1 => {
                    let rest = nth + 1..FANOUT.min(nth.saturating_add(most));
                    return Ok(Piece::Run(self.with_next(block, rest, run)?));
                }
                Map::Run(run) if within < run.count => return Ok(Piece::Run(run.skip(within))),
                Map::Hole => {
                    let end = FANOUT.min(index.saturating_add(most.max(1)).div_ceil(each));
                    let end = self.end_of_holes(block, level, nth + 1..end)?;
                    return Ok(Piece::Hole(end * each - index));
                }
                Map::Run(_) => return Ok(Piece::Hole(each - within)),
                Map::Table { block: next, .. } => (block, level, index) = (next, level - 1, within),
            }
        }
    }

    /// Returns the index of the first of these words of a table that is not a hole, or the end; the
    /// word before them is a hole.
    fn end_of_holes(&self, block: BlockNo, level: u8, words: Range<u64>) -> Result<u64> {
        let end = words.end;
        for index in words {
            if self.table_word(block, level, index)? != Map::Hole {
                return Ok(index);
            }
        }
        Ok(end)
    }

    /// Extends a run by the blocks of the next words of a table of level 1, as long as these are
    /// contiguous.
    fn with_next(&self, block: BlockNo, words: Range<u64>, mut run: Run) -> Result<Run> {
        for index in words {
            if self.table_word(block, 1, index)? != Map::Run(Run::one(run.end())) {
                break;
            }
            run.count += 1;
        }
        Ok(run)
    }

    /// Calls `each` for the pieces of the blocks in `range`, in order, until it returns `false`.
    pub fn pieces(
        &self,
        map: Map,
        range: Range<u64>,
        mut each: impl FnMut(u64, Piece) -> Result<bool>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let piece = self.piece(map, at, range.end - at)?.first(range.end - at);
            if !each(at, piece)? {
                break;
            }
            at += piece.count();
        }
        Ok(())
    }

    /// Calls `each` for the mapped bytes of `range`, in order: with their offset in the file, their
    /// place in the pool, and their number. Skips holes.
    #[inline]
    pub fn mapped(
        &self,
        map: Map,
        range: Range<u64>,
        mut each: impl FnMut(u64, PmOff, u64),
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.pieces(map, range.start / BLOCK..range.end.div_ceil(BLOCK), |index, piece| {
            if let Piece::Run(run) = piece {
                let base = index * BLOCK;
                let (start, end) = (range.start.max(base), range.end.min(base + run.bytes()));
                each(start, run.at(start - base), end - start);
            }
            Ok(true)
        })
    }

    /// Returns the blocks of a map, including those of its tables.
    pub fn all_blocks(&self, map: Map) -> Result<SmallVec<[Run; 4]>> {
        let mut runs = SmallVec::new();
        self.collect_blocks(map, &mut runs)?;
        Ok(runs)
    }

    /// Adds the blocks of a map to `runs`.
    pub fn collect_blocks(&self, map: Map, runs: &mut SmallVec<[Run; 4]>) -> Result<()> {
        match map {
            Map::Hole => {}
            Map::Run(run) => runs.push(run),
            Map::Table { block, level } => {
                runs.push(Run::one(block));
                for index in 0..FANOUT {
                    self.collect_blocks(self.table_word(block, level, index)?, runs)?;
                }
            }
        }
        Ok(())
    }

    // --- what grows -----------------------------------------------------------------------------

    /// Writes the content of `fill` into invisible bytes of a file: `len` bytes from `at` on, which
    /// lie at `pm`. Durable after the next fence.
    pub fn overwrite(&self, at: u64, pm: PmOff, len: u64, fill: &Fill<'_>) {
        let (start, data) = fill.within(&(at..at + len));
        let end = start + data.len() as u64;
        if start > at {
            self.medium.zero_nt(pm, start - at);
        }
        if !data.is_empty() {
            self.medium.write_nt(pm + (start - at), data);
        }
        if end < at + len {
            self.medium.zero_nt(pm + (end - at), at + len - end);
        }
    }

    /// Maps holes below an existing table. Durable after the next fence.
    pub fn map_holes(
        &self,
        txn: &mut Txn<'_>,
        (block, level): (BlockNo, u8),
        holes: &Holes,
        fill: &Fill<'_>,
    ) -> Result<()> {
        self.map_in_table(txn, (block, level), 0, holes, fill)
    }

    /// Maps holes of the content in a table, and stores `fill` there. The first block of the table
    /// is the `base`th of the content.
    fn map_in_table(
        &self,
        txn: &mut Txn<'_>,
        (block, level): (BlockNo, u8),
        base: u64,
        holes: &Holes,
        fill: &Fill<'_>,
    ) -> Result<()> {
        let (range, each) = (&holes.range, table_blocks(level - 1));
        let first = range.start.saturating_sub(base) / each;
        let last = (range.end - base).div_ceil(each).min(FANOUT);
        if level == 1 {
            return self.map_blocks(txn, block, base, first..last, fill);
        }
        for index in first..last {
            let word =
                Word { slot: block.at(index * 8), below: level - 1, base: base + index * each };
            let map = self.table_word(block, level, index)?;
            self.map_in_word(txn, word, map, holes, fill)?;
        }
        Ok(())
    }

    /// Maps the holes among these words of a table of level 1, whose first block of the file is
    /// `base`. Uses contiguous blocks as far as there are any. Adjacent holes need one fence
    /// together.
    fn map_blocks(
        &self,
        txn: &mut Txn<'_>,
        block: BlockNo,
        base: u64,
        words: Range<u64>,
        fill: &Fill<'_>,
    ) -> Result<()> {
        let mut index = words.start;
        while index < words.end {
            let mut end = index;
            while end < words.end && self.table_word(block, 1, end)? == Map::Hole {
                end += 1;
            }
            if index < end {
                self.map_hole(txn, (block, base), index..end, fill);
            }
            index = end + 1;
        }
        Ok(())
    }

    /// Maps adjacent holes in a table of level 1.
    fn map_hole(
        &self,
        txn: &mut Txn<'_>,
        (block, base): (BlockNo, u64),
        words: Range<u64>,
        fill: &Fill<'_>,
    ) {
        let mut runs: SmallVec<[Run; 16]> = SmallVec::new();
        let mut index = words.start;
        while index < words.end {
            let run = txn.take_some(words.end - index);
            self.overwrite((base + index) * BLOCK, run.at(0), run.bytes(), fill);
            index += run.count;
            runs.push(run);
        }
        // The blocks are durable first (map-M2). The order in which these words become durable
        // makes no difference (map-M3).
        let ready = self.medium.fence();
        let slot = |index: u64| block.at(index * 8);
        let blocks = runs.iter().flat_map(|run| run.blocks());
        for (index, block) in words.clone().zip(blocks) {
            let map = Map::Run(Run::one(block));
            self.medium.publish_word(slot(index), map.pack(), ready.for_another());
        }
        self.medium.flush(slot(words.start), (words.end - words.start) * 8);
    }

    /// Maps the part of a range that a word of a table above level 1 maps, and pre-allocated blocks
    /// behind it.
    fn map_in_word(
        &self,
        txn: &mut Txn<'_>,
        word: Word,
        map: Map,
        holes: &Holes,
        fill: &Fill<'_>,
    ) -> Result<()> {
        let Holes { range, prealloc, .. } = holes;
        let start = range.start.max(word.base) - word.base;
        let end = range.end.min(word.base + word.blocks()) - word.base;
        let have = match map {
            Map::Table { block, level } => {
                return self.map_in_table(txn, (block, level), word.base, holes, fill);
            }
            Map::Hole => 0,
            Map::Run(run) => run.count,
        };
        if end <= have {
            return Ok(());
        }
        // A part that continues a run, or begins the word, may stay a single run.
        if start <= have {
            let more = end - have;
            let prealloc = (*prealloc).min(word.blocks() - end);
            let run = match map {
                Map::Run(run) => txn
                    .take_behind(run, more, prealloc)
                    .map(|more| Run { count: have + more, ..run }),
                // An extent that is written from its start on gets a place where it can grow.
                _ if holes.is_worth_a_unit => {
                    txn.take_extent(more + prealloc).or_else(|| txn.take_extent(more))
                }
                _ if prealloc > 0 => txn.take_with_prealloc(more, prealloc),
                _ => txn.take_run(more, word.blocks().min(FANOUT)),
            };
            if let Some(run) = run {
                let new = run.skip(have).first(more);
                self.overwrite((word.base + have) * BLOCK, new.at(0), new.bytes(), fill);
                self.publish_map(word.slot, Map::Run(run));
                return Ok(());
            }
        }
        let table = self.new_table(txn, word.below, map);
        self.publish_map(word.slot, table);
        match table {
            Map::Table { block, level } => {
                self.map_in_table(txn, (block, level), word.base, holes, fill)
            }
            _ => unreachable!("a table is a table"),
        }
    }

    /// Makes a new table that maps the same blocks as the run `map`, or a hole. Durable after the
    /// next fence.
    pub fn new_table(&self, txn: &mut Txn<'_>, level: u8, map: Map) -> Map {
        assert!(level > 0, "a block is taken from what was reserved, wherever it is");
        let each = table_blocks(level - 1);
        let mut words = [0u64; FANOUT as usize];
        if let Map::Run(mut run) = map {
            for word in &mut words {
                if run.count == 0 {
                    break;
                }
                let first = run.first(each);
                *word = first.map().pack();
                run = run.skip(first.count);
            }
        }
        self.write_table(txn, level, &words)
    }

    /// Stores bytes in new blocks; durable after the next fence.
    pub fn store_whole(&self, txn: &mut Txn<'_>, bytes: &[u8]) -> Map {
        let blocks = bytes.len().div_ceil(BLOCK as usize) as u64;
        if blocks == 0 {
            return Map::Hole;
        }
        if let Some(run) = txn.take_run(blocks, blocks) {
            self.medium.write_nt(run.at(0), bytes);
            return Map::Run(run);
        }
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < blocks {
            let run = txn.take_some(blocks - at);
            let from = (at * BLOCK) as usize;
            let to = bytes.len().min(from + run.bytes() as usize);
            self.medium.write_nt(run.at(0), &bytes[from..to]);
            pieces.push((at, run));
            at += run.count;
        }
        self.build(txn, level_for(blocks * BLOCK), &pieces)
    }

    /// Writes a new table of these words. Durable after the next fence.
    fn write_table(&self, txn: &mut Txn<'_>, level: u8, words: &[u64; FANOUT as usize]) -> Map {
        let block = txn.take();
        self.medium.write_nt(block.at(0), words.as_bytes());
        Map::Table { block, level }
    }

    /// Stores a map word after a fence that makes its blocks durable; durable on return.
    pub fn publish_map(&self, slot: PmOff, map: Map) {
        let ready = self.medium.fence();
        let _ = self.medium.publish(slot, map.pack(), ready);
    }

    /// Makes a table above a map, so that it can map at least `bytes`. Durable after the next
    /// fence.
    pub fn raise(&self, txn: &mut Txn<'_>, map: Map, bytes: u64) -> Map {
        let level = level_for(bytes);
        match map {
            Map::Table { block, level: have } => {
                let mut map = Map::Table { block, level: have };
                for above in have + 1..=level {
                    let mut words = [0u64; FANOUT as usize];
                    words[0] = map.pack();
                    map = self.write_table(txn, above, &words);
                }
                map
            }
            // A run may be longer than `bytes`.
            _ => self.new_table(txn, level.max(level_for(map.virtual_bytes())), map),
        }
    }

    // --- what shrinks ---------------------------------------------------------------------------

    /// Takes the blocks `range` out of a table, as far as that needs no new tables; blocks in the
    /// middle of a run are zeroed in place. It changes the table in place and records the removed
    /// blocks as free, so a fence has to follow.
    pub fn unmap(
        &self,
        txn: &mut Txn<'_>,
        (block, level): (BlockNo, u8),
        range: &Range<u64>,
    ) -> Result<()> {
        self.unmap_in_table(txn, (block, level), 0, range).map(drop)
    }

    /// Returns whether the table maps no blocks any more.
    fn unmap_in_table(
        &self,
        txn: &mut Txn<'_>,
        (block, level): (BlockNo, u8),
        base: u64,
        range: &Range<u64>,
    ) -> Result<bool> {
        let each = table_blocks(level - 1);
        let mut is_empty = true;
        for index in 0..FANOUT {
            let first = base + index * each;
            let map = self.table_word(block, level, index)?;
            let (start, end) = (range.start.max(first), range.end.min(first + each));
            if map == Map::Hole || start >= end {
                is_empty &= map == Map::Hole;
                continue;
            }
            let slot = block.at(index * 8);
            let left = match map {
                Map::Table { block: below, level } => {
                    if self.unmap_in_table(txn, (below, level), first, range)? {
                        txn.free(Run::one(below));
                        Map::Hole
                    } else {
                        map
                    }
                }
                Map::Run(run) => {
                    let (start, end) = (start - first, (end - first).min(run.count));
                    if start >= end {
                        map
                    } else if end == run.count {
                        txn.free(run.skip(start));
                        run.first(start).map()
                    } else {
                        self.medium.zero_nt(run.at(start * BLOCK), (end - start) * BLOCK);
                        map
                    }
                }
                Map::Hole => map,
            };
            if left != map {
                self.medium.store_u64(slot, left.pack());
                self.medium.flush(slot, 8);
            }
            is_empty &= left == Map::Hole;
        }
        Ok(is_empty)
    }

    // --- what shifts ----------------------------------------------------------------------------

    /// Builds new tables over these blocks of a file, ascending. Durable after the next fence.
    pub fn build(&self, txn: &mut Txn<'_>, level: u8, pieces: &[(u64, Run)]) -> Map {
        self.build_table(txn, level, 0, pieces)
    }

    /// Writes a new table over pieces of content, with the tables below it. Returns its map word.
    fn build_table(&self, txn: &mut Txn<'_>, level: u8, base: u64, mut rest: &[(u64, Run)]) -> Map {
        let each = table_blocks(level - 1);
        let mut words = [0u64; FANOUT as usize];
        for (index, word) in words.iter_mut().enumerate() {
            let first = base + index as u64 * each;
            // All pieces that overlap the word; the last one may continue behind it.
            let n = rest.partition_point(|(at, _)| *at < first + each);
            let parts: SmallVec<[(u64, Run); 4]> =
                rest[..n].iter().filter_map(|(at, run)| part(*at, *run, first, each)).collect();
            *word = match parts[..] {
                [] => Map::Hole,
                [(at, run)] if at == first => Map::Run(run),
                _ => self.build_table(txn, level - 1, first, &parts),
            }
            .pack();
            // Pieces that end in this word are done.
            let done = rest[..n].partition_point(|(at, run)| at + run.count <= first + each);
            rest = &rest[done..];
        }
        self.write_table(txn, level, &words)
    }
}

/// Returns the part of a run at block `at` of a file that lies in the `count` blocks from `first`
/// on.
fn part(at: u64, run: Run, first: u64, count: u64) -> Option<(u64, Run)> {
    let (start, end) = (at.max(first), (at + run.count).min(first + count));
    (start < end).then(|| (start, run.skip(start - at).first(end - start)))
}
