//! Directory files: arrays of entries, each valid if its inode number is not zero (§3.1).
//!
//! - D1: the entries of a block form a chain of lengths from its start to its end; free ones are
//!   members like any other.
//! - D2: header and inode number of an entry share a cache line, so that stores to them persist in
//!   program order; the name and what follows are durable before the header says so.
//! - D3: a block's chain is only ever changed by one store: a length, or an inode number.

use crate::fs::{Core, Stop};
use crate::index::Found;
use crate::layout::*;
use crate::volatile::{CLASSES, DirState, EntryPos, VInode};
use arena::Handle;
use pmem::Medium;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Ino, Result};

/// Room for an entry, its name already written; committing makes it an entry.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Where the entry will be.
    pub pos: EntryPos,
    /// Its second word.
    pub word: DirentWord,
    /// What is left of the free run behind it: offset in the block and length, in bytes.
    rest: (u64, u64),
}

/// One entry of a block as found in PM: offset in the block, inode number, second word.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry {
    pub off: u64,
    pub ino: u64,
    pub word: DirentWord,
}

/// Walks the chain of a block that was read into DRAM; ends early with `Err` where it is broken.
pub struct Chain<'a> {
    block: &'a [u8; BLOCK as usize],
    off: u64,
}

impl<'a> Chain<'a> {
    /// From the start of the block.
    pub fn new(block: &'a [u8; BLOCK as usize]) -> Self {
        Self { block, off: 0 }
    }

    fn word(&self, off: u64) -> u64 {
        let at = off as usize;
        u64::from_le_bytes(self.block[at..at + 8].try_into().expect("eight bytes"))
    }
}

impl Iterator for Chain<'_> {
    type Item = std::result::Result<RawEntry, u64>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.off == BLOCK {
            return None;
        }
        let off = self.off;
        let word = DirentWord::unpack(self.word(off + 8));
        let ino = self.word(off);
        let sound = word.len >= DIRENT_MIN
            && word.len.is_multiple_of(DIRENT_UNIT)
            && off + word.len <= BLOCK
            && (ino == 0 || (word.name_len > 0 && dirent_bytes(word.name_len) <= word.len));
        if !sound {
            self.off = BLOCK;
            return Some(Err(off));
        }
        self.off += word.len;
        Some(Ok(RawEntry { off, ino, word }))
    }
}

/// The size class whose blocks all have room for `bytes`.
fn class_for(bytes: u64) -> usize {
    ((bytes / DIRENT_UNIT) as usize).saturating_sub(2).min(CLASSES - 1)
}

impl<M: Medium> Core<M> {
    /// A directory block in DRAM.
    pub fn load_dir_block(&self, block: u64) -> [u8; BLOCK as usize] {
        let mut data = [0; BLOCK as usize];
        self.medium.read(block, &mut data);
        data
    }

    /// Finds room for a name in a directory and writes it there, invisibly; grows the directory if
    /// it must. The caller holds the directory exclusively.
    pub fn make_slot(&self, v: &VInode, name: &[u8], kind: u8) -> Result<Slot> {
        let bytes = dirent_bytes(name.len());
        let block = match self.room_for(v, bytes)? {
            Some(block) => block,
            None => self.grow_dir(v)?,
        };
        let db = self.v.dir_block(block);
        let off = u64::from(db.free_off.load(Relaxed));
        let run = u64::from(db.free_len.load(Relaxed));
        let slot = EntryPos::new(block, off);
        let pos = self.v.entry_off(slot);
        if DirentWord::unpack(self.medium.load_u64(pos + 8)).len != run {
            // Several free entries in a row: they become one before their headers are overwritten.
            let one = DirentWord { len: run, name_len: 0, kind: 0 };
            self.medium.store_u64(pos + 8, one.pack());
            self.medium.flush(pos + 8, 8);
            let _ = self.medium.fence();
        }
        let len = if run - bytes < DIRENT_MIN { run } else { bytes };
        let rest = (off + len, run - len);
        let mut written = pos + DIRENT_HEADER..pos + DIRENT_HEADER + name.len() as u64;
        self.medium.write(written.start, name);
        if rest.1 > 0 {
            let free = DirentWord { len: rest.1, name_len: 0, kind: 0 };
            self.medium.store_u64(pos + len, 0);
            self.medium.store_u64(pos + len + 8, free.pack());
            written.end = pos + len + DIRENT_HEADER;
        }
        self.medium.flush(written.start, written.end - written.start);
        Ok(Slot { pos: slot, word: DirentWord { len, name_len: name.len(), kind }, rest })
    }

    /// Commits a slot in place: the entry names `ino` from now on (D2: one line, two stores).
    pub fn commit_slot(&self, slot: &Slot, ino: Ino) {
        let _prepared = self.medium.fence();
        let at = self.v.entry_off(slot.pos);
        self.medium.store_u64(at + 8, slot.word.pack());
        self.medium.store_u64(at, ino.0);
        self.medium.flush(at, DIRENT_HEADER);
        let _ = self.medium.fence();
    }

    /// Brings the derived state up to date with a slot that was committed.
    pub fn settle_slot(
        &self,
        dir: Ino,
        v: &VInode,
        slot: &Slot,
        name: &[u8],
        ino: Ino,
    ) -> Result<()> {
        self.use_run(v, slot.pos.block(), slot.rest)?;
        self.index_name(dir, name, Found { ino, pos: slot.pos })?;
        v.entries.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Invalidates an entry in place; durable after the next fence. Where a free entry follows, this one
    /// takes its room by a second store to the same line, so that [`make_slot`](Self::make_slot) need
    /// not: that store means the same before and after the first, and costs neither flush nor fence.
    pub fn clear_entry(&self, pos: EntryPos) {
        let at = self.v.entry_off(pos);
        self.medium.store_u64(at, 0);
        let word = DirentWord::unpack(self.medium.load_u64(at + 8));
        let next = at + word.len;
        if pos.off() + word.len < BLOCK && self.medium.load_u64(next) == 0 {
            let len = word.len + DirentWord::unpack(self.medium.load_u64(next + 8)).len;
            let both = DirentWord { len, ..word };
            self.medium.store_u64(at + 8, both.pack());
        }
        // D2: that is the line of both.
        self.medium.flush(at, 8);
    }

    /// Brings the derived state up to date with an entry that was cleared.
    pub fn settle_cleared(&self, dir: Ino, v: &VInode, name: &[u8], pos: EntryPos) -> Result<()> {
        self.unindex_name(dir, name, pos);
        v.entries.fetch_sub(1, Relaxed);
        let (at, off) = (self.v.entry_off(pos), pos.off());
        let mut len = DirentWord::unpack(self.medium.load_u64(at + 8)).len;
        if off + len < BLOCK && self.medium.load_u64(at + len) == 0 {
            len += DirentWord::unpack(self.medium.load_u64(at + len + 8)).len;
        }
        let db = self.v.dir_block(pos.block());
        let known = (u64::from(db.free_off.load(Relaxed)), u64::from(db.free_len.load(Relaxed)));
        let (end, known_end) = (off + len, known.0 + known.1);
        let run = if known.1 > 0 && known_end == off {
            (known.0, known.1 + len)
        } else if known.1 > 0 && (off..=end).contains(&known.0) {
            // Its first entry may have become part of this one, and may not be found again.
            (off, end.max(known_end) - off)
        } else {
            (off, len)
        };
        if run.0 + run.1 <= BLOCK && run.1 > known.1 {
            self.set_run(v, pos.block(), run)?;
        }
        Ok(())
    }

    fn room_for(&self, v: &VInode, bytes: u64) -> Result<Option<Handle>> {
        let state = self.v.dir_state(v)?;
        let heads = state.heads[class_for(bytes)..].iter();
        Ok(heads.map(|h| h.load(Relaxed)).find_map(Handle::from_link))
    }

    /// Appends a block of free space to a directory: invisible, so it commits on its own.
    fn grow_dir(&self, v: &VInode) -> Result<Handle> {
        let size = self.load(v, Word::Size);
        let root = self.root(v)?;
        let mut data = [0; BLOCK as usize];
        let free = DirentWord { len: BLOCK, name_len: 0, kind: 0 };
        data[8..16].copy_from_slice(&free.pack().to_le_bytes());
        let grown = self.append_content(v, root, size, size..size + BLOCK, Some(&data));
        match grown {
            Ok(()) => {}
            Err(Stop::Errno(e)) => return Err(e),
            Err(Stop::Wide) => unreachable!("an append commits in one word"),
        }
        let block = self.find_block(self.root(v)?, size)?;
        let handle = self.v.add_dir_block(v, block, size / BLOCK)?;
        self.set_run(v, handle, (0, BLOCK))?;
        Ok(handle)
    }

    /// Adds a block found at mount to the derived state.
    pub fn adopt_dir_block(
        &self,
        v: &VInode,
        block: u64,
        logical: u64,
        data: &[u8; BLOCK as usize],
    ) -> Result<Handle> {
        let handle = self.v.add_dir_block(v, block, logical)?;
        self.set_run(v, handle, longest_run(data))?;
        Ok(handle)
    }

    /// Part of the known run was used: what is left is `rest`, unless too short; then look again.
    fn use_run(&self, v: &VInode, block: Handle, rest: (u64, u64)) -> Result<()> {
        let run = if rest.1 >= DIRENT_MIN {
            rest
        } else {
            longest_run(&self.load_dir_block(self.v.entry_off(EntryPos::new(block, 0))))
        };
        self.set_run(v, block, run)
    }

    /// Records the free run of a block and chains the block where names of that size look for it.
    fn set_run(&self, v: &VInode, block: Handle, run: (u64, u64)) -> Result<()> {
        let state = self.v.dir_state(v)?;
        let db = self.v.dir_block(block);
        db.free_off.store(run.0 as u16, Relaxed);
        db.free_len.store(run.1 as u16, Relaxed);
        let class = if run.1 >= DIRENT_MIN { class_for(run.1) as u32 + 1 } else { 0 };
        if db.class.load(Relaxed) != class {
            self.unchain(state, block);
            self.chain(state, block, class);
        }
        Ok(())
    }

    fn chain(&self, state: &DirState, block: Handle, class: u32) {
        let db = self.v.dir_block(block);
        db.class.store(class, Relaxed);
        if class == 0 {
            return;
        }
        let next = state.heads[class as usize - 1].swap(block.0, Relaxed);
        db.next.store(next, Relaxed);
        db.prev.store(0, Relaxed);
        if let Some(next) = Handle::from_link(next) {
            self.v.dir_block(next).prev.store(block.0, Relaxed);
        }
    }

    fn unchain(&self, state: &DirState, block: Handle) {
        let db = self.v.dir_block(block);
        let class = db.class.swap(0, Relaxed);
        if class == 0 {
            return;
        }
        let (next, prev) = (db.next.load(Relaxed), db.prev.load(Relaxed));
        match Handle::from_link(prev) {
            None => state.heads[class as usize - 1].store(next, Relaxed),
            Some(p) => self.v.dir_block(p).next.store(next, Relaxed),
        }
        if let Some(next) = Handle::from_link(next) {
            self.v.dir_block(next).prev.store(prev, Relaxed);
        }
    }

    /// Lists the entries of a directory from byte `from` of its file on, until `emit` says `false`.
    pub fn list(
        &self,
        v: &VInode,
        from: u64,
        emit: &mut dyn FnMut(u64, &RawEntry, &[u8]) -> bool,
    ) -> Result<()> {
        let size = self.load(v, Word::Size);
        let root = self.root(v)?;
        self.visit(crate::crawler::Node::top(root), &(from..size), &mut |block, base| {
            let data = self.load_dir_block(block);
            for e in Chain::new(&data) {
                let e = e.map_err(|_| Errno::UCLEAN)?;
                let at = (e.off + DIRENT_HEADER) as usize;
                if e.ino != 0
                    && base + e.off >= from
                    && !emit(base + e.off, &e, &data[at..at + e.word.name_len])
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(())
    }
}

/// The longest run of free entries of a block: offset and length.
fn longest_run(data: &[u8; BLOCK as usize]) -> (u64, u64) {
    let (mut best, mut run) = ((0, 0), (0, 0));
    for e in Chain::new(data).flatten() {
        run = match (e.ino, run) {
            (0, (_, 0)) => (e.off, e.word.len),
            (0, (start, len)) => (start, len + e.word.len),
            _ => (0, 0),
        };
        if run.1 > best.1 {
            best = run;
        }
    }
    best
}
