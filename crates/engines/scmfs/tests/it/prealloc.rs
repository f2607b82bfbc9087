//! Pre-allocation and its collector: blocks that are kept, blocks that come back, and that
//! pre-allocated blocks never show.

use crate::common::{OnDemand, Scmfs};
use namespace::layout::Word;
use pmem::{Medium as _, Region};
use pool::{Engine as _, MountOptions, Prealloc};
use rng::Rng;
use scmfs::layout::{BLOCK, EXTENT, Unverified};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use suite::{
    Engine as _, FILE, Fs, PoolFile, attach, check_and_remount, content, create, file, formatted,
    mounted, resize,
};
use vfs::{Caller, Errno, FileSystem as _, Ino, ROOT, SetAttr, SetTime, Timestamp};

type Pool = Fs<Scmfs>;

/// Returns a pool of this size with these settings.
fn pool_with(bytes: u64, prealloc: Prealloc) -> Pool {
    let options = MountOptions { prealloc, ..MountOptions::default() };
    Pool::mount(formatted::<Scmfs>(bytes), &options).unwrap()
}

/// The run of a file: the number of its first block, and the number of its blocks; none: zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Run {
    start: u64,
    count: u64,
}

fn run_of(fs: &Pool, ino: Ino) -> Run {
    let word = fs.medium().load_u64(Scmfs::inode_at(ino) + Word::Root as u64);
    match Unverified::unpack(word) {
        Unverified::Run { start, count } => Run { start, count },
        Unverified::Hole => Run::default(),
        map => panic!("{map:?} is no run"),
    }
}

/// Runs the collector until it has nothing more to do.
fn collect(fs: &Pool) {
    let steps = (0..1000).take_while(|_| fs.maintain().unwrap()).count();
    assert!(steps < 1000, "it ends");
}

/// Settings with which the collector is never satisfied: each step frees whatever is pre-allocated.
fn greedy() -> Prealloc {
    Prealloc { collect_above: 0, null_min: 0, cold_after: 0, relocate: 100, ..Prealloc::default() }
}

#[test]
fn who_appends_has_space_for_what_comes_next() {
    let fs = mounted::<Scmfs>(64 << 20);
    let (f, g) = (file(&fs, "f", b"f"), file(&fs, "g", b"g"));
    assert_eq!((run_of(&fs, f).count, run_of(&fs, g).count), (1, 1), "a first write is exact");
    for _ in 0..100 {
        fs.append(f, &[1; 4096]).unwrap();
        fs.append(g, &[2; 4096]).unwrap();
    }
    let (of_f, of_g) = (run_of(&fs, f), run_of(&fs, g));
    assert!(of_f.count > 101 && of_f.count <= 101 + 2048, "{of_f:?}");
    assert_eq!(fs.getattr(f).unwrap().blocks, of_f.count * 8, "what is mapped is counted");
    assert!(content(&fs, g)[1..].iter().all(|byte| *byte == 2) && of_g.count > 101);
    // `statfs` counts pre-allocated blocks as free, and after a scan they are.
    let fs = check_and_remount::<Scmfs>(fs);
    assert_eq!(run_of(&fs, f).count, 101, "a mount gives pre-allocated blocks back");
}

#[test]
fn a_file_with_a_table_has_preallocated_blocks_in_its_last_run() {
    let fs = mounted::<Scmfs>(64 << 20);
    let f = file(&fs, "f", &vec![1; 3 << 20]);
    // The last of them lies behind `f`.
    for i in 0..3 {
        file(&fs, &format!("other{i}"), &vec![2; 250 * 4096]);
    }
    for i in 0..1500u64 {
        fs.append(f, &[(i % 250) as u8; 4096]).unwrap();
    }
    let blocks = fs.getattr(f).unwrap().blocks / 8;
    assert!(blocks > 768 + 1500, "{blocks}");
    let found = content(&fs, f);
    let block = |i: usize| found[(3 << 20) + i * 4096] as usize;
    assert!((0..1500).all(|i| block(i) == i % 250));
    resize(&fs, f, (3 << 20) + 5000);
    let exact = fs.getattr(f).unwrap().blocks / 8;
    assert!(exact <= 770 + 4, "tables keep nothing: {exact}");
    check_and_remount::<Scmfs>(fs);
}

#[test]
fn a_removed_file_is_the_space_of_the_next() {
    let fs = mounted::<Scmfs>(64 << 20);
    let f = file(&fs, "f", &[0xee; 20_000]);
    let run = run_of(&fs, f);
    let idle = fs.statfs();
    fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(fs.statfs().blocks_free, idle.blocks_free + run.count, "a null file is free space");
    let g = create::<Scmfs>(&fs, ROOT, "g", &FILE);
    assert_eq!(run_of(&fs, g), run);
    assert_eq!(fs.statfs().blocks_free, idle.blocks_free + run.count);
    // Old bytes of other files do not show.
    fs.write(g, 5000, b"x").unwrap();
    let mut want = vec![0; 5001];
    want[5000] = b'x';
    assert_eq!(content(&fs, g), want);
    resize(&fs, g, 12_000);
    want.resize(12_000, 0);
    assert_eq!(content(&fs, g), want);
    let fs = check_and_remount::<Scmfs>(fs);
    assert_eq!(content(&fs, g), want);
}

#[test]
fn there_are_no_more_null_files_than_there_may_be() {
    let settings = Prealloc { null_max: 3, null_min: 0, null_blocks: 2, ..Prealloc::default() };
    let fs = pool_with(16 << 20, settings);
    let files: Vec<_> = (0..10).map(|i| file(&fs, &format!("f{i}"), &[1; 20_000])).collect();
    let runs: Vec<_> = files.iter().map(|f| run_of(&fs, *f)).collect();
    (0..10).for_each(|i| fs.unlink(ROOT, format!("f{i}").as_bytes()).unwrap());
    let mapped = (0..10).filter(|i| {
        let run = run_of(&fs, create::<Scmfs>(&fs, ROOT, &format!("g{i}"), &FILE));
        assert!(run.count == 0 || run.count == 2 && runs.iter().any(|old| old.start == run.start));
        run.count > 0
    });
    assert_eq!(mapped.count(), 3);
    check_and_remount::<Scmfs>(fs);
}

#[test]
fn the_collector_makes_null_files_and_keeps_the_least_number() {
    let fs = pool_with(16 << 20, Prealloc { null_min: 5, ..Prealloc::default() });
    let free = fs.statfs();
    collect(&fs);
    assert_eq!(fs.statfs(), free, "they are free space");
    let mapped = (0..9)
        .filter(|i| run_of(&fs, create::<Scmfs>(&fs, ROOT, &format!("f{i}"), &FILE)).count > 0);
    assert_eq!(mapped.count(), 5);
}

#[test]
fn null_files_wait_by_turns_where_wear_counts() {
    let settings = Prealloc { wear: true, null_max: 1000, ..Prealloc::default() };
    let fs = pool_with(64 << 20, settings);
    let old = file(&fs, "old", &[1; 4096]);
    let young = file(&fs, "young", &[1; 4096]);
    let (old, young) = (run_of(&fs, old), run_of(&fs, young));
    fs.unlink(ROOT, b"old").unwrap();
    fs.unlink(ROOT, b"young").unwrap();
    assert_eq!(run_of(&fs, create::<Scmfs>(&fs, ROOT, "a", &FILE)), old, "who waited longest");
    assert_eq!(run_of(&fs, create::<Scmfs>(&fs, ROOT, "b", &FILE)), young);
    // A single thread has four places, which are filled and emptied many times: each takes its
    // turn.
    let settings = Prealloc { wear: true, null_min: 0, null_max: 64, ..Prealloc::default() };
    let fs = pool_with(64 << 20, settings);
    let mut files: Vec<(String, Ino)> = Vec::new();
    let mut waiting = VecDeque::new();
    for round in 0..400 {
        let (name, was) = (format!("f{round}"), waiting.pop_front());
        let ino = create::<Scmfs>(&fs, ROOT, &name, &FILE);
        fs.write(ino, 0, &[1; 8192]).unwrap();
        let run = run_of(&fs, ino);
        assert!(was.is_none_or(|was: Run| was == run), "round {round}: {run:?}");
        files.push((name, ino));
        let most = [4, 2, 3, 1][round / 100];
        while round >= 8 && waiting.len() < most {
            let (name, ino) = files.remove(round % files.len());
            waiting.push_back(run_of(&fs, ino));
            fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
    }
    // The blocks that were freed last are not taken next.
    let fs = pool_with(64 << 20, Prealloc { wear: true, null_max: 0, ..Prealloc::default() });
    let was = run_of(&fs, file(&fs, "big", &[1; 200_000]));
    fs.unlink(ROOT, b"big").unwrap();
    let next = run_of(&fs, file(&fs, "next", &[1; 200_000]));
    assert_eq!(next.start, was.start + was.count);
}

#[test]
fn a_file_that_is_cut_keeps_its_space_until_it_is_collected() {
    let fs = pool_with(16 << 20, Prealloc { null_min: 0, ..greedy() });
    let f = file(&fs, "f", &[0xee; 100_000]);
    let run = run_of(&fs, f);
    let free = fs.statfs().blocks_free;
    resize(&fs, f, 10);
    assert_eq!(run_of(&fs, f), run);
    assert_eq!(fs.statfs().blocks_free, free + run.count - 1, "it is free for who needs it");
    resize(&fs, f, 9000);
    let mut want = vec![0xee; 10];
    want.resize(9000, 0);
    assert_eq!(content(&fs, f), want);
    collect(&fs);
    assert_eq!(run_of(&fs, f).count, 3);
    assert_eq!(content(&fs, f), want);
    check_and_remount::<Scmfs>(fs);
}

#[test]
fn null_files_go_first_and_cold_files_are_collected_before_hot_ones() {
    let settings = Prealloc { null_blocks: 8, step: 8, collect_above: 90, relocate: 0, ..greedy() };
    let fs = pool_with(16 << 20, settings);
    let f: Vec<_> = (0..3).map(|i| file(&fs, &format!("f{i}"), &[1; 40_000])).collect();
    file(&fs, "gone", &[1; 40_000]);
    let filler = create::<Scmfs>(&fs, ROOT, "filler", &FILE);
    for (i, age) in [20, 90, 50].into_iter().enumerate() {
        resize(&fs, f[i], 4096);
        let at = Timestamp(Timestamp::now().0 - age * 1_000_000_000);
        let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, f[i], &set).unwrap();
    }
    // While there is space, the file becomes a null file.
    fs.unlink(ROOT, b"gone").unwrap();
    fs.write(filler, 0, &vec![1; 3700 * 4096]).unwrap();
    let counts = || f.iter().map(|f| run_of(&fs, *f).count).collect::<Vec<_>>();
    assert_eq!(counts(), [10, 10, 10]);
    let free = || fs.free_space().bytes / BLOCK;
    let mut had = free();
    let mut step = || {
        fs.maintain().unwrap();
        let freed = free() - had;
        had += freed;
        (freed, counts())
    };
    assert_eq!(step(), (8, vec![10, 10, 10]), "the null file");
    assert_eq!(step(), (9, vec![10, 1, 10]), "the coldest");
    assert_eq!(step(), (9, vec![10, 1, 1]));
    assert_eq!(step(), (9, vec![1, 1, 1]));
    assert_eq!(step(), (0, vec![1, 1, 1]));
}

/// Nothing is collected while there is enough space, and nothing is pre-allocated near the limit.
#[test]
fn thresholds_are_kept() {
    for (collect_above, collect_below) in [(50, 0), (100, 4 << 20)] {
        keeps_half_free(Prealloc { collect_above, collect_below, ..Prealloc::default() });
    }
}

fn keeps_half_free(settings: Prealloc) {
    let fs = pool_with(8 << 20, settings);
    let f = file(&fs, "f", &[1; 4096]);
    fs.append(f, &[1; 4096]).unwrap();
    let preallocated = run_of(&fs, f).count - 2;
    assert!(preallocated > 0);
    let filler = file(&fs, "filler", &vec![1; 5 << 20]);
    let g = file(&fs, "g", &[1; 4096]);
    fs.append(g, &[1; 4096]).unwrap();
    assert_eq!(run_of(&fs, g).count, 2, "no more than it needs");
    collect(&fs);
    assert_eq!(run_of(&fs, f).count, 2, "collected");
    assert_eq!(content(&fs, filler).len(), 5 << 20);
    check_and_remount::<Scmfs>(fs);
}

#[test]
fn no_operation_lacks_what_is_preallocated() {
    for blocks in [100, 400, 2048] {
        let fs = pool_with(blocks * BLOCK, Prealloc { collect_below: 0, ..Prealloc::default() });
        let plain = mounted::<OnDemand>(blocks * BLOCK);
        // Half of the pool is pre-allocated or null, then one file needs all of it.
        let len = (blocks / 2 * BLOCK) as usize;
        for (name, size) in [("cut", len / 2), ("gone", len / 4)] {
            let ino = file(&fs, name, &vec![1; size]);
            let other = create::<OnDemand>(&plain, ROOT, name, &FILE);
            plain.write(other, 0, &vec![1; size]).unwrap();
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, ino, &set).unwrap();
            plain.setattr(&Caller::ROOT, other, &set).unwrap();
        }
        fs.unlink(ROOT, b"gone").unwrap();
        plain.unlink(ROOT, b"gone").unwrap();
        assert_eq!(fs.statfs(), plain.statfs());
        let (f, g) = (file(&fs, "f", b""), create::<OnDemand>(&plain, ROOT, "f", &FILE));
        let appended = (0..).take_while(|_| fs.append(f, &[2; 4096]) != Err(Errno::NOSPC)).count();
        let wanted = (0..).take_while(|_| plain.append(g, &[2; 4096]) != Err(Errno::NOSPC)).count();
        // A file in more pieces takes some tables.
        assert!(appended + 4 >= wanted, "{blocks} blocks: {appended}, without {wanted}");
        check_and_remount::<Scmfs>(fs);
    }
}

/// Returns the first unit of a file, for any inode.
fn unit_of(fs: &Pool, ino: Ino) -> u64 {
    let base = fs.region().lend(0, 1).unwrap().as_ptr() as u64;
    (fs.get_read_buf(ino, 0, 1).unwrap().as_ptr() as u64 - base) / EXTENT
}

#[test]
fn units_of_which_little_is_used_become_whole_again() {
    const FILES: usize = 230;
    let fs = pool_with(32 << 20, Prealloc { null_max: 0, ..greedy() });
    let name = |i: usize| format!("f{i}");
    let inos: Vec<_> = (0..FILES).map(|i| create::<Scmfs>(&fs, ROOT, &name(i), &FILE)).collect();
    for (i, ino) in inos.iter().enumerate() {
        fs.write(*ino, 0, &vec![i as u8; 32 * 4096]).unwrap();
    }
    // One file of ten stays.
    let stays = |i: &usize| i % 10 == 3;
    (0..FILES).filter(|i| !stays(i)).for_each(|i| fs.unlink(ROOT, name(i).as_bytes()).unwrap());
    let units =
        || -> BTreeSet<u64> { (0..FILES).filter(stays).map(|i| unit_of(&fs, inos[i])).collect() };
    let before = units().len();
    collect(&fs);
    let after = units();
    assert!(before >= 14 && after.len() <= before - 6, "{before} units are in use, then {after:?}");
    let is_well = |i: usize| content(&fs, inos[i]) == vec![i as u8; 32 * 4096];
    assert!((0..FILES).filter(stays).all(is_well));
    let fs = check_and_remount::<Scmfs>(fs);
    let is_well = |i: usize| content(&fs, inos[i]) == vec![i as u8; 32 * 4096];
    assert!((0..FILES).filter(stays).all(is_well));
}

/// The collector works on pools that are not a multiple of a unit, or smaller than a unit.
#[test]
fn the_collector_works_on_pools_of_any_size() {
    for blocks in [96, 100, 511, 513, 1100] {
        for unit in [1, 7, 8, 512] {
            let settings = Prealloc { unit, whole_below: 100, ..greedy() };
            let fs = pool_with(blocks * BLOCK, settings);
            for i in 0..12u8 {
                file(&fs, &format!("f{i}"), &[i; 5000]);
            }
            (0..12).step_by(2).for_each(|i| fs.unlink(ROOT, format!("f{i}").as_bytes()).unwrap());
            collect(&fs);
            for i in (1..12u8).step_by(2) {
                let ino = fs.peek(ROOT, format!("f{i}").as_bytes()).unwrap().ino;
                assert_eq!(content(&fs, ino), [i; 5000], "{blocks} blocks, units of {unit}");
            }
            check_and_remount::<Scmfs>(fs);
        }
    }
}

#[test]
fn what_is_read_without_a_copy_stays_where_it_is() {
    let fs = pool_with(16 << 20, greedy());
    let f = file(&fs, "f", &[1; 40_000]);
    let held = fs.get_read_buf(f, 0, 40_000).unwrap();
    fs.unlink(ROOT, b"f").unwrap();
    let g = file(&fs, "g", &[2; 40_000]);
    collect(&fs);
    assert!(held.iter().all(|byte| byte.load(Relaxed) == 1));
    resize(&fs, g, 100);
    drop(held);
    collect(&fs);
    assert_eq!(run_of(&fs, g).count, 1);
    check_and_remount::<Scmfs>(fs);
}

/// Threads write, cut and remove, while others collect and move.
#[test]
fn the_collector_works_beside_writers() {
    let fs = pool_with(16 << 20, Prealloc { step: 64, ..greedy() });
    let is_done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !is_done.load(Relaxed) {
                    fs.maintain().unwrap();
                }
            });
        }
        let writers: Vec<_> = (0..3)
            .map(|i| {
                s.spawn({
                    let fs = &fs;
                    move || churn(fs, i, 1500)
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_done.store(true, Relaxed);
        assert!(ended.into_iter().all(|end| end.is_ok()));
    });
    collect(&fs);
    check_and_remount::<Scmfs>(fs);
}

/// Makes random calls on own files, and checks their contents.
fn churn(fs: &Pool, who: u64, steps: u64) {
    let mut rng = Rng::new(who);
    let name = |i: u64| format!("w{who}-{i}");
    let mut models: Vec<Option<Vec<u8>>> = vec![None; 6];
    for step in 0..steps {
        let i = rng.below(6);
        let byte = (1 + step % 255) as u8;
        let Some(model) = &mut models[i as usize] else {
            create::<Scmfs>(fs, ROOT, &name(i), &FILE);
            models[i as usize] = Some(Vec::new());
            continue;
        };
        let ino = fs.peek(ROOT, name(i).as_bytes()).unwrap().ino;
        let len = 1 + rng.below(30_000) as usize;
        match rng.below(6) {
            0..=2 => {
                fs.append(ino, &vec![byte; len]).unwrap();
                model.resize(model.len() + len, byte);
            }
            3 => {
                let to = rng.below(model.len() as u64 + 5000);
                resize(fs, ino, to);
                model.resize(to as usize, 0);
            }
            4 => {
                let at = rng.below(model.len() as u64 + 1) as usize;
                fs.write(ino, at as u64, &vec![byte; len]).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].fill(byte);
            }
            _ if model.len() > 100_000 || rng.below(4) == 0 => {
                fs.unlink(ROOT, name(i).as_bytes()).unwrap();
                models[i as usize] = None;
                continue;
            }
            _ => {}
        }
        assert!(content(fs, ino) == *model, "writer {who}, step {step}");
    }
}

/// A joining process uses the settings of the first, collects blocks that others have, and
/// continues after a recovery.
#[test]
fn processes_share_what_is_pre_allocated() {
    let pool = PoolFile::new::<Scmfs>("prealloc", 16 << 20);
    let one = attach::<Scmfs>(&pool.0);
    let region = suite::open_shared(&pool.0);
    let place = suite::place::<Scmfs>(&region).unwrap();
    // These settings are ignored, because this process is not the first.
    let options = MountOptions { prealloc: Prealloc::off(), ..MountOptions::default() };
    let other = Fs::<Scmfs, Region>::attach(region, &place, &options).unwrap();
    let f = file(&one, "f", &[0xee; 20_000]);
    let run = run_of(&one, f);
    let free = one.statfs();
    other.unlink(ROOT, b"f").unwrap();
    let g = create::<Scmfs>(&one, ROOT, "g", &FILE);
    assert_eq!(run_of(&other, g), run, "a null file of the other process");
    assert_eq!(other.statfs().blocks_free, free.blocks_free + run.count);
    other.append(g, &[1; 10]).unwrap();
    one.rehearse_recovery().unwrap();
    assert_eq!(run_of(&other, g).count, 1, "a recovery gives pre-allocated blocks back");
    let h = file(&other, "h", &[1; 4096]);
    other.append(h, &[1; 4096]).unwrap();
    assert!(run_of(&one, h).count > 2, "the settings outlast a recovery");
    drop(other);
    check_and_remount::<Scmfs>(one);
}
