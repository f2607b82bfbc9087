//! Tests commands for single files: warming, pins, writing back, invalidation, and modes of their
//! own.

use crate::common::{Below, Tested, attach, content, copy, file, fresh, options};
use backing::model::ModelCall;
use pmcache::{CacheOptions, Command, DATA, FileStatus, Mode};
use vfs::{Errno, FileSystem, Ino, ROOT, SetAttr, SetXattr};

const MIB: usize = 1 << 20;

fn status(cache: &Tested, ino: Ino) -> FileStatus {
    let text = cache.getxattr(ino, Command::Status.attribute().as_bytes()).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn ask(cache: &Tested, ino: Ino, command: Command) -> vfs::Result<()> {
    cache.setxattr(ino, command.attribute().as_bytes(), b"", SetXattr::Any)
}

/// Creates a file in the backing store, and returns it as the cache sees it.
fn old_file(cache: &Tested, below: &Below, name: &str, len: usize) -> Ino {
    let ino = file(below, name.as_bytes());
    below.write(ino, 0, &vec![name.as_bytes()[0]; len]).unwrap();
    below.sync().unwrap();
    cache.lookup(ROOT, name.as_bytes()).unwrap().ino
}

/// Reads more data than the pool holds.
fn read_much(cache: &Tested, below: &Below, prefix: &str) {
    for i in 0..48 {
        let ino = old_file(cache, below, &format!("{prefix}{i}"), MIB);
        content(cache, ino).unwrap();
        cache.forget(ino, 1);
    }
}

#[test]
fn what_is_warm_is_read_without_what_is_below() {
    let (cache, below) = fresh(options());
    let ino = old_file(&cache, &below, "f", 3 * MIB + 5);
    assert_eq!(status(&cache, ino).cached_bytes, 0);
    let told = cache.getxattr(ino, Command::Warm.attribute().as_bytes()).unwrap();
    let told: FileStatus = serde_json::from_slice(&told).unwrap();
    assert_eq!(told, status(&cache, ino));
    assert!(told.cached_bytes >= told.size_bytes && told.size_bytes == 3 * MIB as u64 + 5);
    below.fail(&[ModelCall::Read], Errno::IO);
    assert_eq!(content(&cache, ino).unwrap(), vec![b'f'; 3 * MIB + 5]);
    below.heal();
    // This is too large for any pool.
    let large = old_file(&cache, &below, "g", 40 * MIB);
    assert_eq!(ask(&cache, large, Command::Warm), Err(Errno::NOSPC));
    assert_eq!(content(&cache, large).unwrap(), vec![b'g'; 40 * MIB]);
}

#[test]
fn a_pin_holds_over_eviction_and_restart() {
    let (cache, below) = fresh(options());
    let ino = old_file(&cache, &below, "p", 3 * MIB);
    ask(&cache, ino, Command::Pin).unwrap();
    read_much(&cache, &below, "a");
    assert!(cache.status().counters.evicted_blocks > 0);
    let told = status(&cache, ino);
    assert!(told.is_pinned && told.cached_bytes >= told.size_bytes, "{told:?}");
    // The pin holds also for a file that is not in use, and after a restart.
    cache.forget(ino, 1);
    let again = attach(copy(&cache), &below, options()).unwrap();
    read_much(&again, &below, "b");
    assert!(again.status().counters.evicted_blocks > 0);
    let ino = again.lookup(ROOT, b"p").unwrap().ino;
    let told = status(&again, ino);
    assert!(told.is_pinned && told.cached_bytes >= told.size_bytes, "{told:?}");
    ask(&again, ino, Command::Unpin).unwrap();
    // The policy spares recently used files for another round.
    for prefix in ["c", "d", "e"] {
        read_much(&again, &below, prefix);
    }
    let told = status(&again, ino);
    assert!(!told.is_pinned && told.cached_bytes < told.size_bytes, "{told:?}");
    assert_eq!(content(&again, ino).unwrap(), vec![b'p'; 3 * MIB]);
}

/// pins-P1 and pins-P2: pinned files leave room for other writes.
#[test]
fn pins_are_bounded() {
    let bounds = |options: CacheOptions| CacheOptions {
        pin_max: 12 * MIB as u64,
        pin_user_max: 5 * MIB as u64,
        ..options
    };
    let (cache, below) = fresh(bounds(options()));
    let owned = |name: &str, uid| {
        let ino = old_file(&cache, &below, name, 4 * MIB);
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        cache.setattr(&vfs::Caller::ROOT, ino, &set).unwrap();
        ino
    };
    let (a, b, c, d) = (owned("a", 1), owned("b", 1), owned("c", 0), owned("d", 0));
    ask(&cache, a, Command::Pin).unwrap();
    assert_eq!(ask(&cache, b, Command::Pin), Err(Errno::DQUOT));
    assert!(!status(&cache, b).is_pinned);
    ask(&cache, c, Command::Pin).unwrap();
    ask(&cache, d, Command::Pin).unwrap();
    assert_eq!(ask(&cache, owned("e", 2), Command::Pin), Err(Errno::NOSPC));
    let told = cache.status();
    assert_eq!((told.pinned_bytes, told.pinned_bytes_max), (12 << 20, 12 << 20));
    // A pinned file grows beyond the pool, and others can still be written.
    for i in 0..48 {
        cache.write(a, (4 + i) << 20, &vec![1; MIB]).unwrap();
    }
    let other = file(&cache, b"other");
    for i in 0..16 {
        cache.write(other, i << 20, &vec![2; MIB]).unwrap();
    }
    assert!(status(&cache, a).cached_bytes < 40 << 20);
    assert_eq!(cache.status().pinned_bytes, 12 << 20);
    // The pins are known again after a restart.
    cache.drain_all(&|_| {}).unwrap();
    let again = attach(copy(&cache), &below, bounds(options())).unwrap();
    let b = again.lookup(ROOT, b"b").unwrap().ino;
    assert_eq!(ask(&again, b, Command::Pin), Err(Errno::DQUOT));
    assert_eq!(again.status().pinned_bytes, 12 << 20);
    let d = again.lookup(ROOT, b"d").unwrap().ino;
    ask(&again, d, Command::Unpin).unwrap();
    // The file that has grown may hold a megabyte more than before.
    assert!((8..=9).contains(&(again.status().pinned_bytes >> 20)));
}

#[test]
fn what_is_asked_for_is_written_back_and_forgotten() {
    let (cache, below) = fresh(options());
    let [one, two] = [b"one", b"two"].map(|name| file(&cache, name));
    for ino in [one, two] {
        cache.write(ino, 0, &[7; 9000]).unwrap();
    }
    ask(&cache, one, Command::Flush).unwrap();
    assert_eq!(content(&below, one).unwrap(), [7; 9000]);
    assert_eq!((status(&cache, one).dirty_bytes, status(&cache, two).dirty_bytes), (0, 12288));
    ask(&cache, two, Command::Invalidate).unwrap();
    assert_eq!(content(&below, two).unwrap(), [7; 9000]);
    assert_eq!(status(&cache, two).cached_bytes, 0);
    assert_eq!(content(&cache, two).unwrap(), [7; 9000]);
    cache.write(one, 0, &[8; 10]).unwrap();
    ask(&cache, ROOT, Command::Flush).unwrap();
    assert_eq!(cache.status().dirty_bytes, 0);
    // Data that cannot be written back is not dropped.
    cache.write(one, 0, &[9; 10]).unwrap();
    below.fail(&[ModelCall::Write], Errno::NOSPC);
    assert_eq!(ask(&cache, one, Command::Flush), Err(Errno::NOSPC));
    assert_eq!(ask(&cache, one, Command::Invalidate), Err(Errno::NOSPC));
    assert_eq!(content(&cache, one).unwrap()[..10], [9; 10]);
}

#[test]
fn what_is_no_command_is_refused() {
    let (cache, below) = fresh(options());
    let ino = old_file(&cache, &below, "f", 10);
    let unknown = b"keepstone.cache.burn";
    assert_eq!(cache.setxattr(ino, unknown, b"", SetXattr::Any), Err(Errno::OPNOTSUPP));
    assert_eq!(cache.getxattr(ino, unknown), Err(Errno::OPNOTSUPP));
    // A user who may only read a file may not change its treatment.
    assert_eq!(cache.getxattr(ino, Command::Pin.attribute().as_bytes()), Err(Errno::PERM));
    assert_eq!(ask(&cache, ROOT, Command::Pin), Err(Errno::ISDIR));
    assert!(cache.listxattr(ino).unwrap().is_empty());
    let read_only = CacheOptions { read_only: true, ..options() };
    let cache = attach(copy(&cache), &below, read_only).unwrap();
    let ino = cache.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(ask(&cache, ino, Command::Flush), Err(Errno::ROFS));
    cache.getxattr(ino, Command::Warm.attribute().as_bytes()).unwrap();
}

#[test]
fn a_file_has_a_mode_of_its_own() {
    for (mode, own, waits) in [
        (Mode::Writeback, "journal", true),
        (Mode::Writeback, "ordered", false),
        (Mode::Journal, "writeback", false),
    ] {
        let (cache, below) = fresh(CacheOptions { mode, ..options() });
        let ino = old_file(&cache, &below, "f", 10);
        let set =
            |value: &str| cache.setxattr(ino, DATA.as_bytes(), value.as_bytes(), SetXattr::Any);
        assert_eq!(set("loose"), Err(Errno::INVAL));
        set(own).unwrap();
        assert_eq!(status(&cache, ino).mode, own);
        let root = cache.setxattr(ROOT, DATA.as_bytes(), own.as_bytes(), SetXattr::Any);
        assert_eq!(root, Err(Errno::INVAL));
        // The mode is stored with the file, not with this cache. After a new attachment it still
        // decides whether a write waits for a durable name.
        let cache = attach(copy(&cache), &below, CacheOptions { mode, ..options() }).unwrap();
        let ino = cache.lookup(ROOT, b"f").unwrap().ino;
        below.fail(&[ModelCall::Fsync, ModelCall::Sync, ModelCall::SyncMetadata], Errno::IO);
        let written = cache.write(ino, 0, b"x");
        assert_eq!(written, if waits { Err(Errno::IO) } else { Ok(()) }, "{mode} {own}");
        below.heal();
        cache.removexattr(ino, DATA.as_bytes()).unwrap();
        assert_eq!(status(&cache, ino).mode, mode.to_string());
    }
}
