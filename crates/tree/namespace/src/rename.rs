//! Renames: all flags, within a directory and across.
//!
//! | rename | commit |
//! |---|---|
//! | within a line of a directory | the line, if the CPU stores lines |
//! | that leaves a whiteout | as the next; the whiteout's inode is written before |
//! | else | words of one directory or two, together ([`Storage::commit_words`]) |

use crate::derived::{LIVE, REMOVED, UNNAMED};
use crate::dir::Slot;
use crate::fs::Core;
use crate::index::Found;
use crate::layout::*;
use crate::names::kind_bits;
use crate::store::Storage;
use crate::tables::{EntryPos, VInode};
use pmem::{Fenced, LINE, Line, PmOff};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Caller, Errno, FileKind, Ino, NewNode, ROOT, RenameFlags, Result};

/// Words that change together: their places and new values.
pub type Words = SmallVec<[(PmOff, u64); 8]>;

impl<S: Storage> Core<S> {
    /// Implements `FileSystem::rename`.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.rename_leaving(from, to, flags, None)
    }

    /// Implements `FileSystem::rename_whiteout`.
    pub fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_writable()?;
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        let flags = if is_exchange { RenameFlags::all() } else { flags };
        let ino = self.new_inode()?;
        let done = self.rename_leaving(from, to, flags, Some(Whiteout { ino, caller }));
        // It does not live if nothing was renamed.
        if !self.tables().vinode(ino)?.is_live() {
            self.tables().release_inode(ino);
        }
        done
    }

    /// Renames; if there is a `whiteout`, leaves it under the old name. Finds the names without
    /// locks, then locks all inodes and checks the names again.
    fn rename_leaving(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: Option<Whiteout<'_>>,
    ) -> Result<()> {
        self.check_writable()?;
        // The callers' references keep the kinds of these inodes, so these checks need no lock.
        self.live_dir(from.0).and(self.live_dir(to.0))?;
        S::LIMITS.check_name(from.1)?;
        S::LIMITS.check_name(to.1)?;
        if flags == RenameFlags::all() || !RenameFlags::all().contains(flags) {
            return Err(Errno::INVAL);
        }
        // Only a move to another directory can change the tree of directories.
        let _topology = (from.0 != to.0).then(|| self.tables().lock_topology()).transpose()?;
        loop {
            let source = self.resolve(from.0, from.1)?;
            let missing = || self.tables().vinode(from.0).map_or(Errno::STALE, |d| self.missing(d));
            let Found { ino, pos } = source.found.ok_or_else(missing)?;
            let target = self.resolve(to.0, to.1)?;
            let mut inos: SmallVec<[Ino; 5]> = SmallVec::from_slice(&[from.0, to.0, ino]);
            if let Some(target) = target.found {
                inos.push(target.ino);
            }
            if let Some(whiteout) = &whiteout {
                inos.push(whiteout.ino);
            }
            let is_present = || {
                self.check_names(&[from.0, to.0])?;
                let replaced = target.found.filter(|target| target.ino != ino);
                match replaced {
                    Some(target) if !flags.contains(RenameFlags::EXCHANGE) => {
                        self.check_removable(target.ino)
                    }
                    _ => Ok(()),
                }
            };
            let done = self.change_if(&inos, is_present, || {
                let now = self.resolve_again(from.0, from.1, &source)?.flatten();
                let (Some(source), Some(target)) = (now, self.resolve_again(to.0, to.1, &target)?)
                else {
                    return Ok(false);
                };
                self.rename_locked((from, source), (to, target), flags, whiteout.as_ref())?;
                Ok(true)
            })?;
            if done {
                // Storing a line evicts it from the cache, and the next lookup of one of these
                // names reads it. Prefetch only after the locks are given back: giving them back
                // waits for the store, which would evict the line again.
                self.prefetch_entry(pos);
                return Ok(());
            }
        }
    }

    /// Checks and commits a rename. The caller has locked all inodes that it names, and the
    /// topology if the directories differ.
    fn rename_locked(
        &self,
        ((from_dir, from_name), source): ((Ino, &[u8]), Found),
        ((to_dir, to_name), target): ((Ino, &[u8]), Option<Found>),
        flags: RenameFlags,
        whiteout: Option<&Whiteout<'_>>,
    ) -> Result<()> {
        let (fd, td) = (self.live_dir(from_dir)?, self.live_dir(to_dir)?);
        let exchange = flags == RenameFlags::EXCHANGE;
        match target {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            _ => {}
        }
        if from_dir != to_dir {
            if self.is_within(to_dir, source.ino) {
                return Err(Errno::INVAL);
            }
            if target.is_some_and(|t| self.is_within(from_dir, t.ino)) {
                return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
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
                (false, true) => return Err(Errno::ISDIR),
                (false, false) => {}
            }
        }
        let slot = match target {
            Some(_) => None,
            None => {
                // A whiteout takes the old entry.
                let in_place = from_dir == to_dir && whiteout.is_none();
                Some(self.slot_for(in_place, source, td, to_name, s.kind())?)
            }
        };
        let left = whiteout.map(|w| self.write_whiteout(w, from_dir, fd)).transpose()?;
        let r = Renamed {
            from: (from_dir, fd, from_name, source),
            to: (to_dir, td, to_name, target),
            nodes: (s, t),
            slot,
            exchange,
            left,
        };
        let words = self.words(&r);
        let line = match left {
            // The inode of the whiteout has to be durable before.
            Some(_) => None,
            None if from_dir == to_dir => self.line_of(&r, &words),
            None => None,
        };
        // Before the first flush, as in `make_slot`.
        self.index_new_name(&r).inspect_err(|_| self.drop_whiteout(&r))?;
        if let Some((at, line)) = line {
            // Also before the flush. Times follow the line, because the line would wait for their
            // flush.
            self.index_rename(&r);
            let ready = Fenced::not_needed("the line is all that changes");
            self.medium().publish_line(at, &line, ready);
            r.touch(&self.0);
            let _ = self.medium().fence();
        } else {
            if let Some(slot) = &r.slot {
                self.write_slot(slot, to_name);
                if slot.is_in_line() {
                    self.medium().flush(self.tables().entry_at(slot.pos), DIRENT_HEADER);
                }
            }
            r.touch(&self.0);
            self.commit_words(r.source().ino, &words).inspect_err(|_| {
                if let Some(slot) = &r.slot {
                    self.unindex_name(to_dir, to_name, slot.pos);
                }
                self.drop_whiteout(&r);
            })?;
            self.index_rename(&r);
        }
        self.update_index_after_rename(&r)
    }

    /// Writes the inode of a whiteout, which no entry names yet; it is durable after a fence.
    fn write_whiteout<'t>(
        &'t self,
        whiteout: &Whiteout<'_>,
        dir: Ino,
        d: &VInode,
    ) -> Result<(Ino, &'t VInode)> {
        let v = self.tables().vinode(whiteout.ino)?;
        v.begin(NewNode::WHITEOUT.kind.file_kind(), UNNAMED);
        self.write_new(whiteout.caller, dir, d, v, &NewNode::WHITEOUT, |_| Ok(()))
            .inspect_err(|_| v.end())?;
        Ok((whiteout.ino, v))
    }

    /// Frees the whiteout of a rename that failed.
    fn drop_whiteout(&self, r: &Renamed<'_>) {
        if let Some((ino, v)) = r.left {
            self.reap(ino, v);
        }
    }

    /// Finds room for a new name: in place of the old one, if the name fits there and only one line
    /// changes. Otherwise the old entry is not overwritten.
    fn slot_for(
        &self,
        in_place: bool,
        source: Found,
        td: &VInode,
        name: &[u8],
        kind: FileKind,
    ) -> Result<Slot> {
        let kind = kind_bits(kind);
        let slot = in_place.then(|| self.slot_in_place(source.pos, name.len(), kind)).flatten();
        match slot.filter(|slot| slot.is_in_line() && self.medium().stores_lines()) {
            Some(slot) => Ok(slot),
            None => Ok(self.narrowed(self.find_room(td, name.len(), kind)?)),
        }
    }

    /// Returns the words that change: of existing entries, and of a new entry, except for its name
    /// and the room that is left.
    fn words(&self, r: &Renamed<'_>) -> Words {
        let mut words = Words::new();
        let source = r.source();
        if let (Some(target), Some(t)) = (r.to.3, r.nodes.1) {
            self.name_inode(&mut words, target.pos, source.ino, r.nodes.0);
            if r.exchange {
                self.name_inode(&mut words, source.pos, target.ino, t);
            }
        }
        if let Some(slot) = &r.slot {
            let at = self.tables().entry_at(slot.pos);
            let life = self.life(source.ino, r.nodes.0);
            words.extend([(at, life.pack()), (at + 8, slot.word.pack())]);
        }
        match r.left {
            Some((ino, v)) => self.name_inode(&mut words, source.pos, ino, v),
            None if r.exchange || r.is_in_place() => {}
            None => words.push((self.tables().entry_at(source.pos), 0)),
        }
        words
    }

    /// Returns the only line that changes, if all changes are in one line: its place and new value.
    /// Storing it commits.
    fn line_of(&self, r: &Renamed<'_>, words: &Words) -> Option<(PmOff, Line)> {
        if !self.medium().stores_lines() || r.slot.is_some_and(|slot| !slot.is_in_line()) {
            return None;
        }
        let first = words.first()?.0;
        if words.iter().any(|(at, _)| at.line() != first.line()) {
            return None;
        }
        let place = first - first.get() % LINE;
        let mut line = [0; LINE as usize];
        self.medium().read(place, &mut line);
        let mut put = |at: PmOff, bytes: &[u8]| {
            let start = (at.get() - place.get()) as usize;
            line[start..start + bytes.len()].copy_from_slice(bytes);
        };
        words.iter().for_each(|(at, value)| put(*at, &value.to_le_bytes()));
        if let Some(slot) = &r.slot {
            let at = self.tables().entry_at(slot.pos);
            put(at + DIRENT_HEADER, r.to.2);
            let was = self.entry_word(slot.pos).len;
            if slot.rest.len > 0 && slot.word.len != was {
                put(at + slot.word.len, &0u64.to_le_bytes());
                put(at + slot.word.len + 8, &slot.rest.word().to_le_bytes());
            }
        }
        Some((place, line))
    }

    /// Adds to `words` the words to commit so that the entry at `pos` names the inode `ino`.
    fn name_inode(&self, words: &mut Words, pos: EntryPos, ino: Ino, v: &VInode) {
        let at = self.tables().entry_at(pos);
        words.push((at, self.life(ino, v).pack()));
        let mut word = self.entry_word(pos);
        if word.kind != kind_bits(v.kind()) {
            word.kind = kind_bits(v.kind());
            words.push((at + 8, word.pack()));
        }
    }

    /// Adds a new name to the index, which readers do not trust before the directory's lock is
    /// given back. If that fails, nothing has changed.
    fn index_new_name(&self, r: &Renamed<'_>) -> Result<()> {
        let (to_dir, _, to_name, _) = r.to;
        match &r.slot {
            Some(slot) => self.index_name(to_dir, to_name, Found { pos: slot.pos, ..r.source() }),
            None => Ok(()),
        }
    }

    /// Updates the names in the index, except the one that [`index_new_name`](Self::index_new_name)
    /// adds.
    fn index_rename(&self, r: &Renamed<'_>) {
        let (from_dir, _, from_name, source) = r.from;
        let (to_dir, _, to_name, target) = r.to;
        if let Some(t) = target {
            self.reindex_name(to_dir, to_name, Found { ino: source.ino, pos: t.pos });
            if r.exchange {
                self.reindex_name(from_dir, from_name, Found { ino: t.ino, pos: source.pos });
                return;
            }
        }
        match r.left {
            Some((ino, _)) => {
                self.reindex_name(from_dir, from_name, Found { ino, pos: source.pos });
            }
            None => self.unindex_name(from_dir, from_name, source.pos),
        }
    }

    /// Updates the rest of the derived state.
    fn update_index_after_rename(&self, r: &Renamed<'_>) -> Result<()> {
        let (from_dir, fd, _, source) = r.from;
        let (to_dir, td, _, target) = r.to;
        let (s, t) = r.nodes;
        match &r.slot {
            Some(slot) if r.is_in_place() => self.update_index_after_respell(fd, slot)?,
            Some(slot) => {
                self.update_index_after_add(td, slot)?;
                if r.left.is_none() {
                    let run = self.entry_run(source.pos);
                    self.update_index_after_clear(fd, source.pos.block(), run)?;
                }
            }
            None if r.exchange || r.left.is_some() => {}
            None => {
                self.update_index_after_clear(fd, source.pos.block(), self.entry_run(source.pos))?;
            }
        }
        if let Some((_, v)) = r.left {
            v.links.store(1, Relaxed);
            v.state.fetch_and(!UNNAMED, Relaxed);
            self.count_inode(v);
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

    /// Returns whether `dir` is `ancestor` or below it. The topology lock keeps parents as they
    /// are.
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

/// A whiteout to leave under the old name.
struct Whiteout<'a> {
    /// Its inode, which is claimed.
    ino: Ino,
    /// Its owner.
    caller: &'a Caller,
}

/// A rename that is allowed.
struct Renamed<'a> {
    /// Directory, name and entry of the inode that is renamed.
    from: (Ino, &'a VInode, &'a [u8], Found),
    /// Directory and name that it gets, and the entry that has this name, if any.
    to: (Ino, &'a VInode, &'a [u8], Option<Found>),
    /// The inode that is renamed, and the one that has the new name.
    nodes: (&'a VInode, Option<&'a VInode>),
    /// Room for the new name, if no entry has it.
    slot: Option<Slot>,
    /// Whether the two inodes exchange their names.
    exchange: bool,
    /// The whiteout that gets the old name.
    left: Option<(Ino, &'a VInode)>,
}

impl Renamed<'_> {
    /// Returns the entry that has the old name.
    fn source(&self) -> Found {
        self.from.3
    }

    /// Returns whether the entry stays and changes its name.
    fn is_in_place(&self) -> bool {
        self.slot.is_some_and(|slot| slot.pos == self.source().pos)
    }

    /// Updates `mtime` and `ctime` of the directories and `ctime` of the inodes
    /// ([`Storage::touch`]). The times are durable after the next fence.
    fn touch(&self, storage: &impl Storage) {
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
