//! Creating, finding, linking and removing names.

use super::{
    USER, assert_bytes, attr, contents, dir, exists, fails, file, file_with, find, make, names,
    others,
};
use crate::{
    Caller, Errno, Fallocate, FileKind, FileSystem, Ino, NewKind, NewNode, RenameFlags, Seek,
    SetAttr, SetXattr,
};

super::table!("names":
    the_root_is_an_empty_directory,
    a_created_name_is_found,
    dot_and_dotdot_are_found,
    missing_and_malformed_names_are_not_found,
    only_directories_have_names,
    each_kind_is_created,
    a_taken_name_is_refused,
    malformed_names_are_not_created,
    the_longest_name_works,
    names_are_bytes,
    names_differ_by_case_and_length,
    the_umask_is_taken_away,
    high_mode_bits_are_kept,
    the_caller_owns_what_it_creates,
    a_setgid_directory_hands_down_its_group,
    symlink_targets_are_limited,
    a_symlink_is_always_0777,
    unlink_removes_a_name,
    unlink_refuses,
    rmdir_removes_an_empty_directory,
    rmdir_refuses,
    subdirectories_count_as_links,
    deep_trees_work,
    link_gives_another_name,
    link_works_for_all_but_directories,
    link_refuses,
    links_are_limited,
    errors_come_in_order,
    unknown_inodes_are_stale,
);

fn node(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode { kind, mode: 0o644, umask: 0 }
}

fn the_root_is_an_empty_directory(fs: &dyn FileSystem) {
    let root = attr(fs, fs.root());
    assert_eq!((root.ino, root.kind, root.nlink), (fs.root(), FileKind::Dir, 2));
    assert!(names(fs, fs.root()).is_empty());
}

fn a_created_name_is_found(fs: &dyn FileSystem) {
    let created = fs.create(&Caller::ROOT, fs.root(), b"a", &node(NewKind::File)).unwrap();
    let found = fs.lookup(fs.root(), b"a").unwrap();
    assert_eq!(found, created);
    assert_eq!(attr(fs, created.ino), created);
    assert_eq!((created.nlink, created.size, created.perm), (1, 0, 0o644));
    assert_eq!(names(fs, fs.root()), [b"a"]);
}

fn dot_and_dotdot_are_found(fs: &dyn FileSystem) {
    let root = fs.root();
    let a = dir(fs, b"a");
    let b = make(fs, a, b"b", NewKind::Dir);
    assert_eq!(find(fs, root, b"."), Ok(root));
    assert_eq!(find(fs, root, b".."), Ok(root));
    assert_eq!(find(fs, b, b"."), Ok(b));
    assert_eq!(find(fs, b, b".."), Ok(a));
    assert_eq!(find(fs, a, b".."), Ok(root));
}

fn missing_and_malformed_names_are_not_found(fs: &dyn FileSystem) {
    let root = fs.root();
    fails(fs.lookup(root, b"missing"), Errno::NOENT);
    fails(fs.lookup(root, b""), Errno::NOENT);
    fails(fs.lookup(root, b"a/b"), Errno::INVAL);
    fails(fs.lookup(root, b"a\0b"), Errno::INVAL);
    fails(fs.lookup(root, &vec![b'x'; fs.limits().name]), Errno::NOENT);
    fails(fs.lookup(root, &vec![b'x'; fs.limits().name + 1]), Errno::NAMETOOLONG);
}

fn only_directories_have_names(fs: &dyn FileSystem) {
    let mut inos = others(fs);
    inos.push(file(fs, b"file"));
    for ino in inos {
        fails(fs.lookup(ino, b"a"), Errno::NOTDIR);
        assert_eq!(find(fs, ino, b"."), Ok(ino));
        fails(fs.create(&Caller::ROOT, ino, b"a", &node(NewKind::File)), Errno::NOTDIR);
        fails(fs.tmpfile(&Caller::ROOT, ino, 0o644, 0), Errno::NOTDIR);
        fails(fs.unlink(ino, b"a"), Errno::NOTDIR);
        fails(fs.rmdir(ino, b"a"), Errno::NOTDIR);
        fails(fs.readdir(ino, 0, &mut |_| true), Errno::NOTDIR);
        fails(fs.link(ino, ino, b"a"), Errno::NOTDIR);
        let flags = RenameFlags::empty();
        fails(fs.rename((ino, b"a"), (fs.root(), b"b"), flags), Errno::NOTDIR);
        fails(fs.rename((fs.root(), b"fifo"), (ino, b"b"), flags), Errno::NOTDIR);
    }
}

fn each_kind_is_created(fs: &dyn FileSystem) {
    let kinds: [(NewKind<'_>, u32, u64); 7] = [
        (NewKind::File, 0, 0),
        (NewKind::Dir, 0, 0),
        (NewKind::Symlink(b"some/where"), 0, 10),
        (NewKind::Fifo, 0, 0),
        (NewKind::Socket, 0, 0),
        (NewKind::Char(0x1234_5678), 0x1234_5678, 0),
        (NewKind::Block(u32::MAX), u32::MAX, 0),
    ];
    for (i, (kind, rdev, size)) in kinds.into_iter().enumerate() {
        let name = [b'a' + i as u8];
        let made = fs.create(&Caller::ROOT, fs.root(), &name, &node(kind)).unwrap();
        assert_eq!((made.kind, made.rdev), (kind.file_kind(), rdev));
        assert_eq!(made.nlink, if made.kind == FileKind::Dir { 2 } else { 1 });
        assert!(made.kind == FileKind::Dir || made.size == size, "{made:?}");
        assert_eq!(attr(fs, made.ino), made);
        match kind {
            NewKind::Symlink(target) => assert_eq!(fs.readlink(made.ino).unwrap(), target),
            _ => fails(fs.readlink(made.ino), Errno::INVAL),
        }
    }
    assert_eq!(names(fs, fs.root()).len(), 7);
}

fn a_taken_name_is_refused(fs: &dyn FileSystem) {
    file(fs, b"f");
    dir(fs, b"d");
    for name in [b"f", b"d"] {
        for kind in [NewKind::File, NewKind::Dir, NewKind::Symlink(b"t"), NewKind::Fifo] {
            fails(fs.create(&Caller::ROOT, fs.root(), name, &node(kind)), Errno::EXIST);
        }
    }
    assert_eq!(attr(fs, fs.root()).nlink, 3);
    assert_eq!(names(fs, fs.root()).len(), 2);
}

fn malformed_names_are_not_created(fs: &dyn FileSystem) {
    let root = fs.root();
    let target = file(fs, b"target");
    let long = vec![b'x'; fs.limits().name + 1];
    let bad: [(&[u8], Errno); 6] = [
        (b"", Errno::NOENT),
        (b".", Errno::INVAL),
        (b"..", Errno::INVAL),
        (b"a/b", Errno::INVAL),
        (b"a\0", Errno::INVAL),
        (&long, Errno::NAMETOOLONG),
    ];
    for (name, errno) in bad {
        for kind in [NewKind::File, NewKind::Dir, NewKind::Symlink(b"t")] {
            fails(fs.create(&Caller::ROOT, root, name, &node(kind)), errno);
        }
        fails(fs.link(target, root, name), errno);
        fails(fs.unlink(root, name), errno);
        fails(fs.rename((root, b"target"), (root, name), RenameFlags::empty()), errno);
        fails(fs.rename((root, name), (root, b"new"), RenameFlags::empty()), errno);
    }
    assert_eq!(names(fs, root), [b"target"]);
}

fn the_longest_name_works(fs: &dyn FileSystem) {
    let (a, b) = (vec![b'a'; fs.limits().name], vec![b'b'; fs.limits().name]);
    let ino = file(fs, &a);
    assert_eq!(find(fs, fs.root(), &a), Ok(ino));
    fs.rename((fs.root(), &a), (fs.root(), &b), RenameFlags::empty()).unwrap();
    fs.link(ino, fs.root(), &a).unwrap();
    assert_eq!(names(fs, fs.root()), [a.clone(), b.clone()]);
    fs.unlink(fs.root(), &a).unwrap();
    fs.unlink(fs.root(), &b).unwrap();
}

fn names_are_bytes(fs: &dyn FileSystem) {
    let odd: [&[u8]; 5] = [b"\xff\xfe", b"...", b" ", b"\n\t\x01", "Grüße".as_bytes()];
    for name in odd {
        let ino = file(fs, name);
        assert_eq!(find(fs, fs.root(), name), Ok(ino));
    }
    let mut sorted = odd.to_vec();
    sorted.sort();
    assert_eq!(names(fs, fs.root()), sorted);
}

fn names_differ_by_case_and_length(fs: &dyn FileSystem) {
    let inos: Vec<Ino> = [b"a".as_slice(), b"A", b"aa", b"aaa"].map(|n| file(fs, n)).into();
    assert_eq!(find(fs, fs.root(), b"A"), Ok(inos[1]));
    fs.unlink(fs.root(), b"aa").unwrap();
    assert!(!exists(fs, fs.root(), b"aa"));
    assert_eq!(find(fs, fs.root(), b"aaa"), Ok(inos[3]));
    assert_eq!(find(fs, fs.root(), b"a"), Ok(inos[0]));
}

fn the_umask_is_taken_away(fs: &dyn FileSystem) {
    for (name, kind) in [(b"f", NewKind::File), (b"d", NewKind::Dir), (b"p", NewKind::Fifo)] {
        let node = NewNode { kind, mode: 0o777, umask: 0o027 };
        let made = fs.create(&USER, fs.root(), name, &node).unwrap();
        assert_eq!(made.perm, 0o750);
    }
    assert_eq!(fs.tmpfile(&USER, fs.root(), 0o666, 0o022).unwrap().perm, 0o644);
}

fn high_mode_bits_are_kept(fs: &dyn FileSystem) {
    let node = NewNode { kind: NewKind::File, mode: 0o7777, umask: 0o022 };
    assert_eq!(fs.create(&USER, fs.root(), b"f", &node).unwrap().perm, 0o7755);
    let node = NewNode { kind: NewKind::Dir, ..node };
    assert_eq!(fs.create(&USER, fs.root(), b"d", &node).unwrap().perm, 0o1755);
}

fn the_caller_owns_what_it_creates(fs: &dyn FileSystem) {
    let made = fs.create(&USER, fs.root(), b"f", &node(NewKind::File)).unwrap();
    assert_eq!((made.uid, made.gid), (USER.uid, USER.gid));
    let big = Caller { uid: u32::MAX - 1, gid: 1 << 31 };
    let made = fs.create(&big, fs.root(), b"g", &node(NewKind::Symlink(b"t"))).unwrap();
    assert_eq!((made.uid, made.gid), (big.uid, big.gid));
    let made = fs.tmpfile(&USER, fs.root(), 0o600, 0).unwrap();
    assert_eq!((made.uid, made.gid), (USER.uid, USER.gid));
}

fn a_setgid_directory_hands_down_its_group(fs: &dyn FileSystem) {
    let top = dir(fs, b"d");
    let set = SetAttr { gid: Some(77), perm: Some(0o2775), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, top, &set).unwrap();
    let made = fs.create(&USER, top, b"f", &node(NewKind::File)).unwrap();
    assert_eq!((made.uid, made.gid, made.perm), (USER.uid, 77, 0o644));
    let made = fs.create(&USER, top, b"s", &node(NewKind::Dir)).unwrap();
    assert_eq!((made.gid, made.perm), (77, 0o2644));
    let made = fs.create(&USER, made.ino, b"l", &node(NewKind::Symlink(b"t"))).unwrap();
    assert_eq!(made.gid, 77);
    assert_eq!(fs.tmpfile(&USER, top, 0o600, 0).unwrap().gid, 77);
}

fn symlink_targets_are_limited(fs: &dyn FileSystem) {
    let root = fs.root();
    let longest = vec![b't'; fs.limits().symlink];
    let ino = make(fs, root, b"l", NewKind::Symlink(&longest));
    assert_bytes(&fs.readlink(ino).unwrap(), &longest);
    assert_eq!(attr(fs, ino).size, fs.limits().symlink as u64);
    let long = vec![b't'; fs.limits().symlink + 1];
    fails(fs.create(&Caller::ROOT, root, b"m", &node(NewKind::Symlink(&long))), Errno::NAMETOOLONG);
    fails(fs.create(&Caller::ROOT, root, b"m", &node(NewKind::Symlink(b""))), Errno::NOENT);
    for len in [1, 59, 60, 61, 127, 128, 129, 255, 256, 1000] {
        let name = format!("len{len}");
        let ino = make(fs, root, name.as_bytes(), NewKind::Symlink(&longest[..len]));
        assert_bytes(&fs.readlink(ino).unwrap(), &longest[..len]);
    }
}

fn a_symlink_is_always_0777(fs: &dyn FileSystem) {
    let node = NewNode { kind: NewKind::Symlink(b"t"), mode: 0o600, umask: 0o077 };
    let made = fs.create(&USER, fs.root(), b"l", &node).unwrap();
    assert_eq!(made.perm, 0o777);
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    fails(fs.setattr(&Caller::ROOT, made.ino, &set), Errno::OPNOTSUPP);
}

fn unlink_removes_a_name(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"a", b"data");
    for other in others(fs) {
        fs.forget(other, 1);
    }
    fs.unlink(fs.root(), b"a").unwrap();
    assert!(!exists(fs, fs.root(), b"a"));
    assert_eq!(attr(fs, ino).nlink, 0);
    for name in [b"symlink".as_slice(), b"fifo", b"socket", b"char", b"block"] {
        fs.unlink(fs.root(), name).unwrap();
    }
    assert!(names(fs, fs.root()).is_empty());
    file(fs, b"a");
    assert_eq!(names(fs, fs.root()), [b"a"]);
}

fn unlink_refuses(fs: &dyn FileSystem) {
    dir(fs, b"d");
    fails(fs.unlink(fs.root(), b"d"), Errno::ISDIR);
    fails(fs.unlink(fs.root(), b"missing"), Errno::NOENT);
    assert_eq!(names(fs, fs.root()), [b"d"]);
}

fn rmdir_removes_an_empty_directory(fs: &dyn FileSystem) {
    let a = dir(fs, b"a");
    make(fs, a, b"f", NewKind::File);
    fs.unlink(a, b"f").unwrap();
    fs.rmdir(fs.root(), b"a").unwrap();
    assert!(!exists(fs, fs.root(), b"a"));
    assert_eq!(attr(fs, fs.root()).nlink, 2);
}

fn rmdir_refuses(fs: &dyn FileSystem) {
    let root = fs.root();
    let a = dir(fs, b"a");
    file(fs, b"f");
    make(fs, a, b"b", NewKind::Dir);
    fails(fs.rmdir(root, b"a"), Errno::NOTEMPTY);
    fails(fs.rmdir(root, b"f"), Errno::NOTDIR);
    fails(fs.rmdir(root, b"missing"), Errno::NOENT);
    fails(fs.rmdir(a, b"."), Errno::INVAL);
    fails(fs.rmdir(a, b".."), Errno::NOTEMPTY);
    fails(fs.rmdir(a, b""), Errno::NOENT);
    fails(fs.rmdir(a, &vec![b'x'; fs.limits().name + 1]), Errno::NAMETOOLONG);
    assert_eq!(names(fs, root), [b"a", b"f"]);
    assert_eq!(names(fs, a), [b"b"]);
}

fn subdirectories_count_as_links(fs: &dyn FileSystem) {
    let a = dir(fs, b"a");
    for (i, name) in [b"x", b"y", b"z"].into_iter().enumerate() {
        make(fs, a, name, NewKind::Dir);
        assert_eq!(attr(fs, a).nlink, 3 + i as u32);
    }
    make(fs, a, b"f", NewKind::File);
    assert_eq!(attr(fs, a).nlink, 5);
    fs.rmdir(a, b"y").unwrap();
    assert_eq!(attr(fs, a).nlink, 4);
    assert_eq!(attr(fs, fs.root()).nlink, 3);
}

fn deep_trees_work(fs: &dyn FileSystem) {
    let mut path = vec![fs.root()];
    for _ in 0..100 {
        path.push(make(fs, path[path.len() - 1], b"d", NewKind::Dir));
    }
    let mut at = path[100];
    for parent in path[..100].iter().rev() {
        at = find(fs, at, b"..").unwrap();
        assert_eq!(at, *parent);
    }
    for parent in path[..100].iter().rev() {
        fs.rmdir(*parent, b"d").unwrap();
    }
    assert_eq!(attr(fs, fs.root()).nlink, 2);
}

fn link_gives_another_name(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"a", b"one");
    let d = dir(fs, b"d");
    let linked = fs.link(ino, d, b"b").unwrap();
    assert_eq!((linked.ino, linked.nlink), (ino, 2));
    assert_eq!(linked, attr(fs, ino));
    fs.write(find(fs, d, b"b").unwrap(), 0, b"two").unwrap();
    assert_eq!(contents(fs, ino), b"two");
    fs.unlink(fs.root(), b"a").unwrap();
    assert_eq!(attr(fs, ino).nlink, 1);
    assert_eq!(contents(fs, find(fs, d, b"b").unwrap()), b"two");
}

fn link_works_for_all_but_directories(fs: &dyn FileSystem) {
    for (i, ino) in others(fs).into_iter().enumerate() {
        let name = [b'0' + i as u8];
        assert_eq!(fs.link(ino, fs.root(), &name).unwrap().nlink, 2);
        assert_eq!(find(fs, fs.root(), &name), Ok(ino));
    }
    let d = dir(fs, b"d");
    fails(fs.link(d, fs.root(), b"e"), Errno::PERM);
    fails(fs.link(fs.root(), d, b"e"), Errno::PERM);
    assert_eq!(attr(fs, fs.root()).nlink, 3);
}

fn link_refuses(fs: &dyn FileSystem) {
    let ino = file(fs, b"a");
    dir(fs, b"d");
    fails(fs.link(ino, fs.root(), b"a"), Errno::EXIST);
    fails(fs.link(ino, fs.root(), b"d"), Errno::EXIST);
    fails(fs.link(ino, ino, b"x"), Errno::NOTDIR);
    fs.unlink(fs.root(), b"a").unwrap();
    fails(fs.link(ino, fs.root(), b"b"), Errno::NOENT);
    assert_eq!(attr(fs, ino).nlink, 0);
}

/// A file system without room for that number of names may return `ENOSPC`.
fn links_are_limited(fs: &dyn FileSystem) {
    let ino = file(fs, b"0");
    for i in 1..fs.limits().links {
        match fs.link(ino, fs.root(), i.to_string().as_bytes()) {
            Ok(linked) => assert_eq!(linked.nlink, i + 1),
            Err(errno) => return assert_eq!(errno, Errno::NOSPC),
        }
    }
    fails(fs.link(ino, fs.root(), b"more"), Errno::MLINK);
    assert_eq!(attr(fs, ino).nlink, fs.limits().links);
    fs.unlink(fs.root(), b"77").unwrap();
    fs.link(ino, fs.root(), b"more").unwrap();
}

fn errors_come_in_order(fs: &dyn FileSystem) {
    let root = fs.root();
    let f = file(fs, b"f");
    let d = dir(fs, b"d");
    let stale = Ino(u64::MAX);
    let long = vec![b'x'; fs.limits().name + 1];
    fails(fs.create(&Caller::ROOT, f, b"", &node(NewKind::File)), Errno::NOTDIR);
    fails(fs.create(&Caller::ROOT, root, &long, &node(NewKind::Symlink(b""))), Errno::NAMETOOLONG);
    fails(fs.create(&Caller::ROOT, root, b"f", &node(NewKind::Symlink(b""))), Errno::NOENT);
    fails(fs.link(stale, f, b"a"), Errno::STALE);
    fails(fs.link(d, f, b"a"), Errno::NOTDIR);
    fails(fs.link(d, root, b"f"), Errno::PERM);
    let both = RenameFlags::all();
    fails(fs.rename((stale, b""), (f, b""), both), Errno::STALE);
    fails(fs.rename((root, b""), (f, b""), both), Errno::NOTDIR);
    fails(fs.rename((root, b"missing"), (root, &long), both), Errno::NAMETOOLONG);
    fails(fs.rename((root, b"missing"), (root, b"f"), both), Errno::INVAL);
    fails(fs.rename((root, b"missing"), (root, b"f"), RenameFlags::NOREPLACE), Errno::NOENT);
    fails(fs.rename((root, b"d"), (d, b"x"), RenameFlags::EXCHANGE), Errno::NOENT);
}

fn unknown_inodes_are_stale(fs: &dyn FileSystem) {
    let root = fs.root();
    let good = file(fs, b"f");
    let none = RenameFlags::empty();
    for stale in [Ino(u64::MAX), Ino(0), Ino(good.0 + 12345)] {
        fails(fs.lookup(stale, b"a"), Errno::STALE);
        fails(fs.getattr(stale), Errno::STALE);
        fails(fs.setattr(&Caller::ROOT, stale, &SetAttr::default()), Errno::STALE);
        fails(fs.create(&Caller::ROOT, stale, b"a", &node(NewKind::File)), Errno::STALE);
        fails(fs.tmpfile(&Caller::ROOT, stale, 0o600, 0), Errno::STALE);
        fails(fs.readlink(stale), Errno::STALE);
        fails(fs.unlink(stale, b"a"), Errno::STALE);
        fails(fs.rmdir(stale, b"a"), Errno::STALE);
        fails(fs.link(stale, root, b"a"), Errno::STALE);
        fails(fs.link(good, stale, b"a"), Errno::STALE);
        fails(fs.rename((stale, b"a"), (root, b"b"), none), Errno::STALE);
        fails(fs.rename((root, b"f"), (stale, b"b"), none), Errno::STALE);
        fails(fs.readdir(stale, 0, &mut |_| true), Errno::STALE);
        fails(fs.read(stale, 0, &mut [0; 8]), Errno::STALE);
        fails(fs.write(stale, 0, b"a"), Errno::STALE);
        fails(fs.append(stale, b"a"), Errno::STALE);
        fails(fs.drop_privileges(stale), Errno::STALE);
        fails(fs.fallocate(stale, Fallocate::PunchHole, 0, 1), Errno::STALE);
        fails(fs.seek(stale, 0, Seek::Data), Errno::STALE);
        fails(fs.copy_range((stale, 0), (good, 0), 1), Errno::STALE);
        fails(fs.copy_range((good, 0), (stale, 0), 1), Errno::STALE);
        fails(fs.fsync(stale), Errno::STALE);
        fails(fs.getxattr(stale, b"user.a"), Errno::STALE);
        fails(fs.setxattr(stale, b"user.a", b"", SetXattr::Any), Errno::STALE);
        fails(fs.listxattr(stale), Errno::STALE);
        fails(fs.removexattr(stale, b"user.a"), Errno::STALE);
        fs.forget(stale, 1);
    }
}
