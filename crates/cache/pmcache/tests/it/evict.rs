//! Eviction from pools that hold the tree, and room in them.

use crate::common::Below;
use crate::loading::{
    BLOCK, Tested, again, apply_both, compare, empty, fail_at, find, make, mount, region,
};
use crate::writeback::{compare_stores, file, write_back};
use backing::model::ModelCall;
use pmcache::{EvictOptions, Loading};
use rng::Rng;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use vfs::conformance::{Handles, gen_op, number_from_env};
use vfs::model::Model;
use vfs::{Backed as _, Errno, FileSystem, Ino, NewKind, ROOT, RenameFlags, Result, SetXattr};

/// Bytes of the pools.
const POOL: u64 = 4 << 20;

/// Attaches an empty pool of this size.
fn over(below: &Below, bytes: u64) -> Tested {
    Loading::attach(mount(region(bytes)), below.clone()).unwrap()
}

/// Runs `make_room` until nothing more becomes free, and returns its error. Otherwise no content is
/// marked clean then (evict-E2).
fn empty_pool(fs: &Tested) -> Result<()> {
    while fs.make_room(1 << 30)? {}
    let mut all = Vec::new();
    fs.pool().each_inode(&mut |ino, _| all.push(ino))?;
    for ino in all {
        match fs.pool().clean_range(ino, 0) {
            Ok(left) => assert_eq!(left, None, "{ino}"),
            Err(e) => assert!(matches!(e, Errno::ISDIR | Errno::INVAL), "{e}"),
        }
    }
    Ok(())
}

/// Content that differs between files and from block to block.
fn content(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| ((i >> 9) * 7 + i % 251 + seed * 31) as u8 | 1).collect()
}

fn read(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    let n = fs.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

/// Makes `dirs` directories of `files` files of about `len` bytes.
fn fill(fs: &dyn FileSystem, dirs: u64, files: u64, len: u64) {
    for d in 0..dirs {
        let dir = make(fs, ROOT, &format!("d{d}"), NewKind::Dir);
        for f in 0..files {
            file(fs, dir, &format!("f{f}"), &content(d * 100 + f, len + f * 1000));
        }
    }
}

#[test]
fn a_tree_larger_than_the_pool_is_read_and_written() {
    let (below, model) = (empty(), Model::new());
    // 12 MiB.
    for fs in [&below as &dyn FileSystem, &model] {
        fill(fs, 12, 10, 100_000);
    }
    let fs = over(&below, POOL);
    compare(&fs, &model, "loaded");
    assert!(fs.evict_counters().evicted_bytes > 2 * POOL);
    assert_eq!(fs.evict_counters().write_backs, 0, "nothing is dirty");
    let mut rng = Rng::new(1);
    let all: [&dyn FileSystem; 2] = [&fs, &model];
    for round in 0..300 {
        let path = format!("d{}/f{}", rng.below(12), rng.below(10));
        let (at, len) = (rng.below(100_000), 1 + rng.below(80_000));
        let new = rng.percent(10);
        for fs in all {
            let data = content(round, len);
            match new {
                true => drop(file(fs, find(fs, "d3"), &format!("new{round}"), &data)),
                false => fs.write(find(fs, &path), at, &data).unwrap(),
            }
        }
    }
    assert!(fs.evict_counters().write_backs > 0, "what is dirty did not fit");
    compare(&fs, &model, "written");
    write_back(&fs, "written");
    compare_stores(&fs, &below, "written");
    let fs = again(fs);
    compare(&fs, &model, "mounted again");
}

#[test]
fn a_file_larger_than_the_pool_streams_through() {
    let below = empty();
    let data = content(1, 4 * POOL);
    file(&below, ROOT, "big", &data);
    let fs = over(&below, POOL);
    let big = find(&fs, "big");
    let mut buf = vec![0; 64 << 10];
    for (at, want) in (0..).step_by(buf.len()).zip(data.chunks(buf.len())) {
        assert_eq!(fs.read(big, at, &mut buf), Ok(buf.len()));
        assert_eq!(buf, want);
    }
    // Each piece of 256 KiB once, and what an interrupted load read again.
    let (reads, runs) = (below.count(ModelCall::Read), fs.evict_counters().runs);
    assert!((64..=64 + runs).contains(&reads), "{reads} reads, {runs} runs");
    assert_eq!(fs.evict_counters().hits, 0, "each byte was read once (evict-E5)");
    let copy = make(&fs, ROOT, "copy", NewKind::File);
    for (at, piece) in (0..).step_by(buf.len()).zip(data.chunks(buf.len())) {
        fs.write(copy, at, piece).unwrap();
    }
    write_back(&fs, "a stream");
    assert_eq!(read(&below, find(&below, "copy")), data);
}

/// Fills the pool with a clean tree and dirty files, and lets all of the backing store fail.
#[test]
fn errors_of_write_back_leave_everything_readable() {
    let below = empty();
    fill(&below, 3, 10, 50_000);
    let fs = over(&below, POOL);
    let mut dirty = Vec::new();
    let d1 = find(&fs, "d1");
    find(&fs, "d2/f0");
    for i in 0..20 {
        let data = content(i, 100_000);
        dirty.push((file(&fs, d1, &format!("new{i}"), &data), data));
        read(&fs, find(&fs, &format!("d0/f{}", i % 10)));
    }
    for (call, errno) in [(ModelCall::Write, Errno::IO), (ModelCall::Sync, Errno::NOSPC)] {
        let fail: &'static [ModelCall] = match call {
            ModelCall::Write => &[ModelCall::Write],
            _ => &[ModelCall::Fsync, ModelCall::SyncMetadata, ModelCall::Sync],
        };
        below.fail(fail, errno);
        assert_eq!(empty_pool(&fs), Err(errno), "{call:?}");
        let more = content(7, 3 << 20);
        assert_eq!(fs.write(dirty[0].0, 100_000, &more), Err(errno));
        below.fail_where(|_| Some(Errno::STALE));
        for (ino, data) in &dirty {
            assert_eq!(&read(&fs, *ino), data, "what is dirty is in the pool");
        }
        below.heal();
    }
    assert_eq!(fs.evict_counters().evicted_dirs, 2, "all but the dirty one");
    let fs = again(fs);
    for (ino, data) in &dirty {
        assert_eq!(&read(&fs, *ino), data);
    }
    empty_pool(&fs).unwrap();
    below.crash();
    compare_stores(&fs, &below, "healed");
    for (i, (_, data)) in dirty.iter().enumerate() {
        assert_eq!(&read(&fs, find(&fs, &format!("d1/new{i}"))), data);
        assert_eq!(&read(&below, find(&below, &format!("d1/new{i}"))), data);
    }
}

/// Reads half a pool of files over and over, while others of three times the pool pass. Returns
/// the bytes of the former that are loaded again, and those that are read.
fn pollute(policy: eviction::PolicyKind) -> (u64, u64) {
    let below = empty();
    let (len, hot_files) = (32_768, 48);
    let [hot, cold] = ["hot", "cold"].map(|name| make(&below, ROOT, name, NewKind::Dir));
    for i in 0..hot_files {
        file(&below, hot, &format!("f{i}"), &content(i, len));
    }
    for i in 0..400 {
        file(&below, cold, &format!("f{i}"), &content(i, len));
    }
    let pool = mount(region(POOL));
    let options = EvictOptions { policy, ..EvictOptions::for_pool(&pool.statfs()) };
    let fs = Loading::attach(pool, below.clone()).unwrap().with_eviction(options);
    let read_file = |path: &str| {
        let before = below.count(ModelCall::Read);
        read(&fs, find(&fs, path));
        (below.count(ModelCall::Read) - before) * len
    };
    let (mut loaded, mut all) = (0, 0);
    for i in 0..800 {
        read_file(&format!("cold/f{}", i % 400));
        let again = read_file(&format!("hot/f{}", i % hot_files));
        // The first round, and the second after ghosts, are for learning.
        if i >= 200 {
            (loaded, all) = (loaded + again, all + len);
        }
    }
    assert!(fs.evict_counters().hits > 0);
    (loaded, all)
}

#[test]
fn what_is_read_again_stays() {
    let (loaded, all) = pollute(eviction::PolicyKind::S3Fifo);
    assert!(loaded * 20 < all, "S3-FIFO: {loaded} of {all} bytes");
    let (loaded, all) = pollute(eviction::PolicyKind::Sieve);
    assert!(loaded * 2 < all, "SIEVE: {loaded} of {all} bytes");
}

#[test]
fn names_that_were_evicted_are_the_same_tree() {
    let (below, model) = (empty(), Model::new());
    for fs in [&below as &dyn FileSystem, &model] {
        for d in 0..30 {
            let dir = make(fs, ROOT, &format!("d{d}"), NewKind::Dir);
            let sub = make(fs, dir, "sub", NewKind::Dir);
            for f in 0..300 {
                let name = format!("a file with a name that takes some space {f}");
                make(fs, if f % 2 == 0 { dir } else { sub }, &name, NewKind::File);
            }
            make(fs, sub, "link", NewKind::Symlink(b"somewhere"));
            fs.setxattr(sub, b"user.name", b"value", SetXattr::Any).unwrap();
        }
    }
    let fs = over(&below, 1 << 20);
    let mut names = 0;
    for d in 0..30 {
        let dir = fs.lookup(ROOT, format!("d{d}").as_bytes()).unwrap().ino;
        let sub = fs.lookup(dir, b"sub").unwrap().ino;
        for dir in [dir, sub] {
            fs.readdir(dir, 0, &mut |_| {
                names += 1;
                true
            })
            .unwrap();
        }
        [dir, sub].iter().for_each(|ino| fs.forget(*ino, 1));
    }
    assert_eq!(names, 30 * (300 + 2 + 4));
    let dirs = fs.evict_counters().evicted_dirs;
    assert!(dirs > 20, "{dirs}");
    // The references of a comparison keep all names, so it needs a larger pool.
    let fs = over(&below, 16 << 20);
    compare(&fs, &model, "loaded");
    empty_pool(&fs).unwrap();
    assert_eq!(fs.evict_counters().evicted_dirs, 60);
    compare(&fs, &model, "loaded again");
    // Files that were made in the pool are written back, and then go as well.
    let fs = again(fs);
    for fs in [&fs as &dyn FileSystem, &model] {
        let sub = find(fs, "d7/sub");
        file(fs, sub, "new", b"new");
        fs.rename((sub, b"link"), (find(fs, "d8"), b"moved"), RenameFlags::empty()).unwrap();
    }
    empty_pool(&fs).unwrap();
    assert!(fs.pool().residence(find(&fs, "d7")).unwrap().are_names_absent);
    compare(&fs, &model, "changed");
}

#[test]
fn a_directory_that_is_listed_keeps_its_names() {
    let below = empty();
    fill(&below, 2, 50, 100);
    let fs = over(&below, POOL);
    let listed = fs.lookup(ROOT, b"d0").unwrap().ino;
    find(&fs, "d1/f0");
    let list = |cookie: u64, most: usize| {
        let (mut names, mut next) = (Vec::new(), cookie);
        fs.readdir(listed, cookie, &mut |e| {
            names.push(e.name.to_vec());
            next = e.cookie;
            names.len() < most
        })
        .unwrap();
        (names, next)
    };
    let all = list(0, 1000).0;
    let (first, cookie) = list(0, 20);
    empty_pool(&fs).unwrap();
    let absent = |path| fs.pool().residence(find(&fs, path)).unwrap().are_names_absent;
    assert_eq!((absent("d0"), absent("d1")), (false, true));
    let rest = list(cookie, 1000).0;
    assert_eq!([first, rest].concat(), all);
    fs.forget(listed, 1);
    empty_pool(&fs).unwrap();
    assert!(absent("d0"));
    assert!(!fs.pool().residence(ROOT).unwrap().are_names_absent);
}

#[test]
fn a_directory_larger_than_the_pool_is_no_endless_load() {
    let below = empty();
    let big = make(&below, ROOT, "big", NewKind::Dir);
    for f in 0..6000 {
        make(&below, big, &format!("a file with a name that takes some space {f}"), NewKind::File);
    }
    fill(&below, 1, 10, 1000);
    let fs = over(&below, 1 << 20);
    let b = find(&fs, "big");
    assert_eq!(fs.lookup(b, b"none").map(drop), Err(Errno::NOSPC));
    assert_eq!(read(&fs, find(&fs, "d0/f3")), content(3, 4000));
    assert!(fs.pool().residence(b).unwrap().are_names_absent);
    again(fs);
}

#[test]
fn keep_room_keeps_some_space_free() {
    let below = empty();
    fill(&below, 6, 10, 50_000);
    let options =
        EvictOptions { high: POOL / 2, ..EvictOptions::for_pool(&mount(region(POOL)).statfs()) };
    let keeping = |fs: Tested| fs.with_eviction(options.clone());
    let fs = keeping(over(&below, POOL));
    let steps = |fs: &Tested| {
        let mut steps = 1;
        while fs.keep_room().unwrap() {
            steps += 1;
        }
        steps
    };
    let free = |fs: &Tested| fs.pool().statfs().blocks_free * BLOCK;
    let read_all = |fs: &Tested| {
        for (d, f) in (0..6).flat_map(|d| (0..10).map(move |f| (d, f))) {
            assert_eq!(
                read(fs, find(fs, &format!("d{d}/f{f}"))),
                content(d * 100 + f, 50_000 + f * 1000)
            );
        }
    };
    read_all(&fs);
    let before = free(&fs);
    assert_eq!(steps(&fs), 1);
    assert_eq!(free(&fs), before, "there is enough");
    // Less than 5 % are free.
    let rest = file(&fs, find(&fs, "d5"), "rest", &content(1, before - POOL / 40));
    assert!(free(&fs) < POOL / 20);
    assert!(steps(&fs) > 1);
    assert!((POOL / 2..POOL * 2 / 3).contains(&free(&fs)), "{}", free(&fs));
    let counters = fs.evict_counters();
    assert_eq!((counters.runs, counters.write_backs, counters.evicted_dirs), (0, 0, 0));
    assert_eq!(steps(&fs), 1);
    // Content that was in the pool before an attachment is found.
    let fs = keeping(again(fs));
    assert_eq!(fs.evict_memory().0, 0, "an attachment reads no content");
    file(&fs, find(&fs, "d5"), "more", &content(2, free(&fs) - POOL / 40));
    assert!(steps(&fs) > 1);
    assert!(free(&fs) >= POOL / 10, "{}", free(&fs));
    read_all(&fs);
    assert_eq!(read(&fs, find(&fs, "d5/rest")).len() as u64, fs.getattr(rest).unwrap().size);
}

#[test]
fn inodes_that_are_gone_leave_the_policy() {
    let below = empty();
    let fs = over(&below, POOL);
    let mut most = (0, 0);
    for i in 0..2000 {
        let f = file(&fs, ROOT, "f", &content(i, 10_000));
        if i % 10 == 0 {
            write_back(&fs, "a file");
            assert_eq!(read(&fs, f), content(i, 10_000));
        }
        fs.unlink(ROOT, b"f").unwrap();
        fs.keep_room().unwrap();
        let (extents, bytes) = fs.evict_memory();
        most = (most.0.max(extents), most.1.max(bytes));
    }
    assert!(most.0 < 100, "{most:?}");
    // Many files: the memory of the policy is bounded.
    for d in 0..20 {
        let dir = make(&fs, ROOT, &format!("d{d}"), NewKind::Dir);
        for i in 0..30 {
            file(&fs, dir, &format!("f{i}"), b"x");
        }
    }
    write_back(&fs, "many files");
    let (extents, bytes) = fs.evict_memory();
    assert!((600..700).contains(&extents), "{extents}");
    assert!(bytes <= 64 * extents + 4096, "{bytes} bytes, {extents} extents");
    fs.keep_room().unwrap();
    assert_eq!(fs.evict_counters().hits, 0, "each was written once (evict-E5)");
    for (d, i) in (0..20).flat_map(|d| (0..30).map(move |i| (d, i))) {
        fs.unlink(find(&fs, &format!("d{d}")), format!("f{i}").as_bytes()).unwrap();
    }
    let other = file(&fs, ROOT, "other", &[]);
    for i in 0..20 {
        fs.write(other, i * 20_000, &content(i, 20_000)).unwrap();
        write_back(&fs, "another file");
        fs.keep_room().unwrap();
    }
    let (extents, _) = fs.evict_memory();
    assert!(extents < 100, "{extents} (evict-E3)");
}

#[test]
fn threads_use_a_tree_larger_than_the_pool() {
    let below = empty();
    fill(&below, 4, 30, 100_000);
    let fs = over(&below, POOL);
    // So no inode that is found changes its number.
    let dirs = [0, 1, 2, 3].map(|d| fs.lookup(ROOT, format!("d{d}").as_bytes()).unwrap().ino);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let threads = [0, 1, 2, 3].map(|thread| {
            let fs = &fs;
            s.spawn(move || {
                let mut rng = Rng::new(thread);
                // Each writes its own directory, and reads all.
                let own = find(fs, &format!("d{thread}"));
                for i in 0..200 {
                    let (d, f) = (rng.below(4), rng.below(30));
                    let bytes = read(fs, find(fs, &format!("d{d}/f{f}")));
                    assert!(bytes.iter().all(|byte| byte % 2 == 1), "d{d}/f{f}");
                    let mine = fs.peek(own, format!("f{f}").as_bytes()).unwrap().ino;
                    fs.write(mine, rng.below(50_000), &content(i, 20_000)).unwrap();
                }
                for f in 0..30 {
                    let mine = fs.peek(own, format!("f{f}").as_bytes()).unwrap().ino;
                    fs.write(mine, 0, &content(f, 60_000)).unwrap();
                }
            })
        });
        let keeper = s.spawn(|| {
            while !is_over.load(Relaxed) {
                fs.keep_room().unwrap();
                fs.write_back().unwrap();
            }
        });
        let ended = threads.map(|thread| thread.join());
        is_over.store(true, Relaxed);
        keeper.join().unwrap();
        ended.into_iter().for_each(std::result::Result::unwrap);
    });
    dirs.iter().for_each(|dir| fs.forget(*dir, 1));
    write_back(&fs, "threads");
    compare_stores(&fs, &below, "threads");
    for (d, f) in (0..4).flat_map(|d| (0..30).map(move |f| (d, f))) {
        let path = format!("d{d}/f{f}");
        assert_eq!(read(&fs, find(&fs, &path))[..60_000], content(f, 60_000), "{path}");
    }
    let counters = fs.evict_counters();
    assert!(counters.evicted_bytes > POOL, "{counters:?}");
    again(fs);
}

/// A call that loads content and then needs space does not only evict what it has loaded
/// (evict-E8).
#[test]
fn a_call_keeps_what_it_has_loaded() {
    let below = empty();
    file(&below, ROOT, "old", &content(1, 100_000));
    let fs = over(&below, POOL);
    let old = find(&fs, "old");
    let dirty = file(&fs, ROOT, "dirty", &[]);
    let mut at = 0;
    while fs.pool().statfs().blocks_free > 31 {
        fs.write(dirty, at, &[1; BLOCK as usize]).unwrap();
        at += BLOCK;
    }
    fs.write(old, 10, &content(2, 60_000)).unwrap();
    let counters = fs.evict_counters();
    assert!((1..3).contains(&counters.runs), "{counters:?}");
    assert_eq!(counters.write_backs, 1);
}

#[test]
fn reads_of_write_back_are_no_uses() {
    let below = empty();
    let fs = over(&below, POOL);
    let f = file(&fs, ROOT, "f", &content(1, 300_000));
    for is_used in [false, true] {
        fs.write(f, 0, b"dirty").unwrap();
        assert!(is_used || fs.pool().take_use(f));
        write_back(&fs, "a use");
        assert_eq!(fs.pool().take_use(f), is_used);
    }
}

/// A load that stops for lack of space has loaded a part, which can be evicted: so it goes on.
#[test]
fn what_an_interrupted_load_brings_can_be_evicted() {
    let below = empty();
    file(&below, ROOT, "big", &content(1, 3 << 20));
    let fs = over(&below, POOL);
    let big = find(&fs, "big");
    // The walk is over.
    assert_eq!(fs.keep_room(), Ok(false));
    // A piece on both sides of a block of pointers, with space for the first of them.
    let (first, piece) = ((2 << 20) - 8 * BLOCK, 16 * BLOCK as usize);
    fs.read(big, 0, &mut [0; 10]).unwrap();
    let dirty = file(&fs, ROOT, "dirty", &[]);
    let mut at = 0;
    while fs.pool().statfs().blocks_free > 12 {
        fs.write(dirty, at, &[1; BLOCK as usize]).unwrap();
        at += BLOCK;
    }
    below.fail_where(|call| (call == ModelCall::Write).then_some(Errno::IO));
    let mut bytes = vec![0; piece];
    assert_eq!(fs.read(big, first, &mut bytes), Ok(piece));
    assert!(bytes == content(1, 3 << 20)[first as usize..][..piece]);
    assert_eq!(empty_pool(&fs), Err(Errno::IO));
    assert_eq!(fs.pool().clean_range(big, 0), Ok(None));
}

#[test]
fn callers_share_a_run() {
    let below = empty();
    let fs = over(&below, POOL);
    file(&fs, ROOT, "f", &content(1, 1 << 20));
    // The first run writes back, and the others come meanwhile.
    let [begun, may_go] = [(); 2].map(|()| Arc::new(Barrier::new(2)));
    let mut is_first = true;
    let hooks = (begun.clone(), may_go.clone());
    below.fail_where(move |call| {
        if call == ModelCall::Write && std::mem::take(&mut is_first) {
            hooks.0.wait();
            hooks.1.wait();
        }
        None
    });
    std::thread::scope(|s| {
        let first = s.spawn(|| fs.make_room(POOL));
        begun.wait();
        let others = [0; 3].map(|_| s.spawn(|| fs.make_room(POOL)));
        while fs.evict_counters().calls < 4 {
            std::thread::yield_now();
        }
        may_go.wait();
        assert_eq!(first.join().unwrap(), Ok(true));
        for other in others {
            assert_eq!(other.join().unwrap(), Ok(true));
        }
    });
    below.heal();
    let counters = fs.evict_counters();
    assert_eq!((counters.calls, counters.runs, counters.write_backs), (4, 1, 1));
}

/// Runs calls on a cache with a small pool and a model, with runs of eviction, write-back, errors,
/// and crashes of the backing store in between. Returns bytes and directories evicted.
fn run(seed: u64, count: usize) -> (u64, u64) {
    let (below, model) = (empty(), Model::new());
    crate::loading::fill(seed, 100, [&below, &model]);
    below.sync().unwrap();
    let mut fs = over(&below, POOL);
    let (mut handles, mut model_handles) = (Handles::new(ROOT), Handles::new(model.root()));
    let mut rng = Rng::new(seed);
    let mut evicted = (0, 0);
    for i in 0..count {
        let op = gen_op(&mut rng);
        let what = format!("seed {seed}, call {i}, {op}");
        apply_both((&fs, &mut handles), (&model, &mut model_handles), &op, &what);
        match rng.below(100) {
            0..10 => {
                fs.make_room(rng.below(2 * POOL)).unwrap();
            }
            10..25 => {
                fs.keep_room().unwrap();
            }
            25..28 => {
                fail_at(&below, rng.below(60));
                // Whether it frees something or fails, nothing is lost.
                let _ = fs.make_room(POOL);
                below.heal();
            }
            28..30 => {
                handles.release(&fs);
                model_handles.release(&model);
                let counters = fs.evict_counters();
                evicted.0 += counters.evicted_bytes;
                evicted.1 += counters.evicted_dirs;
                if rng.percent(50) {
                    below.crash();
                }
                fs = again(fs);
                compare(&fs, &model, &what);
            }
            30..33 => {
                handles.release(&fs);
                model_handles.release(&model);
                empty_pool(&fs).unwrap();
                compare(&fs, &model, &what);
            }
            _ => {}
        }
    }
    handles.release(&fs);
    model_handles.release(&model);
    let what = format!("seed {seed}, at the end");
    empty_pool(&fs).unwrap();
    compare(&fs, &model, &what);
    write_back(&fs, &what);
    compare_stores(&fs, &below, &what);
    below.crash();
    let fs = again(fs);
    compare(&fs, &model, &what);
    evicted
}

#[test]
fn calls_in_a_small_pool_are_those_of_the_model() {
    match number_from_env("KEEPSTONE_SEED") {
        Some(seed) => println!("evicted: {:?}", run(seed, 300)),
        None => {
            let evicted = (0..24).map(|seed| run(seed, 300));
            let (bytes, dirs) = evicted.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            assert!(bytes > 1 << 20 && dirs > 50, "{bytes} bytes, {dirs} directories");
        }
    }
}
