//! Extended attributes: all of an inode's in one serialised list, replaced as a whole and committed
//! by the inode's attribute word.
//!
//! The list is the content of a tree: its length in bytes (u64) and the number of attributes (u64),
//! then for each the lengths of name (u16) and value (u32), the name, the value.

use crate::blocks::{KEEP, Txn};
use crate::crawler::Node;
use crate::fs::Core;
use crate::layout::*;
use crate::store::{Stop, Store};
use crate::volatile::{MAY_BE_CAPABLE, VInode};
use pmem::Medium;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use vfs::rules::check_xattr;
use vfs::{Errno, Ino, Result, SetXattr, XATTR_LIST_MAX};

/// `security.capability`, which changes of content and owner remove.
pub const CAPABILITY: &[u8] = b"security.capability";

const HEADER: usize = 16;
const ENTRY_HEADER: usize = 6;
/// Longest list, in bytes: the span of a tree of height 1.
const LIST_MAX: u64 = span(1);

/// The attributes of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(BTreeMap<Vec<u8>, Vec<u8>>);

impl Attributes {
    /// The value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: &[u8], value: Vec<u8>) {
        self.0.insert(name.to_vec(), value);
    }

    /// Removes an attribute; whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.0.remove(name).is_some()
    }

    fn bytes(&self) -> u64 {
        let entries: usize = self.0.iter().map(|(n, v)| ENTRY_HEADER + n.len() + v.len()).sum();
        (HEADER + entries) as u64
    }

    /// Blocks that storing the list takes.
    pub fn blocks(&self) -> u64 {
        if self.0.is_empty() {
            return 0;
        }
        let data = self.bytes().div_ceil(BLOCK);
        data + u64::from(data > 1)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes() as usize);
        out.extend(self.bytes().to_le_bytes());
        out.extend((self.0.len() as u64).to_le_bytes());
        for (name, value) in &self.0 {
            out.extend((name.len() as u16).to_le_bytes());
            out.extend((value.len() as u32).to_le_bytes());
            out.extend(name);
            out.extend(value);
        }
        out
    }

    /// Parses a list; `None` where it is not one.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let count = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
        let mut rest = bytes.get(HEADER..)?;
        let mut list = BTreeMap::new();
        for _ in 0..count {
            let name_len = u16::from_le_bytes(rest.get(..2)?.try_into().ok()?) as usize;
            let value_len = u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize;
            let value_at = ENTRY_HEADER + name_len;
            let name = rest.get(ENTRY_HEADER..value_at)?;
            let value = rest.get(value_at..value_at.checked_add(value_len)?)?;
            list.insert(name.to_vec(), value.to_vec());
            rest = &rest[value_at + value_len..];
        }
        Some(Self(list))
    }
}

impl<M: Medium> Store<M> {
    /// All attributes of an inode whose lock the caller holds.
    pub fn attributes(&self, v: &VInode) -> Result<Attributes> {
        let root = self.check_root(self.load(v, Word::Xattr))?;
        if root.block() == 0 {
            return Ok(Attributes::default());
        }
        let first = self.find_block(root, 0)?;
        let len = if first == 0 { 0 } else { self.medium.load_u64(first) };
        if len < HEADER as u64 || len > LIST_MAX.min(root.span()) {
            return Err(Errno::UCLEAN);
        }
        let mut bytes = vec![0; len as usize];
        self.visit(Node::top(root), &(0..len), &mut |block, base| {
            let end = (base + BLOCK).min(len);
            self.medium.read(block, &mut bytes[base as usize..end as usize]);
            Ok(true)
        })?;
        Attributes::parse(&bytes).ok_or(Errno::UCLEAN)
    }

    /// Stores a list in new blocks and returns the word for it; 0 for an empty list.
    pub fn store_attributes(&self, txn: &mut Txn<'_>, list: &Attributes) -> Result<u64> {
        if list.0.is_empty() {
            return Ok(0);
        }
        Ok(self.build_tree(txn, &list.to_bytes())?.0)
    }
}

impl<M: Medium> Core<M> {
    /// Replaces the list in a transaction of the caller's; returns the new word.
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

    /// `FileSystem::getxattr`.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.v.lock_shared(ino)?;
        let v = self.live(ino)?;
        match self.load(v, Word::Xattr) {
            0 => Err(Errno::NODATA),
            _ => self.attributes(v)?.get(name).map(<[u8]>::to_vec).ok_or(Errno::NODATA),
        }
    }

    /// `FileSystem::listxattr`.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let _lock = self.v.lock_shared(ino)?;
        Ok(self.attributes(self.live(ino)?)?.0.into_keys().collect())
    }

    /// `FileSystem::setxattr`.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.change(&[ino], 1, |locks| {
            let v = self.live(ino)?;
            check_xattr(v.kind(), name, value.len())?;
            let acl = match name {
                ACL_ACCESS | ACL_DEFAULT => Some(Acl::parse_valid(value)?),
                _ => None,
            };
            let mut list = self.attributes(v)?;
            let exists = list.get(name).is_some();
            match mode {
                SetXattr::Create if exists => return Err(Errno::EXIST.into()),
                SetXattr::Replace if !exists => return Err(Errno::NODATA.into()),
                _ => {}
            }
            if name == CAPABILITY {
                v.state.fetch_or(MAY_BE_CAPABLE, Relaxed);
            }
            let names: usize = list.0.keys().map(|n| n.len() + 1).sum();
            if !exists && names + name.len() + 1 > XATTR_LIST_MAX {
                return Err(Errno::NOSPC.into());
            }
            let mode_word = self.load(v, Word::Mode);
            let mut new_mode = mode_word;
            match (acl, name) {
                (Some(acl), ACL_ACCESS) => {
                    let (perm, stored) = acl.settle(mode_word as u32);
                    new_mode = mode_word & !0xffff_ffff | u64::from(perm);
                    match stored {
                        Some(acl) => list.set(name, acl.to_bytes()),
                        None => drop(list.remove(name)),
                    }
                }
                _ => list.set(name, value.to_vec()),
            }
            if list.bytes() > LIST_MAX {
                return Err(Errno::NOSPC.into());
            }
            let words: &[(Word, u64)] =
                if new_mode == mode_word { &[] } else { &[(Word::Mode, new_mode)] };
            self.commit_attributes(locks, ino, v, &list, words)
        })
    }

    /// `FileSystem::removexattr`.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(&[ino], 1, |locks| {
            let v = self.live(ino)?;
            check_xattr(v.kind(), name, 0)?;
            let mut list = self.attributes(v)?;
            if !list.remove(name) {
                return Err(Errno::NODATA.into());
            }
            self.commit_attributes(locks, ino, v, &list, &[])
        })
    }

    /// Before the content of a file changes, under its lock: takes `security.capability` away, durably, so that no
    /// crash leaves it to other content. Costs a file that never had it a test of a word that is loaded anyway.
    #[inline]
    pub fn revoke_capability(&self, v: &VInode) -> Result<()> {
        match v.state.load(Relaxed) & MAY_BE_CAPABLE {
            0 => Ok(()),
            _ => self.look_for_capability(v),
        }
    }

    #[cold]
    fn look_for_capability(&self, v: &VInode) -> Result<()> {
        if let Some(list) = self.without_capability(v)? {
            // From the reserve, too: what a truncation frees may be needed.
            self.v.transact(list.blocks(), 0, |txn| {
                let word = self.replace_attributes(txn, v, &list)?;
                self.touch_changed(v);
                self.commit(self.word_off(v, Word::Xattr), word);
                v.add_blocks(txn.delta());
                Ok::<(), Errno>(())
            })?;
        }
        v.state.fetch_and(!MAY_BE_CAPABLE, Relaxed);
        Ok(())
    }

    /// Commits a list together with other words of the inode.
    pub fn commit_attributes(
        &self,
        locks: &crate::volatile::Locks<'_>,
        ino: Ino,
        v: &VInode,
        list: &Attributes,
        words: &[(Word, u64)],
    ) -> std::result::Result<(), Stop> {
        if !words.is_empty() && !locks.has_global() {
            return Err(Stop::Wide);
        }
        let leaf = if words.is_empty() { 0 } else { self.inode_commit_blocks(1) };
        self.v.transact(list.blocks() + leaf, KEEP, |txn| {
            let word = self.replace_attributes(txn, v, list)?;
            let delta = txn.delta();
            self.touch_changed(v);
            let mut all = vec![(ino, Word::Xattr, word)];
            all.extend(words.iter().map(|(w, value)| (ino, *w, *value)));
            self.commit_inodes(txn, locks, &all)?;
            v.add_blocks(delta);
            Ok(())
        })
    }
}
