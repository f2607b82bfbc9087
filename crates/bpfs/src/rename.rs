//! Renames where a line does not have all that changes: how the entries are committed.
//!
//! | rename | commit |
//! |---|---|
//! | within a directory | entry words; their lowest common ancestor in the directory's tree |
//! | across directories | the same, in the inode file |

use crate::blocks::Txn;
use crate::crawler::{Change, Mode, Node};
use crate::layout::*;
use crate::store::Store;
use crate::words::WordsEdit;
use arena::Handle;
use derived::Locks;
use namespace::{EntryPos, FreeRun, Moved, Patch, Renamed, Stop};
use pmem::Medium;
use smallvec::SmallVec;
use vfs::{Errno, Result};

impl<M: Medium> Store<M> {
    /// Commits the entries of one directory, or of two at once. Returns the blocks that were copied.
    pub fn commit_renamed<'a>(
        &self,
        locks: &Locks<'_>,
        r: &Renamed<'_>,
        mut from: Patch<'a>,
        mut to: Patch<'a>,
    ) -> std::result::Result<SmallVec<[Moved; 4]>, Stop> {
        let ((from_dir, fd, ..), (to_dir, td, ..)) = (r.from, r.to);
        self.leave_runs_out(r, &mut from, &mut to);
        // Before the times: to load what is being flushed takes as long as a fence.
        let (from_root, to_root) = (self.root(fd)?, self.root(td)?);
        let tall = |root: Root| u64::from(root.height()) + 1;
        if from_dir == to_dir {
            let blocks = if r.source().pos.block() == r.other().block() { 1 } else { 2 };
            from.join(to);
            return self.v.transact(blocks * tall(from_root), 0, |txn| {
                r.touch(self);
                let mut edit = WordsEdit::new(self, from);
                self.edit_tree(txn, fd, from_root, &mut edit)?;
                Ok(edit.moved.into_iter().collect())
            });
        }
        let need = tall(from_root) + tall(to_root) + self.inode_commit_blocks(2);
        self.v.transact(need, 0, |txn| {
            r.touch(self);
            let (mut moved, from_root) = self.shadow_entries(txn, from_root, from)?;
            let (to, to_root) = self.shadow_entries(txn, to_root, to)?;
            let roots = [(from_dir, Word::Root, from_root), (to_dir, Word::Root, to_root)];
            self.commit_inodes(txn, locks, &roots)?;
            moved.extend(to);
            Ok(moved.into_iter().collect())
        })
    }

    /// Changes entries of a directory in a shadow; returns what moved and the new root word.
    fn shadow_entries(
        &self,
        txn: &mut Txn<'_>,
        root: Root,
        patch: Patch<'_>,
    ) -> Result<(SmallVec<[Moved; 2]>, u64)> {
        let mut edit = WordsEdit::new(self, patch);
        match self.edit(txn, Node::top(root), Mode::Copy, &mut edit)? {
            Change::Shadow(block) => Ok((edit.moved, Root::new(block, root.height()).word())),
            Change::Done => Err(Errno::UCLEAN),
        }
    }

    /// Where blocks of entries are copied, names are written to the copies, and free space between entries is
    /// left out of them: the known runs, and what the slot leaves of one.
    fn leave_runs_out(&self, r: &Renamed<'_>, from: &mut Patch<'_>, to: &mut Patch<'_>) {
        let (source, other) = (r.source().pos, r.other());
        if other.block() != source.block() {
            self.leave_out(from, source.block(), self.v.free_run(source.block()));
        }
        if let Some(slot) = &r.slot {
            self.leave_out(to, slot.pos.block(), slot.rest);
        }
        let known = self.v.free_run(other.block());
        if r.slot.is_none_or(|slot| !slot.has(known)) {
            self.leave_out(to, other.block(), known);
        }
    }

    /// Makes a free run one entry, of which copies need the header only.
    fn leave_out(&self, patch: &mut Patch<'_>, block: Handle, run: FreeRun) {
        if run.len > 0 {
            let at = self.v.logical_off(EntryPos::new(block, run.off));
            let header = [(at, 0), (at + 8, run.word())];
            if !patch.words.ends_with(&header) {
                patch.words.extend(header);
            }
            patch.idle.push(at + DIRENT_HEADER..at + run.len);
        }
    }
}
