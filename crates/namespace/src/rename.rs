//! Renames: all flags, within a directory and across.
//!
//! | rename | commit |
//! |---|---|
//! | within a line of a directory | the line, where the CPU stores lines |
//! | else | words of one directory or two, at once ([`Storage::commit_entries`]) |

use crate::dir::Slot;
use crate::fs::Core;
use crate::index::Found;
use crate::layout::*;
use crate::names::kind_bits;
use crate::store::{Stop, Storage};
use crate::tables::{EntryPos, VInode};
use derived::{LIVE, Locks, REMOVED};
use pmem::{Fenced, LINE, Line, PmOff};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, FileKind, Ino, ROOT, RenameFlags, Result};

/// What changes in a file of inodes or entries, by offset in the file.
#[derive(Debug, Default)]
pub struct Patch<'a> {
    /// Words, with their values.
    pub words: SmallVec<[(u64, u64); 8]>,
    /// Bytes in a leaf of these words. A patch with bytes is not committed in place.
    pub bytes: Option<(u64, &'a [u8])>,
    /// What means nothing when these words are set: copies need not have it.
    pub idle: SmallVec<[Range<u64>; 2]>,
}

impl Patch<'_> {
    /// Takes in another one, of other words.
    pub fn join(&mut self, other: Self) {
        self.words.extend(other.words);
        self.bytes = self.bytes.or(other.bytes);
        self.idle.extend(other.idle);
    }
}

/// A block that was copied.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// First byte of the file that it covers.
    pub base: u64,
    /// Where it was.
    pub old: PmOff,
    /// Where it is.
    pub new: PmOff,
}

impl<S: Storage> Core<S> {
    /// `FileSystem::rename`.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.check_writable()?;
        // What callers hold stays what it is: no lock is needed to see that.
        self.live_dir(from.0).and(self.live_dir(to.0))?;
        S::LIMITS.check_name(from.1)?;
        S::LIMITS.check_name(to.1)?;
        if flags == RenameFlags::all() || !RenameFlags::all().contains(flags) {
            return Err(Errno::INVAL);
        }
        // Only a move to another directory can change what is below what.
        let _topology = (from.0 != to.0).then(|| self.tables().lock_topology()).transpose()?;
        loop {
            let source = self.resolve(from.0, from.1)?;
            let Found { ino, pos } = source.found.ok_or(Errno::NOENT)?;
            let target = self.resolve(to.0, to.1)?;
            let mut inos: SmallVec<[Ino; 4]> = SmallVec::from_slice(&[from.0, to.0, ino]);
            inos.extend(target.found.map(|t| t.ino));
            let wide = if from.0 == to.0 { 0 } else { 2 };
            let done = self.change(&inos, wide, |locks| {
                let now = self.resolve_again(from.0, from.1, &source)?.flatten();
                let (Some(source), Some(target)) = (now, self.resolve_again(to.0, to.1, &target)?)
                else {
                    return Ok(false);
                };
                self.rename_locked(locks, from, source, to, target, flags)?;
                Ok(true)
            })?;
            if done {
                // Storing a line takes it out of the cache, and whoever looks up one of these names reads it. Not
                // before the locks are given back: that waits for the store, which would take it out again.
                self.prefetch_entry(pos);
                return Ok(());
            }
        }
    }

    fn rename_locked(
        &self,
        locks: &Locks<'_>,
        (from_dir, from_name): (Ino, &[u8]),
        source: Found,
        (to_dir, to_name): (Ino, &[u8]),
        target: Option<Found>,
        flags: RenameFlags,
    ) -> std::result::Result<(), Stop> {
        let (fd, td) = (self.live_dir(from_dir)?, self.live_dir(to_dir)?);
        let exchange = flags == RenameFlags::EXCHANGE;
        match target {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EXIST.into()),
            None if exchange => return Err(Errno::NOENT.into()),
            _ => {}
        }
        if from_dir != to_dir {
            if self.is_within(to_dir, source.ino) {
                return Err(Errno::INVAL.into());
            }
            if target.is_some_and(|t| self.is_within(from_dir, t.ino)) {
                return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into());
            }
        }
        if target.is_some_and(|t| t.ino == source.ino) {
            return Ok(());
        }
        self.open_dir(to_dir)?;
        let s = self.live(source.ino)?;
        let t = target.map(|t| self.live(t.ino)).transpose()?;
        if let (Some(t), Some(target), false) = (t, target, exchange) {
            match (s.kind() == FileKind::Dir, t.kind() == FileKind::Dir) {
                (true, _) => self.check_empty(target.ino)?,
                (false, true) => return Err(Errno::ISDIR.into()),
                (false, false) => {}
            }
        }
        if from_dir != to_dir && !self.commits_several(locks) {
            return Err(Stop::Wide);
        }

        let slot = match target {
            Some(_) => None,
            None => Some(self.slot_for(from_dir == to_dir, source, td, to_name, s.kind())?),
        };
        let r = Renamed {
            from: (from_dir, fd, from_name, source),
            to: (to_dir, td, to_name, target),
            nodes: (s, t),
            slot,
            exchange,
        };
        let (from, to) = self.patches(&r);
        let line = if from_dir == to_dir { self.line_of(&from, &to, source.pos) } else { None };
        let moved = if let Some((at, line)) = line {
            // As in `make_slot`: before the first flush. And times come after the line, which would wait
            // for them.
            self.index_rename(&r)?;
            let ready = Fenced::not_needed("the line is all that changes");
            self.medium().publish_line(at, &line, ready);
            r.touch(&self.0);
            let _ = self.medium().fence();
            SmallVec::new()
        } else {
            let moved = S::commit_entries(self, locks, &r, from, to)?;
            self.index_rename(&r)?;
            moved
        };
        self.update_index_after_rename(&r, &moved)?;
        Ok(())
    }

    /// Room for a new name: where the old one is, if that has it, so that the shadow differs in nothing
    /// else.
    fn slot_for(
        &self,
        in_place: bool,
        source: Found,
        td: &VInode,
        name: &[u8],
        kind: FileKind,
    ) -> Result<Slot> {
        let kind = kind_bits(kind);
        match in_place.then(|| self.slot_in_place(source.pos, name.len(), kind)).flatten() {
            Some(slot) if self.may_respell(&slot) => Ok(slot),
            _ => self.find_room(td, name.len(), kind),
        }
    }

    /// What changes in the entry blocks.
    fn patches<'a>(&self, r: &Renamed<'a>) -> (Patch<'a>, Patch<'a>) {
        let (mut from, mut to) = (Patch::default(), Patch::default());
        let source = r.source();
        if let (Some(target), Some(t)) = (r.to.3, r.nodes.1) {
            self.name_inode(&mut to, target.pos, source.ino, r.nodes.0);
            if r.exchange {
                self.name_inode(&mut from, source.pos, target.ino, t);
            }
        }
        if let Some(slot) = &r.slot {
            let at = self.tables().logical_off(slot.pos);
            let life = self.life(source.ino, r.nodes.0);
            to.words.extend([(at, life.pack()), (at + 8, slot.word.pack())]);
            to.bytes = Some((at + DIRENT_HEADER, r.to.2));
            let was = self.entry_word(slot.pos).len;
            if slot.rest.len > 0 && slot.word.len != was {
                let rest = at + slot.word.len;
                to.words.extend([(rest, 0), (rest + 8, slot.rest.word())]);
            }
        }
        if !r.exchange && !r.is_in_place() {
            from.words.push((self.tables().logical_off(source.pos), 0));
        }
        (from, to)
    }

    /// Where one line has all that changes: where it is, and what it will be. Storing it commits.
    fn line_of(&self, from: &Patch<'_>, to: &Patch<'_>, entry: EntryPos) -> Option<(PmOff, Line)> {
        if !self.medium().stores_lines() {
            return None;
        }
        let (name_at, name) = to.bytes.unwrap_or_default();
        let words = || from.words.iter().chain(&to.words);
        let at = words().map(|(at, _)| at / LINE * LINE).next()?;
        let is_within = |off: u64, len: u64| off >= at && off + len <= at + LINE;
        if !words().all(|(off, _)| is_within(*off, 8))
            || !(name.is_empty() || is_within(name_at, name.len() as u64))
        {
            return None;
        }
        // It is of the same block as this entry.
        let place = self.tables().dir_block(entry.block()).at() + at % BLOCK;
        let mut line = [0; LINE as usize];
        self.medium().read(place, &mut line);
        let mut put = |off: u64, bytes: &[u8]| {
            let start = (off - at) as usize;
            line[start..start + bytes.len()].copy_from_slice(bytes);
        };
        words().for_each(|(off, value)| put(*off, &value.to_le_bytes()));
        if !name.is_empty() {
            put(name_at, name);
        }
        Some((place, line))
    }

    /// Lets an entry name another inode.
    fn name_inode(&self, patch: &mut Patch<'_>, pos: EntryPos, ino: Ino, v: &VInode) {
        let at = self.tables().logical_off(pos);
        patch.words.push((at, self.life(ino, v).pack()));
        let mut word = self.entry_word(pos);
        if word.kind != kind_bits(v.kind()) {
            word.kind = kind_bits(v.kind());
            patch.words.push((at + 8, word.pack()));
        }
    }

    /// Changes the name index. Nothing has changed where that fails.
    fn index_rename(&self, r: &Renamed<'_>) -> Result<()> {
        let (from_dir, _, from_name, source) = r.from;
        let (to_dir, _, to_name, target) = r.to;
        match (target, &r.slot) {
            (Some(t), _) => {
                self.reindex_name(to_dir, to_name, Found { ino: source.ino, pos: t.pos });
                if r.exchange {
                    self.reindex_name(from_dir, from_name, Found { ino: t.ino, pos: source.pos });
                    return Ok(());
                }
            }
            (None, Some(slot)) => {
                self.index_name(to_dir, to_name, Found { pos: slot.pos, ..source })?;
            }
            (None, None) => unreachable!("what is not there is made"),
        }
        self.unindex_name(from_dir, from_name, source.pos);
        Ok(())
    }

    /// Brings the rest of the derived state up to date.
    fn update_index_after_rename(&self, r: &Renamed<'_>, moved: &[Moved]) -> Result<()> {
        let (from_dir, fd, _, source) = r.from;
        let (to_dir, td, _, target) = r.to;
        let (s, t) = r.nodes;
        for pos in [source.pos, r.other()] {
            let block = self.tables().dir_block(pos.block());
            if let Some(m) = moved.iter().find(|m| m.old == block.at()) {
                block.set_at(m.new);
            }
        }
        match &r.slot {
            Some(slot) if r.is_in_place() => self.update_index_after_respell(fd, slot)?,
            Some(slot) => {
                self.update_index_after_add(td, slot)?;
                self.update_index_after_clear(fd, source.pos.block(), self.entry_run(source.pos))?;
            }
            None if r.exchange => {}
            None => {
                self.update_index_after_clear(fd, source.pos.block(), self.entry_run(source.pos))?;
            }
        }
        for (node, from, to) in
            [(Some(s), fd, (to_dir, td)), (t.filter(|_| r.exchange), td, (from_dir, fd))]
        {
            if let Some(node) = node.filter(|n| n.kind() == FileKind::Dir) {
                from.add_links(-1);
                to.1.add_links(1);
                node.parent.store(to.0.0 as u32, Relaxed);
            }
        }
        if let (Some(target), Some(t), false) = (target, t, r.exchange) {
            self.drop_name(td, target.ino, t);
        }
        Ok(())
    }

    /// Whether `dir` is `ancestor` or below it. The topology lock keeps parents as they are.
    fn is_within(&self, dir: Ino, ancestor: Ino) -> bool {
        let mut at = dir;
        for _ in 0..u32::MAX {
            if at == ancestor {
                return true;
            }
            match self.tables().vinode(at) {
                Ok(v) if at != ROOT && v.state.load(Relaxed) & (LIVE | REMOVED) == LIVE => {
                    at = Ino(u64::from(v.parent.load(Relaxed)));
                }
                _ => return false,
            }
        }
        false
    }
}

/// A rename that is allowed.
pub struct Renamed<'a> {
    /// Directory, name and entry of what gets another name.
    pub from: (Ino, &'a VInode, &'a [u8], Found),
    /// Directory, name and, where it has one, entry that it gets.
    pub to: (Ino, &'a VInode, &'a [u8], Option<Found>),
    /// What gets another name, and what has that.
    pub nodes: (&'a VInode, Option<&'a VInode>),
    /// Room for the new name, where nothing has it.
    pub slot: Option<Slot>,
    /// Whether both change their names.
    pub exchange: bool,
}

impl Renamed<'_> {
    /// The entry that has the old name.
    pub fn source(&self) -> Found {
        self.from.3
    }

    /// The entry that has the new name, or will.
    pub fn other(&self) -> EntryPos {
        let found = self.to.3.map(|target| target.pos);
        found.or(self.slot.map(|slot| slot.pos)).expect("what is not there is made")
    }

    /// Whether the entry stays and changes its name.
    fn is_in_place(&self) -> bool {
        self.slot.is_some_and(|slot| slot.pos == self.source().pos)
    }

    /// Records the times of the change, as [`Storage::touch`].
    pub fn touch(&self, storage: &impl Storage) {
        let ((from_dir, fd, ..), (to_dir, td, ..), (s, t)) = (self.from, self.to, self.nodes);
        storage.touch_modified(fd);
        if from_dir != to_dir {
            storage.touch_modified(td);
        }
        storage.touch_changed(s);
        if let Some(t) = t {
            storage.touch_changed(t);
        }
    }
}
