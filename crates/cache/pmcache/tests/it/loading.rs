//! Pools with a backing store, loaded on demand.

use crate::common::Below;
use backing::model::{ModelBacking, ModelCall};
use bpfs::Bpfs;
use pmcache::Loading;
use pmem::Region;
use pool::{CheckOptions, FormatOptions, MountOptions};
use rng::Rng;
use std::sync::Arc;
use vfs::conformance::{
    Handles, Outcome, apply, count_dirty, gen_op, gen_ops, run_all, run_generated, stress,
};
use vfs::model::Model;
use vfs::script::Op;
use vfs::tree::{diff, tree};
use vfs::{
    Attr, Backed as _, Caller, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT, SetAttr,
    Timestamp,
};

pub type Tested = Loading<Bpfs<Region>, Below>;

pub const BLOCK: u64 = 4096;

pub fn region(bytes: u64) -> Region {
    let region = Region::anonymous(bytes).unwrap();
    let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
    bpfs::format(&region, &options).unwrap();
    region
}

pub fn mount(region: Region) -> Bpfs<Region> {
    let options = MountOptions { seed: Some(1), threads: Some(1), ..MountOptions::default() };
    Bpfs::mount(region, &options).unwrap()
}

pub fn fresh(below: &Below) -> Tested {
    Loading::attach(mount(region(64 << 20)), below.clone()).unwrap()
}

/// Mounts the pool again, after a check.
pub fn again(fs: Tested) -> Tested {
    let below = fs.backing().clone();
    let region = fs.into_pool().into_medium();
    let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    Loading::attach(mount(region), below).unwrap()
}

pub fn empty() -> Below {
    Below(Arc::new(ModelBacking::new()))
}

pub fn make(fs: &dyn FileSystem, dir: Ino, name: &str, kind: NewKind<'_>) -> Ino {
    let node = NewNode { kind, mode: 0o755, umask: 0 };
    let ino = fs.create(&Caller::ROOT, dir, name.as_bytes(), &node).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

pub fn find(fs: &dyn FileSystem, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(ROOT, |at, name| fs.peek(at, name.as_bytes()).unwrap().ino)
}

/// Every directory of the pool whose names are there, and every file.
fn present(fs: &Tested) -> (Vec<Ino>, Vec<Ino>) {
    let (mut dirs, mut files, mut pending) = (vec![], vec![], vec![ROOT]);
    while let Some(dir) = pending.pop() {
        let listed = fs.pool().readdir(dir, 0, &mut |e| {
            match e.kind {
                _ if matches!(e.name, b"." | b"..") => {}
                FileKind::Dir => pending.push(e.ino),
                FileKind::File => files.push(e.ino),
                _ => {}
            }
            true
        });
        if listed.is_ok() {
            dirs.push(dir);
        }
    }
    (dirs, files)
}

/// Evicts ranges of files, and directories from below, as chance decides. Returns the number of
/// bytes and of directories.
pub fn evict(fs: &Tested, rng: &mut Rng, percent: u64) -> (u64, u64) {
    let mut evicted = (0, 0);
    let (dirs, files) = present(fs);
    for file in files {
        if rng.percent(percent) {
            let start = rng.below(64) * BLOCK;
            let range = if rng.percent(50) { 0..u64::MAX } else { start..start + 8 * BLOCK };
            match fs.pool().evict_content(file, range) {
                // It is gone meanwhile.
                Err(Errno::STALE) => {}
                freed => evicted.0 += freed.unwrap(),
            }
        }
    }
    for dir in dirs.into_iter().rev() {
        if rng.percent(percent) {
            evicted.1 += u64::from(fs.evict_names(dir).unwrap());
        }
    }
    evicted
}

pub fn compare(fs: &Tested, model: &Model, what: &str) {
    let (got, want) = (tree(fs).unwrap(), tree(model).unwrap());
    let diff = diff(&got, &want).unwrap_or_default();
    assert!(diff.is_empty(), "{what}: the trees differ (left: loaded, right: model)\n{diff}");
}

/// Checks the counts of what is dirty.
pub fn check_counts(fs: &Tested, what: &str) {
    assert_eq!(fs.pool().dirty_count(), count_dirty(fs.pool()).unwrap(), "{what}");
}

/// Makes the same call on a cache and a model, which must have the same result.
pub fn apply_both(
    (fs, handles): (&Tested, &mut Handles),
    (model, model_handles): (&Model, &mut Handles),
    op: &Op,
    what: &str,
) {
    // Caches share no content.
    if matches!(op, Op::Clone(..)) {
        return;
    }
    let got = apply(fs, handles, op);
    let want = apply(model, model_handles, op);
    // An engine may choose what it reports as a hole.
    let is_free = matches!(op, Op::SeekData(..) | Op::SeekHole(..));
    assert_ne!(got, Outcome::Failed(Errno::NOSPC), "{what}");
    assert!(is_free || got == want, "{what}: {got:?}, the model {want:?}");
    check_counts(fs, what);
}

/// Makes one call of the backing store fail: that after this number of others.
pub fn fail_at(below: &Below, mut calls: u64) {
    below.fail_where(move |_| {
        calls = calls.saturating_sub(1);
        (calls == 0).then_some(Errno::IO)
    });
}

/// Runs the same calls on two file systems.
pub fn fill(seed: u64, count: usize, all: [&dyn FileSystem; 2]) {
    for fs in all {
        let mut handles = Handles::new(fs.root());
        for op in gen_ops(seed ^ 0xbe10, count) {
            apply(fs, &mut handles, &op);
        }
        handles.release(fs);
    }
}

/// Runs calls on a tree that lies below at first, and on a model with the same tree. Returns what
/// was evicted meanwhile.
fn run(seed: u64, count: usize) -> (u64, u64) {
    let mut evicted = (0, 0);
    let (below, model) = (empty(), Model::new());
    fill(seed, 150, [&below, &model]);
    let before = tree(&below).unwrap();
    let mut fs = fresh(&below);
    let (mut handles, mut model_handles) = (Handles::new(ROOT), Handles::new(model.root()));
    let mut rng = Rng::new(seed);
    for i in 0..count {
        let op = gen_op(&mut rng);
        let what = format!("seed {seed}, call {i}, {op}");
        apply_both((&fs, &mut handles), (&model, &mut model_handles), &op, &what);
        if rng.percent(20) {
            let now = evict(&fs, &mut rng, 60);
            evicted = (evicted.0 + now.0, evicted.1 + now.1);
        }
        if rng.percent(3) {
            handles.release(&fs);
            model_handles.release(&model);
            compare(&fs, &model, &format!("seed {seed}, call {i}, {op}"));
        }
        if rng.percent(2) {
            handles.release(&fs);
            model_handles.release(&model);
            fs = again(fs);
        }
    }
    handles.release(&fs);
    model_handles.release(&model);
    evict(&fs, &mut rng, 100);
    compare(&fs, &model, &format!("seed {seed}"));
    compare(&again(fs), &model, &format!("seed {seed}, mounted again"));
    assert_eq!(diff(&before, &tree(&below).unwrap()), None, "nothing is written back");
    evicted
}

#[test]
fn calls_on_a_loaded_tree_are_those_of_the_model() {
    match vfs::conformance::number_from_env("KEEPSTONE_SEED") {
        Some(seed) => println!("evicted: {:?}", run(seed, 300)),
        None => {
            let evicted = (0..24).map(|seed| run(seed, 300));
            let (bytes, dirs) = evicted.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            assert!(bytes > 1 << 20 && dirs > 50, "{bytes} bytes, {dirs} directories");
        }
    }
}

#[test]
fn the_contract_is_kept_over_an_empty_store() {
    let make = || Box::new(fresh(&empty())) as Box<dyn FileSystem>;
    run_all(make);
    run_generated(make, 10, 300);
    stress(&*make(), 4, 300, 1).unwrap();
}

#[test]
fn only_what_a_call_needs_is_loaded() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    let deep = make(&below, dir, "deep", NewKind::Dir);
    let file = make(&below, deep, "file", NewKind::File);
    let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 7 + i) as u8 | 1).collect();
    below.write(file, 0, &content).unwrap();
    let fs = fresh(&below);
    let count = |call| below.count(call);
    assert!(fs.pool().residence(find(&fs, "dir")).unwrap().are_names_absent);
    let listed = count(ModelCall::Readdir);
    let f = find(&fs, "dir/deep/file");
    assert_eq!((count(ModelCall::Readdir) - listed, count(ModelCall::Read)), (2, 0));
    // From the start, in order: with read-ahead.
    let mut buf = vec![0; 4096];
    for at in (0..1 << 20).step_by(4096) {
        fs.read(f, at, &mut buf).unwrap();
        assert_eq!(buf, content[at as usize..][..4096]);
    }
    assert_eq!(count(ModelCall::Read), 4);
    assert_eq!(fs.pool().absent_range(f, 0), Ok(Some(1 << 20..3 << 20)));
    // Elsewhere: the blocks only.
    fs.read(f, (2 << 20) + 5000, &mut buf).unwrap();
    assert_eq!(fs.pool().absent_range(f, 2 << 20), Ok(Some(2 << 20..(2 << 20) + 4096)));
    assert_eq!(fs.pool().absent_range(f, (2 << 20) + 4096), Ok(Some((2 << 20) + 12288..3 << 20)));
    let fs = again(fs);
    let (read, find_calls) = (count(ModelCall::Read), count(ModelCall::Find));
    fs.read(f, 0, &mut buf).unwrap();
    assert_eq!(
        (count(ModelCall::Read), count(ModelCall::Find)),
        (read, find_calls),
        "it is in the pool"
    );
}

#[test]
fn sparse_files_take_no_space() {
    let below = empty();
    let sparse = make(&below, ROOT, "sparse", NewKind::File);
    below.write(sparse, 1 << 40, b"far").unwrap();
    let fs = fresh(&below);
    let f = find(&fs, "sparse");
    let mut buf = vec![1; 8192];
    assert_eq!(fs.read(f, 1 << 30, &mut buf), Ok(8192));
    assert_eq!(buf, [0; 8192]);
    assert_eq!(fs.seek(f, 0, vfs::Seek::Data), Ok(1 << 40));
    assert_eq!(fs.read(f, 1 << 40, &mut buf), Ok(3));
    assert!(fs.getattr(f).unwrap().blocks < 100);
}

#[test]
fn a_load_that_fails_is_the_error_of_the_call() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    for i in 0..5 {
        let f = make(&below, dir, &format!("f{i}"), NewKind::File);
        below.write(f, 0, &[7; 10_000]).unwrap();
    }
    let fs = fresh(&below);
    let d = find(&fs, "dir");
    let calls = [
        ModelCall::Find,
        ModelCall::Readdir,
        ModelCall::Lookup,
        ModelCall::Identity,
        ModelCall::Listxattr,
    ];
    for call in calls {
        let mut calls = 0;
        below.fail_where(move |made| {
            calls += u32::from(made == call);
            // Names that were loaded before the error stay.
            (made == call && (call != ModelCall::Lookup || calls > 2)).then_some(Errno::IO)
        });
        assert_eq!(fs.lookup(d, b"f4").map(drop), Err(Errno::IO), "{call:?}");
        assert!(fs.pool().residence(d).unwrap().are_names_absent);
        below.heal();
    }
    let f = find(&fs, "dir/f4");
    for call in [ModelCall::Find, ModelCall::Seek, ModelCall::Read] {
        let fail: &'static [ModelCall] = Box::leak(Box::new([call]));
        below.fail(fail, Errno::IO);
        assert_eq!(fs.write(f, 5000, b"x"), Err(Errno::IO));
        assert!(fs.pool().residence(f).unwrap().is_clean, "{call:?}");
        below.heal();
    }
    fs.write(f, 5000, b"x").unwrap();
    // Content that is in the pool needs no backing store.
    below.fail_where(|_| Some(Errno::IO));
    let mut buf = [0; 3];
    assert_eq!(fs.read(f, 4999, &mut buf), Ok(3));
    assert_eq!(&buf, b"\x07x\x07");
    make(&fs, d, "new", NewKind::File);
    below.heal();
    let other = ModelBacking::over(Model::with_clock(|| Timestamp(1)));
    let other = Below(Arc::new(other));
    let region = fs.into_pool().into_medium();
    assert_eq!(Loading::attach(mount(region), other).err(), Some(Errno::XDEV));
}

#[test]
fn names_of_one_object_are_one_inode() {
    let below = empty();
    let dirs = ["a", "b", "c"].map(|name| make(&below, ROOT, name, NewKind::Dir));
    let f = make(&below, dirs[0], "f", NewKind::File);
    below.write(f, 0, b"shared").unwrap();
    for (dir, name) in [(dirs[1], "g"), (dirs[2], "h"), (dirs[2], "i")] {
        below.link(f, dir, name.as_bytes()).unwrap();
    }
    let fs = fresh(&below);
    let f = find(&fs, "a/f");
    assert_eq!(fs.getattr(f).unwrap().nlink, 4);
    fs.write(f, 0, b"SHARED").unwrap();
    let fs = again(fs);
    assert_eq!(find(&fs, "b/g"), f);
    assert!(fs.pool().residence(find(&fs, "c")).unwrap().are_names_absent);
    fs.unlink(find(&fs, "a"), b"f").unwrap();
    assert!(fs.pool().residence(find(&fs, "c")).unwrap().are_names_absent);
    // The last one that is loaded: the others are looked for.
    fs.unlink(find(&fs, "b"), b"g").unwrap();
    assert_eq!(find(&fs, "c/h"), f);
    let Attr { nlink, size, .. } = fs.getattr(f).unwrap();
    assert_eq!((nlink, size), (2, 6));
    let mut buf = [0; 6];
    fs.read(f, 0, &mut buf).unwrap();
    assert_eq!(&buf, b"SHARED");
    // A name that is not in the tree is looked for once.
    let outside = make(&below, dirs[0], "outside", NewKind::File);
    below.link(outside, dirs[1], b"gone").unwrap();
    let fs = fresh(&below);
    find(&fs, "a/outside");
    below.unlink(dirs[1], b"gone").unwrap();
    fs.unlink(find(&fs, "a"), b"outside").unwrap();
    let _ = again(fs);
}

#[test]
fn threads_load_once() {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    for i in 0..50 {
        let f = make(&below, dir, &format!("f{i}"), NewKind::File);
        below.write(f, 0, &[7; 100_000]).unwrap();
    }
    let fs = fresh(&below);
    let looked_up = below.count(ModelCall::Lookup);
    std::thread::scope(|s| {
        for thread in 0..4 {
            let fs = &fs;
            s.spawn(move || {
                for i in 0..50 {
                    let f = find(fs, &format!("dir/f{i}"));
                    let at = thread * 25_000;
                    let mut buf = vec![0; 25_000];
                    assert_eq!(fs.read(f, at, &mut buf), Ok(25_000));
                    assert_eq!(buf, vec![7; 25_000]);
                    let set = SetAttr { size: Some(100_000 + at), ..SetAttr::default() };
                    fs.setattr(&Caller::ROOT, f, &set).unwrap();
                }
            });
        }
    });
    assert_eq!(below.count(ModelCall::Lookup) - looked_up, 50);
}
