//! Renames: all flags, within a directory and across.
//!
//! | rename | commit |
//! |---|---|
//! | within a directory | entry words; their lowest common ancestor in the directory's tree |
//! | across directories | the same, in the inode file |

use crate::crawler::{Change, Mode, Node};
use crate::dir::Slot;
use crate::fs::{Core, Stop};
use crate::index::Found;
use crate::layout::*;
use crate::namespace::kind_bits;
use crate::volatile::{EntryPos, LIVE, Locks, REMOVED, Txn, VInode};
use crate::words::{Moved, WordsEdit};
use pmem::Medium;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use vfs::rules::check_name;
use vfs::{Errno, FileKind, Ino, ROOT, RenameFlags, Result};

impl<M: Medium> Core<M> {
    /// `FileSystem::rename`.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.check_writable()?;
        for dir in [from.0, to.0] {
            let _lock = self.v.lock_shared(dir)?;
            self.live_dir(dir)?;
        }
        check_name(from.1)?;
        check_name(to.1)?;
        if flags == RenameFlags::all() || !RenameFlags::all().contains(flags) {
            return Err(Errno::INVAL);
        }
        // Only a move to another directory can change what is below what.
        let _topology = (from.0 != to.0).then(|| self.v.lock_topology()).transpose()?;
        loop {
            let source = self.resolve(from.0, from.1)?;
            let target = match self.resolve(to.0, to.1) {
                Err(Errno::NOENT) => None,
                found => Some(found?),
            };
            let mut inos: SmallVec<[Ino; 4]> = SmallVec::from_slice(&[from.0, to.0, source.ino]);
            inos.extend(target.map(|t| t.ino));
            let wide = if from.0 == to.0 { 0 } else { 2 };
            let done = self.change(&inos, wide, |locks| {
                let now = (self.find_name(from.0, from.1), self.find_name(to.0, to.1));
                let same =
                    |a: Option<Found>, b: Option<Found>| a.map(|f| f.ino) == b.map(|f| f.ino);
                if !same(now.0, Some(source)) || !same(now.1, target) {
                    return Ok(false);
                }
                let source = now.0.expect("it is the same as one that is there");
                self.rename_locked(locks, from, source, to, now.1, flags)?;
                Ok(true)
            })?;
            if done {
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
        if from_dir != to_dir && !locks.is_wide() {
            return Err(Stop::Wide);
        }

        // The words that change: (offset in the directory, value).
        let mut from_words: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        let mut to_words: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        let mut slot = None;
        let place = |pos| self.v.logical_off(pos);
        let name_word = |pos: EntryPos, kind: FileKind| {
            let mut word = DirentWord::unpack(self.medium.load_u64(self.v.entry_off(pos) + 8));
            let changes = word.kind != kind_bits(kind);
            word.kind = kind_bits(kind);
            changes.then_some((place(pos) + 8, word.pack()))
        };
        match target {
            Some(target) => {
                to_words.push((place(target.pos), source.ino.0));
                to_words.extend(name_word(target.pos, s.kind()));
            }
            None => {
                let made = self.make_slot(td, to_name, kind_bits(s.kind()))?;
                to_words.push((place(made.pos), source.ino.0));
                to_words.push((place(made.pos) + 8, made.word.pack()));
                slot = Some(made);
            }
        }
        match (target, t) {
            (Some(target), Some(t)) if exchange => {
                from_words.push((place(source.pos), target.ino.0));
                from_words.extend(name_word(source.pos, t.kind()));
            }
            _ => from_words.push((place(source.pos), 0)),
        }
        self.touch_modified(fd);
        if from_dir != to_dir {
            self.touch_modified(td);
        }
        self.touch_changed(s);
        if let Some(t) = t {
            self.touch_changed(t);
        }

        let moved = self.commit_entries(locks, from_dir, fd, &from_words, to_dir, td, &to_words)?;
        self.settle_rename(Renamed {
            from: (from_dir, fd, from_name, source),
            to: (to_dir, td, to_name, target),
            nodes: (s, t),
            slot,
            exchange,
            moved,
        })?;
        Ok(())
    }

    /// Commits entry words of one directory, or of two at once.
    #[allow(clippy::too_many_arguments)]
    fn commit_entries(
        &self,
        locks: &Locks<'_>,
        from_dir: Ino,
        fd: &VInode,
        from_words: &[(u64, u64)],
        to_dir: Ino,
        td: &VInode,
        to_words: &[(u64, u64)],
    ) -> std::result::Result<SmallVec<[Moved; 4]>, Stop> {
        let words = (from_words.len() + to_words.len()) as u64;
        let tall = |v: &VInode| Ok::<u64, Errno>(u64::from(self.root(v)?.height()) + 1);
        let need = words * tall(fd)?.max(tall(td)?) + self.inode_commit_blocks(2);
        self.v.transact(need, 0, |txn| {
            if from_dir == to_dir {
                let all = from_words.iter().chain(to_words).copied();
                let mut edit = WordsEdit::new(self, all);
                self.edit_tree(txn, fd, self.root(fd)?, &mut edit)?;
                return Ok(edit.moved.into_iter().collect());
            }
            let (mut moved, from_root) =
                self.shadow_entries(txn, fd, from_words.iter().copied())?;
            let (to, to_root) = self.shadow_entries(txn, td, to_words.iter().copied())?;
            let roots = [(from_dir, Word::Root, from_root), (to_dir, Word::Root, to_root)];
            self.commit_inodes(txn, locks, &roots)?;
            moved.extend(to);
            Ok(moved.into_iter().collect())
        })
    }

    /// Changes entry words of a directory in a shadow; returns what moved and the new root word.
    fn shadow_entries(
        &self,
        txn: &mut Txn<'_>,
        v: &VInode,
        words: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(SmallVec<[Moved; 2]>, u64)> {
        let root = self.root(v)?;
        let mut edit = WordsEdit::new(self, words);
        match self.edit(txn, Node::top(root), Mode::Copy, &mut edit)? {
            Change::Shadow(block) => Ok((edit.moved, Root::new(block, root.height()).0)),
            Change::Done => Err(Errno::UCLEAN),
        }
    }

    fn settle_rename(&self, r: Renamed<'_>) -> Result<()> {
        let (from_dir, fd, from_name, source) = r.from;
        let (to_dir, td, to_name, target) = r.to;
        let (s, t) = r.nodes;
        let other = target.map(|t| t.pos).or(r.slot.map(|slot| slot.pos));
        for pos in [Some(source.pos), other].into_iter().flatten() {
            let pm_off = &self.v.dir_block(pos.block()).pm_off;
            let was = pm_off.load(Relaxed);
            if let Some(m) = r.moved.iter().find(|m| m.old == was) {
                pm_off.store(m.new, Relaxed);
            }
        }
        match (target, &r.slot) {
            (Some(t), _) => {
                self.reindex_name(to_dir, to_name, Found { ino: source.ino, pos: t.pos });
            }
            (None, Some(slot)) => self.settle_slot(to_dir, td, slot, to_name, source.ino)?,
            (None, None) => {}
        }
        match target.filter(|_| r.exchange) {
            Some(t) => {
                self.reindex_name(from_dir, from_name, Found { ino: t.ino, pos: source.pos });
            }
            None => self.settle_cleared(from_dir, fd, from_name, source.pos)?,
        }
        for (node, from, to) in
            [(Some(s), fd, (to_dir, td)), (t.filter(|_| r.exchange), td, (from_dir, fd))]
        {
            if let Some(node) = node.filter(|n| n.kind() == FileKind::Dir) {
                from.links.fetch_sub(1, Relaxed);
                to.1.links.fetch_add(1, Relaxed);
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
            match self.v.vinode(at) {
                Ok(v) if at != ROOT && v.state.load(Relaxed) & (LIVE | REMOVED) == LIVE => {
                    at = Ino(u64::from(v.parent.load(Relaxed)));
                }
                _ => return false,
            }
        }
        false
    }
}

/// A rename that was committed, for bringing the derived state up to date.
struct Renamed<'a> {
    from: (Ino, &'a VInode, &'a [u8], Found),
    to: (Ino, &'a VInode, &'a [u8], Option<Found>),
    nodes: (&'a VInode, Option<&'a VInode>),
    slot: Option<Slot>,
    exchange: bool,
    /// Directory blocks that were copied.
    moved: SmallVec<[Moved; 4]>,
}
