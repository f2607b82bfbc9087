//! References, files without names, removed directories.

use super::{
    USER, attr, contents, dir, exists, fails, file, file_with, find, make, names, pattern, truncate,
};
use crate::acl::{ACL_ACCESS, Acl, AclEntry, Tag};
use crate::{Caller, Errno, FileSystem, NewKind, NewNode, RenameFlags, SetAttr, SetXattr};

super::table!("life":
    an_unlinked_file_lives_while_referenced,
    an_unreferenced_unlinked_file_is_gone,
    each_reference_counts,
    a_named_inode_needs_no_reference,
    surplus_forgets_are_ignored,
    a_replaced_file_lives_while_referenced,
    a_removed_directory_takes_no_names,
    a_tmpfile_can_be_used_and_vanishes,
    a_tmpfile_can_be_named_once,
    a_tmpfile_in_a_removed_directory_works,
    an_unlinked_file_cannot_be_named_again,
    inode_numbers_are_stable,
    a_new_life_has_another_generation,
    versions_tell_of_changes,
    space_comes_back,
);

fn an_unlinked_file_lives_while_referenced(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"a", b"before");
    fs.unlink(fs.root(), b"a").unwrap();
    assert_eq!(contents(fs, ino), b"before");
    fs.append(ino, b" and after").unwrap();
    assert_eq!(contents(fs, ino), b"before and after");
    truncate(fs, ino, 3).unwrap();
    let attr = attr(fs, ino);
    assert_eq!((attr.nlink, attr.size), (0, 3));
    fs.fsync(ino).unwrap();
}

fn an_unreferenced_unlinked_file_is_gone(fs: &dyn FileSystem) {
    let (a, b) = (file(fs, b"a"), file(fs, b"b"));
    fs.unlink(fs.root(), b"a").unwrap();
    fs.forget(a, 1);
    fails(fs.getattr(a), Errno::STALE);
    fs.forget(b, 1);
    fs.unlink(fs.root(), b"b").unwrap();
    fails(fs.getattr(b), Errno::STALE);
    let d = dir(fs, b"d");
    fs.forget(d, 1);
    fs.rmdir(fs.root(), b"d").unwrap();
    fails(fs.getattr(d), Errno::STALE);
}

fn each_reference_counts(fs: &dyn FileSystem) {
    let ino = file(fs, b"a");
    fs.lookup(fs.root(), b"a").unwrap();
    fs.link(ino, fs.root(), b"b").unwrap();
    fs.unlink(fs.root(), b"a").unwrap();
    fs.unlink(fs.root(), b"b").unwrap();
    for _ in 0..2 {
        fs.forget(ino, 1);
        fs.getattr(ino).unwrap();
    }
    fs.forget(ino, 1);
    fails(fs.getattr(ino), Errno::STALE);
    let ino = file(fs, b"c");
    for _ in 0..9 {
        fs.lookup(fs.root(), b"c").unwrap();
    }
    fs.unlink(fs.root(), b"c").unwrap();
    fs.forget(ino, 9);
    fs.getattr(ino).unwrap();
    fs.forget(ino, 1);
    fails(fs.getattr(ino), Errno::STALE);
}

fn a_named_inode_needs_no_reference(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"a", b"data");
    fs.forget(ino, 1);
    assert_eq!(contents(fs, ino), b"data");
    assert_eq!(find(fs, fs.root(), b"a"), Ok(ino));
}

fn surplus_forgets_are_ignored(fs: &dyn FileSystem) {
    let ino = file(fs, b"a");
    fs.forget(ino, 5);
    fs.forget(fs.root(), 5);
    assert_eq!(find(fs, fs.root(), b"a"), Ok(ino));
    fs.lookup(fs.root(), b"a").unwrap();
    fs.unlink(fs.root(), b"a").unwrap();
    assert_eq!(attr(fs, ino).nlink, 0);
}

fn a_replaced_file_lives_while_referenced(fs: &dyn FileSystem) {
    let old = file_with(fs, b"a", b"old");
    file(fs, b"b");
    fs.rename((fs.root(), b"b"), (fs.root(), b"a"), RenameFlags::empty()).unwrap();
    assert_eq!(contents(fs, old), b"old");
    fs.forget(old, 1);
    fails(fs.getattr(old), Errno::STALE);
}

fn a_removed_directory_takes_no_names(fs: &dyn FileSystem) {
    let gone = dir(fs, b"d");
    let f = file(fs, b"f");
    fs.rmdir(fs.root(), b"d").unwrap();
    assert_eq!(attr(fs, gone).nlink, 0);
    for kind in [NewKind::File, NewKind::Dir, NewKind::Symlink(b"t")] {
        let node = NewNode { kind, mode: 0o644, umask: 0 };
        fails(fs.create(&Caller::ROOT, gone, b"x", &node), Errno::NOENT);
    }
    fails(fs.link(f, gone, b"x"), Errno::NOENT);
    fails(fs.lookup(gone, b"x"), Errno::NOENT);
    fails(fs.lookup(gone, b".."), Errno::NOENT);
    assert_eq!(find(fs, gone, b"."), Ok(gone));
    fails(fs.readdir(gone, 0, &mut |_| true), Errno::NOENT);
    fails(fs.unlink(gone, b"x"), Errno::NOENT);
    fails(fs.rmdir(gone, b"x"), Errno::NOENT);
    super::chmod(fs, gone, 0o700);
    assert_eq!(attr(fs, gone).perm, 0o700);
    assert_eq!(attr(fs, f).nlink, 1);
}

fn a_tmpfile_can_be_used_and_vanishes(fs: &dyn FileSystem) {
    let made = fs.tmpfile(&USER, fs.root(), 0o640, 0).unwrap();
    assert_eq!((made.nlink, made.size, made.perm), (0, 0, 0o640));
    let data = pattern(10_000);
    fs.write(made.ino, 0, &data).unwrap();
    super::assert_bytes(&contents(fs, made.ino), &data);
    assert!(names(fs, fs.root()).is_empty());
    fs.forget(made.ino, 1);
    fails(fs.getattr(made.ino), Errno::STALE);
}

fn a_tmpfile_can_be_named_once(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    let ino = fs.tmpfile(&Caller::ROOT, fs.root(), 0o600, 0).unwrap().ino;
    fs.write(ino, 0, b"kept").unwrap();
    let linked = fs.link(ino, d, b"f").unwrap();
    assert_eq!((linked.ino, linked.nlink), (ino, 1));
    fs.forget(ino, 2);
    assert_eq!(contents(fs, ino), b"kept");
    fs.lookup(d, b"f").unwrap();
    fs.unlink(d, b"f").unwrap();
    fails(fs.link(ino, d, b"again"), Errno::NOENT);
    assert!(!exists(fs, d, b"again"));
}

fn a_tmpfile_in_a_removed_directory_works(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fs.rmdir(fs.root(), b"d").unwrap();
    let ino = fs.tmpfile(&Caller::ROOT, d, 0o600, 0).unwrap().ino;
    fs.write(ino, 0, b"data").unwrap();
    fs.link(ino, fs.root(), b"f").unwrap();
    assert_eq!(contents(fs, ino), b"data");
}

fn an_unlinked_file_cannot_be_named_again(fs: &dyn FileSystem) {
    let ino = file(fs, b"a");
    fs.link(ino, fs.root(), b"b").unwrap();
    fs.unlink(fs.root(), b"a").unwrap();
    fs.link(ino, fs.root(), b"c").unwrap();
    fs.unlink(fs.root(), b"b").unwrap();
    fs.unlink(fs.root(), b"c").unwrap();
    fails(fs.link(ino, fs.root(), b"d"), Errno::NOENT);
}

fn inode_numbers_are_stable(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    let ino = file(fs, b"a");
    fs.write(ino, 0, &pattern(100_000)).unwrap();
    fs.rename((fs.root(), b"a"), (d, b"b"), RenameFlags::empty()).unwrap();
    fs.rename((fs.root(), b"d"), (fs.root(), b"e"), RenameFlags::empty()).unwrap();
    fs.forget(ino, 1);
    let found = fs.lookup(find(fs, fs.root(), b"e").unwrap(), b"b").unwrap();
    assert_eq!(found.ino, ino);
}

fn versions_tell_of_changes(fs: &dyn FileSystem) {
    let (d, other) = (dir(fs, b"d"), dir(fs, b"other"));
    let f = file(fs, b"f");
    let Some(mut last) = fs.version(d) else { return };
    let no = RenameFlags::empty();
    let perm = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    let owner = SetAttr { uid: Some(1), ..SetAttr::default() };
    let acl = Acl::new(
        [(Tag::UserObj, 7), (Tag::User(5), 7), (Tag::GroupObj, 5), (Tag::Mask, 7), (Tag::Other, 0)]
            .map(|(tag, perm)| AclEntry { tag, perm }),
    );
    let steps: [(&str, &dyn Fn() -> crate::Result<()>); 11] = [
        ("create", &|| {
            fs.create(
                &Caller::ROOT,
                d,
                b"a",
                &NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 },
            )
            .map(drop)
        }),
        ("link", &|| fs.link(f, d, b"b").map(drop)),
        ("rename within", &|| fs.rename((d, b"b"), (d, b"c"), no)),
        ("rename in", &|| fs.rename((fs.root(), b"f"), (d, b"f"), no)),
        ("exchange", &|| fs.rename((d, b"a"), (fs.root(), b"other"), RenameFlags::EXCHANGE)),
        ("rename out", &|| fs.rename((d, b"a"), (fs.root(), b"back"), no)),
        ("unlink", &|| fs.unlink(d, b"c")),
        ("chmod", &|| fs.setattr(&Caller::ROOT, d, &perm).map(drop)),
        ("chown", &|| fs.setattr(&Caller::ROOT, d, &owner).map(drop)),
        ("ACL", &|| fs.setxattr(d, ACL_ACCESS, &acl.to_bytes(), SetXattr::Any)),
        ("removal", &|| fs.unlink(d, b"f").and_then(|()| fs.rmdir(fs.root(), b"d"))),
    ];
    for (what, step) in steps {
        step().unwrap_or_else(|e| panic!("{what}: {e}"));
        let now = fs.version(d).unwrap();
        assert_ne!(now, last, "{what} left the version as it was");
        last = now;
    }
    assert!(fs.version(other).is_some());
}

fn a_new_life_has_another_generation(fs: &dyn FileSystem) {
    let mut lives = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let ino = file(fs, b"a");
        let attr = attr(fs, ino);
        assert!(lives.insert((attr.ino, attr.generation)), "{attr:?} lived before");
        fs.unlink(fs.root(), b"a").unwrap();
        fs.forget(ino, 1);
    }
}

/// An engine may keep some space for its own bookkeeping, but not the space of removed files.
fn space_comes_back(fs: &dyn FileSystem) {
    let data = pattern(1 << 20);
    let round = || {
        let ino = file_with(fs, b"a", &data);
        make(fs, dir(fs, b"d"), b"l", NewKind::Symlink(&[b't'; 3000]));
        fs.setxattr(ino, b"user.x", &data[..5000], crate::SetXattr::Any).unwrap();
        fs.forget(ino, 1);
        fs.unlink(fs.root(), b"a").unwrap();
        let d = fs.lookup(fs.root(), b"d").unwrap().ino;
        let l = fs.lookup(d, b"l").unwrap().ino;
        fs.unlink(d, b"l").unwrap();
        fs.rmdir(fs.root(), b"d").unwrap();
        fs.forget(l, 2);
        fs.forget(d, 2);
    };
    round();
    let before = fs.statfs();
    for _ in 0..40 {
        round();
    }
    let after = fs.statfs();
    let block = u64::from(after.block_size);
    let lost = before.blocks_free.saturating_sub(after.blocks_free) * block;
    assert!(lost <= 64 * 1024, "{lost} bytes lost in 40 rounds");
    assert!(before.inodes_free.saturating_sub(after.inodes_free) <= 16, "inodes lost");
}
