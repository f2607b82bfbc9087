//! Renaming.

use super::{attr, contents, dir, exists, fails, file, file_with, find, kind, make, names};
use crate::tree::{diff, tree};
use crate::{Caller, Errno, FileKind, FileSystem, Ino, NewKind, RenameFlags, Result};

super::table!("rename":
    a_name_moves,
    a_name_moves_between_directories,
    a_file_is_replaced,
    one_name_of_several_is_replaced,
    a_name_onto_itself_is_nothing,
    two_names_of_one_inode_are_nothing,
    noreplace_refuses_what_exists,
    exchange_swaps_files,
    exchange_swaps_kinds_across_directories,
    exchange_wants_both,
    a_directory_moves_with_its_parent_link,
    an_empty_directory_is_replaced,
    a_full_directory_is_not_replaced,
    kinds_do_not_mix,
    a_directory_does_not_move_below_itself,
    nothing_replaces_its_own_ancestor,
    missing_sources_and_bad_flags_are_refused,
    removed_directories_take_nothing,
    failures_change_nothing,
    symlinks_are_moved_not_followed,
    many_renames_leave_no_trace,
    a_whiteout_is_left,
    a_whiteout_is_left_by_a_directory_and_by_what_replaces,
    no_whiteout_where_nothing_moves,
);

type EntryName<'a> = (Ino, &'a [u8]);

const PLAIN: RenameFlags = RenameFlags::empty();

/// Renames within the root.
fn mv(fs: &dyn FileSystem, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
    fs.rename((fs.root(), from), (fs.root(), to), flags)
}

/// Creates the directories `a`, `a/b` and `a/b/c`.
fn chain(fs: &dyn FileSystem) -> [Ino; 3] {
    let a = dir(fs, b"a");
    let b = make(fs, a, b"b", NewKind::Dir);
    [a, b, make(fs, b, b"c", NewKind::Dir)]
}

fn a_name_moves(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"a", b"data");
    mv(fs, b"a", b"b", PLAIN).unwrap();
    assert_eq!(names(fs, fs.root()), [b"b"]);
    assert_eq!(find(fs, fs.root(), b"b"), Ok(ino));
    assert_eq!((attr(fs, ino).nlink, contents(fs, ino).as_slice()), (1, b"data".as_slice()));
}

fn a_name_moves_between_directories(fs: &dyn FileSystem) {
    let [a, b, _] = chain(fs);
    let ino = make(fs, a, b"f", NewKind::File);
    fs.rename((a, b"f"), (b, b"g"), PLAIN).unwrap();
    assert_eq!(names(fs, a), [b"b"]);
    assert_eq!(find(fs, b, b"g"), Ok(ino));
    fs.rename((b, b"g"), (fs.root(), b"f"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(fs, fs.root()), [b"a", b"f"]);
}

fn a_file_is_replaced(fs: &dyn FileSystem) {
    let old = file_with(fs, b"a", b"old");
    let new = file_with(fs, b"b", b"new");
    mv(fs, b"b", b"a", PLAIN).unwrap();
    assert_eq!(find(fs, fs.root(), b"a"), Ok(new));
    assert_eq!(names(fs, fs.root()), [b"a"]);
    assert_eq!((attr(fs, old).nlink, contents(fs, old).as_slice()), (0, b"old".as_slice()));
}

fn one_name_of_several_is_replaced(fs: &dyn FileSystem) {
    let old = file(fs, b"a");
    fs.link(old, fs.root(), b"other").unwrap();
    let fifo = make(fs, fs.root(), b"p", NewKind::Fifo);
    mv(fs, b"p", b"a", PLAIN).unwrap();
    assert_eq!((attr(fs, old).nlink, attr(fs, fifo).nlink), (1, 1));
    assert_eq!(find(fs, fs.root(), b"other"), Ok(old));
}

fn a_name_onto_itself_is_nothing(fs: &dyn FileSystem) {
    let ino = file(fs, b"a");
    dir(fs, b"d");
    for flags in [PLAIN, RenameFlags::EXCHANGE] {
        mv(fs, b"a", b"a", flags).unwrap();
        mv(fs, b"d", b"d", flags).unwrap();
    }
    fails(mv(fs, b"a", b"a", RenameFlags::NOREPLACE), Errno::EXIST);
    assert_eq!(find(fs, fs.root(), b"a"), Ok(ino));
    assert_eq!((attr(fs, ino).nlink, attr(fs, fs.root()).nlink), (1, 3));
}

fn two_names_of_one_inode_are_nothing(fs: &dyn FileSystem) {
    let ino = file(fs, b"a");
    fs.link(ino, fs.root(), b"b").unwrap();
    super::age(fs, ino);
    mv(fs, b"a", b"b", PLAIN).unwrap();
    mv(fs, b"a", b"b", RenameFlags::EXCHANGE).unwrap();
    fails(mv(fs, b"a", b"b", RenameFlags::NOREPLACE), Errno::EXIST);
    assert_eq!(names(fs, fs.root()), [b"a", b"b"]);
    assert_eq!((attr(fs, ino).nlink, super::renewed(fs, ino)), (2, (false, false)));
}

fn noreplace_refuses_what_exists(fs: &dyn FileSystem) {
    file(fs, b"a");
    file(fs, b"b");
    dir(fs, b"d");
    for to in [b"b", b"d"] {
        fails(mv(fs, b"a", to, RenameFlags::NOREPLACE), Errno::EXIST);
    }
    mv(fs, b"a", b"c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(fs, fs.root()), [b"b", b"c", b"d"]);
}

fn exchange_swaps_files(fs: &dyn FileSystem) {
    let (a, b) = (file(fs, b"a"), file(fs, b"b"));
    mv(fs, b"a", b"b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((find(fs, fs.root(), b"a"), find(fs, fs.root(), b"b")), (Ok(b), Ok(a)));
    assert_eq!((attr(fs, a).nlink, attr(fs, b).nlink), (1, 1));
}

fn exchange_swaps_kinds_across_directories(fs: &dyn FileSystem) {
    let (x, y) = (dir(fs, b"x"), dir(fs, b"y"));
    let sub = make(fs, x, b"s", NewKind::Dir);
    make(fs, sub, b"inside", NewKind::File);
    let f = make(fs, y, b"f", NewKind::File);
    fs.rename((x, b"s"), (y, b"f"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((find(fs, x, b"s"), find(fs, y, b"f")), (Ok(f), Ok(sub)));
    assert_eq!(find(fs, sub, b".."), Ok(y));
    assert_eq!((attr(fs, x).nlink, attr(fs, y).nlink, attr(fs, sub).nlink), (2, 3, 2));
    let other = make(fs, x, b"t", NewKind::Dir);
    fs.rename((y, b"f"), (x, b"t"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((find(fs, sub, b".."), find(fs, other, b"..")), (Ok(x), Ok(y)));
    assert_eq!((attr(fs, x).nlink, attr(fs, y).nlink), (3, 3));
    assert_eq!(names(fs, sub), [b"inside"]);
}

fn exchange_wants_both(fs: &dyn FileSystem) {
    file(fs, b"a");
    fails(mv(fs, b"a", b"b", RenameFlags::EXCHANGE), Errno::NOENT);
    fails(mv(fs, b"b", b"a", RenameFlags::EXCHANGE), Errno::NOENT);
    assert_eq!(names(fs, fs.root()), [b"a"]);
}

fn a_directory_moves_with_its_parent_link(fs: &dyn FileSystem) {
    let [a, b, c] = chain(fs);
    fs.rename((b, b"c"), (fs.root(), b"c"), PLAIN).unwrap();
    assert_eq!(find(fs, c, b".."), Ok(fs.root()));
    let links = [fs.root(), a, b, c].map(|ino| attr(fs, ino).nlink);
    assert_eq!(links, [4, 3, 2, 2]);
    fs.rename((fs.root(), b"a"), (c, b"a"), PLAIN).unwrap();
    assert_eq!((find(fs, a, b".."), find(fs, b, b"..")), (Ok(c), Ok(a)));
    let links = [fs.root(), a, b, c].map(|ino| attr(fs, ino).nlink);
    assert_eq!(links, [3, 3, 2, 3]);
}

fn an_empty_directory_is_replaced(fs: &dyn FileSystem) {
    let [a, b, c] = chain(fs);
    let empty = dir(fs, b"empty");
    mv(fs, b"a", b"empty", PLAIN).unwrap();
    assert_eq!(names(fs, fs.root()), [b"empty"]);
    assert_eq!(find(fs, fs.root(), b"empty"), Ok(a));
    assert_eq!((attr(fs, empty).nlink, attr(fs, fs.root()).nlink), (0, 3));
    let other = dir(fs, b"other");
    fs.rename((fs.root(), b"other"), (b, b"c"), PLAIN).unwrap();
    assert_eq!((find(fs, b, b"c"), find(fs, other, b"..")), (Ok(other), Ok(b)));
    assert_eq!((attr(fs, b).nlink, attr(fs, c).nlink, attr(fs, fs.root()).nlink), (3, 0, 3));
}

fn a_full_directory_is_not_replaced(fs: &dyn FileSystem) {
    chain(fs);
    dir(fs, b"d");
    fails(mv(fs, b"d", b"a", PLAIN), Errno::NOTEMPTY);
    assert_eq!(names(fs, fs.root()), [b"a", b"d"]);
}

fn kinds_do_not_mix(fs: &dyn FileSystem) {
    file(fs, b"f");
    make(fs, fs.root(), b"l", NewKind::Symlink(b"d"));
    dir(fs, b"d");
    for name in [b"f", b"l"] {
        fails(mv(fs, name, b"d", PLAIN), Errno::ISDIR);
        fails(mv(fs, b"d", name, PLAIN), Errno::NOTDIR);
    }
    assert_eq!(names(fs, fs.root()), [b"d", b"f", b"l"]);
}

fn a_directory_does_not_move_below_itself(fs: &dyn FileSystem) {
    let [a, b, c] = chain(fs);
    for into in [a, b, c] {
        fails(fs.rename((fs.root(), b"a"), (into, b"x"), PLAIN), Errno::INVAL);
        fails(fs.rename((fs.root(), b"a"), (into, b"x"), RenameFlags::NOREPLACE), Errno::INVAL);
    }
    fails(fs.rename((fs.root(), b"a"), (b, b"c"), PLAIN), Errno::INVAL);
    fails(fs.rename((fs.root(), b"a"), (b, b"c"), RenameFlags::EXCHANGE), Errno::INVAL);
    fails(fs.rename((b, b"c"), (fs.root(), b"a"), RenameFlags::EXCHANGE), Errno::INVAL);
    assert_eq!(find(fs, a, b".."), Ok(fs.root()));
}

fn nothing_replaces_its_own_ancestor(fs: &dyn FileSystem) {
    let [a, b, _] = chain(fs);
    make(fs, b, b"f", NewKind::File);
    fails(fs.rename((b, b"f"), (a, b"b"), PLAIN), Errno::NOTEMPTY);
    fails(fs.rename((b, b"c"), (a, b"b"), PLAIN), Errno::NOTEMPTY);
    fails(fs.rename((b, b"f"), (fs.root(), b"a"), PLAIN), Errno::NOTEMPTY);
    fails(fs.rename((b, b"f"), (fs.root(), b"a"), RenameFlags::EXCHANGE), Errno::INVAL);
    fails(fs.rename((b, b"f"), (fs.root(), b"a"), RenameFlags::NOREPLACE), Errno::EXIST);
}

fn missing_sources_and_bad_flags_are_refused(fs: &dyn FileSystem) {
    file(fs, b"f");
    fails(mv(fs, b"missing", b"x", PLAIN), Errno::NOENT);
    fails(mv(fs, b"missing", b"f", PLAIN), Errno::NOENT);
    fails(mv(fs, b"f", b"x", RenameFlags::NOREPLACE | RenameFlags::EXCHANGE), Errno::INVAL);
    fails(mv(fs, b"f", b"x", RenameFlags::from_bits_retain(8)), Errno::INVAL);
    assert_eq!(names(fs, fs.root()), [b"f"]);
}

fn removed_directories_take_nothing(fs: &dyn FileSystem) {
    let gone = dir(fs, b"gone");
    file(fs, b"f");
    dir(fs, b"d");
    fs.rmdir(fs.root(), b"gone").unwrap();
    fails(fs.rename((fs.root(), b"f"), (gone, b"f"), PLAIN), Errno::NOENT);
    fails(fs.rename((fs.root(), b"d"), (gone, b"d"), PLAIN), Errno::NOENT);
    fails(fs.rename((gone, b"f"), (fs.root(), b"x"), PLAIN), Errno::NOENT);
    assert_eq!(names(fs, fs.root()), [b"d", b"f"]);
}

fn failures_change_nothing(fs: &dyn FileSystem) {
    let [a, b, _] = chain(fs);
    file_with(fs, b"f", b"data");
    let root = fs.root();
    let before = tree(fs).unwrap();
    let attempts: [(EntryName<'_>, EntryName<'_>, RenameFlags); 6] = [
        ((root, b"a"), (b, b"x"), PLAIN),
        ((root, b"f"), (root, b"a"), PLAIN),
        ((root, b"a"), (root, b"f"), PLAIN),
        ((b, b"c"), (a, b"b"), PLAIN),
        ((root, b"f"), (root, b"none"), RenameFlags::EXCHANGE),
        ((root, b"f"), (root, b"a"), RenameFlags::NOREPLACE),
    ];
    for (from, to, flags) in attempts {
        fs.rename(from, to, flags).unwrap_err();
        assert_eq!(diff(&before, &tree(fs).unwrap()), None);
    }
}

fn symlinks_are_moved_not_followed(fs: &dyn FileSystem) {
    let link = make(fs, fs.root(), b"l", NewKind::Symlink(b"f"));
    let f = file(fs, b"f");
    mv(fs, b"l", b"m", PLAIN).unwrap();
    assert_eq!(kind(fs, find(fs, fs.root(), b"m").unwrap()), FileKind::Symlink);
    mv(fs, b"f", b"m", PLAIN).unwrap();
    assert_eq!((find(fs, fs.root(), b"m"), attr(fs, link).nlink), (Ok(f), 0));
}

fn many_renames_leave_no_trace(fs: &dyn FileSystem) {
    let (x, y) = (dir(fs, b"x"), dir(fs, b"y"));
    let ino = make(fs, x, b"0", NewKind::File);
    for i in 0..1000u32 {
        let (from, to) = if i % 2 == 0 { (x, y) } else { (y, x) };
        let (old, new) = (i.to_string(), (i + 1).to_string());
        fs.rename((from, old.as_bytes()), (to, new.as_bytes()), PLAIN).unwrap();
    }
    assert_eq!((names(fs, x), names(fs, y)), (vec![b"1000".to_vec()], vec![]));
    assert_eq!((find(fs, x, b"1000"), attr(fs, ino).nlink), (Ok(ino), 1));
    assert!(!exists(fs, y, b"999"));
}

fn leave(fs: &dyn FileSystem, from: EntryName<'_>, to: EntryName<'_>) -> Result<()> {
    fs.rename_whiteout(&Caller { uid: 5, gid: 6 }, from, to, PLAIN)
}

/// Checks that `name` is a whiteout of the caller in [`leave`].
fn check_whiteout(fs: &dyn FileSystem, dir: Ino, name: &[u8]) {
    let left = fs.peek(dir, name).unwrap();
    assert_eq!((left.kind, left.rdev, left.perm), (FileKind::Char, 0, 0));
    assert_eq!((left.uid, left.gid, left.nlink, left.size), (5, 6, 1, 0));
}

fn a_whiteout_is_left(fs: &dyn FileSystem) {
    let [a, b, _] = chain(fs);
    let ino = file_with(fs, b"f", b"data");
    let root = fs.root();
    leave(fs, (root, b"f"), (root, b"g")).unwrap();
    check_whiteout(fs, root, b"f");
    leave(fs, (root, b"g"), (b, b"h")).unwrap();
    check_whiteout(fs, root, b"g");
    assert_eq!(find(fs, b, b"h"), Ok(ino));
    assert_eq!((attr(fs, ino).nlink, contents(fs, ino).as_slice()), (1, b"data".as_slice()));
    assert_eq!(names(fs, root), [&b"a"[..], b"f", b"g"]);
    // A whiteout can be renamed like any file.
    leave(fs, (root, b"f"), (a, b"f")).unwrap();
    check_whiteout(fs, a, b"f");
    fs.unlink(root, b"f").unwrap();
    fs.unlink(a, b"f").unwrap();
    assert_eq!(names(fs, a), [b"b"]);
}

fn a_whiteout_is_left_by_a_directory_and_by_what_replaces(fs: &dyn FileSystem) {
    let [a, b, c] = chain(fs);
    let root = fs.root();
    let old = file(fs, b"old");
    let new = file_with(fs, b"new", b"data");
    leave(fs, (root, b"new"), (root, b"old")).unwrap();
    check_whiteout(fs, root, b"new");
    assert_eq!((find(fs, root, b"old"), attr(fs, old).nlink), (Ok(new), 0));
    leave(fs, (b, b"c"), (root, b"c")).unwrap();
    check_whiteout(fs, b, b"c");
    assert_eq!(find(fs, c, b".."), Ok(root));
    assert_eq!([a, b, c, root].map(|dir| attr(fs, dir).nlink), [3, 2, 2, 4]);
    let empty = dir(fs, b"empty");
    leave(fs, (root, b"c"), (root, b"empty")).unwrap();
    check_whiteout(fs, root, b"c");
    assert_eq!((attr(fs, empty).nlink, attr(fs, root).nlink), (0, 4));
}

fn no_whiteout_where_nothing_moves(fs: &dyn FileSystem) {
    let root = fs.root();
    let ino = file(fs, b"f");
    fs.link(ino, root, b"g").unwrap();
    dir(fs, b"d");
    let before = tree(fs).unwrap();
    leave(fs, (root, b"f"), (root, b"f")).unwrap();
    leave(fs, (root, b"f"), (root, b"g")).unwrap();
    fails(leave(fs, (root, b"missing"), (root, b"x")), Errno::NOENT);
    fails(leave(fs, (root, b"f"), (root, b"d")), Errno::ISDIR);
    for flags in [RenameFlags::EXCHANGE, RenameFlags::all()] {
        let whiteout = fs.rename_whiteout(&Caller::ROOT, (root, b"f"), (root, b"d"), flags);
        fails(whiteout, Errno::INVAL);
    }
    let noreplace = RenameFlags::NOREPLACE;
    let refused = fs.rename_whiteout(&Caller::ROOT, (root, b"f"), (root, b"g"), noreplace);
    fails(refused, Errno::EXIST);
    assert_eq!(diff(&before, &tree(fs).unwrap()), None);
}
