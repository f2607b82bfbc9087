//! Storage of extended attributes: the list of an inode is the content of a tree, which is replaced
//! as a whole and committed by the inode's attribute word.

use crate::blocks::{KEEP, Txn};
use crate::crawler::{Node, Trees};
use crate::layout::*;
use crate::store::Store;
use namespace::{Attributes, Storage as _, VInode};
use pmem::Medium;
use vfs::{Errno, Ino, Result};

/// Longest list, in bytes: the span of a tree of height 1.
pub const LIST_MAX: u64 = span(1);

/// Returns the number of blocks that storing a list takes.
pub fn blocks_of(list: &Attributes) -> u64 {
    if list.is_empty() {
        return 0;
    }
    let data = list.bytes().div_ceil(BLOCK);
    data + u64::from(data > 1)
}

impl<M: Medium> Trees<M> {
    /// Loads the list under the attribute word of an inode; empty if there are no attributes.
    pub fn load_list(&self, word: u64) -> Result<Vec<u8>> {
        let root = self.check_root(word)?;
        if root.block().is_none() {
            return Ok(Vec::new());
        }
        let first = self.find_block(root, 0)?;
        let len = first.map_or(0, |first| self.medium.load_u64(first.at(0)));
        if len < Attributes::HEADER as u64 || len > LIST_MAX.min(root.span()) {
            return Err(Errno::UCLEAN);
        }
        let mut bytes = vec![0; len as usize];
        self.visit(Node::top(root), &(0..len), &mut |block, base| {
            let end = (base + BLOCK).min(len);
            self.medium.read(block.at(0), &mut bytes[base as usize..end as usize]);
            Ok(true)
        })?;
        Ok(bytes)
    }

    /// Loads the attributes under that word.
    pub fn load_attributes(&self, word: u64) -> Result<Attributes> {
        match &self.load_list(word)?[..] {
            [] => Ok(Attributes::default()),
            list => Attributes::parse(list).ok_or(Errno::UCLEAN),
        }
    }
}

impl<M: Medium> Store<M> {
    /// Loads the list of an inode whose lock the caller holds.
    pub fn load_attribute_list(&self, v: &VInode) -> Result<Vec<u8>> {
        self.load_list(self.load(v, Word::Xattr))
    }

    /// Stores a list in new blocks and returns the word for it; 0 for an empty list.
    pub fn store_attributes(&self, txn: &mut Txn<'_>, list: &Attributes) -> Result<u64> {
        if list.is_empty() {
            return Ok(0);
        }
        Ok(self.build_tree(txn, &list.to_bytes())?.word())
    }

    /// Replaces the list in the caller's transaction; returns the new word.
    pub fn replace_attributes(
        &self,
        txn: &mut Txn<'_>,
        v: &VInode,
        list: &Attributes,
    ) -> Result<u64> {
        let old = self.check_root(self.load(v, Word::Xattr))?;
        self.visit_all(Node::top(old), &mut |b| txn.free(b))?;
        self.store_attributes(txn, list)
    }

    /// Commits that an inode has no attributes. Also called before a write, which has not settled.
    pub fn clear_attributes(&self, v: &VInode) -> Result<()> {
        self.settle();
        self.transact(0, 0, |txn| {
            let word = self.replace_attributes(txn, v, &Attributes::default())?;
            self.touch_changed(v);
            self.commit(self.word_at(v, Word::Xattr), word);
            v.add_blocks(txn.delta());
            Ok::<(), Errno>(())
        })
    }

    /// Returns the number of blocks that must stay free while a list is stored. A list that takes
    /// no more blocks than the previous one needs its blocks only until the commit, and may use
    /// half of the reserved ones.
    pub fn keep_for(&self, v: &VInode, list: &Attributes) -> Result<u64> {
        let old = self.check_root(self.load(v, Word::Xattr))?;
        let mut blocks = 0;
        self.visit_all(Node::top(old), &mut |_| blocks += 1)?;
        Ok(if blocks_of(list) <= blocks { KEEP / 2 } else { KEEP })
    }

    /// Commits a list together with other words of the inode.
    pub fn commit_attributes(
        &self,
        ino: Ino,
        v: &VInode,
        list: &Attributes,
        words: &[(Word, u64)],
    ) -> Result<()> {
        self.transact(blocks_of(list), self.keep_for(v, list)?, |txn| {
            let word = self.replace_attributes(txn, v, list)?;
            let delta = txn.delta();
            self.touch_changed(v);
            let mut all = vec![(Word::Xattr, word)];
            all.extend_from_slice(words);
            self.commit_inode(ino, v, &all)?;
            v.add_blocks(delta);
            Ok(())
        })
    }
}
