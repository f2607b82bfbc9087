//! Tests attaching a cache again after its server was killed, or after a power failure: it
//! distinguishes changes by other processes from its own.

use crate::common::{Below, POOL, Tested, attach, content, copy, file, fresh, mount, options};
use backing::Backing;
use backing::model::{ModelBacking, ModelCall};
use pmcache::{Cache, Mode};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfs::{
    Caller, Delegations, Errno, FileSystem, Ino, Mappings, Openings, ROOT, SetAttr, SetTime,
    Timestamp,
};

/// The content of the file before the change, and the added data.
const OLD: &[u8] = &[1; 9000];
const ADDED: &[u8] = &[2; 20_000];

/// A function that changes a file through the cache, or in the backing store.
type Change = fn(&Tested, &Below, Ino);

/// Changes by the cache that are not synced in the backing store.
const CHANGES: [(&str, Change); 5] = [
    ("append", |cache, _, ino| {
        cache.append(ino, ADDED).unwrap();
    }),
    ("appends", |cache, _, ino| {
        for piece in ADDED.chunks(4000) {
            cache.append(ino, piece).unwrap();
        }
    }),
    ("time", |cache, _, ino| {
        cache.append(ino, ADDED).unwrap();
        let mtime = Some(SetTime::At(Timestamp(1 << 40)));
        cache.setattr(&Caller::ROOT, ino, &SetAttr { mtime, ..SetAttr::default() }).unwrap();
    }),
    ("failed sync", |cache, below, ino| {
        cache.append(ino, ADDED).unwrap();
        below.fail(&[ModelCall::Fsync, ModelCall::Sync], Errno::IO);
        assert_eq!(cache.drain_all(&|_| {}), Err(Errno::IO));
        below.heal();
    }),
    ("failed write", |cache, below, ino| {
        cache.append(ino, ADDED).unwrap();
        below.fail(&[ModelCall::Setattr], Errno::IO);
        assert_eq!(cache.drain_all(&|_| {}), Err(Errno::IO));
        below.heal();
    }),
];

/// Waits until the clock of the backing store shows another time.
fn tick() {
    let now = Timestamp::now();
    while Timestamp::now() == now {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a file that is written back, and a change of it that is not.
fn changed(mode: Mode, change: fn(&Tested, &Below, Ino)) -> (Tested, Below, Ino) {
    let (cache, below) = fresh(pmcache::CacheOptions { mode, ..options() });
    let ino = file(&cache, b"f");
    cache.write(ino, 0, OLD).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    cache.sync().unwrap();
    tick();
    change(&cache, &below, ino);
    tick();
    (cache, below, ino)
}

#[test]
fn what_others_changed_while_no_server_ran_is_in_conflict() {
    for (what, change) in CHANGES {
        for mode in [Mode::Writeback, Mode::Journal] {
            let (cache, below, ino) = changed(mode, change);
            let left = copy(&cache);
            drop(cache);
            below.append(ino, b"theirs").unwrap();
            let theirs = content(&*below, ino).unwrap();
            let again = attach(left, &below, options()).unwrap();
            let troubles = again.status().troubles;
            assert_eq!(troubles.len(), 1, "{what}, {mode}");
            assert!(troubles[0].path == "f" && troubles[0].dirty_bytes > 0, "{troubles:?}");
            assert_eq!(content(&again, ino), Err(Errno::STALE), "{what}, {mode}");
            assert_eq!(again.drain_all(&|_| {}), Err(Errno::STALE));
            assert!(content(&*below, ino).unwrap() == theirs, "{what}, {mode}");
            assert!(again.discard(b"f").unwrap().is_some());
            assert!(content(&again, ino).unwrap() == theirs);
        }
    }
}

/// The cache's own changes, and changes of attributes by other processes, do not count as changes
/// of the content.
#[test]
fn what_only_the_cache_changed_is_in_no_conflict() {
    let expected = [OLD, ADDED].concat();
    for (what, change) in CHANGES {
        for mode in [Mode::Writeback, Mode::Journal] {
            for power_fails in [false, true] {
                let (cache, below, ino) = changed(mode, change);
                let left = copy(&cache);
                drop(cache);
                if power_fails {
                    below.crash();
                } else {
                    let perm = Some(0o600);
                    let set = SetAttr { perm, ..SetAttr::default() };
                    below.setattr(&Caller::ROOT, ino, &set).unwrap();
                }
                let again = attach(left, &below, options()).unwrap();
                let troubles = again.status().troubles;
                assert!(troubles.is_empty(), "{what}, {mode}, {power_fails}: {troubles:?}");
                let ino = again.lookup(ROOT, b"f").unwrap().ino;
                assert!(content(&again, ino).unwrap() == expected, "{what}, {mode}");
                again.drain_all(&|_| {}).unwrap();
                assert!(content(&*below, ino).unwrap() == expected, "{what}, {mode}");
            }
        }
    }
}

/// A power failure may undo unsynced writes of other processes, which is not a change by them.
#[test]
fn what_others_did_not_sync_is_in_no_conflict() {
    for is_cached in [false, true] {
        let (cache, below) = fresh(options());
        let ino = file(&cache, b"f");
        cache.write(ino, 0, OLD).unwrap();
        cache.drain_all(&|_| {}).unwrap();
        cache.sync().unwrap();
        below.sync().unwrap();
        if is_cached {
            content(&cache, ino).unwrap();
        }
        tick();
        below.write(ino, 0, b"theirs").unwrap();
        tick();
        cache.write(ino, 4096, &[3; 4096]).unwrap();
        let left = copy(&cache);
        below.crash();
        let again = attach(left, &below, options()).unwrap();
        assert!(again.status().troubles.is_empty(), "{:?}", again.status().troubles);
        let ino = again.lookup(ROOT, b"f").unwrap().ino;
        let mut expected = OLD.to_vec();
        expected[4096..8192].fill(3);
        assert!(content(&again, ino).unwrap() == expected, "{is_cached}");
    }
}

/// A backing store that calls a function once after it has synced a file.
struct AfterSync {
    below: Below,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl FileSystem for AfterSync {
    vfs::forward!(self => self.below; root, durability, kernel_cache, limits, lookup, forget,
        getattr, setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout,
        readdir, read, write, append, drop_privileges, fallocate, seek, copy_range, sync,
        getxattr, setxattr, listxattr, removexattr, statfs);

    fn fsync(&self, ino: Ino) -> vfs::Result<()> {
        self.below.fsync(ino)?;
        let then = self.then.lock().unwrap().take();
        then.into_iter().for_each(|then| then());
        Ok(())
    }
}

impl Mappings for AfterSync {}

impl Openings for AfterSync {}

impl Delegations for AfterSync {}

impl Backing for AfterSync {
    backing::forward!(self => self.below);
}

/// Space that is allocated in the backing file for an append is not durable if that happens after
/// the file was synced and before its record is updated.
#[test]
fn an_append_beside_writing_back_is_in_no_conflict_after_a_power_failure() {
    let below = Below(Arc::new(ModelBacking::new()));
    let store = AfterSync { below: below.clone(), then: Mutex::default() };
    let pool = mount(crate::common::region(POOL));
    let cache = Arc::new(Cache::attach(pool, store, "/below", options()).unwrap());
    let ino = file(&*cache, b"f");
    cache.write(ino, 0, OLD).unwrap();
    cache.fsync(ino).unwrap();
    let appending = cache.clone();
    let append = move || {
        tick();
        appending.append(ino, ADDED).unwrap();
    };
    *cache.backing().then.lock().unwrap() = Some(Box::new(append));
    cache.drain_all(&|_| {}).unwrap();
    let expected = [OLD, ADDED].concat();
    assert!(content(&*cache, ino).unwrap() == expected);
    assert!(cache.status().dirty_bytes > 0);
    let left = copy(&cache);
    below.crash();
    let again = attach(left, &below, options()).unwrap();
    let ino = again.lookup(ROOT, b"f").unwrap().ino;
    assert!(content(&again, ino).unwrap() == expected);
    assert!(again.status().troubles.is_empty());
    again.drain_all(&|_| {}).unwrap();
    assert!(content(&*below, ino).unwrap() == expected);
}

fn resize(cache: &Tested, ino: Ino, size: u64) -> vfs::Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    cache.setattr(&Caller::ROOT, ino, &set).map(drop)
}

/// Bytes that were cut off do not return if the first sync of the truncated backing file fails
/// (pmcache-C3).
#[test]
fn what_was_cut_off_stays_so_where_a_sync_fails() {
    let (cache, below) = fresh(options());
    let ino = file(&cache, b"f");
    cache.write(ino, 0, OLD).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    resize(&cache, ino, 100).unwrap();
    below.fail(&[ModelCall::Fsync, ModelCall::Sync], Errno::IO);
    assert_eq!(cache.drain_all(&|_| {}), Err(Errno::IO));
    assert_eq!(resize(&cache, ino, 9000), Err(Errno::IO));
    below.heal();
    resize(&cache, ino, 9000).unwrap();
    let left = copy(&cache);
    below.crash();
    let again = attach(left, &below, options()).unwrap();
    let ino = again.lookup(ROOT, b"f").unwrap().ino;
    let expected = [&OLD[..100], &[0; 8900]].concat();
    assert!(content(&again, ino).unwrap() == expected);
}

/// A hole that could not be synced in the backing file is made again before the file changes, and
/// not after (punch-Z1).
#[test]
fn a_hole_is_made_once_where_a_sync_fails() {
    let (cache, below) = fresh(options());
    let ino = file(&cache, b"f");
    cache.write(ino, 0, &[1; 300_000]).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    below.fail(&[ModelCall::Fsync, ModelCall::Sync], Errno::IO);
    let punched = cache.fallocate(ino, vfs::Fallocate::PunchHole, 0, 200_000);
    assert_eq!(punched, Err(Errno::IO));
    assert_eq!(cache.write(ino, 5000, b"new"), Err(Errno::IO));
    below.heal();
    cache.write(ino, 5000, b"new").unwrap();
    let mut expected = vec![1; 300_000];
    expected[..200_000].fill(0);
    expected[5000..5003].copy_from_slice(b"new");
    assert!(content(&cache, ino).unwrap() == expected);
    let left = copy(&cache);
    below.crash();
    let again = attach(left, &below, options()).unwrap();
    let ino = again.lookup(ROOT, b"f").unwrap().ino;
    assert!(content(&again, ino).unwrap() == expected);
}

/// A removed file stays removed if the store does not answer after the removal.
#[test]
fn a_removal_is_kept_where_the_store_fails_after_it() {
    let (cache, below) = fresh(options());
    let ino = file(&cache, b"f");
    cache.write(ino, 0, OLD).unwrap();
    cache.fsync(ino).unwrap();
    let mut is_removed = false;
    below.fail_where(move |call| {
        is_removed |= call == ModelCall::Unlink;
        (is_removed && call == ModelCall::Getattr).then_some(Errno::IO)
    });
    let _ = cache.unlink(ROOT, b"f");
    below.heal();
    cache.forget(ino, 1);
    assert_eq!(below.peek(ROOT, b"f").map(drop), Err(Errno::NOENT));
    // The references to the file end with the server.
    let killed = Below(Arc::new(ModelBacking::over(below.model().after_kill())));
    let again = attach(copy(&cache), &killed, options()).unwrap();
    assert_eq!(again.lookup(ROOT, b"f").map(drop), Err(Errno::NOENT));
    assert!(again.status().troubles.is_empty());
}
