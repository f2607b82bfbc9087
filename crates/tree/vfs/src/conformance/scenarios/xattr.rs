//! Extended attributes and ACLs.

use super::{USER, assert_bytes, attr, chmod, dir, fails, file, make, others, pattern};
use crate::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, Tag};
use crate::{Caller, Errno, FileSystem, Ino, NewKind, NewNode, SetXattr, XATTR_NAME_MAX};

super::table!("xattr":
    values_are_set_read_and_removed,
    values_are_replaced,
    flags_are_obeyed,
    values_are_bytes_of_any_length,
    values_are_limited,
    names_are_limited,
    namespaces_are_known,
    user_attributes_need_file_or_directory,
    many_attributes_work,
    every_kind_has_attributes,
    links_share_attributes,
    attributes_go_with_the_inode,
    an_access_acl_sets_the_bits,
    a_plain_acl_is_not_stored,
    chmod_follows_into_the_acl,
    removing_an_acl_leaves_the_bits,
    acls_obey_flags,
    invalid_acls_are_refused,
    acls_belong_to_some_kinds,
    a_default_acl_is_inherited_by_files,
    a_default_acl_is_inherited_by_directories,
    a_plain_default_acl_replaces_the_umask,
    a_default_acl_spares_symlinks,
    a_default_acl_is_inherited_by_tmpfiles,
);

/// Returns an ACL of owner, the user 1000, group, mask and others.
fn acl(owner: u16, named: u16, group: u16, mask: u16, other: u16) -> Acl {
    let tags = [Tag::UserObj, Tag::User(1000), Tag::GroupObj, Tag::Mask, Tag::Other];
    let entries = tags.into_iter().zip([owner, named, group, mask, other]);
    Acl::new(entries.map(|(tag, perm)| AclEntry { tag, perm }))
}

/// Returns an ACL of owner, group and others.
fn plain(owner: u16, group: u16, other: u16) -> Acl {
    let entries = [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().zip([owner, group, other]);
    Acl::new(entries.map(|(tag, perm)| AclEntry { tag, perm }))
}

fn set(fs: &dyn FileSystem, ino: Ino, name: &[u8], value: &[u8]) {
    fs.setxattr(ino, name, value, SetXattr::Any).unwrap();
}

fn list(fs: &dyn FileSystem, ino: Ino) -> Vec<Vec<u8>> {
    let mut names = fs.listxattr(ino).unwrap();
    names.sort();
    names
}

fn values_are_set_read_and_removed(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    assert!(list(fs, ino).is_empty());
    fails(fs.getxattr(ino, b"user.a"), Errno::NODATA);
    fails(fs.removexattr(ino, b"user.a"), Errno::NODATA);
    set(fs, ino, b"user.b", b"two");
    set(fs, ino, b"user.a", b"one");
    assert_eq!(list(fs, ino), [b"user.a", b"user.b"]);
    assert_eq!(fs.getxattr(ino, b"user.a").unwrap(), b"one");
    fails(fs.getxattr(ino, b"user.aa"), Errno::NODATA);
    fails(fs.getxattr(ino, b"user."), Errno::NODATA);
    fs.removexattr(ino, b"user.a").unwrap();
    fails(fs.getxattr(ino, b"user.a"), Errno::NODATA);
    assert_eq!(list(fs, ino), [b"user.b"]);
}

fn values_are_replaced(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let data = pattern(40_000);
    set(fs, ino, b"user.other", b"stays");
    for len in [10, 0, 100, 10_000, 99, 4096, 40_000, 1, 4000, 4001] {
        set(fs, ino, b"user.a", &data[..len]);
        assert_bytes(&fs.getxattr(ino, b"user.a").unwrap(), &data[..len]);
        assert_eq!(fs.getxattr(ino, b"user.other").unwrap(), b"stays");
    }
    assert_eq!(list(fs, ino).len(), 2);
}

fn flags_are_obeyed(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fails(fs.setxattr(ino, b"user.a", b"v", SetXattr::Replace), Errno::NODATA);
    fs.setxattr(ino, b"user.a", b"1", SetXattr::Create).unwrap();
    fails(fs.setxattr(ino, b"user.a", b"2", SetXattr::Create), Errno::EXIST);
    assert_eq!(fs.getxattr(ino, b"user.a").unwrap(), b"1");
    fs.setxattr(ino, b"user.a", b"3", SetXattr::Replace).unwrap();
    assert_eq!(fs.getxattr(ino, b"user.a").unwrap(), b"3");
}

fn values_are_bytes_of_any_length(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    for value in [b"".as_slice(), b"\0", b"\0\xff\0", &[0; 300]] {
        set(fs, ino, b"user.a", value);
        assert_eq!(fs.getxattr(ino, b"user.a").unwrap(), value);
        assert_eq!(list(fs, ino), [b"user.a"]);
    }
}

fn values_are_limited(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let data = pattern(fs.limits().xattr + 1);
    fails(fs.setxattr(ino, b"user.a", &data, SetXattr::Any), Errno::TOOBIG);
    assert!(list(fs, ino).is_empty());
    set(fs, ino, b"user.a", &data[1..]);
    assert_bytes(&fs.getxattr(ino, b"user.a").unwrap(), &data[1..]);
}

fn names_are_limited(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let mut name = b"user.".to_vec();
    name.resize(XATTR_NAME_MAX, b'n');
    set(fs, ino, &name, b"v");
    assert_eq!(list(fs, ino), [name.clone()]);
    fs.removexattr(ino, &name).unwrap();
    name.push(b'n');
    for (name, errno) in
        [(name.as_slice(), Errno::RANGE), (b"", Errno::RANGE), (b"user.", Errno::INVAL)]
    {
        fails(fs.setxattr(ino, name, b"v", SetXattr::Any), errno);
        fails(fs.removexattr(ino, name), errno);
    }
}

fn namespaces_are_known(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let odd = "user.\u{e4} \n".as_bytes();
    for name in [b"user.a".as_slice(), b"trusted.overlay.opaque", b"security.selinux", odd] {
        set(fs, ino, name, name);
        assert_eq!(fs.getxattr(ino, name).unwrap(), name);
    }
    assert_eq!(list(fs, ino).len(), 4);
    let unknown: [&[u8]; 7] = [
        b"a",
        b"user",
        b"usera.b",
        b"system.a",
        b"system.posix_acl_accessible",
        b"system.posix_acl_defaul",
        b"other.a",
    ];
    for name in unknown {
        fails(fs.setxattr(ino, name, b"v", SetXattr::Any), Errno::OPNOTSUPP);
        fails(fs.removexattr(ino, name), Errno::OPNOTSUPP);
        fails(fs.getxattr(ino, name), Errno::NODATA);
    }
}

fn user_attributes_need_file_or_directory(fs: &dyn FileSystem) {
    set(fs, dir(fs, b"d"), b"user.a", b"v");
    for ino in others(fs) {
        fails(fs.setxattr(ino, b"user.a", b"v", SetXattr::Any), Errno::PERM);
        fails(fs.removexattr(ino, b"user.a"), Errno::PERM);
        fails(fs.getxattr(ino, b"user.a"), Errno::NODATA);
    }
}

fn many_attributes_work(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let name = |i: usize| format!("user.attribute.{i}").into_bytes();
    let data = pattern(2000);
    for i in 0..150 {
        set(fs, ino, &name(i), &data[i..i * 7 + 1]);
    }
    for i in (0..150).step_by(3) {
        fs.removexattr(ino, &name(i)).unwrap();
    }
    for i in 0..150 {
        match i % 3 {
            0 => fails(fs.getxattr(ino, &name(i)), Errno::NODATA),
            _ => assert_bytes(&fs.getxattr(ino, &name(i)).unwrap(), &data[i..i * 7 + 1]),
        }
    }
    assert_eq!(list(fs, ino).len(), 100);
}

fn every_kind_has_attributes(fs: &dyn FileSystem) {
    let mut inos = others(fs);
    inos.extend([fs.root(), file(fs, b"f"), dir(fs, b"d")]);
    for ino in inos {
        for name in [b"trusted.a".as_slice(), b"security.a"] {
            set(fs, ino, name, b"v");
            assert_eq!(fs.getxattr(ino, name).unwrap(), b"v");
        }
        assert_eq!(list(fs, ino).len(), 2);
    }
}

fn links_share_attributes(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fs.link(ino, fs.root(), b"g").unwrap();
    set(fs, ino, b"user.a", b"v");
    fs.unlink(fs.root(), b"f").unwrap();
    let found = fs.lookup(fs.root(), b"g").unwrap().ino;
    assert_eq!(fs.getxattr(found, b"user.a").unwrap(), b"v");
}

fn attributes_go_with_the_inode(fs: &dyn FileSystem) {
    for _ in 0..3 {
        let ino = file(fs, b"f");
        assert!(list(fs, ino).is_empty());
        set(fs, ino, b"user.a", &[1; 5000]);
        fs.unlink(fs.root(), b"f").unwrap();
        assert_eq!(fs.getxattr(ino, b"user.a").unwrap(), [1; 5000]);
        fs.forget(ino, 1);
    }
}

fn an_access_acl_sets_the_bits(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    chmod(fs, ino, 0o4644);
    let value = acl(7, 6, 5, 6, 1).to_bytes();
    set(fs, ino, ACL_ACCESS, &value);
    assert_eq!(attr(fs, ino).perm, 0o4761);
    assert_eq!(fs.getxattr(ino, ACL_ACCESS).unwrap(), value);
    assert_eq!(list(fs, ino), [ACL_ACCESS]);
}

fn a_plain_acl_is_not_stored(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    set(fs, ino, ACL_ACCESS, &plain(7, 5, 0).to_bytes());
    assert_eq!(attr(fs, ino).perm, 0o750);
    fails(fs.getxattr(ino, ACL_ACCESS), Errno::NODATA);
    set(fs, ino, ACL_ACCESS, &acl(7, 6, 5, 6, 1).to_bytes());
    set(fs, ino, ACL_ACCESS, &plain(6, 4, 4).to_bytes());
    assert_eq!((attr(fs, ino).perm, list(fs, ino)), (0o644, vec![]));
    let d = dir(fs, b"d");
    let default = plain(7, 5, 5).to_bytes();
    set(fs, d, ACL_DEFAULT, &default);
    assert_eq!(fs.getxattr(d, ACL_DEFAULT).unwrap(), default);
    assert_eq!(attr(fs, d).perm, 0o755);
}

fn chmod_follows_into_the_acl(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    set(fs, ino, ACL_ACCESS, &acl(7, 6, 5, 6, 1).to_bytes());
    chmod(fs, ino, 0o640);
    assert_eq!(attr(fs, ino).perm, 0o640);
    assert_eq!(fs.getxattr(ino, ACL_ACCESS).unwrap(), acl(6, 6, 5, 4, 0).to_bytes());
}

fn removing_an_acl_leaves_the_bits(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fails(fs.removexattr(ino, ACL_ACCESS), Errno::NODATA);
    set(fs, ino, ACL_ACCESS, &acl(7, 6, 5, 6, 1).to_bytes());
    fs.removexattr(ino, ACL_ACCESS).unwrap();
    assert_eq!((attr(fs, ino).perm, list(fs, ino)), (0o761, vec![]));
}

fn acls_obey_flags(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let value = acl(7, 6, 5, 6, 1).to_bytes();
    fails(fs.setxattr(ino, ACL_ACCESS, &value, SetXattr::Replace), Errno::NODATA);
    assert_eq!(attr(fs, ino).perm, 0o644);
    fs.setxattr(ino, ACL_ACCESS, &value, SetXattr::Create).unwrap();
    fails(fs.setxattr(ino, ACL_ACCESS, &value, SetXattr::Create), Errno::EXIST);
}

fn invalid_acls_are_refused(fs: &dyn FileSystem) {
    let ino = dir(fs, b"d");
    let no_mask =
        Acl::new(acl(7, 6, 5, 6, 1).entries().iter().filter(|e| e.tag != Tag::Mask).copied());
    for name in [ACL_ACCESS, ACL_DEFAULT] {
        for value in [b"".as_slice(), b"\x02\0\0\0junk", &[2, 0, 0, 0], &no_mask.to_bytes()] {
            fails(fs.setxattr(ino, name, value, SetXattr::Any), Errno::INVAL);
        }
        let wide = acl(7, 8, 5, 6, 1).to_bytes();
        fails(fs.setxattr(ino, name, &wide, SetXattr::Any), Errno::INVAL);
        fails(fs.setxattr(ino, name, &[1, 0, 0, 0], SetXattr::Any), Errno::OPNOTSUPP);
    }
    assert_eq!((attr(fs, ino).perm, list(fs, ino)), (0o755, vec![]));
}

fn acls_belong_to_some_kinds(fs: &dyn FileSystem) {
    let value = acl(7, 6, 5, 6, 1).to_bytes();
    let put = |ino, name| fs.setxattr(ino, name, &value, SetXattr::Any);
    let link = make(fs, fs.root(), b"l", NewKind::Symlink(b"t"));
    fails(put(link, ACL_ACCESS), Errno::OPNOTSUPP);
    fails(put(link, ACL_DEFAULT), Errno::OPNOTSUPP);
    fails(put(file(fs, b"f"), ACL_DEFAULT), Errno::ACCESS);
    let fifo = make(fs, fs.root(), b"p", NewKind::Fifo);
    put(fifo, ACL_ACCESS).unwrap();
    assert_eq!(attr(fs, fifo).perm, 0o761);
    let d = dir(fs, b"d");
    put(d, ACL_DEFAULT).unwrap();
    put(d, ACL_ACCESS).unwrap();
    assert_eq!(list(fs, d), [ACL_ACCESS, ACL_DEFAULT]);
}

/// Returns a directory with a default ACL.
fn with_default(fs: &dyn FileSystem, acl: &Acl) -> Ino {
    let d = dir(fs, b"d");
    set(fs, d, ACL_DEFAULT, &acl.to_bytes());
    d
}

fn a_default_acl_is_inherited_by_files(fs: &dyn FileSystem) {
    let d = with_default(fs, &acl(7, 7, 5, 7, 0));
    for (name, kind) in [(b"f", NewKind::File), (b"p", NewKind::Fifo)] {
        let node = NewNode { kind, mode: 0o664, umask: 0o077 };
        let made = fs.create(&USER, d, name, &node).unwrap();
        assert_eq!((made.perm, list(fs, made.ino)), (0o660, vec![ACL_ACCESS.to_vec()]));
        let access = fs.getxattr(made.ino, ACL_ACCESS).unwrap();
        assert_eq!(access, acl(6, 7, 5, 6, 0).to_bytes());
    }
}

fn a_default_acl_is_inherited_by_directories(fs: &dyn FileSystem) {
    let d = with_default(fs, &acl(7, 7, 5, 7, 0));
    let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0o022 };
    let made = fs.create(&Caller::ROOT, d, b"s", &node).unwrap();
    assert_eq!((made.perm, list(fs, made.ino).len()), (0o750, 2));
    assert_eq!(fs.getxattr(made.ino, ACL_ACCESS).unwrap(), acl(7, 7, 5, 5, 0).to_bytes());
    assert_eq!(fs.getxattr(made.ino, ACL_DEFAULT).unwrap(), acl(7, 7, 5, 7, 0).to_bytes());
    let deeper = fs.create(&Caller::ROOT, made.ino, b"f", &node).unwrap();
    assert_eq!(list(fs, deeper.ino).len(), 2);
}

fn a_plain_default_acl_replaces_the_umask(fs: &dyn FileSystem) {
    let d = with_default(fs, &plain(7, 5, 5));
    let node = NewNode { kind: NewKind::File, mode: 0o666, umask: 0o777 };
    let made = fs.create(&Caller::ROOT, d, b"f", &node).unwrap();
    assert_eq!((made.perm, list(fs, made.ino)), (0o644, vec![]));
}

fn a_default_acl_spares_symlinks(fs: &dyn FileSystem) {
    let d = with_default(fs, &acl(7, 7, 5, 7, 0));
    let link = make(fs, d, b"l", NewKind::Symlink(b"t"));
    assert_eq!((attr(fs, link).perm, list(fs, link)), (0o777, vec![]));
}

fn a_default_acl_is_inherited_by_tmpfiles(fs: &dyn FileSystem) {
    let d = with_default(fs, &acl(7, 7, 5, 7, 0));
    let made = fs.tmpfile(&USER, d, 0o664, 0o077).unwrap();
    assert_eq!((made.perm, list(fs, made.ino)), (0o660, vec![ACL_ACCESS.to_vec()]));
}
