//! Blocks of the pool: the search for free ones, and the blocks that an operation takes and
//! replaces.
//!
//! volatile-V1 and volatile-V2 are defined in [`crate::volatile`].

use crate::layout::BlockNo;
use crate::volatile::Volatile;
use smallvec::SmallVec;
use std::ops::Range;
use vfs::Errno;

/// The block numbers at which a thread starts its searches, in the pool that it used last.
#[derive(Clone, Copy)]
struct Hints {
    pool: u64,
    /// The hint for few blocks, so that the one just freed is used again; for many, so that they
    /// lie together; for pointers, so that they do not lie between data.
    blocks: [u64; 3],
}

os::thread_cell! {
    fn hints -> Hints, "bpfs_hints", 32
}

/// The number of blocks from which on a request counts as many.
const MANY: usize = 8;

/// The hint for pointers.
const POINTERS: usize = 2;

/// The purposes of [`namespace::ApartRuns`]: pointers, and inodes and directories.
const APART_POINTERS: usize = 0;
const APART_LASTING: usize = 1;

/// Words of the bitmap that are searched for one that is all free.
const WORDS_LOOKED_AT: u64 = 4096;

/// Blocks that are reserved for operations which free space, or keep existing content.
pub const KEEP: u64 = 32;

impl Volatile {
    /// Returns the hints of the calling thread for this pool.
    fn hints(&self) -> Hints {
        let h = hints().get();
        if h.pool == self.id {
            return h;
        }
        let len = self.size_in_blocks();
        Hints { pool: self.id, blocks: [0, 0, len - len / 32] }
    }

    /// Clears the bits of all blocks that are claimed and count as free (zeroed-P1, apart-A1).
    pub fn clear_kept(&self) {
        self.apart.clear(self, |blocks| self.blocks.clear_range(&self.arena, blocks));
        while let Some(block) = self.zeroed.take_any(&self.arena) {
            self.blocks.clear(&self.arena, block.get());
        }
    }

    fn set_block_hint(&self, which: usize, hint: u64) {
        let mut h = self.hints();
        h.blocks[which] = hint;
        hints().set(h);
    }

    /// Runs `body` with `blocks` blocks reserved, so that it cannot run out of space half-way.
    /// `keep` more blocks must stay free. If `body` succeeds, the blocks it replaced become free;
    /// if it fails, those it took.
    pub fn transact<T, E: From<Errno>>(
        &self,
        blocks: u64,
        keep: u64,
        body: impl FnOnce(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if blocks > 0 && !self.free.take(&self.arena, blocks, keep) {
            self.note_demand(blocks + keep);
            return Err(Errno::NOSPC.into());
        }
        let mut txn = Txn {
            v: self,
            planned: blocks as usize,
            reserved: blocks,
            ready: 0..0,
            is_scattered: false,
            is_journal: false,
            is_apart: false,
            is_of_inodes: false,
            taken: SmallVec::new(),
            freed: SmallVec::new(),
            kept: 0,
            shared: Vec::new(),
            with_shared_children: Vec::new(),
            dropped: Vec::new(),
            gained: 0,
        };
        let result = body(&mut txn);
        // Borrowed in place: moving the lists would copy them.
        let Txn { taken, freed, reserved, ready, .. } = &txn;
        let back = if result.is_ok() { freed } else { taken };
        let unused = ready.end - ready.start;
        for b in ready.clone() {
            self.blocks.clear(&self.arena, b);
        }
        let back = reserved + unused + self.clear_blocks(back);
        self.give_back(back);
        result
    }

    /// Gives back blocks outside of a transaction, after the removal of a file.
    pub fn release(&self, blocks: &[BlockNo]) {
        let cleared = self.clear_blocks(blocks);
        self.give_back(cleared);
    }

    /// As [`release`](Self::release); the last block is a pointer block that is durably null behind
    /// its first line.
    pub fn release_with_line(&self, blocks: &[BlockNo]) {
        match blocks.split_last() {
            Some((line, rest)) if self.zeroed.keep(&self.arena, *line) => {
                let cleared = self.clear_blocks(rest);
                // A kept block counts as free (zeroed-P1).
                self.give_back(cleared + 1);
            }
            _ => self.release(blocks),
        }
    }

    /// Lets blocks be claimed again, except those with another parent. Returns the number released
    /// at once.
    fn clear_blocks(&self, blocks: &[BlockNo]) -> u64 {
        if !self.shares() {
            return self.clear_unshared(blocks);
        }
        let last = blocks.iter().copied().filter(|block| self.drop_parent(*block));
        self.clear_unshared(&last.collect::<SmallVec<[BlockNo; 16]>>())
    }

    /// Lets blocks be claimed again, at once or when no reader can be using them any more. Returns
    /// the number released at once.
    fn clear_unshared(&self, blocks: &[BlockNo]) -> u64 {
        if self.pins().defer(&self.arena, blocks) {
            self.clear_deferred();
            return 0;
        }
        for b in blocks {
            self.blocks.clear(&self.arena, b.get());
        }
        if let Some(first) = blocks.first() {
            self.set_block_hint(usize::from(blocks.len() >= MANY), first.get());
        }
        blocks.len() as u64
    }
}

/// The blocks an operation in flight took and replaced (§3.3, second volatile structure).
pub struct Txn<'a> {
    v: &'a Volatile,
    planned: usize,
    reserved: u64,
    /// Blocks that are claimed and not yet taken.
    ready: Range<u64>,
    /// Whether the search for 64 contiguous free blocks has failed.
    is_scattered: bool,
    /// Whether the operation is durable when it ends, whatever the mode of the pool.
    pub(crate) is_journal: bool,
    /// Whether the blocks are those of inodes or of a directory.
    is_apart: bool,
    /// Whether the tree that changes is the inode file.
    pub(crate) is_of_inodes: bool,
    taken: SmallVec<[BlockNo; 16]>,
    freed: SmallVec<[BlockNo; 16]>,
    /// The number of blocks that a pending commit has freed.
    kept: usize,
    /// The tops of subtrees of which the operation counted a parent more ([`crate::parents`]), with
    /// their heights.
    pub(crate) shared: Vec<(BlockNo, u8)>,
    /// The blocks of pointers of which the operation counted a parent more of each child, with
    /// their heights.
    pub(crate) with_shared_children: Vec<(BlockNo, u8)>,
    /// The tops of subtrees that have a parent less if the operation succeeds.
    pub(crate) dropped: Vec<(BlockNo, u8)>,
    /// The number of blocks that the inode got and did not take, less those of dropped subtrees.
    gained: i64,
}

impl<'a> Txn<'a> {
    /// Returns the derived state of the pool.
    pub fn tables(&self) -> &'a Volatile {
        self.v
    }

    /// Takes a reserved block. Its content is unspecified.
    ///
    /// Many blocks are claimed at once: an atomic operation waits for the non-temporal stores
    /// before it.
    pub fn take(&mut self) -> BlockNo {
        if self.is_apart
            && let Some(block) = self.take_of(APART_LASTING)
        {
            return block;
        }
        if self.ready.is_empty() {
            let many = self.planned >= MANY;
            let most = if many { self.reserved } else { 1 };
            self.ready = self.claim(usize::from(many), most);
        }
        let number = self.ready.start;
        self.ready.start += 1;
        self.note_taken(number)
    }

    /// From now on, takes all blocks away from the data of files: they are kept when the files
    /// around them are removed, and would break up the space that becomes free.
    pub fn take_apart(&mut self) {
        self.is_apart = true;
    }

    /// In a thin pool, takes a reserved block of those for a purpose, if there are any. (In others,
    /// pointers have a place of their own: see `Hints`.)
    fn take_of(&mut self, purpose: usize) -> Option<BlockNo> {
        if self.reserved == 0 || self.v.unprovisioned() == 0 {
            return None;
        }
        let number = self.v.apart.take(self.v, purpose, self.v.hints().blocks[0])?;
        self.reserved -= 1;
        Some(self.note_taken(number))
    }

    /// Takes a reserved block for pointers, as [`take`](Self::take), but away from data, so that
    /// the data of a growing file lies together.
    pub fn take_pointers(&mut self) -> BlockNo {
        // The blocks claimed for data may include all that were reserved.
        if self.reserved == 0 {
            return self.take();
        }
        let purpose = if self.is_apart { APART_LASTING } else { APART_POINTERS };
        if let Some(block) = self.take_of(purpose) {
            return block;
        }
        let number = self.claim(POINTERS, 1).start;
        self.note_taken(number)
    }

    /// As [`take_pointers`](Self::take_pointers), for at most a line of pointers. Also returns
    /// whether the block is null behind its first line.
    pub fn take_line(&mut self) -> (BlockNo, bool) {
        if self.reserved > 0
            && let Some(b) = self.v.zeroed.take(&self.v.arena)
        {
            self.reserved -= 1;
            self.push_taken(b);
            return (b, true);
        }
        (self.take_pointers(), false)
    }

    /// Returns the `i`th block that was taken.
    pub fn taken(&self, i: u64) -> BlockNo {
        self.taken[i as usize]
    }

    /// Records the block of a claimed bit as taken.
    fn note_taken(&mut self, number: u64) -> BlockNo {
        let block = BlockNo::new(number).expect("the bit of the superblock is set");
        self.push_taken(block);
        block
    }

    fn push_taken(&mut self, block: BlockNo) {
        let is_claimed = || self.v.blocks.get(&self.v.arena, block.get());
        debug_assert!(is_claimed(), "volatile-V1: block {} is taken and not claimed", block.get());
        debug_assert!(self.v.has_space(block.get()), "thin-T1: block {}", block.get());
        self.taken.push(block);
    }

    /// Claims up to `most` reserved blocks that lie together, starting at the hint.
    fn claim(&mut self, hint: usize, most: u64) -> Range<u64> {
        assert!(self.reserved > 0, "an operation reserved too few blocks");
        let (map, arena) = (&self.v.blocks, &self.v.arena);
        let start = self.v.hints().blocks[hint];
        // Blocks beyond have space only if the pool was larger.
        let end = self.v.size_in_blocks();
        let mut run = None;
        if most >= 64 && !self.is_scattered {
            run = map.claim_word(arena, start..end, WORDS_LOOKED_AT);
            self.is_scattered = run.is_none();
        }
        let one = |block: u64| block..block + 1;
        let kept = || {
            let zeroed = self.v.zeroed.take_any(arena).map(|block| block.get());
            zeroed.or_else(|| self.v.apart.take_any(self.v)).map(one)
        };
        let run = run
            .or_else(|| map.claim(arena, start..end, most))
            .or_else(|| map.claim(arena, 0..start, most))
            .or_else(kept)
            // Blocks may have been freed behind the search.
            .or_else(|| map.claim(arena, 0..map.len(), most))
            .or_else(kept)
            .expect("volatile-V2: a reserved block is there");
        self.v.set_block_hint(hint, run.end);
        self.reserved -= run.end - run.start;
        run
    }

    /// Adds to the blocks of the inode some that were not taken.
    pub fn gain(&mut self, blocks: i64) {
        self.gained += blocks;
    }

    /// Records a block that has a parent less if the operation succeeds. If that was its only one,
    /// the block becomes free; blocks that it leads to are not touched.
    pub fn free(&mut self, block: BlockNo) {
        self.freed.push(block);
    }

    /// Returns the blocks that become free if the operation succeeds.
    pub fn freed(&self) -> &[BlockNo] {
        &self.freed
    }

    /// Leaves the freed blocks to the pending commit (order-O4).
    pub fn keep_freed(&mut self) {
        self.kept += self.freed.len();
        self.freed.clear();
    }

    /// Returns the number of blocks that the inode has more than before.
    pub fn delta(&self) -> i64 {
        self.taken.len() as i64 - (self.freed.len() + self.kept) as i64 + self.gained
    }
}
