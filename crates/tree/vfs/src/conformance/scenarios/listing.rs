//! Listing directories, and large ones.

use std::collections::BTreeMap;

use super::{attr, dir, exists, fails, file, find, make, names};
use crate::{Errno, FileKind, FileSystem, Ino, NewKind, RenameFlags};

super::table!("listing":
    dots_come_first,
    entries_tell_inode_and_kind,
    a_listing_stops_and_resumes,
    entries_that_stay_are_listed_once_while_others_go,
    entries_that_stay_are_listed_once_while_others_come,
    entries_that_are_renamed_over_are_listed_once,
    cookies_beyond_the_end_list_nothing,
    a_directory_can_be_emptied_while_listed,
    large_directories_work,
);

fn dots_come_first(fs: &dyn FileSystem) {
    let a = dir(fs, b"a");
    let b = make(fs, a, b"b", NewKind::Dir);
    for (ino, parent) in [(fs.root(), fs.root()), (a, fs.root()), (b, a)] {
        let mut listed = Vec::new();
        fs.readdir(ino, 0, &mut |entry| {
            listed.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        })
        .unwrap();
        assert_eq!(listed[0], (b".".to_vec(), ino, FileKind::Dir));
        assert_eq!(listed[1], (b"..".to_vec(), parent, FileKind::Dir));
    }
}

fn entries_tell_inode_and_kind(fs: &dyn FileSystem) {
    super::others(fs);
    file(fs, b"file");
    let mut listed = Vec::new();
    fs.readdir(fs.root(), 0, &mut |entry| {
        listed.push((entry.name.to_vec(), entry.ino, entry.kind));
        true
    })
    .unwrap();
    assert_eq!(listed.len(), 8);
    for (name, ino, kind) in &listed[2..] {
        assert_eq!(find(fs, fs.root(), name), Ok(*ino));
        assert_eq!(attr(fs, *ino).kind, *kind);
    }
}

fn fill(fs: &dyn FileSystem, dir: Ino, count: usize) {
    for i in 0..count {
        let ino = make(fs, dir, format!("entry-{i:05}").as_bytes(), NewKind::File);
        fs.forget(ino, 1);
    }
}

/// Lists `dir` in batches, calling `between` after each; counts how often each name came.
fn list_slowly(
    fs: &dyn FileSystem,
    dir: Ino,
    batch: usize,
    mut between: impl FnMut(&[Vec<u8>]),
) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let mut got = Vec::new();
        fs.readdir(dir, cookie, &mut |entry| {
            cookie = entry.cookie;
            got.push(entry.name.to_vec());
            got.len() < batch
        })
        .unwrap();
        assert!(got.len() <= batch, "went on after emit returned false");
        for name in &got {
            *counts.entry(name.clone()).or_default() += 1;
        }
        if got.is_empty() {
            return counts;
        }
        between(&got);
    }
}

fn a_listing_stops_and_resumes(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fill(fs, d, 100);
    for batch in [1, 2, 3, 7, 50, 101, 102, 1000] {
        let counts = list_slowly(fs, d, batch, |_| {});
        assert_eq!(counts.len(), 102, "batches of {batch}");
        assert!(counts.values().all(|&count| count == 1), "batches of {batch}");
    }
}

fn entries_that_stay_are_listed_once_while_others_go(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fill(fs, d, 200);
    let mut removed = 0;
    let counts = list_slowly(fs, d, 10, |_| {
        for i in (removed..200).step_by(2).take(7) {
            fs.unlink(d, format!("entry-{i:05}").as_bytes()).unwrap();
            removed = i + 2;
        }
    });
    for i in (1..200).step_by(2) {
        assert_eq!(counts[format!("entry-{i:05}").as_bytes()], 1, "entry {i}");
    }
    assert!(counts.values().all(|&count| count == 1));
}

fn entries_that_stay_are_listed_once_while_others_come(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fill(fs, d, 100);
    let mut made = 0;
    let counts = list_slowly(fs, d, 10, |_| {
        for _ in 0..if made < 60 { 6 } else { 0 } {
            make(fs, d, format!("later-{made}").as_bytes(), NewKind::File);
            made += 1;
        }
    });
    for i in 0..100 {
        assert_eq!(counts[format!("entry-{i:05}").as_bytes()], 1, "entry {i}");
    }
    assert!(counts.values().all(|&count| count == 1));
}

fn entries_that_are_renamed_over_are_listed_once(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fill(fs, d, 60);
    let mut turn = 0;
    let counts = list_slowly(fs, d, 10, |_| {
        let at = |i: usize| format!("entry-{i:05}").into_bytes();
        let swap = RenameFlags::EXCHANGE;
        fs.rename((d, &at(turn)), (d, &at(59 - turn)), swap).unwrap();
        let fresh = file(fs, b"fresh");
        fs.rename((fs.root(), b"fresh"), (d, &at(30 + turn)), RenameFlags::empty()).unwrap();
        fs.forget(fresh, 1);
        turn += 1;
    });
    assert_eq!(counts.len(), 62);
    assert!(counts.values().all(|&count| count == 1), "{counts:?}");
}

fn cookies_beyond_the_end_list_nothing(fs: &dyn FileSystem) {
    fill(fs, fs.root(), 3);
    let mut last = 0;
    fs.readdir(fs.root(), 0, &mut |entry| {
        assert!(entry.cookie != 0, "cookie 0 would start again");
        last = entry.cookie;
        true
    })
    .unwrap();
    fs.readdir(fs.root(), last, &mut |entry| panic!("{entry:?}")).unwrap();
}

/// Lists and removes as `rm -r` does.
fn a_directory_can_be_emptied_while_listed(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fill(fs, d, 300);
    list_slowly(fs, d, 16, |got| {
        for name in got.iter().filter(|name| !matches!(name.as_slice(), b"." | b"..")) {
            fs.unlink(d, name).unwrap();
        }
    });
    assert!(names(fs, d).is_empty());
    fs.rmdir(fs.root(), b"d").unwrap();
}

fn large_directories_work(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    fill(fs, d, 3000);
    assert_eq!(names(fs, d).len(), 3000);
    fails(fs.rmdir(fs.root(), b"d"), Errno::NOTEMPTY);
    for i in (0..3000).filter(|i| i % 3 != 0) {
        fs.unlink(d, format!("entry-{i:05}").as_bytes()).unwrap();
    }
    for i in 0..3000 {
        assert_eq!(exists(fs, d, format!("entry-{i:05}").as_bytes()), i % 3 == 0, "entry {i}");
    }
    for i in 0..500 {
        make(fs, d, format!("new-{i}").as_bytes(), NewKind::File);
    }
    assert_eq!(names(fs, d).len(), 1500);
}
