//! Commits of attribute changes, and the space they need.

use crate::blocks::KEEP;
use crate::extent::FileExtent as _;
use crate::layout::*;
use crate::store::Store;
use namespace::{Change, MAY_BE_ABSENT, Storage as _, VInode};
use pmem::{LINE, Medium};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Ino, Result};

impl<M: Medium> Store<M> {
    /// Commits words, attributes and size of an inode at once.
    pub fn apply(&self, ino: Ino, v: &VInode, change: &Change, size: Option<u64>) -> Result<()> {
        let Some(new) = size else { return self.apply_all(ino, v, change, size) };
        let start = new.min(self.load(v, Word::Size));
        self.counted(v, start..u64::MAX, || self.apply_all(ino, v, change, size))
    }

    fn apply_all(&self, ino: Ino, v: &VInode, change: &Change, size: Option<u64>) -> Result<()> {
        let mut words = change.words.clone();
        if let Some(size) = size {
            words.push((Word::Size, size));
        }
        let old_size = self.load(v, Word::Size);
        if let Some(size) = size {
            // The added part of the file must read as zeros; it is invisible until the size is
            // committed.
            let root_off = self.word_at(v, Word::Root);
            if self.v.shares() && size > 0 {
                // The path to the end of the tree changes in place, and bytes behind it.
                match size > old_size {
                    true => self.own(v, old_size, !old_size.is_multiple_of(BLOCK), KEEP)?,
                    false => self.own(v, size, false, 0)?,
                };
            }
            let root = match size {
                // No part of an absent tree stays.
                0 => self.root_if_present(self.load(v, Word::Root))?,
                _ => self.root(v)?,
            };
            let end = size.min(old_size);
            if !end.is_multiple_of(BLOCK) {
                self.unmark_block(v, root, end)?;
            }
            if size > old_size {
                self.zero_tail(root, old_size, size)?;
                let room = u64::from(height_for(size).saturating_sub(root.height()));
                self.transact(room, KEEP, |txn| {
                    self.grow(txn, root_off, root, size);
                    v.add_blocks(txn.delta());
                    Ok::<(), Errno>(())
                })?;
            } else if size < old_size {
                self.leave_tail_to_readers(v, root, size, old_size)?;
            }
            self.touch_modified(v);
        }
        if let Some(list) = &change.attributes {
            self.commit_attributes(ino, v, list, &words)?;
            self.note_attributes(v, list);
        } else if !words.is_empty() {
            self.commit_inode(ino, v, &words)?;
        }
        if size == Some(0) {
            v.state.fetch_and(!MAY_BE_ABSENT, Relaxed);
        }
        if size.is_some_and(|s| s < old_size) {
            self.prune(v, size.unwrap_or(old_size))?;
        }
        Ok(())
    }

    /// Before a file is cut inside a block, leaves that block to its readers without a copy
    /// (pins-N1), and gives the file a copy. This is necessary because later content behind the cut
    /// is stored in place.
    fn leave_tail_to_readers(
        &self,
        v: &VInode,
        root: Root,
        size: u64,
        old_size: u64,
    ) -> Result<()> {
        if size.is_multiple_of(BLOCK) || !self.v.pins().any(&self.v.arena) {
            return Ok(());
        }
        self.transact(1, 0, |txn| {
            let slot = self.find_slot(root, self.word_at(v, Word::Root), size)?;
            let Some((slot, Some(old))) = slot else { return Ok(()) };
            let base = size - size % BLOCK;
            v.cut_extent(&(base..base + BLOCK));
            let new = txn.take();
            let used = (old_size - base).min(BLOCK).next_multiple_of(LINE);
            self.medium.copy_nt(new.at(0), old.at(0), used);
            self.commit(slot, Pointer::to(new).word());
            txn.free(old);
            Ok(())
        })
    }
}
