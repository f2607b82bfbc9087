//! Tests of the ACL arithmetic against values that a Linux kernel (tmpfs, 6.18) returned, and
//! against hostile bytes.

use proptest::prelude::*;
use vfs::Errno;
use vfs::acl::{Acl, AclEntry, Tag};

/// `setfacl -m u:1000:rw,g:100:r` on a file of mode 0640; the mode became 0660.
const NAMED: &str = "0200000001000600ffffffff02000600e803000004000400ffffffff0800040064000000\
                     10000600ffffffff20000000ffffffff";
/// [`NAMED`] after `chmod 0755`.
const NAMED_0755: &str = "0200000001000700ffffffff02000600e803000004000400ffffffff0800040064000000\
                          10000500ffffffff20000500ffffffff";
/// `setfacl -d -m u::rwx,g::rx,o::-,u:1000:rwx` on a directory.
const DEFAULT: &str = "0200000001000700ffffffff02000700e803000004000500ffffffff10000700ffffffff\
                       20000000ffffffff";
/// Access ACL of a file created in it with mode 0664; the mode became 0660.
const INHERITED: &str = "0200000001000600ffffffff02000700e803000004000500ffffffff10000600ffffffff\
                         20000000ffffffff";
/// An ACL that expresses no more than mode 0755.
const PLAIN: &str = "0200000001000700ffffffff04000500ffffffff20000500ffffffff";

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn acl(hex: &str) -> Acl {
    Acl::parse_valid(&bytes(hex)).unwrap()
}

fn entry(tag: Tag, perm: u16) -> AclEntry {
    AclEntry { tag, perm }
}

#[test]
fn values_from_the_kernel_survive_a_round_trip() {
    for hex in [NAMED, NAMED_0755, DEFAULT, INHERITED, PLAIN] {
        assert_eq!(acl(hex).to_bytes(), bytes(hex));
    }
    assert_eq!(
        acl(INHERITED).entries(),
        [
            entry(Tag::UserObj, 6),
            entry(Tag::User(1000), 7),
            entry(Tag::GroupObj, 5),
            entry(Tag::Mask, 6),
            entry(Tag::Other, 0)
        ]
    );
}

#[test]
fn the_mode_shows_the_mask_as_the_group() {
    assert_eq!(acl(NAMED).mode_bits(), 0o660);
    assert_eq!(acl(NAMED_0755).mode_bits(), 0o755);
    assert_eq!(acl(PLAIN).mode_bits(), 0o755);
    assert_eq!(acl(NAMED).equivalent_mode(), None);
    assert_eq!(acl(PLAIN).equivalent_mode(), Some(0o755));
    assert_eq!(acl(PLAIN).split_mode(0o4000), (0o4755, None));
    assert_eq!(acl(NAMED).split_mode(0o2777), (0o2660, Some(acl(NAMED))));
}

#[test]
fn chmod_rewrites_the_mask_and_leaves_the_group() {
    let mut changed = acl(NAMED);
    changed.chmod(0o755);
    assert_eq!(changed, acl(NAMED_0755));
    let mut plain = acl(PLAIN);
    plain.chmod(0o4640);
    assert_eq!(plain.equivalent_mode(), Some(0o640));
}

#[test]
fn a_new_node_inherits_what_its_mode_allows() {
    assert_eq!(acl(DEFAULT).inherit(0o664), (0o660, Some(acl(INHERITED))));
    assert_eq!(acl(DEFAULT).inherit(0o2777), (0o2770, Some(acl(DEFAULT))));
    assert_eq!(acl(PLAIN).inherit(0o666), (0o644, None));
}

#[test]
fn validity_follows_the_kernel() {
    use Tag::*;
    let valid = |entries: &[(Tag, u16)]| {
        Acl::new(entries.iter().map(|&(tag, perm)| entry(tag, perm))).validate().is_ok()
    };
    assert!(valid(&[(UserObj, 7), (GroupObj, 5), (Mask, 4), (Other, 5)]));
    assert!(valid(&[(UserObj, 7), (GroupObj, 5), (Group(1), 5), (Mask, 4), (Other, 5)]));
    let invalid: [&[(Tag, u16)]; 9] = [
        &[],
        &[(UserObj, 8), (GroupObj, 5), (Other, 5)],
        &[(UserObj, 7), (GroupObj, 5)],
        &[(UserObj, 7), (Other, 5)],
        &[(GroupObj, 5), (UserObj, 7), (Other, 5)],
        &[(UserObj, 7), (User(1), 5), (GroupObj, 5), (Other, 5)],
        &[(UserObj, 7), (GroupObj, 5), (User(1), 5), (Mask, 5), (Other, 5)],
        &[(UserObj, 7), (GroupObj, 5), (Mask, 5), (Mask, 5), (Other, 5)],
        &[(UserObj, 7), (GroupObj, 5), (Other, 5), (Other, 5)],
    ];
    for entries in invalid {
        assert!(!valid(entries), "{entries:?}");
    }
}

#[test]
fn malformed_values_are_refused() {
    let invalid = |bytes: &[u8]| assert_eq!(Acl::parse(bytes), Err(Errno::INVAL), "{bytes:x?}");
    invalid(b"");
    invalid(&[2, 0, 0]);
    invalid(&bytes(NAMED)[..21]);
    invalid(&bytes("0200000003000700ffffffff"));
    invalid(&bytes("0200000002000700ffffffff"));
    assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::OPNOTSUPP));
    assert_eq!(Acl::parse_valid(&[2, 0, 0, 0]), Err(Errno::INVAL));
}

/// Values close enough to an ACL to pass the first checks.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop_oneof![prop::sample::select(vec![1u16, 2, 4, 8, 16, 32]), any::<u16>()];
    let perm = prop_oneof![0u16..8, any::<u16>()];
    let id = prop_oneof![Just(u32::MAX), any::<u32>()];
    let entries = prop::collection::vec((tag, perm, id), 0..9);
    let version = prop_oneof![9 => Just(2u32), 1 => any::<u32>()];
    (version, entries, 0usize..3).prop_map(|(version, entries, cut)| {
        let mut bytes = version.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes.truncate(bytes.len() - cut);
        bytes
    })
}

proptest! {
    #[test]
    fn hostile_values_never_panic(bytes in hostile(), mode in 0u32..0o10000) {
        let Ok(mut acl) = Acl::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(Acl::parse(&acl.to_bytes()), Ok(acl.clone()));
        let valid = acl.validate().is_ok();
        let (inherited, stored) = acl.inherit(mode);
        prop_assert_eq!(inherited & !mode & 0o7777, 0, "nothing is gained");
        if let (true, Some(stored)) = (valid, stored) {
            prop_assert!(stored.validate().is_ok());
            prop_assert_eq!(stored.mode_bits(), inherited & 0o777);
        }
        acl.chmod(mode);
        if valid {
            prop_assert_eq!(acl.mode_bits(), mode & 0o777);
        }
    }
}
