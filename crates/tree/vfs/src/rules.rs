//! Rules of the contract that every engine applies in the same way.

use crate::acl::Acl;
use crate::{Attr, Caller, FileKind, NewNode};

/// Set-user-ID bit of a mode.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-ID bit of a mode.
pub const S_ISGID: u32 = 0o2000;
/// Group-execute bit of a mode.
pub const S_IXGRP: u32 = 0o0010;
/// Permission bits of every symbolic link.
pub const SYMLINK_PERM: u32 = 0o777;

/// Returns whether any of the `wanted` bytes is in a text: eight bytes at a time, for texts as
/// short as names.
#[inline]
pub fn has_any<const N: usize>(text: &[u8], wanted: [u8; N]) -> bool {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = LOW << 7;
    // The lowest zero byte leaves its highest bit set; bytes above it may do so, too.
    let has = |word: u64| {
        let hits = wanted.map(|byte| {
            let zero = word ^ (LOW * u64::from(byte));
            zero.wrapping_sub(LOW) & !zero
        });
        hits.into_iter().fold(0, |all, hit| all | hit) & HIGH != 0
    };
    // The last eight bytes overlap the bytes before them.
    if let (Some(_), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        let (words, _) = text.as_chunks::<8>();
        words.iter().chain([last]).any(|word| has(u64::from_ne_bytes(*word)))
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        let half = |bytes: &[u8; 4]| u64::from(u32::from_ne_bytes(*bytes));
        has(half(first) << 32 | half(last))
    } else {
        text.iter().any(|byte| wanted.contains(byte))
    }
}

/// Returns the group and the mode of a node that `caller` creates with `mode` in the directory
/// `dir_attr`: a set-group-ID directory hands its group to everything in it, and the bit to
/// directories. A directory takes no set-user-ID or set-group-ID from `mode` (`mkdir(2)`).
///
/// The kernel also takes set-group-ID from a file that an outsider makes group-executable in such a
/// directory; that depends on supplementary groups, so it is the front end's business (vfs-C3).
pub fn new_node_owner(caller: &Caller, dir_attr: &Attr, kind: FileKind, mode: u32) -> (u32, u32) {
    let inherits = dir_attr.perm & S_ISGID != 0;
    let gid = if inherits { dir_attr.gid } else { caller.gid };
    let mode = match kind {
        FileKind::Dir if inherits => mode & !S_ISUID | S_ISGID,
        FileKind::Dir => mode & !(S_ISUID | S_ISGID),
        _ => mode,
    };
    (gid, mode)
}

/// The attributes that a new node starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Group.
    pub gid: u32,
    /// Permission bits, `0o7777`.
    pub perm: u32,
    /// Access ACL to store.
    pub access: Option<Acl>,
    /// Default ACL to store.
    pub default: Option<Acl>,
}

impl NewInode {
    /// Derives group, permission bits and ACLs of `node`, which `caller` creates in the
    /// directory `dir_attr` with the default ACL `dir_default`: by [`new_node_owner`], then by the
    /// default ACL or, without one, the umask. A symbolic link takes neither; its bits are
    /// [`SYMLINK_PERM`].
    pub fn derive(
        caller: &Caller,
        dir_attr: &Attr,
        dir_default: Option<&Acl>,
        node: &NewNode<'_>,
    ) -> Self {
        let kind = node.kind.file_kind();
        let (gid, mode) = new_node_owner(caller, dir_attr, kind, node.mode & 0o7777);
        if kind == FileKind::Symlink {
            return Self { gid, perm: SYMLINK_PERM, access: None, default: None };
        }
        match dir_default {
            None => Self { gid, perm: mode & !(node.umask & 0o777), access: None, default: None },
            Some(acl) => {
                let (perm, access) = acl.inherit(mode);
                let default = (kind == FileKind::Dir).then(|| acl.clone());
                Self { gid, perm, access, default }
            }
        }
    }
}

/// Returns `mode` without the bits that a write or a change of owner removes from a file:
/// set-user-ID, and set-group-ID if it is group-executable.
pub fn clear_privileges(mode: u32) -> u32 {
    let cleared = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { cleared & !S_ISGID } else { cleared }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_found_wherever_it_is() {
        for len in 0..40 {
            // Neighbours of the wanted byte, and bytes with the highest bit.
            for filler in [1, b'.', b'0', 0x80, 0x81, b'/' | 0x80, 0xff] {
                let mut text = vec![filler; len];
                assert!(!has_any(&text, [b'/', 0]), "{text:?}");
                for at in 0..len {
                    for byte in [b'/', 0] {
                        text[at] = byte;
                        assert!(has_any(&text, [b'/', 0]), "{text:?}");
                        assert_eq!(has_any(&text, [b'/']), byte == b'/', "{text:?}");
                        text[at] = filler;
                    }
                }
            }
        }
    }

    #[test]
    fn seconds_are_rounded_down() {
        use crate::Timestamp;
        assert_eq!(Timestamp(1_500_000_000).parts(), (1, 500_000_000));
        assert_eq!(Timestamp(0).parts(), (0, 0));
        assert_eq!(Timestamp(-1).parts(), (-1, 999_999_999));
        assert_eq!(Timestamp(i64::MIN).parts(), (-9_223_372_037, 145_224_192));
        assert_eq!(Timestamp(i64::MAX).parts(), (9_223_372_036, 854_775_807));
    }
}
