//! Changes that others make below a pool.

use crate::common::Below;
use crate::loading::{
    BLOCK, Tested, again, apply_both, compare, empty, evict, fill, find, fresh, make,
};
use crate::writeback::{compare_below, file, rename, write_back};
use backing::Backing as _;
use backing::model::ModelCall;
use backing::{Change, Watch};
use pmcache::Comparison;
use rng::Rng;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use vfs::conformance::{Handles, gen_op, number_from_env};
use vfs::model::Model;
use vfs::{
    ABSENT, Attr, Backed as _, Caller, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT,
    RenameFlags, SetAttr, SetTime, SetXattr,
};

fn nothing(_: &Change) {}

/// Compares everything once.
pub fn sweep(fs: &Tested) {
    while !fs.sweep(7, &nothing).unwrap() {}
}

pub fn content(fs: &dyn FileSystem, path: &str) -> Vec<u8> {
    let ino = find(fs, path);
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    let n = fs.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

pub fn conflicts(fs: &Tested) -> Vec<String> {
    let path = |c: pmcache::Conflict| String::from_utf8(c.path.unwrap()).unwrap();
    let mut paths: Vec<_> = fs.conflicts().unwrap().into_iter().map(path).collect();
    paths.sort();
    paths
}

/// Follows reports, and returns what the front end has to forget.
fn follow(fs: &Tested) -> Vec<Change> {
    let forgotten: RefCell<Vec<Change>> = RefCell::default();
    let forget = |change: &Change| forgotten.borrow_mut().push(change.clone());
    fs.follow_changes(Duration::ZERO, &forget).unwrap();
    forgotten.into_inner()
}

pub fn remove(fs: &dyn FileSystem, path: &str) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    fs.unlink(find(fs, dir), name.as_bytes()).unwrap();
}

/// Moves a name, as others do.
pub fn move_below(fs: &dyn FileSystem, from: &str, to: &str) {
    let dir = |path: &str| find(fs, path.rsplit_once('/').map_or("", |(dir, _)| dir));
    let last = |path: &str| path.rsplit('/').next().unwrap().as_bytes().to_vec();
    let (from, to) = ((dir(from), last(from)), (dir(to), last(to)));
    fs.rename((from.0, &from.1), (to.0, &to.1), RenameFlags::empty()).unwrap();
}

// --- at random ----------------------------------------------------------------------------------

/// Whether an inode of the pool, and all that is loaded in it, is clean.
fn is_clean(fs: &Tested, ino: Ino) -> bool {
    let mut pending = vec![ino];
    while let Some(ino) = pending.pop() {
        let (pool, residence) = (fs.pool(), fs.pool().residence(ino).unwrap());
        let kind = pool.getattr(ino).unwrap().kind;
        let has_dirty = kind == FileKind::File && pool.dirty_range(ino, 0).unwrap().is_some();
        if !residence.is_clean || has_dirty {
            return false;
        }
        if kind == FileKind::Dir {
            pool.each_name(ino, &mut |_, ino, _| pending.push(ino)).unwrap();
        }
    }
    true
}

/// Finds what others may change: its number below, if the pool has the same there.
fn settled(fs: &Tested, path: &str, is_deep: bool) -> Option<Ino> {
    let (mut pool, mut below) = (Some(ROOT), fs.backing().root());
    for name in path.split('/').filter(|name| !name.is_empty()) {
        below = fs.backing().peek(below, name.as_bytes()).ok()?.ino;
        pool = match fs.pool().peek(pool.unwrap_or(Ino(0)), name.as_bytes()) {
            _ if pool.is_none() => None,
            Err(ABSENT) => None,
            found => Some(found.ok()?.ino),
        };
        if let Some(ino) = pool
            && fs.pool().residence(ino).unwrap().identity != fs.backing().identity(below).unwrap().0
        {
            return None;
        }
    }
    let is_it_clean = |ino| match is_deep {
        true => is_clean(fs, ino),
        false => fs.pool().residence(ino).unwrap().is_clean,
    };
    pool.is_none_or(is_it_clean).then_some(below)
}

/// Paths of all names, and their kinds.
fn paths(fs: &dyn FileSystem) -> Vec<(String, FileKind)> {
    let mut all = vec![(String::new(), FileKind::Dir)];
    let mut next = 0;
    while let Some((path, kind)) = all.get(next).cloned() {
        next += 1;
        if kind != FileKind::Dir {
            continue;
        }
        let mut add = |e: &vfs::DirEntry<'_>| {
            if let (Ok(name), false) = (std::str::from_utf8(e.name), e.name.starts_with(b".")) {
                let slash = if path.is_empty() { "" } else { "/" };
                all.push((format!("{path}{slash}{name}"), e.kind));
            }
            true
        };
        let found = path
            .split('/')
            .filter(|n| !n.is_empty())
            .try_fold(fs.root(), |at, name| fs.peek(at, name.as_bytes()).map(|attr| attr.ino));
        fs.readdir(found.unwrap(), 0, &mut add).unwrap();
    }
    all
}

/// Makes one change below, and in the model. Returns what is reported of it.
fn others(fs: &Tested, model: &Model, rng: &mut Rng) -> Option<Vec<Change>> {
    let all = paths(model);
    let (path, kind) = all[rng.below(all.len() as u64) as usize].clone();
    let dirs: Vec<_> = all.iter().filter(|(_, kind)| *kind == FileKind::Dir).collect();
    let to_dir = dirs[rng.below(dirs.len() as u64) as usize].0.clone();
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
    let to_name = format!("o{}", rng.below(4));
    let to_path = if to_dir.is_empty() { to_name.clone() } else { format!("{to_dir}/{to_name}") };
    // Changes of the pool belong to it, and so does a name that it has removed.
    let is_there = |path: &str| all.iter().any(|(found, _)| found == path);
    let to_is_ours = || is_there(&to_path) && settled(fs, &to_path, true).is_none();
    let (at, parent) = (settled(fs, &path, true)?, settled(fs, dir, false)?);
    let to = settled(fs, &to_dir, false)?;
    let of_model = |path: &str| {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(model.root(), |at, name| model.peek(at, name.as_bytes()).unwrap().ino)
    };
    let (bytes, at_byte) =
        (vec![rng.below(255) as u8 + 1; rng.below(9000) as usize], rng.below(20_000));
    let (size, perm) = (rng.below(20_000), 0o600 + rng.below(64) as u32);
    let seed = rng.below(10);
    let both: [(&dyn FileSystem, Ino, Ino, Ino); 2] = [
        (fs.backing(), at, parent, to),
        (model, of_model(&path), of_model(dir), of_model(&to_dir)),
    ];
    if matches!(seed, 4..=9) && to_is_ours() {
        return None;
    }
    let results = both.map(|(fs, at, parent, to)| {
        let (name, to_name) = (name.as_bytes(), to_name.as_bytes());
        let set = |set: SetAttr| fs.setattr(&Caller::ROOT, at, &set).map(drop);
        match (seed, kind) {
            (0, FileKind::File) => fs.write(at, at_byte, &bytes),
            (1, FileKind::File) => set(SetAttr { size: Some(size), ..SetAttr::default() }),
            (2, FileKind::File | FileKind::Dir) => {
                set(SetAttr { perm: Some(perm), ..SetAttr::default() })
            }
            (3, FileKind::File | FileKind::Dir) => {
                fs.setxattr(at, b"user.o", &bytes[..bytes.len().min(100)], SetXattr::Any)
            }
            (4, _) => {
                let node = NewNode { kind: NewKind::File, mode: 0o640, umask: 0 };
                let new = fs.create(&Caller::ROOT, to, to_name, &node)?.ino;
                let written = fs.write(new, 0, &bytes);
                fs.forget(new, 1);
                written
            }
            (5, _) => {
                let node = NewNode { kind: NewKind::Dir, mode: 0o750, umask: 0 };
                fs.create(&Caller::ROOT, to, to_name, &node).map(|e| fs.forget(e.ino, 1))
            }
            (6, FileKind::Dir) if !name.is_empty() => fs.rmdir(parent, name),
            (6, kind) if kind != FileKind::Dir => fs.unlink(parent, name),
            (7 | 8, _) if !name.is_empty() => {
                fs.rename((parent, name), (to, to_name), RenameFlags::empty())
            }
            (9, kind) if kind != FileKind::Dir => {
                fs.link(at, to, to_name).map(|e| fs.forget(e.ino, 1))
            }
            _ => Err(Errno::INVAL),
        }
    });
    assert_eq!(results[0], results[1], "{seed} {path} {to_path}");
    results[0].ok()?;
    let mut told = vec![Change::Attributes(at)];
    match seed {
        0 | 1 => told.push(Change::Content(at)),
        4 | 5 | 9 => told.push(Change::Name(to, to_name.into())),
        6 => told.push(Change::Name(parent, name.into())),
        7 | 8 => {
            told.push(Change::Name(parent, name.into()));
            told.push(Change::Name(to, to_name.into()));
        }
        _ => {}
    }
    Some(told)
}

/// Runs calls on a cache and a model. Meanwhile others change below what is clean in the pool.
/// Returns the number of their changes.
fn run(seed: u64, count: usize) -> u64 {
    let (below, model) = (empty(), Model::new());
    fill(seed, 100, [&below, &model]);
    below.sync().unwrap();
    let mut fs = fresh(&below);
    fs.watch(Watch::Notify).unwrap();
    let (mut handles, mut model_handles) = (Handles::new(ROOT), Handles::new(model.root()));
    let mut rng = Rng::new(seed);
    let mut changes = 0;
    for i in 0..count {
        let op = gen_op(&mut rng);
        let what = format!("seed {seed}, call {i}, {op}");
        apply_both((&fs, &mut handles), (&model, &mut model_handles), &op, &what);
        if rng.percent(5) {
            // Open files without a name are left.
            let written = fs.write_back().unwrap();
            assert!(
                written.errors.is_empty() && written.conflicts.is_empty(),
                "{what}: {written:?}"
            );
            evict(&fs, &mut rng, 40);
        }
        if !rng.percent(10) {
            continue;
        }
        // An open file that others remove has no object any more.
        handles.release(&fs);
        model_handles.release(&model);
        if rng.percent(50) {
            write_back(&fs, &what);
        }
        let mut told = Vec::new();
        for _ in 0..1 + rng.below(6) {
            if let Some(change) = others(&fs, &model, &mut rng) {
                told.extend(change);
                changes += 1;
            }
        }
        match rng.below(3) {
            0 => sweep(&fs),
            1 => {
                told.into_iter().for_each(|change| below.tell(change));
                follow(&fs);
            }
            _ => {
                fs = again(fs);
                fs.watch(Watch::Notify).unwrap();
                follow(&fs);
            }
        }
        assert_eq!(conflicts(&fs), Vec::<String>::new(), "{what}");
        compare(&fs, &model, &what);
    }
    handles.release(&fs);
    model_handles.release(&model);
    let what = format!("seed {seed}, at the end");
    write_back(&fs, &what);
    compare_below(&fs, &what);
    compare(&again(fs), &model, &what);
    changes
}

#[test]
fn what_others_change_is_in_the_pool_then() {
    match number_from_env("KEEPSTONE_SEED") {
        Some(seed) => println!("{} changes", run(seed, 300)),
        None => {
            let changes: u64 = (0..20).map(|seed| run(seed, 300)).sum();
            assert!(changes > 400, "{changes} changes");
        }
    }
}

// --- one by one ---------------------------------------------------------------------------------

#[test]
fn a_load_gets_what_there_is_now() {
    let below = empty();
    let f = file(&below, ROOT, "f", &[1; 3 * BLOCK as usize]);
    let fs = fresh(&below);
    let mut bytes = [0; 10];
    fs.read(find(&fs, "f"), BLOCK, &mut bytes).unwrap();
    below.write(f, 0, &[2; 3 * BLOCK as usize]).unwrap();
    below.setxattr(f, b"user.a", b"theirs", SetXattr::Any).unwrap();
    let set = SetAttr { perm: Some(0o604), uid: Some(9), ..SetAttr::default() };
    below.setattr(&Caller::ROOT, f, &set).unwrap();
    below.write(f, 4 * BLOCK, b"end").unwrap();
    assert_eq!(fs.read(find(&fs, "f"), 2 * BLOCK, &mut bytes), Ok(10));
    assert_eq!(bytes, [2; 10]);
    let expected = [&[2; 3 * BLOCK as usize][..], &[0; BLOCK as usize], b"end"].concat();
    assert!(content(&fs, "f") == expected, "nothing old is left");
    let Attr { perm, uid, .. } = fs.getattr(find(&fs, "f")).unwrap();
    assert_eq!((perm, uid), (0o604, 9));
    assert_eq!(fs.getxattr(find(&fs, "f"), b"user.a").unwrap(), b"theirs");
    // The front end has to forget it, though no report came.
    fs.watch(Watch::Notify).unwrap();
    assert!(follow(&fs).contains(&Change::Content(find(&fs, "f"))));
    // A file that became shorter.
    evict(&fs, &mut Rng::new(0), 100);
    let f = find(&fs, "f");
    below
        .setattr(&Caller::ROOT, find(&below, "f"), &SetAttr { size: Some(5), ..SetAttr::default() })
        .unwrap();
    assert_eq!(fs.read(f, 2 * BLOCK, &mut bytes), Ok(0));
    assert_eq!(content(&fs, "f"), [2; 5]);
}

/// A change in the middle of a load: no state of the file is mixed with another.
#[test]
fn a_load_starts_again_if_others_change_the_object() {
    let below = empty();
    let f = file(&below, ROOT, "f", &[1; 200_000]);
    let fs = fresh(&below);
    let store = Arc::downgrade(&below.0);
    let mut reads = 0;
    below.fail_where(move |call| {
        reads += u32::from(call == ModelCall::Read);
        if call == ModelCall::Read && matches!(reads, 1 | 3 | 4) {
            let byte = 1 + reads as u8;
            store.upgrade().unwrap().model().write(f, 0, &[byte; 200_000]).unwrap();
        }
        None
    });
    assert!(content(&fs, "f") == [2; 200_000]);
    let ino = find(&fs, "f");
    fs.pool().evict_content(ino, 0..u64::MAX).unwrap();
    assert!(content(&fs, "f") == [5; 200_000]);
    below.heal();
    assert_eq!(fs.look_behind(ino), Ok(Comparison::Same));
    // Others that change it all the time do not stop a reader for ever.
    let store = Arc::downgrade(&below.0);
    let mut byte = 5;
    below.fail_where(move |call| {
        if call == ModelCall::Read {
            byte += 1;
            store.upgrade().unwrap().model().write(f, 0, &[byte; 200_000]).unwrap();
        }
        None
    });
    fs.pool().evict_content(ino, 0..u64::MAX).unwrap();
    assert_eq!(content(&fs, "f").len(), 200_000);
    below.heal();
    let now = content(&below, "f");
    assert_eq!(fs.look_behind(ino), Ok(Comparison::Renewed));
    assert!(content(&fs, "f") == now);
}

#[test]
fn reports_are_believed_if_no_time_shows_them() {
    let below = empty();
    let f = file(&below, ROOT, "f", b"mine");
    let g = file(&below, ROOT, "g", b"mine");
    let fs = fresh(&below);
    fs.watch(Watch::Notify).unwrap();
    assert_eq!((content(&fs, "f"), content(&fs, "g")), (b"mine".to_vec(), b"mine".to_vec()));
    follow(&fs);
    fs.write(find(&fs, "g"), 0, b"M").unwrap();
    for ino in [f, g] {
        let before = below.getattr(ino).unwrap();
        below.write(ino, 0, b"ours").unwrap();
        let (mtime, ctime) = (Some(SetTime::At(before.mtime)), Some(before.ctime));
        below.setattr(&Caller::ROOT, ino, &SetAttr { mtime, ctime, ..SetAttr::default() }).unwrap();
        below.tell(Change::Content(ino));
    }
    below.tell(Change::Content(Ino(4711)));
    assert_eq!(follow(&fs), [Change::Content(find(&fs, "f"))]);
    assert_eq!(content(&fs, "f"), b"ours");
    // changes-H2.
    assert_eq!(content(&fs, "g"), b"Mine");
    assert_eq!(conflicts(&fs), Vec::<String>::new());
    // After a lost report, everything is compared.
    below.write(f, 0, b"more").unwrap();
    file(&below, ROOT, "new", b"it");
    below.tell(Change::Lost);
    let forgotten = follow(&fs);
    assert!(forgotten.contains(&Change::Name(ROOT, b"new".to_vec())), "{forgotten:?}");
    assert_eq!((content(&fs, "f"), content(&fs, "new")), (b"more".to_vec(), b"it".to_vec()));
}

#[test]
fn what_others_move_has_one_name() {
    let below = empty();
    let dirs = ["a", "b"].map(|name| make(&below, ROOT, name, NewKind::Dir));
    file(&below, dirs[0], "f", &[7; 9000]);
    let sub = make(&below, dirs[0], "sub", NewKind::Dir);
    file(&below, sub, "in", b"it");
    let fs = fresh(&below);
    content(&fs, "a/f");
    content(&fs, "a/sub/in");
    find(&fs, "b");
    assert_eq!(fs.lookup(find(&fs, "b"), b"x").map(drop), Err(Errno::NOENT));
    let f = find(&fs, "a/f");
    move_below(&*below, "a/f", "a/g");
    assert_eq!(fs.look_behind(find(&fs, "a")), Ok(Comparison::Renewed));
    assert_eq!(find(&fs, "a/g"), f);
    move_below(&*below, "a/g", "b/h");
    // The directory that gets it is compared first.
    assert_eq!(fs.look_behind(find(&fs, "b")), Ok(Comparison::Renewed));
    assert_eq!(fs.look_behind(find(&fs, "a")), Ok(Comparison::Renewed));
    assert_eq!(find(&fs, "b/h"), f);
    assert_eq!(fs.getattr(f).unwrap().nlink, 1);
    assert!(fs.peek(find(&fs, "a"), b"g").is_err());
    // A directory has one name only: it leaves the other one.
    move_below(&*below, "a/sub", "b/sub");
    assert_eq!(fs.look_behind(find(&fs, "b")), Ok(Comparison::Renewed));
    assert_eq!(content(&fs, "b/sub/in"), b"it");
    assert!(fs.peek(find(&fs, "a"), b"sub").is_err());
    // Two that change places.
    make(&below, find(&below, "a"), "sub", NewKind::Dir);
    sweep(&fs);
    find(&fs, "a/sub");
    let exchange = |fs: &Below| {
        let (a, b) = (find(&**fs, "a"), find(&**fs, "b"));
        fs.rename((a, b"sub"), (b, b"sub"), RenameFlags::EXCHANGE).unwrap();
    };
    exchange(&below);
    sweep(&fs);
    assert_eq!(content(&fs, "a/sub/in"), b"it");
    assert!(conflicts(&fs).is_empty());
    compare_below(&again(fs), "moved");
}

#[test]
fn an_open_file_that_others_replace_is_the_old_one() {
    let below = empty();
    file(&below, ROOT, "f", b"old");
    let fs = fresh(&below);
    assert_eq!(content(&fs, "f"), b"old");
    let open = fs.lookup(ROOT, b"f").unwrap().ino;
    file(&below, ROOT, "t", b"new");
    move_below(&*below, "t", "f");
    assert_eq!(fs.look_behind(ROOT), Ok(Comparison::Renewed));
    assert_eq!(content(&fs, "f"), b"new");
    let mut bytes = [0; 3];
    assert_eq!(fs.read(open, 0, &mut bytes), Ok(3));
    assert_eq!((&bytes, fs.getattr(open).unwrap().nlink), (b"old", 0));
    fs.forget(open, 1);
    compare_below(&again(fs), "replaced");
}

#[test]
fn what_both_change_is_a_conflict_until_one_goes() {
    for ours_goes in [false, true] {
        let below = empty();
        let dir = make(&below, ROOT, "dir", NewKind::Dir);
        let f = file(&below, dir, "f", b"first");
        let fs = fresh(&below);
        fs.write(find(&fs, "dir/f"), 0, b"OURS!").unwrap();
        below.write(f, 0, b"theirs").unwrap();
        assert_eq!(fs.look_behind(find(&fs, "dir/f")), Ok(Comparison::Conflict));
        assert_eq!(conflicts(&fs), ["dir/f"]);
        for _ in 0..2 {
            assert_eq!(fs.write_back().unwrap().conflicts, [find(&fs, "dir/f")]);
            sweep(&fs);
        }
        assert_eq!(
            (content(&fs, "dir/f"), content(&*below, "dir/f")),
            (b"OURS!".into(), b"theirs".into())
        );
        let fs = again(fs);
        sweep(&fs);
        assert_eq!(conflicts(&fs), ["dir/f"], "also after another mount");
        if ours_goes {
            remove(&fs, "dir/f");
        } else {
            remove(&*below, "dir/f");
            sweep(&fs);
            assert_eq!(content(&fs, "dir/f"), b"OURS!");
        }
        write_back(&fs, "resolved");
        assert_eq!(conflicts(&fs), Vec::<String>::new());
        compare_below(&fs, "resolved");
        assert_eq!(fs.peek(find(&fs, "dir"), b"f").is_err(), ours_goes);
    }
}

#[test]
fn two_objects_of_one_name_stay_where_they_are() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    file(&below, dir, "f", b"first");
    file(&below, dir, "gone", b"it");
    let fs = fresh(&below);
    fs.write(find(&fs, "dir/f"), 0, b"OURS!").unwrap();
    find(&fs, "dir/gone");
    // An editor replaces the file.
    file(&below, dir, "t", b"theirs");
    move_below(&*below, "dir/t", "dir/f");
    remove(&*below, "dir/gone");
    file(&below, dir, "new", b"new");
    sweep(&fs);
    assert_eq!(conflicts(&fs), ["dir", "dir/f"]);
    let both = |fs: &Tested| (content(fs, "dir/f"), content(fs.backing(), "dir/f"));
    for _ in 0..3 {
        fs.write_back().unwrap();
        sweep(&fs);
        assert_eq!(both(&fs), (b"OURS!".into(), b"theirs".into()));
    }
    assert_eq!(content(&fs, "dir/new"), b"new", "the rest follows");
    assert!(fs.peek(find(&fs, "dir"), b"gone").is_err());
    let fs = again(fs);
    sweep(&fs);
    assert_eq!(both(&fs), (b"OURS!".into(), b"theirs".into()));
    remove(fs.backing(), "dir/f");
    sweep(&fs);
    write_back(&fs, "resolved");
    assert_eq!(conflicts(&fs), Vec::<String>::new());
    assert_eq!(both(&fs), (b"OURS!".into(), b"OURS!".into()));
    compare_below(&fs, "resolved");
}

#[test]
fn a_directory_that_both_change_is_a_conflict_while_it_is_unclear() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    file(&below, dir, "f", b"first");
    let fs = fresh(&below);
    file(&fs, find(&fs, "dir"), "ours", b"ours");
    file(&below, dir, "theirs", b"theirs");
    sweep(&fs);
    assert_eq!(conflicts(&fs), ["dir"]);
    fs.write_back().unwrap();
    assert!(below.peek(dir, b"ours").is_err());
    assert_eq!(content(&*below, "dir/theirs"), b"theirs");
    remove(&*below, "dir/theirs");
    assert_eq!(fs.look_behind(find(&fs, "dir")), Ok(Comparison::Renewed));
    write_back(&fs, "resolved");
    assert_eq!(conflicts(&fs), Vec::<String>::new());
    compare_below(&fs, "resolved");
    // A change of attributes by others is not overwritten either.
    file(&fs, find(&fs, "dir"), "more", b"ours");
    let set = SetAttr { perm: Some(0o711), ..SetAttr::default() };
    below.setattr(&Caller::ROOT, dir, &set).unwrap();
    sweep(&fs);
    assert_eq!(conflicts(&fs), ["dir"]);
    fs.setattr(&Caller::ROOT, find(&fs, "dir"), &set).unwrap();
    sweep(&fs);
    write_back(&fs, "both agree");
    assert_eq!(conflicts(&fs), Vec::<String>::new());
    compare_below(&fs, "both agree");
}

/// A directory goes below while something in it is dirty, and one while nothing is.
#[test]
fn directories_that_are_gone_keep_what_is_dirty() {
    let below = empty();
    for name in ["clean", "dirty"] {
        let dir = make(&below, ROOT, name, NewKind::Dir);
        let sub = make(&below, dir, "sub", NewKind::Dir);
        file(&below, sub, "f", b"first");
        file(&below, dir, "g", b"first");
    }
    let fs = fresh(&below);
    for path in ["clean/sub/f", "clean/g", "dirty/sub/f", "dirty/g"] {
        content(&fs, path);
    }
    fs.write(find(&fs, "dirty/sub/f"), 0, b"OURS!").unwrap();
    for dir in ["clean", "dirty"] {
        remove(&*below, &format!("{dir}/sub/f"));
        remove(&*below, &format!("{dir}/g"));
        below.rmdir(find(&*below, dir), b"sub").unwrap();
        below.rmdir(ROOT, dir.as_bytes()).unwrap();
    }
    sweep(&fs);
    assert!(fs.peek(ROOT, b"clean").is_err());
    assert_eq!(content(&fs, "dirty/sub/f"), b"OURS!");
    let paths = conflicts(&fs);
    assert!(paths.contains(&"dirty/sub/f".into()), "{paths:?}");
    // The user keeps it elsewhere.
    rename(&fs, "dirty/sub/f", "f");
    sweep(&fs);
    remove(&fs, "f");
    let _ = again(fs);
}

/// Threads use files that others change and a third thread compares.
#[test]
fn threads_see_one_state_or_another() {
    let below = empty();
    let f = file(&below, ROOT, "f", &[1; 100_000]);
    let fs = fresh(&below);
    std::thread::scope(|s| {
        let readers = [0, 1].map(|_| {
            s.spawn(|| {
                for _ in 0..300 {
                    let bytes = content(&fs, "f");
                    let (first, rest) = bytes.split_first().unwrap();
                    let blocks = rest.chunks(BLOCK as usize);
                    // A file that is read in the middle of a change may have two states, in order.
                    assert!(blocks.flatten().all(|b| b.abs_diff(*first) < 3), "of two states");
                }
            })
        });
        let changer = s.spawn(|| {
            for i in 0..60 {
                below.write(f, 0, &[i; 100_000]).unwrap();
                fs.look_behind(find(&fs, "f")).unwrap();
                fs.pool().evict_content(find(&fs, "f"), 0..u64::MAX).unwrap();
            }
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        changer.join().unwrap();
    });
    assert!(content(&fs, "f") == [59; 100_000]);
    let _ = again(fs);
}
