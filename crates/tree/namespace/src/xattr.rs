//! Extended attributes: all of an inode's in one serialised list, replaced as a whole and committed
//! by the inode's attribute word.
//!
//! The list is: its length in bytes (u64) and the number of attributes (u64), then for each the
//! lengths of name (u16) and value (u32), the name, the value.
//!
//! - xattr-L1: an attribute whose name begins with a zero byte has been removed in place. Storing
//!   that byte needs no space. So a removal of an attribute, or an operation that frees space,
//!   never fails for want of space for a new list. The next list that is stored omits the
//!   attribute.

use crate::fs::Core;
use crate::layout::{MODE_HALF, Word};
use crate::store::{Change, Storage};
use crate::tables::{MAY_BE_CAPABLE, VInode};
use pmem::Fenced;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
use vfs::{Errno, Ino, Limits, Result, SetXattr, XATTR_NAME_MAX};

/// `security.capability`, which changes of content and owner remove.
pub const CAPABILITY: &[u8] = b"security.capability";

const ENTRY_HEADER: usize = 6;
/// The attributes of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(BTreeMap<Vec<u8>, Vec<u8>>);

impl Attributes {
    /// Bytes of a list before its attributes; the first word is the length of the list.
    pub const HEADER: usize = 16;

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Returns the names and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (&name[..], &value[..]))
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: &[u8], value: Vec<u8>) {
        self.0.insert(name.to_vec(), value);
    }

    /// Removes an attribute; returns whether it existed.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.0.remove(name).is_some()
    }

    /// Returns the length of the list in bytes.
    pub fn bytes(&self) -> u64 {
        let entries: usize = self.0.iter().map(|(n, v)| ENTRY_HEADER + n.len() + v.len()).sum();
        (Self::HEADER + entries) as u64
    }

    /// Returns the list.
    pub fn to_bytes(&self) -> Vec<u8> {
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

    /// Parses a list; `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut list = BTreeMap::new();
        each_attribute(bytes, |_, name, value| {
            // It was removed in place (xattr-L1).
            if name.first() != Some(&0) {
                list.insert(name.to_vec(), value.to_vec());
            }
        })?;
        Some(Self(list))
    }

    /// Returns the offset in a list at which the name of an attribute begins; `None` if the list
    /// does not have it.
    fn position(bytes: &[u8], name: &[u8]) -> Option<u64> {
        let mut found = None;
        each_attribute(bytes, |at, other, _| {
            if other == name {
                found = Some(at as u64);
            }
        })?;
        found
    }
}

/// Calls `each(at, name, value)` for the attributes of a list; `at` is the offset of the name.
/// `None` if the list is malformed.
fn each_attribute(bytes: &[u8], mut each: impl FnMut(usize, &[u8], &[u8])) -> Option<()> {
    let count = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    let mut rest = bytes.get(Attributes::HEADER..)?;
    for _ in 0..count {
        let name_len = u16::from_le_bytes(rest.get(..2)?.try_into().ok()?) as usize;
        let value_len = u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize;
        if !(1..=XATTR_NAME_MAX).contains(&name_len) || value_len > Limits::MAX.xattr {
            return None;
        }
        let value_at = ENTRY_HEADER + name_len;
        let name = rest.get(ENTRY_HEADER..value_at)?;
        let value = rest.get(value_at..value_at.checked_add(value_len)?)?;
        each(bytes.len() - rest.len() + ENTRY_HEADER, name, value);
        rest = &rest[value_at + value_len..];
    }
    Some(())
}

impl<S: Storage> Core<S> {
    /// Implements `FileSystem::getxattr`.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.tables().lock_shared(ino)?;
        let v = self.live(ino)?;
        match self.load(v, Word::Xattr) {
            0 => Err(Errno::NODATA),
            _ => self.attributes(v)?.get(name).map(<[u8]>::to_vec).ok_or(Errno::NODATA),
        }
    }

    /// Implements `FileSystem::listxattr`.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let _lock = self.tables().lock_shared(ino)?;
        Ok(self.attributes(self.live(ino)?)?.0.into_keys().collect())
    }

    /// Implements `FileSystem::setxattr`.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        // A name that is refused makes nothing dirty: it may be a command of a cache.
        S::LIMITS.check_xattr(self.live(ino)?.kind(), name, value.len())?;
        self.change(&[ino], || {
            let v = self.live(ino)?;
            self.check_attribute(v.kind(), name, value)?;
            let acl = match name {
                ACL_ACCESS | ACL_DEFAULT => Some(Acl::parse_valid(value)?),
                _ => None,
            };
            let mut list = self.attributes(v)?;
            let exists = list.get(name).is_some();
            match mode {
                SetXattr::Create if exists => return Err(Errno::EXIST),
                SetXattr::Replace if !exists => return Err(Errno::NODATA),
                _ => {}
            }
            if name == CAPABILITY {
                v.state.fetch_or(MAY_BE_CAPABLE, Relaxed);
            }
            let names: usize = list.0.keys().map(|n| n.len() + 1).sum();
            if !exists && names + name.len() + 1 > S::LIMITS.xattr_list {
                return Err(Errno::NOSPC);
            }
            let mode_word = self.load(v, Word::Mode);
            let mut new_mode = mode_word;
            match (acl, name) {
                (Some(acl), ACL_ACCESS) => {
                    let (perm, stored) = acl.split_mode(mode_word as u32);
                    new_mode = mode_word & !MODE_HALF | u64::from(perm);
                    match stored {
                        Some(acl) => list.set(name, acl.to_bytes()),
                        None => drop(list.remove(name)),
                    }
                }
                _ => list.set(name, value.to_vec()),
            }
            if list.bytes() > S::ATTRIBUTES_MAX {
                return Err(Errno::NOSPC);
            }
            let words = if new_mode == mode_word { vec![] } else { vec![(Word::Mode, new_mode)] };
            let change = Change { words, attributes: Some(list) };
            self.commit_change(ino, v, &change, None)
        })
    }

    /// Implements `FileSystem::removexattr`.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(&[ino], || {
            let v = self.live(ino)?;
            S::LIMITS.check_xattr(v.kind(), name, 0)?;
            let mut list = self.attributes(v)?;
            if !list.remove(name) {
                return Err(Errno::NODATA);
            }
            let change = Change { words: vec![], attributes: Some(list) };
            match self.commit_change(ino, v, &change, None) {
                Err(Errno::NOSPC) => {
                    self.touch_changed(v);
                    Ok(self.remove_in_place(v, name)?)
                }
                done => done,
            }
        })
    }

    /// Removes an attribute in place (xattr-L1), durably. The caller holds the inode's lock
    /// exclusively.
    fn remove_in_place(&self, v: &VInode, name: &[u8]) -> Result<()> {
        let mut list = self.attribute_list(v)?;
        let at = Attributes::position(&list, name).ok_or(Errno::UCLEAN)?;
        let place = self.attribute_place(v, at)?;
        let (word, bit) = (place - place.get() % 8, place.get() % 8 * 8);
        let value = self.medium().load_u64(word) & !(0xff << bit);
        let ready = Fenced::not_needed("what is removed shows nothing");
        let _ = self.medium().publish(word, value, ready);
        list[at as usize] = 0;
        self.note_attributes(v, &Attributes::parse(&list).ok_or(Errno::UCLEAN)?);
        Ok(())
    }

    /// Removes `security.capability` from an inode, durably and without taking space. Returns
    /// whether the inode had it. The caller holds the inode's lock exclusively.
    pub(crate) fn drop_capability(&self, v: &VInode) -> Result<bool> {
        match self.without_capability(v)? {
            None => return Ok(false),
            Some(left) if left.is_empty() => self.commit_no_attributes(v)?,
            Some(_) => self.remove_in_place(v, CAPABILITY)?,
        }
        Ok(true)
    }

    /// Removes `security.capability` durably, under the lock of a file, before its content changes.
    /// So no crash leaves the capability with other content. For a file that never had one this
    /// costs a test of a word that is loaded anyway.
    #[inline]
    pub fn revoke_capability(&self, v: &VInode) -> Result<()> {
        match v.state.load(Relaxed) & MAY_BE_CAPABLE {
            0 => Ok(()),
            _ => self.look_for_capability(v),
        }
    }

    /// Removes the capability of an inode that may have it, then clears the flag.
    #[cold]
    fn look_for_capability(&self, v: &VInode) -> Result<()> {
        self.drop_capability(v)?;
        v.state.fetch_and(!MAY_BE_CAPABLE, Relaxed);
        Ok(())
    }
}
