//! POSIX.1e access control lists, as far as a storage engine needs them.
//!
//! An ACL travels as the value of [`ACL_ACCESS`] or [`ACL_DEFAULT`] in the encoding of Linux
//! (`linux/posix_acl_xattr.h`): a header `version: u32` = 2, then entries
//! `{tag: u16, perm: u16, id: u32}`, all little-endian. The arithmetic follows the kernel's
//! `fs/posix_acl.c`, function by function, so that a file behaves here as it does on ext4.
//!
//! Left out: the access check itself. Permission is the front end's business (contract vfs-C3).

use crate::{Errno, Result};

/// Name of the attribute that holds an access ACL.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds the default ACL of a directory.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// The `id` of entries that have none; as an ID it is never valid.
const UNDEFINED_ID: u32 = u32::MAX;
const RWX: u32 = 0o7;

/// The users or groups that an entry applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The file's owner.
    UserObj,
    /// The user with this ID.
    User(u32),
    /// The file's group.
    GroupObj,
    /// The group with this ID.
    Group(u32),
    /// The most that named users and groups, and the file's group, can get.
    Mask,
    /// All other users.
    Other,
}

impl Tag {
    /// Decodes tag and number of an entry. `EINVAL` if the tag is unknown or lacks its number.
    fn from_raw(tag: u16, id: u32) -> Result<Self> {
        let named = |tag: fn(u32) -> Self| {
            if id == UNDEFINED_ID { Err(Errno::INVAL) } else { Ok(tag(id)) }
        };
        match tag {
            0x01 => Ok(Self::UserObj),
            0x02 => named(Self::User),
            0x04 => Ok(Self::GroupObj),
            0x08 => named(Self::Group),
            0x10 => Ok(Self::Mask),
            0x20 => Ok(Self::Other),
            _ => Err(Errno::INVAL),
        }
    }

    /// Encodes tag and number.
    fn to_raw(self) -> (u16, u32) {
        match self {
            Self::UserObj => (0x01, UNDEFINED_ID),
            Self::User(id) => (0x02, id),
            Self::GroupObj => (0x04, UNDEFINED_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, UNDEFINED_ID),
            Self::Other => (0x20, UNDEFINED_ID),
        }
    }
}

/// Permissions of one user, group or class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// The users or groups to which it applies.
    pub tag: Tag,
    /// `rwx` in the low three bits; others make the ACL invalid.
    pub perm: u16,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Makes an ACL of these entries, in this order; see [`validate`](Self::validate).
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Self {
        Self { entries: entries.into_iter().collect() }
    }

    /// Decodes an attribute's value. `EINVAL` if it is malformed, `EOPNOTSUPP` if its version is
    /// unknown. A decoded ACL may still be invalid: see [`validate`](Self::validate).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (header, body) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        if !body.len().is_multiple_of(ENTRY_LEN) {
            return Err(Errno::INVAL);
        }
        let entry = |raw: &[u8]| {
            let tag = u16::from_le_bytes([raw[0], raw[1]]);
            let perm = u16::from_le_bytes([raw[2], raw[3]]);
            let id = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
            Ok(AclEntry { tag: Tag::from_raw(tag, id)?, perm })
        };
        let entries = body.chunks_exact(ENTRY_LEN).map(entry).collect::<Result<_>>()?;
        Ok(Self { entries })
    }

    /// Decodes an attribute's value and checks it. Errors as [`parse`](Self::parse) and
    /// [`validate`](Self::validate).
    pub fn parse_valid(bytes: &[u8]) -> Result<Self> {
        let acl = Self::parse(bytes)?;
        acl.validate()?;
        Ok(acl)
    }

    /// Returns the attribute's value. Entries without an ID carry `u32::MAX` there, as from the
    /// kernel.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.entries.len() * ENTRY_LEN);
        bytes.extend(VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id) = entry.tag.to_raw();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Returns the entries, in their order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Fails with `EINVAL` unless the ACL is valid (`posix_acl_valid`). Its entries are owner,
    /// users, group, groups, mask, others in this order, with one owner, group and others. It needs
    /// a mask if it names users or groups.
    pub fn validate(&self) -> Result<()> {
        #[derive(PartialEq)]
        enum Expect {
            UserObj,
            Users,
            Groups,
            Other,
            End,
        }
        let mut expect = Expect::UserObj;
        let mut needs_mask = false;
        for entry in &self.entries {
            if u32::from(entry.perm) & !RWX != 0 {
                return Err(Errno::INVAL);
            }
            expect = match (entry.tag, expect) {
                (Tag::UserObj, Expect::UserObj) => Expect::Users,
                (Tag::User(_), Expect::Users) => {
                    needs_mask = true;
                    Expect::Users
                }
                (Tag::GroupObj, Expect::Users) => Expect::Groups,
                (Tag::Group(_), Expect::Groups) => {
                    needs_mask = true;
                    Expect::Groups
                }
                (Tag::Mask, Expect::Groups) => Expect::Other,
                (Tag::Other, Expect::Other) => Expect::End,
                (Tag::Other, Expect::Groups) if !needs_mask => Expect::End,
                _ => return Err(Errno::INVAL),
            };
        }
        if expect == Expect::End { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Returns the permission bits (`0o777`) if they express the whole ACL, so that it need not be
    /// stored (`posix_acl_equiv_mode`).
    pub fn equivalent_mode(&self) -> Option<u32> {
        let plain = |e: &AclEntry| matches!(e.tag, Tag::UserObj | Tag::GroupObj | Tag::Other);
        self.entries.iter().all(plain).then(|| self.mode_bits())
    }

    /// Returns the permission bits (`0o777`) that go with this ACL: owner, mask (or group, if there
    /// is no mask), others.
    pub fn mode_bits(&self) -> u32 {
        let perm = |tag: Tag| {
            let entry = self.entries.iter().find(|e| e.tag == tag);
            entry.map(|e| u32::from(e.perm) & RWX)
        };
        let owner = perm(Tag::UserObj).unwrap_or(0);
        let group = perm(Tag::Mask).or(perm(Tag::GroupObj)).unwrap_or(0);
        let other = perm(Tag::Other).unwrap_or(0);
        owner << 6 | group << 3 | other
    }

    /// Follows a change of the permission bits to `perm`: owner and others get theirs, the mask (or
    /// group, if there is no mask) gets the group's (`posix_acl_chmod`).
    pub fn chmod(&mut self, perm: u32) {
        self.for_each_class(|entry_perm, shift| *entry_perm = perm >> shift & RWX);
    }

    /// Returns the mode and the access ACL of a node created with `mode` in a directory with this
    /// default ACL. There is no access ACL if the mode expresses it already (`posix_acl_create`).
    /// Bits of `mode` above `0o777` pass through; a umask must not have been applied.
    pub fn inherit(&self, mode: u32) -> (u32, Option<Self>) {
        let mut access = self.clone();
        access.for_each_class(|entry_perm, shift| *entry_perm &= mode >> shift & RWX);
        access.split_mode(mode)
    }

    /// Splits an access ACL into the mode that goes with it (`mode` with its permission bits
    /// replaced) and the ACL that remains to be stored (`posix_acl_update_mode`).
    pub fn split_mode(self, mode: u32) -> (u32, Option<Self>) {
        let new_mode = mode & !0o777 | self.mode_bits();
        let stored = self.equivalent_mode().is_none().then_some(self);
        (new_mode, stored)
    }

    /// Calls `change` with the permissions of each class: owner, mask or group, and others; and
    /// with the shift of the class's bits in a mode.
    fn for_each_class(&mut self, mut change: impl FnMut(&mut u32, u32)) {
        let has_mask = self.entries.iter().any(|e| e.tag == Tag::Mask);
        for entry in &mut self.entries {
            let shift = match entry.tag {
                Tag::UserObj => 6,
                Tag::Mask => 3,
                Tag::GroupObj if !has_mask => 3,
                Tag::Other => 0,
                Tag::GroupObj | Tag::User(_) | Tag::Group(_) => continue,
            };
            let mut perm = u32::from(entry.perm) & RWX;
            change(&mut perm, shift);
            entry.perm = perm as u16;
        }
    }
}
