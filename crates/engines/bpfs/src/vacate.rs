//! Moving blocks away from the end of a pool that is to become shorter (resize-Z2 in
//! [`namespace`]).

use crate::layout::*;
use crate::store::Store;
use namespace::Storage as _;
use pmem::{Fenced, Medium, PmOff};
use std::collections::HashMap;
use vfs::{Errno, Ino, Result};

impl<M: Medium> Store<M> {
    /// As [`namespace::Storage::vacate_inodes`].
    pub fn vacate_inode_file(&self, from: u64) -> Result<bool> {
        let height = self.check_root(self.medium.load_u64(INODE_ROOT))?.height();
        self.vacate_tree(INODE_ROOT, height, from, &mut HashMap::new())
    }

    /// As [`namespace::Storage::vacate_contents`].
    pub fn vacate_trees(&self, from: u64) -> Result<()> {
        let mut known = HashMap::new();
        for number in 1..self.v.inode_slots() {
            let v = self.v.vinode(Ino(number))?;
            if !v.is_live() {
                continue;
            }
            for word in [Word::Root, Word::Xattr] {
                let slot = self.word_at(v, word);
                let root = self.root_if_present(self.medium.load_u64(slot))?;
                self.vacate_tree(slot, root.height(), from, &mut known)?;
            }
        }
        Ok(())
    }

    /// Moves the blocks of the tree of this height under the pointer at `slot`. Returns whether it
    /// moved any. `known` has the new places of shared blocks, whose subtrees were done.
    fn vacate_tree(
        &self,
        slot: PmOff,
        height: u8,
        from: u64,
        known: &mut HashMap<BlockNo, BlockNo>,
    ) -> Result<bool> {
        let word = self.medium.load_u64(slot);
        // A root has its height in the lowest bits; a pointer to data may have a mark.
        let marks = word % BLOCK;
        let offset = word - marks;
        if offset == 0 {
            return Ok(false);
        }
        let old = self.check_block(Pointer::read(offset))?.ok_or(Errno::UCLEAN)?;
        let (mut block, moves) = (old, old.get() >= from);
        let is_shared = self.v.is_shared(old);
        if let Some(new) = known.get(&old).filter(|_| is_shared) {
            if moves {
                let ready = Fenced::not_needed("the copy is durable");
                let _ = self.medium.publish(slot, new.at(0).get() | marks, ready);
            }
            return Ok(moves);
        }
        if moves {
            // The old block stays claimed, as it is to go.
            block = self.transact(1, 0, |txn| {
                let new = txn.take();
                self.medium.copy_nt(new.at(0), old.at(0), BLOCK);
                let ready = self.medium.fence();
                let _ = self.medium.publish(slot, new.at(0).get() | marks, ready);
                Ok::<_, Errno>(new)
            })?;
        }
        if is_shared {
            known.insert(old, block);
        }
        let mut have_moved = moves;
        if height > 0 {
            for i in 0..FANOUT {
                have_moved |= self.vacate_tree(block.at(i * 8), height - 1, from, known)?;
            }
        }
        Ok(have_moved)
    }
}
