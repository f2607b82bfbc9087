//! Two processes never write one tree.

use crate::common::{Fault, Faulty, content, create, find, open, options, try_open};
use objects::{Error, StoreOptions};
use std::time::Duration;
use vfs::{Errno, FileSystem as _, ROOT};

#[test]
fn who_comes_second_is_refused_and_told_by_whom() {
    let store = Faulty::new();
    let mut fs = open(&store, options());
    fs.start_upkeep().unwrap();
    let refused = try_open(&store, options()).err().unwrap();
    assert!(matches!(refused, Error::Held { pid, .. } if pid == std::process::id()), "{refused}");
    assert!(refused.to_string().contains("detach it there first"), "{refused}");
    create(&fs, ROOT, "file");
    fs.sync().unwrap();
    drop(fs);
    // The lease was given back, so the next open does not wait.
    let long = StoreOptions { lease: Duration::from_secs(3600), ..options() };
    let fs = open(&store, long.clone());
    assert!(find(&fs, "file").is_ok());
    drop(fs);
    drop(open(&store, long));
}

/// The counter of the first process does not change, so it counts as dead. It finds that out when
/// it commits.
#[test]
fn a_take_over_fences_who_had_it() {
    let store = Faulty::new();
    let first = open(&store, options());
    let kept = create(&first, ROOT, "kept");
    first.write(kept, 0, b"committed").unwrap();
    first.sync().unwrap();
    first.write(kept, 0, b"not yet  ").unwrap();
    let lost = create(&first, ROOT, "lost");
    let second = open(&store, options());
    create(&second, ROOT, "second");
    second.sync().unwrap();
    assert_eq!(first.sync(), Err(Errno::ROFS));
    assert_eq!(first.write(lost, 0, b"x"), Err(Errno::ROFS));
    assert_eq!(first.unlink(ROOT, b"kept"), Err(Errno::ROFS));
    assert_eq!(first.fsync(ROOT), Err(Errno::ROFS));
    assert_eq!(first.getattr(kept), Err(Errno::IO));
    assert_eq!(first.read(kept, 0, &mut [0; 4]), Err(Errno::IO));
    assert_eq!(first.lookup(ROOT, b"kept"), Err(Errno::IO));
    drop(first);
    // The second process has all committed data, and keeps its lease.
    second.sync().unwrap();
    assert_eq!(content(&second, find(&second, "kept").unwrap()), b"committed");
    assert_eq!(find(&second, "lost"), Err(Errno::NOENT));
    second.renew();
    create(&second, ROOT, "more");
    second.sync().unwrap();
}

/// A process also finds that out when it renews its lease.
#[test]
fn a_lost_lease_is_noticed_without_a_commit() {
    let store = Faulty::new();
    let first = open(&store, options());
    let _second = open(&store, options());
    first.renew();
    assert_eq!(first.lookup(ROOT, b"."), Err(Errno::IO));
    assert!(first.getattr(ROOT).is_ok(), "who asks how a cache stands has to find it");
}

/// One answer to a request about the lease is lost, each in its turn: no process is locked out, and
/// the lease is not held twice.
#[test]
fn a_lease_is_taken_whichever_answer_is_lost() {
    for n in 0..12 {
        for fault in [Fault::Lost(n), Fault::At(n)] {
            let store = Faulty::new();
            store.fail(fault);
            let opened = try_open(&store, options());
            store.fail(Fault::None);
            drop(opened);
            let fs = open(&store, options());
            create(&fs, ROOT, "file");
            fs.sync().unwrap();
        }
    }
}

/// Names and attributes are committed without a sync, and garbage of others is deleted.
#[test]
fn what_nobody_asks_for_is_done_after_a_while() {
    let store = Faulty::new();
    let first = open(&store, options());
    let ino = create(&first, ROOT, "left");
    store.fail(Fault::From(store.count() + 1));
    first.write(ino, 0, b"a chunk that no manifest will name").unwrap();
    assert_eq!(first.fsync(ino), Err(Errno::IO));
    drop(first);
    store.fail(Fault::None);
    let count = || store.names().iter().filter(|name| name.starts_with("data/")).count();
    assert_eq!(count(), 1);
    let mut fs =
        open(&store, StoreOptions { commit_after: Duration::from_millis(40), ..options() });
    fs.start_upkeep().unwrap();
    create(&fs, ROOT, "file");
    let is_done = || find(&open(&store.fork(), options()), "file").is_ok() && count() == 0;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is_done() {
        assert!(std::time::Instant::now() < deadline, "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}
