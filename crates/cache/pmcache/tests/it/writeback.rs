//! Write-back of pools that hold the tree.

use crate::common::Below;
use crate::loading::{
    BLOCK, Tested, again, apply_both, check_counts, compare, empty, evict, fail_at, fill, find,
    fresh, make,
};
use backing::model::ModelCall;
use pmcache::PRIVATE;
use rng::Rng;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use vfs::conformance::{Handles, gen_op, number_from_env};
use vfs::model::Model;
use vfs::tree::{diff, tree};
use vfs::{
    Attr, Backed as _, Caller, Errno, Fallocate, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT,
    RenameFlags, Seek, SetAttr, SetXattr,
};

/// Passes after which everything has to be written back, if nothing changes meanwhile.
const PASSES: usize = 6;

/// Writes back until nothing is left.
pub fn write_back(fs: &Tested, what: &str) {
    for _ in 0..PASSES {
        let written = fs.write_back().unwrap();
        assert_eq!((&written.errors[..], &written.conflicts[..]), (&[][..], &[][..]), "{what}");
        check_counts(fs, what);
        if written.left == 0 {
            return;
        }
    }
    panic!("{what}: something is never written back");
}

/// Compares the backing store with the pool, times included.
pub fn compare_below(fs: &Tested, what: &str) {
    compare_stores(fs, fs.backing(), what);
}

/// The same for a pool that is used in another way.
pub fn compare_stores(fs: &dyn FileSystem, below: &Below, what: &str) {
    let (got, want) = (tree(below).unwrap(), tree(fs).unwrap());
    let diff = diff(&got, &want).unwrap_or_default();
    assert!(diff.is_empty(), "{what}: the trees differ (left: below, right: pool)\n{diff}");
    let mut pending = vec![(ROOT, below.root(), String::new())];
    while let Some((above, object, path)) = pending.pop() {
        let mtime = |fs: &dyn FileSystem, ino| fs.getattr(ino).unwrap().mtime;
        assert_eq!(mtime(fs, above), mtime(below, object), "{what}: {path}");
        let mut names = vec![];
        if fs.getattr(above).unwrap().kind == FileKind::Dir {
            fs.readdir(above, 0, &mut |e| {
                names.push(e.name.to_vec());
                true
            })
            .unwrap();
        }
        for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
            let of = |fs: &dyn FileSystem, dir| fs.peek(dir, name).unwrap().ino;
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            pending.push((of(fs, above), of(below, object), path));
        }
    }
}

/// Runs calls on a cache and a model, with write-back, evictions, errors and crashes of the backing
/// store in between. Returns bytes written back, and bytes and directories evicted after that.
fn run(seed: u64, count: usize) -> (u64, u64, u64) {
    let (below, model) = (empty(), Model::new());
    fill(seed, 100, [&below, &model]);
    below.sync().unwrap();
    let mut fs = fresh(&below);
    let (mut handles, mut model_handles) = (Handles::new(ROOT), Handles::new(model.root()));
    let mut rng = Rng::new(seed);
    let mut done = (0, 0, 0);
    for i in 0..count {
        let op = gen_op(&mut rng);
        let what = format!("seed {seed}, call {i}, {op}");
        apply_both((&fs, &mut handles), (&model, &mut model_handles), &op, &what);
        match rng.below(100) {
            0..5 => {
                let written = fs.write_back().unwrap();
                assert!(written.errors.is_empty(), "{what}: {written:?}");
                assert!(written.conflicts.is_empty(), "{what}: {written:?}");
                let (bytes, dirs) = evict(&fs, &mut rng, 50);
                done = (done.0 + written.bytes, done.1 + bytes, done.2 + dirs);
            }
            5..8 => {
                // Interrupted at a call.
                fail_at(&below, rng.below(60));
                let _ = fs.write_back();
                below.heal();
            }
            8..10 => {
                handles.release(&fs);
                model_handles.release(&model);
                if rng.percent(50) {
                    below.crash();
                }
                fs = again(fs);
                compare(&fs, &model, &what);
            }
            10..12 => {
                handles.release(&fs);
                model_handles.release(&model);
                write_back(&fs, &what);
                compare_below(&fs, &what);
                evict(&fs, &mut rng, 100);
                compare(&fs, &model, &what);
            }
            _ => {}
        }
    }
    handles.release(&fs);
    model_handles.release(&model);
    let what = format!("seed {seed}, at the end");
    write_back(&fs, &what);
    compare_below(&fs, &what);
    below.crash();
    let fs = again(fs);
    compare_below(&fs, &what);
    compare(&fs, &model, &what);
    let written = fs.write_back().unwrap();
    assert_eq!((written.inodes, written.bytes), (0, 0), "{what}: nothing is dirty");
    done
}

#[test]
fn what_is_written_back_is_what_the_pool_has() {
    match number_from_env("KEEPSTONE_SEED") {
        Some(seed) => println!("{:?}", run(seed, 300)),
        None => {
            let done = (0..30).map(|seed| run(seed, 300));
            let (written, bytes, dirs) =
                done.fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
            let is_enough = written > 1 << 20 && bytes > 1 << 20 && dirs > 20;
            assert!(is_enough, "{written} bytes, {bytes} evicted, {dirs} directories");
        }
    }
}

/// A file below: its name and its content.
type Seen = (String, Option<Vec<u8>>);

/// Notes, before each call to the backing store, what some names have there.
fn watch(below: &Below, names: &'static [&str]) -> Arc<Mutex<BTreeSet<Vec<Seen>>>> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let (notes, store) = (seen.clone(), Arc::downgrade(&below.0));
    below.fail_where(move |_| {
        let store = store.upgrade().unwrap();
        let model = store.model();
        let look = |path: &&str| {
            let found = path.split('/').try_fold(model.root(), |at, name| {
                model.peek(at, name.as_bytes()).map(|attr| attr.ino)
            });
            let content = found.and_then(|ino| {
                let Attr { kind, size, .. } = model.getattr(ino)?;
                let mut bytes = vec![0; if kind == FileKind::File { size as usize } else { 0 }];
                if kind == FileKind::File {
                    model.read(ino, 0, &mut bytes)?;
                }
                Ok(bytes)
            });
            ((*path).to_owned(), content.ok())
        };
        notes.lock().unwrap().insert(names.iter().map(look).collect());
        None
    });
    seen
}

pub fn file(fs: &dyn FileSystem, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let ino = make(fs, dir, name, NewKind::File);
    fs.write(ino, 0, content).unwrap();
    ino
}

pub fn rename(fs: &Tested, from: &str, to: &str) {
    let dir = |path: &str| path.rsplit_once('/').map_or(ROOT, |(dir, _)| find(fs, dir));
    let last = |path: &str| path.rsplit('/').next().unwrap().as_bytes().to_vec();
    let (from, to) = ((dir(from), last(from)), (dir(to), last(to)));
    fs.rename((from.0, &from.1), (to.0, &to.1), RenameFlags::empty()).unwrap();
}

#[test]
fn a_replaced_file_is_never_missing_or_half() {
    let below = empty();
    file(&below, ROOT, "f", b"old");
    file(&below, ROOT, "a", b"of a");
    file(&below, ROOT, "b", b"of b");
    let fs = fresh(&below);
    file(&fs, ROOT, "new", &[7; 3 * BLOCK as usize]);
    rename(&fs, "new", "f");
    // Swapped.
    rename(&fs, "a", "t");
    rename(&fs, "b", "a");
    rename(&fs, "t", "b");
    let dir = make(&fs, ROOT, "dir", NewKind::Dir);
    file(&fs, dir, "inside", b"it");
    let seen = watch(&below, &["f", "a", "b", "dir", "dir/inside"]);
    write_back(&fs, "a replaced file");
    below.heal();
    compare_below(&fs, "a replaced file");
    let [f, a, b, dir, inside] =
        [0, 1, 2, 3, 4].map(|i| seen.lock().unwrap().iter().map(|s| s[i].1.clone()).collect());
    let set = |all: &[&[u8]]| all.iter().map(|c| Some(c.to_vec())).collect::<BTreeSet<_>>();
    assert_eq!(f, set(&[b"old", &[7; 3 * BLOCK as usize]]));
    assert_eq!((a, b), (set(&[b"of a", b"of b"]), set(&[b"of a", b"of b"])));
    let or_none = |content: &[u8]| BTreeSet::from([None, Some(content.to_vec())]);
    assert_eq!((dir.len(), inside), (2, or_none(b"it")));
    let both = seen.lock().unwrap();
    assert!(both.iter().all(|s| s[3].1.is_some() == s[4].1.is_some()), "with what is in it");
}

#[test]
fn what_is_gone_before_costs_nothing_below() {
    let below = empty();
    let fs = fresh(&below);
    write_back(&fs, "the root");
    for i in 0..20 {
        let name = format!("f{i}");
        file(&fs, ROOT, &name, b"temporary");
        fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    write_back(&fs, "nothing");
    let count = |call| below.count(call);
    let counts = [ModelCall::Create, ModelCall::Write, ModelCall::Unlink, ModelCall::Rename];
    assert_eq!(counts.map(count), [0; 4]);
    let calls = [ModelCall::Readdir, ModelCall::Fsync].map(count);
    fs.write_back().unwrap();
    assert_eq!([ModelCall::Readdir, ModelCall::Fsync].map(count), calls, "all is clean");
}

#[test]
fn all_kinds_links_and_moves_arrive() {
    let below = empty();
    let old = make(&below, ROOT, "old", NewKind::Dir);
    let deep = make(&below, old, "deep", NewKind::Dir);
    let linked = file(&below, deep, "linked", &[3; 9000]);
    below.link(linked, old, b"link").unwrap();
    file(&below, old, "gone", b"it");
    let fs = fresh(&below);
    for (name, kind) in [
        ("fifo", NewKind::Fifo),
        ("socket", NewKind::Socket),
        ("char", NewKind::Char(0x103)),
        ("block", NewKind::Block(0x700)),
        ("symlink", NewKind::Symlink(b"old/link")),
    ] {
        make(&fs, ROOT, name, kind);
    }
    // A directory below one that was in it, and another in its place.
    rename(&fs, "old/deep", "deep");
    rename(&fs, "old", "deep/old");
    make(&fs, ROOT, "old", NewKind::Dir);
    rename(&fs, "deep/linked", "old/linked");
    fs.unlink(find(&fs, "deep/old"), b"gone").unwrap();
    let set = SetAttr { uid: Some(7), gid: Some(8), perm: Some(0o4751), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, find(&fs, "old/linked"), &set).unwrap();
    fs.setxattr(find(&fs, "deep"), b"user.name", b"value", SetXattr::Any).unwrap();
    write_back(&fs, "moves");
    // The content that was never loaded is where it was.
    let linked = find(&fs, "old/linked");
    assert_eq!(fs.pool().absent_range(linked, 0), Ok(Some(0..9000)));
    compare_below(&fs, "moves");
    assert_eq!(below.getattr(find(&below, "old/linked")).unwrap().nlink, 2);
}

#[test]
fn holes_arrive_as_holes() {
    let below = empty();
    file(&below, ROOT, "f", &[5; 64 * BLOCK as usize]);
    let fs = fresh(&below);
    let f = find(&fs, "f");
    fs.fallocate(f, Fallocate::PunchHole, 8 * BLOCK, 8 * BLOCK).unwrap();
    fs.fallocate(f, Fallocate::PunchHole, 40 * BLOCK, BLOCK).unwrap();
    fs.write(f, 100 * BLOCK, b"behind a hole").unwrap();
    write_back(&fs, "holes");
    compare_below(&fs, "holes");
    let b = find(&below, "f");
    assert_eq!(below.seek(b, 0, Seek::Hole), Ok(8 * BLOCK));
    assert_eq!(below.seek(b, 16 * BLOCK, Seek::Hole), Ok(40 * BLOCK));
    assert_eq!(below.seek(b, 64 * BLOCK, Seek::Data), Ok(100 * BLOCK));
}

#[test]
fn an_open_file_without_a_name_keeps_its_content() {
    let below = empty();
    file(&below, ROOT, "f", &[5; 9000]);
    let fs = fresh(&below);
    let f = fs.lookup(ROOT, b"f").unwrap().ino;
    fs.unlink(ROOT, b"f").unwrap();
    let written = fs.write_back().unwrap();
    assert_eq!((written.left, written.held), (1, 1), "its object is needed");
    // It does not fail for as long as a program has the file open.
    fs.write_back_all().unwrap();
    let mut bytes = vec![0; 9000];
    assert_eq!(fs.read(f, 0, &mut bytes), Ok(9000));
    assert_eq!(bytes, [5; 9000]);
    fs.forget(f, 1);
    write_back(&fs, "it is gone");
    compare_below(&fs, "it is gone");
}

#[test]
fn a_removed_directory_goes_although_a_program_is_in_it() {
    let below = empty();
    let fs = fresh(&below);
    make(&fs, ROOT, "dir", NewKind::Dir);
    write_back(&fs, "a directory");
    let dir = fs.lookup(ROOT, b"dir").unwrap().ino;
    fs.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(fs.write_back().unwrap().left, 0);
    assert_eq!(below.peek(ROOT, b"dir").map(drop), Err(Errno::NOENT));
    assert_eq!(fs.getattr(dir).unwrap().nlink, 0);
    assert_eq!(fs.readdir(dir, 0, &mut |_| true), Err(Errno::NOENT));
    fs.forget(dir, 1);
    write_back(&fs, "afterwards");
    compare_below(&fs, "afterwards");
}

#[test]
fn a_removed_directory_stays_while_a_file_of_it_is_open() {
    let below = empty();
    make(&below, ROOT, "dir", NewKind::Dir);
    file(&below, find(&below, "dir"), "f", &[5; 9000]);
    let fs = fresh(&below);
    let dir = find(&fs, "dir");
    let f = fs.lookup(dir, b"f").unwrap().ino;
    fs.unlink(dir, b"f").unwrap();
    fs.rmdir(ROOT, b"dir").unwrap();
    fs.write_back_all().unwrap();
    assert!(below.peek(ROOT, b"dir").is_ok(), "the file has content that only its object has");
    let mut bytes = vec![0; 9000];
    assert_eq!((fs.read(f, 0, &mut bytes), &bytes[..]), (Ok(9000), &[5; 9000][..]));
    fs.forget(f, 1);
    write_back(&fs, "it is gone");
    compare_below(&fs, "it is gone");
}

/// A store that is away makes a pass wait once, not once for each inode.
#[test]
fn a_backing_that_syncs_as_a_whole_is_synced_once_after_an_error() {
    let below = empty();
    below.sync_as_whole();
    let fs = fresh(&below);
    for i in 0..5 {
        file(&fs, ROOT, &format!("f{i}"), b"it");
    }
    let syncs = || [ModelCall::Sync, ModelCall::Fsync].map(|call| below.count(call));
    let before = syncs();
    below.fail(&[ModelCall::Sync], Errno::IO);
    let written = fs.write_back().unwrap();
    assert_eq!(written.errors.len(), 6, "{written:?}");
    assert_eq!(syncs(), [before[0] + 1, before[1]]);
    below.heal();
    while fs.write_back().unwrap().left > 0 {}
    compare_stores(&fs, &below, "after an error");
}

#[test]
fn an_error_stops_only_what_has_it() {
    let below = empty();
    let fs = fresh(&below);
    write_back(&fs, "the root");
    file(&fs, ROOT, "a", b"a");
    file(&fs, ROOT, "b", b"b");
    let mut writes = 0;
    below.fail_where(move |call| {
        writes += u32::from(call == ModelCall::Write);
        (call == ModelCall::Write && writes == 1).then_some(Errno::NOSPC)
    });
    let written = fs.write_back().unwrap();
    below.heal();
    assert_eq!(written.errors.iter().map(|(_, e)| *e).collect::<Vec<_>>(), [Errno::NOSPC]);
    let there = ["a", "b"].map(|name| below.peek(ROOT, name.as_bytes()).is_ok());
    assert_eq!(there.iter().filter(|there| **there).count(), 1, "{there:?}");
    write_back(&fs, "after an error");
    compare_below(&fs, "after an error");
}

/// Every pass settles the bytes that it wrote, and the status counts them (below-S2).
#[test]
fn a_pass_settles_the_bytes_that_it_wrote() {
    let below = empty();
    let fs = fresh(&below);
    write_back(&fs, "the root");
    let before = fs.pool().gained();
    for name in ["a", "b"] {
        file(&fs, ROOT, name, &[1; BLOCK as usize]);
    }
    let gained = || fs.pool().gained() - before;
    assert_eq!(gained(), 2 * BLOCK);
    let mut writes = 0;
    below.fail_where(move |call| {
        writes += u32::from(call == ModelCall::Write);
        (call == ModelCall::Write && writes == 1).then_some(Errno::NOSPC)
    });
    fs.write_back().unwrap();
    below.heal();
    assert_eq!((gained(), fs.status().counters.drained_bytes), (BLOCK, BLOCK), "one of them");
    fs.write_back().unwrap();
    assert_eq!((gained(), fs.status().counters.drained_bytes), (0, 2 * BLOCK), "both");
}

#[test]
fn private_names_that_a_crash_leaves_are_removed() {
    let below = empty();
    let fs = fresh(&below);
    file(&fs, ROOT, "a", &[1; 5000]);
    // Fails before the name.
    below.fail(&[ModelCall::Rename, ModelCall::Link], Errno::IO);
    fs.write_back().unwrap();
    below.heal();
    let private = || {
        let mut names = 0;
        below
            .readdir(below.root(), 0, &mut |e| {
                names += u32::from(e.name.starts_with(PRIVATE));
                true
            })
            .unwrap();
        names
    };
    assert_eq!(private(), 1);
    let fs = again(fs);
    fs.unlink(ROOT, b"a").unwrap();
    write_back(&fs, "the rest");
    assert_eq!(private(), 0);
    compare_below(&fs, "the rest");
}

#[test]
fn what_others_change_below_is_not_overwritten() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    let other = file(&below, ROOT, "file", b"first");
    file(&below, ROOT, "same", b"first");
    let fs = fresh(&below);
    for name in ["file", "same"] {
        fs.write(find(&fs, name), 0, b"ours").unwrap();
    }
    fs.write(file(&fs, find(&fs, "dir"), "ours", b"it"), 0, b"it").unwrap();
    // Others, while the pool is not mounted.
    below.write(other, 0, b"theirs").unwrap();
    file(&below, dir, "theirs", b"it");
    let fs = again(fs);
    let written = fs.write_back().unwrap();
    let of = |path| find(&fs, path);
    assert_eq!(written.errors, []);
    let conflicts: BTreeSet<Ino> = written.conflicts.iter().copied().collect();
    assert_eq!(conflicts, BTreeSet::from([of("dir"), of("file")]));
    let content = |path| {
        let mut bytes = vec![0; 100];
        let n = below.read(find(&below, path), 0, &mut bytes).unwrap();
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    };
    assert_eq!((content("file"), content("same")), ("theirs".into(), "ourst".into()));
    assert_eq!(content("dir/theirs"), "it");
    assert!(below.peek(dir, b"ours").is_err());
    // Content that belongs to another state of the file is not loaded.
    let big = file(&below, ROOT, "big", &[1; 1_000_000]);
    let fs = fresh(&below);
    let b = find(&fs, "big");
    fs.write(b, 0, b"ours").unwrap();
    below.write(big, 900_000, b"theirs").unwrap();
    assert_eq!(fs.read(b, 900_000, &mut [0; 10]), Err(Errno::IO));
    // Names that are absent are those that there are when they are loaded.
    file(&below, find(&below, "dir"), "another", b"it");
    let set = SetAttr { perm: Some(0o711), ..SetAttr::default() };
    below.setattr(&Caller::ROOT, find(&below, "dir"), &set).unwrap();
    assert!(fs.pool().residence(find(&fs, "dir")).unwrap().are_names_absent);
    find(&fs, "dir/another");
    assert_eq!(fs.getattr(find(&fs, "dir")).unwrap().perm, 0o711);
    assert!(fs.pool().residence(find(&fs, "dir")).unwrap().is_clean);
}

/// Threads change what a third writes back, evicts and compares.
#[test]
fn changes_meanwhile_are_written_back_later() {
    let below = empty();
    for d in 0..3 {
        let dir = make(&below, ROOT, &format!("d{d}"), NewKind::Dir);
        for i in 0..6 {
            file(&below, dir, &format!("f{i}"), &[d; 3 * BLOCK as usize]);
        }
    }
    let fs = fresh(&below);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let threads = [0, 1].map(|thread| {
            let fs = &fs;
            s.spawn(move || {
                let mut rng = Rng::new(thread);
                for i in 0..1500 {
                    let mut path = || format!("d{}/f{}", rng.below(3), rng.below(8));
                    let (from, to) = (path(), path());
                    // Another thread may have moved or removed either.
                    let _ = change(fs, rng.below(5), (&from, &to), i);
                }
            })
        });
        let writer = s.spawn(|| {
            let mut rng = Rng::new(7);
            while !is_over.load(Relaxed) {
                let written = fs.write_back().unwrap();
                assert!(written.conflicts.is_empty(), "{written:?}");
                evict(&fs, &mut rng, 30);
            }
        });
        for thread in threads {
            thread.join().unwrap();
        }
        is_over.store(true, Relaxed);
        writer.join().unwrap();
    });
    write_back(&fs, "threads");
    compare_below(&fs, "threads");
    compare_below(&again(fs), "threads, mounted again");
}

/// Makes one change that may fail.
fn change(fs: &Tested, what: u64, (from, to): (&str, &str), seed: u64) -> vfs::Result<()> {
    let dir = |path: &str| -> vfs::Result<(Ino, Vec<u8>)> {
        let (dir, name) = path.split_once('/').unwrap();
        Ok((fs.peek(ROOT, dir.as_bytes())?.ino, name.as_bytes().to_vec()))
    };
    let ((from_dir, from), (to_dir, to)) = (dir(from)?, dir(to)?);
    match what {
        0 => fs.rename((from_dir, &from), (to_dir, &to), RenameFlags::empty()),
        1 if seed.is_multiple_of(3) => fs.unlink(from_dir, &from),
        1 => {
            let node = NewNode { kind: NewKind::File, mode: 0o640, umask: 0 };
            let new = fs.create(&Caller::ROOT, from_dir, &from, &node)?.ino;
            let written = fs.write(new, 0, &[seed as u8; 6000]);
            fs.forget(new, 1);
            written
        }
        what => {
            let found = fs.lookup(from_dir, &from)?.ino;
            let size = 3 * BLOCK - seed;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            let done = match what {
                2 => fs.setattr(&Caller::ROOT, found, &set).map(drop),
                3 => fs.link(found, to_dir, &to).map(|entry| fs.forget(entry.ino, 1)),
                _ => fs.write(found, seed * 5, &seed.to_le_bytes()),
            };
            fs.forget(found, 1);
            done
        }
    }
}

#[test]
fn removed_directories_go_with_all_that_was_in_them() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    let sub = make(&below, dir, "sub", NewKind::Dir);
    file(&below, dir, "gone", b"it");
    file(&below, sub, "gone", b"it");
    file(&below, sub, "moved", b"moved");
    let fs = fresh(&below);
    let (dir, sub) = (find(&fs, "dir"), find(&fs, "dir/sub"));
    rename(&fs, "dir/sub/moved", "moved");
    for dir in [dir, sub] {
        fs.unlink(dir, b"gone").unwrap();
    }
    fs.rmdir(dir, b"sub").unwrap();
    fs.rmdir(ROOT, b"dir").unwrap();
    write_back(&fs, "removed directories");
    compare_below(&fs, "removed directories");
}
