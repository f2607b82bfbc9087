//! Tests of failures and changes in the backing store, and of pools with invalid data.

use crate::common::{Below, Tested, attach, content, copy, file, fresh, mount, options};
use backing::model::{ModelBacking, ModelCall};
use pmcache::record::{BIRTH, DIRTY, MARK, NODES, RECORD};
use pmcache::{CacheOptions, Error, Mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use vfs::model::Model;
use vfs::{Caller, Errno, FileSystem, Ino, ROOT, SetAttr, SetXattr, Timestamp};

/// Returns the names in a directory of a pool.
fn names(cache: &Tested, dir: &[u8]) -> Vec<Vec<u8>> {
    let pool = cache.pool();
    let dir = pool.peek(pool.root(), dir).unwrap().ino;
    let mut names = Vec::new();
    let mut emit = |entry: &vfs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    pool.readdir(dir, 0, &mut emit).unwrap();
    names.retain(|name| !matches!(&name[..], b"." | b".."));
    names
}

fn dirty(cache: &Tested, name: &[u8], data: &[u8]) -> Ino {
    let ino = file(cache, name);
    cache.write(ino, 0, data).unwrap();
    ino
}

#[test]
fn a_failure_is_told_once_and_nothing_is_lost() {
    for calls in
        [&[ModelCall::Write][..], &[ModelCall::Fsync, ModelCall::Sync], &[ModelCall::Setattr]]
    {
        for errno in [Errno::IO, Errno::NOSPC] {
            let later = CacheOptions { clock: || Timestamp(1 << 40), ..options() };
            let (cache, below) = fresh(later);
            let ino = dirty(&cache, b"f", &[7; 9000]);
            let calls: &'static [ModelCall] = calls.to_vec().leak();
            below.fail(calls, errno);
            assert_eq!(cache.drain_all(&|_| {}), Err(errno), "{calls:?}");
            let troubles = cache.status().troubles;
            assert!(troubles.iter().any(|trouble| trouble.path == "f"), "{troubles:?}");
            assert_eq!(content(&cache, ino).unwrap(), [7; 9000]);
            assert_eq!(cache.fsync(ino), Err(errno));
            assert_eq!(cache.fsync(ino), Ok(()));
            below.heal();
            cache.drain_all(&|_| {}).unwrap();
            assert_eq!(content(&below, ino).unwrap(), [7; 9000]);
            assert!(cache.status().troubles.is_empty() && cache.status().dirty_bytes == 0);
        }
    }
}

/// Tests that files are written back soon after an outage of the backing store, before they reach
/// the maximum age.
#[test]
fn what_failed_is_tried_again_soon() {
    static NOW: AtomicI64 = AtomicI64::new(1 << 40);
    let (cache, below) =
        fresh(CacheOptions { clock: || Timestamp(NOW.load(Relaxed)), ..options() });
    let ino = dirty(&cache, b"f", &[7; 9000]);
    below.fail(&[ModelCall::Write], Errno::IO);
    assert_eq!(cache.drain_all(&|_| {}), Err(Errno::IO));
    below.heal();
    cache.maintain().unwrap();
    assert!(cache.status().dirty_bytes > 0, "it waits for a moment");
    NOW.fetch_add(1_000_000_000, Relaxed);
    cache.maintain().unwrap();
    assert_eq!(cache.status().dirty_bytes, 0);
    assert_eq!(content(&below, ino).unwrap(), [7; 9000]);
}

#[test]
fn what_cannot_be_found_is_kept() {
    let (cache, below) = fresh(options());
    dirty(&cache, b"f", &[7; 9000]);
    let left = copy(&cache);
    below.fail(&[ModelCall::Find], Errno::IO);
    let again = attach(left, &below, options()).unwrap();
    assert_eq!(again.status().troubles[0].path, "f");
    assert_eq!((names(&again, NODES).len(), names(&again, DIRTY).len()), (1, 1));
    let left = copy(&again);
    below.heal();
    let again = attach(left, &below, options()).unwrap();
    again.drain_all(&|_| {}).unwrap();
    let ino = below.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(content(&below, ino).unwrap(), [7; 9000]);
}

/// The search for a file failed when the pool was attached, but the file exists. Its data is kept
/// until its removal is durable.
#[test]
fn what_could_not_be_found_is_kept_until_its_removal_is_durable() {
    let (cache, below) = fresh(options());
    dirty(&cache, b"f", &[7; 9000]);
    cache.sync().unwrap();
    below.fail(&[ModelCall::Find], Errno::IO);
    let again = attach(copy(&cache), &below, options()).unwrap();
    below.heal();
    again.unlink(ROOT, b"f").unwrap();
    assert!(again.status().troubles.is_empty());
    assert_eq!((names(&again, NODES).len(), names(&again, DIRTY).len()), (1, 1));
    // The power fails before the removal is durable.
    let left = copy(&again);
    below.crash();
    let back = attach(left, &below, options()).unwrap();
    let ino = back.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(content(&back, ino).unwrap(), [7; 9000]);
    back.forget(ino, 1);
    back.unlink(ROOT, b"f").unwrap();
    back.sync().unwrap();
    assert_eq!((names(&back, NODES).len(), names(&back, DIRTY).len()), (0, 0));
}

#[test]
fn what_others_removed_is_kept_and_what_was_removed_here_is_not() {
    // No creation is recorded, as the file was not synced.
    let (cache, below) = fresh(CacheOptions { mode: Mode::Writeback, ..options() });
    let ino = dirty(&cache, b"f", &[7; 9000]);
    let left = copy(&cache);
    // The file is removed through the cache, which is killed before the removal is durable.
    cache.unlink(ROOT, b"f").unwrap();
    cache.forget(ino, 1);
    let removed = copy(&cache);
    let again = attach(removed, &below, options()).unwrap();
    assert!(again.status().troubles.is_empty());
    assert_eq!((names(&again, NODES).len(), names(&again, DIRTY).len()), (0, 0));
    let again = attach(left, &below, options()).unwrap();
    assert_eq!(again.status().troubles.len(), 1);
    assert_eq!((names(&again, NODES).len(), names(&again, DIRTY).len()), (1, 1));
}

#[test]
fn changes_by_others_are_seen_or_refused() {
    let (cache, below) = fresh(options());
    let ino = dirty(&cache, b"f", b"mine");
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(content(&cache, ino).unwrap(), b"mine");
    below.write(ino, 0, b"theirs").unwrap();
    assert_eq!(content(&cache, ino).unwrap(), b"theirs");
    cache.write(ino, 0, b"M").unwrap();
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    below.setattr(&Caller::ROOT, ino, &set).unwrap();
    assert_eq!(content(&cache, ino).unwrap(), b"Mheirs");
    // The length differs, as the clock may not advance in so short a time.
    below.write(ino, 0, b"others!").unwrap();
    assert_eq!(content(&cache, ino), Err(Errno::STALE));
    assert_eq!(cache.drain_all(&|_| {}), Err(Errno::STALE));
    assert_eq!(content(&below, ino).unwrap(), b"others!");
    let troubles = cache.status().troubles;
    assert!(troubles[0].path == "f" && troubles[0].dirty_bytes > 0, "{troubles:?}");
}

#[test]
fn nothing_is_left_of_files_that_are_gone() {
    let (cache, _below) = fresh(options());
    let before = cache.status().used_bytes;
    for n in 0..20u8 {
        let ino = dirty(&cache, &[b'a' + n], &[n; 70_000]);
        cache.forget(ino, 1);
    }
    for n in 0..20u8 {
        cache.unlink(ROOT, &[b'a' + n]).unwrap();
    }
    cache.sync().unwrap();
    assert!(names(&cache, NODES).is_empty() && names(&cache, DIRTY).is_empty());
    let status = cache.status();
    assert_eq!((status.dirty_bytes, status.dirty_files), (0, 0));
    assert!(status.used_bytes <= before + (64 << 10), "{} {before}", status.used_bytes);
}

#[test]
fn more_than_the_pool_goes_through() {
    let below = Below(Arc::default());
    let tight = CacheOptions { cap: 256 << 10, high: 128 << 10, low: 64 << 10, ..options() };
    let cache = attach(crate::common::region(2 << 20), &below, tight).unwrap();
    for n in 0..60u8 {
        let ino = dirty(&cache, &[b'A' + n], &vec![n + 1; 100_000]);
        assert!(cache.status().dirty_bytes <= 256 << 10);
        cache.forget(ino, 1);
    }
    for n in 0..60u8 {
        let ino = cache.lookup(ROOT, &[b'A' + n]).unwrap().ino;
        assert_eq!(content(&cache, ino).unwrap(), vec![n + 1; 100_000]);
        cache.forget(ino, 1);
    }
}

/// A few bytes of each file are dirty, and the rest was only read: clean blocks of a dirty file can
/// be evicted.
#[test]
fn a_pool_full_of_dirty_files_is_written_back() {
    let below = Below(Arc::default());
    for n in 0..60u8 {
        let ino = file(&*below, &[b'A' + n]);
        below.write(ino, 0, &vec![n + 1; 100_000]).unwrap();
        below.fsync(ino).unwrap();
    }
    let cache = attach(crate::common::region(2 << 20), &below, options()).unwrap();
    for n in 0..60u8 {
        let ino = cache.lookup(ROOT, &[b'A' + n]).unwrap().ino;
        let before = cache.getattr(ino).unwrap().mtime;
        cache.write(ino, 4096 * 7, b"new!").unwrap();
        let written = cache.getattr(ino).unwrap().mtime;
        assert!(written > before);
        let mut expected = vec![n + 1; 100_000];
        expected[4096 * 7..][..4].copy_from_slice(b"new!");
        assert_eq!(content(&cache, ino).unwrap(), expected);
        assert_eq!(cache.getattr(ino).unwrap().mtime, written);
        cache.forget(ino, 1);
    }
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(cache.status().dirty_bytes, 0);
    for n in 0..60u8 {
        let ino = below.lookup(ROOT, &[b'A' + n]).unwrap().ino;
        assert_eq!(&content(&*below, ino).unwrap()[4096 * 7..][..4], b"new!");
    }
}

#[test]
fn a_full_cache_is_warm_after_a_restart() {
    let (cache, below) = fresh(options());
    let ino = dirty(&cache, b"f", &[3; 50_000]);
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(content(&cache, ino).unwrap(), [3; 50_000]);
    let again = attach(copy(&cache), &below, options()).unwrap();
    let reads = below.count(ModelCall::Read);
    let ino = again.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(content(&again, ino).unwrap(), [3; 50_000]);
    assert_eq!(below.count(ModelCall::Read), reads);
}

#[test]
fn nonsense_in_a_pool_is_told() {
    let (cache, below) = fresh(options());
    dirty(&cache, b"f", &[7; 9000]);
    let name = names(&cache, NODES).remove(0);
    let find = |pool: &bpfs::Bpfs<pmem::Region>, dir: &[u8]| {
        let dir = pool.peek(pool.root(), dir).unwrap().ino;
        pool.lookup(dir, &name).unwrap().ino
    };
    for seed in (0..200u64).step_by(6) {
        let junk: Vec<u8> = (0..seed).map(|i| (i * i * 31 + seed * 7) as u8).collect();
        let pool = mount(copy(&cache));
        let shadow = find(&pool, NODES);
        pool.setxattr(shadow, RECORD, &junk, SetXattr::Any).unwrap();
        let again = Tested::attach(pool, below.clone(), "/below", options()).unwrap();
        assert_eq!(again.status().troubles.len(), 1, "{seed}");
        assert_eq!((names(&again, NODES).len(), names(&again, DIRTY).len()), (1, 1));
        let pool = mount(copy(&cache));
        let mark = pool.lookup(pool.root(), MARK).unwrap().ino;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        pool.setattr(&Caller::ROOT, mark, &set).unwrap();
        pool.write(mark, 0, &junk).unwrap();
        let attached = Tested::attach(pool, below.clone(), "/below", options());
        assert!(matches!(attached, Err(Error::Mark(_))), "{seed}");
    }
    let pool = mount(copy(&cache));
    let bitmap = find(&pool, DIRTY);
    pool.write(bitmap, 0, &[0xff; 5001]).unwrap();
    pool.write(bitmap, 1 << 40, &[0xff; 5001]).unwrap();
    let again = Tested::attach(pool, below.clone(), "/below", options()).unwrap();
    again.drain_all(&|_| {}).unwrap();
    let ino = below.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(content(&below, ino).unwrap(), [7; 9000]);
}

/// Returns the number of syncs of the backing store.
fn syncs(below: &Below) -> u64 {
    [ModelCall::Fsync, ModelCall::Sync, ModelCall::SyncMetadata]
        .map(|call| below.count(call))
        .iter()
        .sum()
}

#[test]
fn a_new_file_is_synced_without_the_file_system_below() {
    for mode in [Mode::Writeback, Mode::Ordered, Mode::Journal] {
        let (cache, below) = fresh(CacheOptions { mode, ..options() });
        let before = syncs(&below);
        for name in [&b"a"[..], b"empty", b"gone"] {
            let ino = file(&cache, name);
            if name != b"empty" {
                cache.write(ino, 0, &[7; 9000]).unwrap();
            }
            cache.fsync(ino).unwrap();
            cache.fsync(ROOT).unwrap();
            cache.forget(ino, 1);
        }
        cache.unlink(ROOT, b"gone").unwrap();
        cache.fsync(ROOT).unwrap();
        assert_eq!(syncs(&below), before, "{mode}");
        let left = copy(&cache);
        below.crash();
        assert!(below.peek(ROOT, b"a").is_err());
        let again = attach(left, &below, CacheOptions { mode, ..options() }).unwrap();
        let attr = again.lookup(ROOT, b"a").unwrap();
        assert_eq!((attr.perm, content(&again, attr.ino).unwrap()), (0o644, vec![7; 9000]));
        assert_eq!(again.lookup(ROOT, b"empty").unwrap().size, 0);
        assert_eq!(again.lookup(ROOT, b"gone").map(drop), Err(Errno::NOENT));
        assert!(names(&again, DIRTY).is_empty());
        // The file is durable in the backing store now.
        drop(again);
        below.crash();
        let ino = below.lookup(ROOT, b"a").unwrap().ino;
        assert_eq!(content(&below, ino).unwrap(), [7; 9000]);
    }
}

/// In the backing store its creation is durable and its removal is not. A new file may have its
/// name meanwhile.
#[test]
fn a_file_whose_removal_is_taken_back_is_removed_again() {
    for is_replaced in [false, true] {
        let (cache, below) = fresh(options());
        dirty(&cache, b"f", &[7; 9000]);
        cache.fsync(ROOT).unwrap();
        let stored = below.model().save();
        let ino = cache.lookup(ROOT, b"f").unwrap().ino;
        cache.forget(ino, 2);
        cache.unlink(ROOT, b"f").unwrap();
        if is_replaced {
            dirty(&cache, b"f", &[8; 5000]);
        }
        cache.fsync(ROOT).unwrap();
        let model = Model::load(&stored, Timestamp::now).unwrap().after_crash();
        let below = Below(Arc::new(ModelBacking::over(model)));
        let again = attach(copy(&cache), &below, options()).unwrap();
        assert!(again.status().troubles.is_empty(), "{:?}", again.status().troubles);
        let found = again.lookup(ROOT, b"f").map(|entry| content(&again, entry.ino).unwrap());
        assert_eq!(found, if is_replaced { Ok(vec![8; 5000]) } else { Err(Errno::NOENT) });
    }
}

/// Makes a file whose creation is recorded and lost in the backing store.
fn lost_file() -> (Tested, Below) {
    let (cache, below) = fresh(options());
    dirty(&cache, b"f", &[7; 9000]);
    below.crash();
    (cache, below)
}

#[test]
fn a_name_that_another_file_has_is_kept_for_it() {
    let (cache, below) = lost_file();
    let theirs = file(&*below, b"f");
    let again = attach(copy(&cache), &below, options()).unwrap();
    assert_eq!(again.status().troubles[0].path, "f");
    assert_eq!(content(&again, theirs).unwrap(), b"");
    below.unlink(ROOT, b"f").unwrap();
    let again = attach(copy(&again), &below, options()).unwrap();
    let ino = again.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(content(&again, ino).unwrap(), [7; 9000]);
}

/// Whichever call fails, the next attachment creates the file again.
#[test]
fn a_file_is_made_again_however_often_that_is_cut_short() {
    for power_fails in [false, true] {
        for cut in 0..40 {
            let (cache, below) = lost_file();
            let mut calls = 0;
            below.fail_where(move |_| {
                calls += 1;
                (calls > cut).then_some(Errno::NOSPC)
            });
            let left = match attach(copy(&cache), &below, options()) {
                Ok(again) => copy(&again),
                // The failed attachment has dropped the pool. This is as if the power had failed
                // before anything was recorded.
                Err(_) if power_fails => copy(&cache),
                Err(_) => continue,
            };
            below.heal();
            if power_fails {
                below.crash();
            }
            let Ok(again) = attach(left, &below, options()) else { panic!("{cut}") };
            if again.lookup(ROOT, b"f").is_err() || !again.status().troubles.is_empty() {
                panic!("cut {cut}, {power_fails}: {:?}", again.status().troubles);
            }
            let ino = again.lookup(ROOT, b"f").unwrap().ino;
            assert_eq!(content(&again, ino).unwrap(), [7; 9000], "{cut}");
        }
    }
}

#[test]
fn nonsense_for_a_birth_is_told() {
    let (cache, below) = fresh(options());
    dirty(&cache, b"f", &[7; 9000]);
    let name = names(&cache, NODES).remove(0);
    for len in [0, 5, 28, 100] {
        let pool = mount(copy(&cache));
        let dir = pool.peek(pool.root(), NODES).unwrap().ino;
        let shadow = pool.lookup(dir, &name).unwrap().ino;
        pool.setxattr(shadow, BIRTH, &vec![0xa5; len], SetXattr::Any).unwrap();
        let again = Tested::attach(pool, below.clone(), "/below", options()).unwrap();
        assert_eq!(again.status().troubles.len(), 1, "{len}");
        assert_eq!((names(&again, NODES).len(), names(&again, DIRTY).len()), (1, 1));
    }
}
