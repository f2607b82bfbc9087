//! Directory files: arrays of entries, each valid if it names an inode in its current life (§3.1).
//!
//! - dir-D1: the entries of a block form a chain of lengths from its start to its end; free ones
//!   are members like any other.
//! - dir-D2: header and inode number of an entry share a cache line, so that stores to them persist
//!   in program order; the name and what follows persist before the header says so.
//! - dir-D3: a block's chain is only ever changed by one store: a length, an inode number, or a
//!   line with both; or by an engine's record of such words, all or none of which there are after a
//!   crash.
//! - dir-D4: an entry contains the generation of its inode, and the inode stores its generation
//!   last in each of its lines. So a new inode and its entry need no order: an entry that is
//!   durable without all of its inode is not valid. The next mount clears it, before its inode gets
//!   another life.
//! - dir-D5: a new block consists of free entries of one line each. If the name and header of an
//!   entry lie in one line, with the header of the remaining room, nothing else needs order either.

use crate::free::FreeRun;
use crate::fs::Core;
use crate::index::Found;
use crate::layout::*;
use crate::names::kind_bits;
use crate::store::Storage;
use crate::tables::{CLASSES, DirState, EntryPos, VInode};
use arena::Handle;
use pmem::{Fenced, LINE, PmOff};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Ino, Result};

/// Room for an entry.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The position of the entry.
    pub pos: EntryPos,
    /// Its second word.
    pub word: DirentWord,
    /// The part of the room behind the entry that stays free.
    pub rest: FreeRun,
}

impl Slot {
    /// Puts an entry at the start of `room`, if that suffices.
    fn within(block: Handle, room: FreeRun, name_len: usize, kind: u8) -> Self {
        let bytes = dirent_bytes(name_len);
        let len = if room.len - bytes < DIRENT_MIN { room.len } else { bytes };
        Self {
            pos: EntryPos::new(block, room.off),
            word: DirentWord { len, name_len, kind },
            rest: FreeRun { off: room.off + len, len: room.len - len },
        }
    }

    /// Returns the entry.
    fn entry(&self) -> FreeRun {
        FreeRun { off: self.pos.off(), len: self.word.len }
    }

    /// Returns all of the room.
    fn room(&self) -> FreeRun {
        FreeRun { off: self.pos.off(), len: self.word.len + self.rest.len }
    }

    /// Returns whether all stores to the slot lie in the line of its header, where stores persist
    /// in program order: the name and, if room remains, the header of that.
    pub fn is_in_line(&self) -> bool {
        let name_end = self.pos.off() + DIRENT_HEADER + self.word.name_len as u64;
        let end = if self.rest.len > 0 { self.rest.off + DIRENT_HEADER } else { name_end };
        (end - 1) / LINE == self.pos.off() / LINE
    }

    /// Returns whether the room contains a run of its block.
    pub fn has(&self, run: FreeRun) -> bool {
        run.len > 0 && run.off >= self.room().off && run.end() <= self.room().end()
    }
}

impl FreeRun {
    /// Returns the second word of one free entry that covers the whole run.
    pub fn word(self) -> u64 {
        DirentWord { len: self.len, name_len: 0, kind: 0 }.pack()
    }
}

/// One entry of a block as found in PM.
#[derive(Clone, Copy, Debug)]
pub struct RawEntry {
    /// Offset in the block.
    pub off: u64,
    /// The inode that it names, in which life; `None`: the entry is free.
    pub life: Option<Life>,
    /// Its second word.
    pub word: DirentWord,
}

impl RawEntry {
    /// Returns the room that the entry takes.
    pub fn run(&self) -> FreeRun {
        FreeRun { off: self.off, len: self.word.len }
    }

    /// Returns the name of a valid entry of this block.
    pub fn name_in<'b>(&self, block: &'b [u8; BLOCK as usize]) -> &'b [u8] {
        let at = (self.off + DIRENT_HEADER) as usize;
        &block[at..at + self.word.name_len]
    }
}

/// A valid entry in a listing.
pub struct Listed<'a> {
    /// Offset in the directory file.
    pub off: u64,
    /// The inode it names.
    pub ino: Ino,
    /// As [`DirentWord::kind`].
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

/// Walks the chain of a block that was read into DRAM; ends early with `Err` if it is broken.
pub struct Chain<'a> {
    block: &'a [u8; BLOCK as usize],
    off: u64,
}

impl<'a> Chain<'a> {
    /// Begins at the start of the block.
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
        let life = Life::unpack(self.word(off));
        let sound = word.len >= DIRENT_MIN
            && word.len.is_multiple_of(DIRENT_UNIT)
            && off + word.len <= BLOCK
            && (life.is_none() || (word.name_len > 0 && dirent_bytes(word.name_len) <= word.len));
        if !sound {
            self.off = BLOCK;
            return Some(Err(off));
        }
        self.off += word.len;
        Some(Ok(RawEntry { off, life, word }))
    }
}

/// Returns the size class whose blocks all have room for `bytes`.
fn class_for(bytes: u64) -> usize {
    ((bytes / DIRENT_UNIT) as usize).saturating_sub(2).min(CLASSES - 1)
}

impl<S: Storage> Core<S> {
    /// Prefetches an entry that will soon be read or stored to. The range is clipped to the block,
    /// because the pool may end there.
    pub(crate) fn prefetch_entry(&self, pos: EntryPos) {
        let len = (BLOCK - pos.off()).min(LINE);
        self.medium().prefetch(self.tables().entry_at(pos), len);
    }

    /// Loads a directory block into DRAM.
    pub(crate) fn load_dir_block(&self, block: PmOff) -> [u8; BLOCK as usize] {
        let mut data = [0; BLOCK as usize];
        self.medium().read(block, &mut data);
        data
    }

    /// Finds room for a name in a directory; grows the directory if it must. The caller holds the
    /// directory exclusively.
    pub(crate) fn find_room(&self, v: &VInode, name_len: usize, kind: u8) -> Result<Slot> {
        let block = match self.room_for(v, dirent_bytes(name_len))? {
            Some(block) => block,
            None => self.grow_dir(v)?,
        };
        Ok(Slot::within(block, self.tables().free_run(block), name_len, kind))
    }

    /// Returns the same slot in the first free entry of its room, if that suffices.
    pub(crate) fn narrowed(&self, slot: Slot) -> Slot {
        let first = self.entry_run(slot.pos);
        let DirentWord { name_len, kind, .. } = slot.word;
        if dirent_bytes(name_len) > first.len || first.len > slot.room().len {
            return slot;
        }
        Slot::within(slot.pos.block(), first, name_len, kind)
    }

    /// Makes a slot for another name in the place of an entry, with the known free run if that is
    /// needed and follows.
    pub(crate) fn slot_in_place(&self, pos: EntryPos, name_len: usize, kind: u8) -> Option<Slot> {
        let mut room = self.entry_run(pos);
        let known = self.tables().free_run(pos.block());
        let bytes = dirent_bytes(name_len);
        if bytes > room.len && known.off == room.end() {
            room.len += known.len;
        }
        (bytes <= room.len && room.end() <= BLOCK)
            .then(|| Slot::within(pos.block(), room, name_len, kind))
    }

    /// Finds room for a name of `ino`, indexes it, and writes it there, invisibly: committing makes
    /// it an entry.
    ///
    /// Also adds a reference. Atomic operations come before the first flush, because an atomic
    /// operation waits for the flushes before it. Readers do not trust the index until the
    /// directory's lock is given back.
    pub(crate) fn make_slot(
        &self,
        (dir, d): (Ino, &VInode),
        name: &[u8],
        (ino, v): (Ino, &VInode),
    ) -> Result<Slot> {
        let slot = self.find_room(d, name.len(), kind_bits(v.kind()))?;
        self.prefetch_entry(slot.pos);
        self.index_name(dir, name, Found { ino, pos: slot.pos })?;
        self.hold(ino, v);
        let slot = self.narrowed(slot);
        self.write_slot(&slot, name);
        Ok(slot)
    }

    /// Writes a name to its slot, where it is not visible yet. Bytes in the line of the header are
    /// not flushed.
    pub(crate) fn write_slot(&self, slot: &Slot, name: &[u8]) {
        let pos = self.tables().entry_at(slot.pos);
        if DirentWord::unpack(self.medium().load_u64(pos + 8)).len != slot.room().len {
            // Several free entries in a row become one before their headers are overwritten.
            self.medium().store_u64(pos + 8, slot.room().word());
            self.medium().flush(pos + 8, 8);
            let _ = self.medium().fence();
        }
        let mut written = pos + DIRENT_HEADER..pos + DIRENT_HEADER + name.len() as u64;
        self.medium().write(written.start, name);
        if slot.rest.len > 0 {
            let rest = pos + slot.word.len;
            self.medium().store_u64(rest, 0);
            self.medium().store_u64(rest + 8, slot.rest.word());
            written.end = rest + DIRENT_HEADER;
        }
        if !slot.is_in_line() {
            self.medium().flush(written.start, written.end - written.start);
        }
    }

    /// Commits a slot in place: the entry names this life of an inode from now on (dir-D2: one
    /// line, two stores). `is_ready`: besides the slot, only the inode's generation still has to
    /// become durable (dir-D4).
    pub(crate) fn commit_slot(&self, slot: &Slot, life: Life, is_ready: bool) {
        let ready = if is_ready && slot.is_in_line() {
            Fenced::not_needed("the name lies in the line, and the inode says its generation")
        } else {
            self.medium().fence()
        };
        let at = self.tables().entry_at(slot.pos);
        self.medium().store_u64(at + 8, slot.word.pack());
        let _ = self.medium().publish(at, life.pack(), ready);
    }

    /// Updates the derived state for a slot that was committed.
    pub(crate) fn update_index_after_add(&self, v: &VInode, slot: &Slot) -> Result<()> {
        self.update_free_run_after_use(v, slot)?;
        v.add_entries(1);
        Ok(())
    }

    /// Invalidates an entry in place; durable after the next fence. If a free entry follows in the
    /// line, this one takes its room by a second store there. Then [`write_slot`](Self::write_slot)
    /// need not do so. That store has the same meaning before and after the first, and costs
    /// neither flush nor fence. Returns the free entry.
    pub(crate) fn clear_entry(&self, pos: EntryPos) -> FreeRun {
        let at = self.tables().entry_at(pos);
        let ready = Fenced::not_needed("an entry that is gone shows nothing");
        self.medium().publish_word(at, 0, ready);
        let mut word = DirentWord::unpack(self.medium().load_u64(at + 8));
        let next = at + word.len;
        if next.line() == at.line() && self.medium().load_u64(next) == 0 {
            word.len += DirentWord::unpack(self.medium().load_u64(next + 8)).len;
            self.medium().store_u64(at + 8, word.pack());
        }
        // By dir-D2 this is the line of both words.
        self.medium().flush(at, 8);
        FreeRun { off: pos.off(), len: word.len }
    }

    /// Returns the second word of the entry at `pos`.
    pub(crate) fn entry_word(&self, pos: EntryPos) -> DirentWord {
        DirentWord::unpack(self.medium().load_u64(self.tables().entry_at(pos) + 8))
    }

    /// Returns all of the entry at `pos`.
    pub(crate) fn entry_run(&self, pos: EntryPos) -> FreeRun {
        FreeRun { off: pos.off(), len: self.entry_word(pos).len }
    }

    /// Updates the derived state for an entry that was cleared.
    pub(crate) fn update_index_after_clear(
        &self,
        v: &VInode,
        block: Handle,
        cleared: FreeRun,
    ) -> Result<()> {
        v.add_entries(-1);
        self.tables().dir_block(block).free.set(cleared, true);
        self.update_free_run_after_free(v, block, cleared)
    }

    /// Records that a run of a block is free. Together with the free entries around it, it becomes
    /// the known run if it is longer.
    fn update_free_run_after_free(&self, v: &VInode, block: Handle, freed: FreeRun) -> Result<()> {
        if freed.len == 0 {
            return Ok(());
        }
        let run = self.tables().dir_block(block).free.around(freed);
        if run.len > self.tables().free_run(block).len {
            self.set_run(v, block, run)
        } else {
            Ok(())
        }
    }

    /// Updates the derived state for an entry that has got another name in place.
    pub(crate) fn update_index_after_respell(&self, v: &VInode, slot: &Slot) -> Result<()> {
        let db = self.tables().dir_block(slot.pos.block());
        db.free.set(slot.entry(), false);
        db.free.set(slot.rest, true);
        if slot.has(self.tables().free_run(slot.pos.block())) {
            return self.set_run(v, slot.pos.block(), db.free.best());
        }
        self.update_free_run_after_free(v, slot.pos.block(), slot.rest)
    }

    /// Finds a block of the directory whose known free run has at least `bytes` bytes.
    fn room_for(&self, v: &VInode, bytes: u64) -> Result<Option<Handle>> {
        let state = self.tables().dir_state(v)?;
        let heads = state.heads[class_for(bytes)..].iter();
        Ok(heads.map(|h| h.load(Relaxed)).find_map(Handle::from_link))
    }

    /// Appends a block of free entries to a directory, one line each (dir-D5). The block is
    /// invisible, so it commits on its own.
    fn grow_dir(&self, v: &VInode) -> Result<Handle> {
        let size = self.load(v, Word::Size);
        let mut data = [0; BLOCK as usize];
        let free = DirentWord { len: LINE, name_len: 0, kind: 0 };
        for line in data.chunks_exact_mut(LINE as usize) {
            line[8..16].copy_from_slice(&free.pack().to_le_bytes());
        }
        let block = self.append_dir_block(v, size, &data)?;
        let handle = self.tables().add_dir_block(v, block)?;
        let all = FreeRun { off: 0, len: BLOCK };
        self.tables().dir_block(handle).free.set(all, true);
        self.set_run(v, handle, all)?;
        Ok(handle)
    }

    /// Updates the known run after a slot took its start: the remainder is the known run, unless it
    /// is too short.
    pub(crate) fn update_free_run_after_use(&self, v: &VInode, slot: &Slot) -> Result<()> {
        let db = self.tables().dir_block(slot.pos.block());
        let (known, entry) = (self.tables().free_run(slot.pos.block()), slot.entry());
        debug_assert_eq!(known.off, entry.off);
        db.free.set(entry, false);
        let left = FreeRun { off: entry.end(), len: known.end() - entry.end() };
        let run = if left.len >= DIRENT_MIN { left } else { db.free.best() };
        self.set_run(v, slot.pos.block(), run)
    }

    /// Records the free run of a block and chains the block into its size class.
    pub(crate) fn set_run(&self, v: &VInode, block: Handle, run: FreeRun) -> Result<()> {
        let state = self.tables().dir_state(v)?;
        let db = self.tables().dir_block(block);
        db.free_off.store(run.off as u16, Relaxed);
        db.free_len.store(run.len as u16, Relaxed);
        let class = if run.len >= DIRENT_MIN { class_for(run.len) as u32 + 1 } else { 0 };
        if db.class.load(Relaxed) != class {
            self.unchain(state, block);
            self.chain(state, block, class);
        }
        Ok(())
    }

    /// Puts a block at the head of the list of its size class; 0 is no class. The block is in no
    /// list.
    fn chain(&self, state: &DirState, block: Handle, class: u32) {
        let db = self.tables().dir_block(block);
        db.class.store(class, Relaxed);
        if class == 0 {
            return;
        }
        let head = &state.heads[class as usize - 1];
        let next = head.load(Relaxed);
        head.store(block.0, Relaxed);
        db.next.store(next, Relaxed);
        db.prev.store(0, Relaxed);
        if let Some(next) = Handle::from_link(next) {
            self.tables().dir_block(next).prev.store(block.0, Relaxed);
        }
    }

    /// Takes a block out of the list of its size class, if it is in one.
    fn unchain(&self, state: &DirState, block: Handle) {
        let db = self.tables().dir_block(block);
        let class = db.class.load(Relaxed);
        db.class.store(0, Relaxed);
        if class == 0 {
            return;
        }
        let (next, prev) = (db.next.load(Relaxed), db.prev.load(Relaxed));
        match Handle::from_link(prev) {
            None => state.heads[class as usize - 1].store(next, Relaxed),
            Some(p) => self.tables().dir_block(p).next.store(next, Relaxed),
        }
        if let Some(next) = Handle::from_link(next) {
            self.tables().dir_block(next).prev.store(prev, Relaxed);
        }
    }

    /// Lists the entries of a directory from byte `from` of its file on, until `emit` returns
    /// `false`.
    pub(crate) fn list(
        &self,
        v: &VInode,
        from: u64,
        emit: &mut dyn FnMut(&Listed<'_>) -> bool,
    ) -> Result<()> {
        // A read-only mount has not cleared entries left over from a crash.
        let keeps_left_over = self.check_writable().is_err();
        self.visit_dir(v, from, &mut |block, base| {
            let data = self.load_dir_block(block);
            for e in Chain::new(&data) {
                let e = e.map_err(|_| Errno::UCLEAN)?;
                let Some(life) = e.life.filter(|_| base + e.off >= from) else { continue };
                if keeps_left_over && self.is_left_over(life) {
                    continue;
                }
                let at = (e.off + DIRENT_HEADER) as usize;
                let name = &data[at..at + e.word.name_len];
                let listed = Listed { off: base + e.off, ino: life.ino, kind: e.word.kind, name };
                if !emit(&listed) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}
