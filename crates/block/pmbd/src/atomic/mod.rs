//! A device whose blocks are never torn, and whose content is checked: short-circuit shadow paging
//! (BPFS §3) of one level.
//!
//! A map has one word for each block of the device: the number of the data block that holds its
//! content, and the checksum. A request stores the content in a free data block and commits each
//! block by one store of its word. So after a power failure a block is old or new, without a
//! journal. The same store changes content and checksum.
//!
//! - **atomic-A1** Content is durable before a word names it.
//! - **atomic-A2** A data block becomes free only when the word that named it is durably replaced.
//!   Otherwise a crash could bring back a word whose data block has other content.
//! - **atomic-A3** Words are stored under the lock of their line. If no writer held the lock
//!   between a reader's load of the word and the end of its copy, the copy is the content that the
//!   word named.
//! - **atomic-A4** A word is checked each time before its number is used.
//! - **atomic-A5** The map is made durable when it is opened, before any state is derived from it.
//!   A process that stored a word may have been killed before it flushed it, and the data block
//!   that the word replaced looks free.
//!
//! A map that breaks atomic-A2, as other programs have changed it, is served read-only. Then only
//! content that matches its checksum is read. `check.rs` repairs the map.

mod check;
pub mod layout;
mod scan;
mod space;

pub(crate) use check::show as show_faults;
pub use check::{CheckReport, Fault, Problem, check};
pub use layout::{DataNo, Geometry, Superblock};
pub use scan::format;
pub(crate) use scan::superblock;

use crate::frame::{Frame, REQUEST_MAX};
use crate::stats::{StatsEvent, StatsWatch};
use crate::{BlockDevice, BlockSizes, DeviceExtent, Durability, Error, Scheme, Stats, Zeroing};
use arena::{Layout, LockMode, RwLock, Span};
use layout::{MapWord, SPARES_MIN, WORD, crc32c};
use pmem::{Fenced, LINE, Medium, Pm, Tally};
use space::Space;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// The most blocks replaced together: they are stored, fenced once, committed, and fenced once.
const BATCH: usize = SPARES_MIN as usize;

/// The number of locks, each for many lines of the map.
const LOCKS: usize = 1024;

/// Words of the map in a line.
const LINE_WORDS: u64 = LINE / WORD;

/// Attempts of a reader without the lock.
const OPTIMISM: u32 = 4;

/// The device.
pub struct Atomic<M> {
    frame: Frame<M>,
    geometry: Geometry,
    space: Space,
    locks: Span<RwLock>,
    /// Whether content is stored past the cache.
    nt: bool,
    /// Whether content is checked when it is read.
    checked: bool,
}

impl<M: Medium> Atomic<M> {
    /// Opens a formatted region. Reads the whole map, and, unless `read_only`, makes it durable
    /// (atomic-A5).
    pub fn open(medium: M, scheme: Scheme, checked: bool, read_only: bool) -> Result<Self, Error> {
        let geometry = superblock(&medium)
            .verify(medium.len())
            .map_err(|what| Error::Corrupt { what: format!("cannot open the device: {what}") })?;
        let blocks = BlockSizes {
            minimum: geometry.block,
            preferred: geometry.block.max(4096),
            maximum: REQUEST_MAX,
            atomic: geometry.block,
        };
        let mut layout = Layout::default();
        let space = Space::plan(&mut layout, geometry.data_blocks);
        let locks = layout.table(LOCKS);
        let frame = Frame::new(medium, geometry.device_len(), blocks, read_only, layout)?;
        if !read_only {
            scan::persist(&frame.medium, &geometry);
        }
        let sound = scan::derive(&frame.medium, &geometry, &frame.arena, &space);
        if !sound {
            let faults = check::faults(&frame.medium, &geometry);
            if !read_only {
                return Err(Error::Unsound { faults });
            }
            tracing::warn!("{}: only what matches its checksum is read", check::show(&faults));
        }
        let checked = checked || !sound;
        Ok(Self { frame, geometry, space, locks, nt: scheme == Scheme::Nt, checked })
    }

    /// Adds the cost of the medium's protection to the statistics.
    pub(crate) fn with_tally(self, tally: Arc<Tally>) -> Self {
        Self { frame: self.frame.with_tally(tally), ..self }
    }

    /// Returns the medium with typed offsets, so that offsets of clients are not mistaken for
    /// offsets in PM.
    fn medium(&self) -> Pm<&M> {
        Pm(&self.frame.medium)
    }

    fn lock(&self, block: u64) -> &RwLock {
        let line = block / LINE_WORDS;
        &self.frame.arena.table(self.locks)[(line % LOCKS as u64) as usize]
    }

    /// Loads and checks the word of a block (atomic-A4).
    fn entry(&self, block: u64) -> Result<Option<MapWord>, Error> {
        let word = self.medium().load_u64(self.geometry.word_at(block));
        MapWord::unpack(word, &self.geometry).map_err(|_| Error::Lost { block, word })
    }

    /// Whether a block is a hole, which reads as zeros.
    fn is_hole(&self, block: u64) -> bool {
        matches!(self.entry(block), Ok(None))
    }

    /// Copies a block out, and returns its word (`None`: the block reads as zeros). The copy may be
    /// torn, unless the caller holds the lock of the block.
    fn copy(&self, block: u64, buf: &mut [u8]) -> Result<Option<MapWord>, Error> {
        let entry = self.entry(block)?;
        match entry {
            Some(entry) => self.medium().read(self.geometry.data_at(entry.number), buf),
            None => buf.fill(0),
        }
        Ok(entry)
    }

    /// Copies a block out untorn (atomic-A3), without the lock if no writer interferes. Returns its
    /// word.
    fn copy_whole(&self, block: u64, buf: &mut [u8]) -> Result<Option<MapWord>, Error> {
        let lock = self.lock(block);
        for _ in 0..OPTIMISM {
            let Some(ticket) = lock.begin_optimistic() else {
                std::hint::spin_loop();
                continue;
            };
            let entry = self.copy(block, buf);
            if lock.end_optimistic(ticket) {
                return entry;
            }
        }
        lock.lock(LockMode::Shared);
        let entry = self.copy(block, buf);
        lock.unlock(LockMode::Shared);
        entry
    }

    /// Checks a copy against the checksum.
    fn check_content(&self, block: u64, entry: MapWord, content: &[u8]) -> Result<(), Error> {
        let found = crc32c(content);
        if found == entry.sum {
            return Ok(());
        }
        self.frame.counting.add(StatsEvent::Damaged, 1);
        Err(Error::Damaged { block, found, written: entry.sum })
    }

    /// Stores the content of up to [`BATCH`] blocks in free data blocks, durably (atomic-A1). Fills
    /// in `words` for them.
    fn store(&self, content: &[u8], words: &mut [u64], watch: &mut StatsWatch<'_>) -> Fenced {
        let (medium, arena) = (self.medium(), &self.frame.arena);
        let block = self.geometry.block as usize;
        self.space.reserve(arena, words.len() as u64);
        for (content, word) in content.chunks_exact(block).zip(words) {
            let sum = crc32c(content);
            watch.lap(StatsEvent::CyclesChecksum);
            let number = self.space.claim(arena);
            let at = self.geometry.data_at(number);
            if self.nt {
                medium.write_nt(at, content);
            } else {
                medium.write(at, content);
                medium.flush(at, content.len() as u64);
            }
            watch.lap(StatsEvent::CyclesStore);
            *word = MapWord { number, sum }.pack();
        }
        medium.fence()
    }

    /// Commits the words of up to [`BATCH`] blocks from `first` on, and frees what they replace. An
    /// invalid old word frees nothing. `ready` proves that the data blocks that the words name are
    /// durable.
    fn commit(&self, first: u64, words: &[u64], ready: &Fenced) {
        let (medium, arena) = (self.medium(), &self.frame.arena);
        let mut replaced = [None; BATCH];
        let end = first + words.len() as u64;
        let mut block = first;
        while block < end {
            let line_end = (block - block % LINE_WORDS + LINE_WORDS).min(end);
            let lock = self.lock(block);
            lock.lock(LockMode::Exclusive); // atomic-A3
            for block in block..line_end {
                let i = (block - first) as usize;
                let at = self.geometry.word_at(block);
                let old = MapWord::unpack(medium.load_u64(at), &self.geometry);
                replaced[i] = old.ok().flatten().map(|old| old.number);
                medium.publish_word(at, words[i], ready.for_another());
            }
            lock.unlock(LockMode::Exclusive);
            block = line_end;
        }
        medium.flush(self.geometry.word_at(first), words.len() as u64 * WORD);
        let _ = medium.fence();
        self.space.free(arena, replaced.into_iter().flatten()); // atomic-A2
    }

    /// Zeroes blocks by clearing their words.
    fn clear(&self, off: u64, len: u64, watch: &mut StatsWatch<'_>) -> Result<(), Error> {
        let block = u64::from(self.geometry.block);
        let end = (off + len) / block;
        for first in (off / block..end).step_by(BATCH) {
            let n = (end - first).min(BATCH as u64) as usize;
            self.commit(first, &[0; BATCH][..n], &Fenced::not_needed("a hole names no content"));
        }
        watch.lap(StatsEvent::CyclesPersist);
        self.frame.healthy()
    }
}

impl<M: Medium> BlockDevice for Atomic<M> {
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
        let first = off / u64::from(self.geometry.block);
        for (block, content) in (first..).zip(buf.chunks_exact_mut(self.geometry.block as usize)) {
            let entry = self.copy_whole(block, content)?;
            watch.lap(StatsEvent::CyclesLoad);
            if let (Some(entry), true) = (entry, self.checked) {
                self.check_content(block, entry, content)?;
                watch.lap(StatsEvent::CyclesChecksum);
            }
        }
        Ok(())
    }

    fn write(&self, off: u64, data: &[u8], durability: Durability) -> Result<(), Error> {
        let (frame, len) = (&self.frame, data.len() as u64);
        let _request = frame.begin(off, len, durability)?;
        frame.counting.request(StatsEvent::Writes, StatsEvent::BytesWritten, len);
        let mut watch = frame.counting.watch();
        let block = self.geometry.block as usize;
        let firsts = (off / block as u64..).step_by(BATCH);
        for (first, content) in firsts.zip(data.chunks(BATCH * block)) {
            let mut words = [0; BATCH];
            let words = &mut words[..content.len() / block];
            let ready = self.store(content, words, &mut watch);
            self.commit(first, words, &ready);
            watch.lap(StatsEvent::CyclesPersist);
        }
        frame.healthy()
    }

    fn barrier(&self) -> Result<(), Error> {
        // Requests are durable when they return.
        self.frame.barrier(|| ())
    }

    fn discard(&self, off: u64, len: u64) -> Result<(), Error> {
        let _request = self.frame.begin(off, len, Durability::AtBarrier)?;
        self.frame.counting.request(StatsEvent::Discards, StatsEvent::BytesDiscarded, len);
        self.clear(off, len, &mut self.frame.counting.watch())
    }

    fn write_zeroes(
        &self,
        off: u64,
        len: u64,
        _how: Zeroing,
        durability: Durability,
    ) -> Result<(), Error> {
        // Ignore `_how`: this is always fast, and every block of the device keeps its space.
        let _request = self.frame.begin(off, len, durability)?;
        self.frame.counting.request(StatsEvent::Zeroes, StatsEvent::BytesZeroed, len);
        self.clear(off, len, &mut self.frame.counting.watch())
    }

    fn extents(
        &self,
        off: u64,
        len: u64,
        each: &mut dyn FnMut(DeviceExtent) -> bool,
    ) -> Result<(), Error> {
        self.frame.check(off, len)?;
        let block = u64::from(self.geometry.block);
        let (mut at, end) = (off, off + len);
        while at < end {
            let hole = self.is_hole(at / block);
            let start = at;
            at += block;
            while at < end && self.is_hole(at / block) == hole {
                at += block;
            }
            if !each(DeviceExtent { off: start, len: at - start, zero: hole, allocated: !hole }) {
                break;
            }
        }
        Ok(())
    }

    fn prefetch(&self, off: u64, len: u64) -> Result<(), Error> {
        self.frame.check(off, len)?;
        let block = u64::from(self.geometry.block);
        if len > 0
            && let Ok(Some(entry)) = self.entry(off / block)
        {
            self.medium().prefetch(self.geometry.data_at(entry.number), block);
        }
        Ok(())
    }

    fn bytes(&self, _off: u64, _len: u64) -> Option<&[AtomicU8]> {
        // The data blocks could be replaced and stored to while the reader copies.
        None
    }

    fn grow(&self, _size: u64) -> Result<(), Error> {
        Err(Error::NotSupported)
    }

    fn stats(&self) -> Stats {
        self.frame.stats()
    }
}
