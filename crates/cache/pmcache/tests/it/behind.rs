//! Tests of changes by other processes behind a cache, and of their reports.

use crate::common::{Below, Tested, attach, content, copy, file, fresh, options};
use backing::model::ModelCall;
use backing::{Change, Watch};
use pmcache::CacheOptions;
use std::cell::RefCell;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;
use vfs::{Caller, Errno, FileSystem, Ino, ROOT, SetAttr, SetTime, SetXattr};

const HOUR: i64 = 3_600_000_000_000;

/// Makes a cache that relies on a comparison for an hour, and gets reports of changes.
fn told(how: Watch) -> (Tested, Below) {
    let (cache, below) = fresh(CacheOptions { coherence_ns: HOUR, ..options() });
    cache.watch(how).unwrap();
    (cache, below)
}

/// Creates a file that is written back and was just compared.
fn written(cache: &Tested, name: &[u8], data: &[u8]) -> Ino {
    let ino = file(cache, name);
    cache.write(ino, 0, data).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(content(cache, ino).unwrap(), data);
    ino
}

/// Follows the reports, and returns the changes that the front end has to forget.
fn follow(cache: &Tested) -> Vec<Change> {
    let forgotten: RefCell<Vec<Change>> = RefCell::default();
    let forget = |change: &Change| forgotten.borrow_mut().push(change.clone());
    cache.follow_changes(Duration::ZERO, &forget).unwrap();
    forgotten.into_inner()
}

/// Changes content as another process, without a change of size and times.
fn change_unseen(below: &Below, ino: Ino, data: &[u8]) {
    let before = below.getattr(ino).unwrap();
    below.write(ino, 0, data).unwrap();
    let (mtime, ctime) = (Some(SetTime::At(before.mtime)), Some(before.ctime));
    below.setattr(&Caller::ROOT, ino, &SetAttr { mtime, ctime, ..SetAttr::default() }).unwrap();
    let after = below.getattr(ino).unwrap();
    assert_eq!((after.size, after.mtime, after.ctime), (before.size, before.mtime, before.ctime));
}

#[test]
fn what_is_told_is_believed_no_more() {
    let (cache, below) = told(Watch::Notify);
    let ino = written(&cache, b"f", b"mine");
    change_unseen(&below, ino, b"ours");
    assert_eq!(content(&cache, ino).unwrap(), b"mine", "within the hour");
    below.tell(Change::Content(ino));
    below.tell(Change::Name(ROOT, b"g".to_vec()));
    assert_eq!(follow(&cache), [Change::Content(ino), Change::Name(ROOT, b"g".to_vec())]);
    assert_eq!(content(&cache, ino).unwrap(), b"ours");
    // The cache relies on it again.
    change_unseen(&below, ino, b"more");
    assert_eq!(content(&cache, ino).unwrap(), b"ours");
    // After a lost report, changes are found by their times.
    below.write(ino, 0, b"longer").unwrap();
    below.tell(Change::Lost);
    below.tell(Change::Attributes(ino));
    assert_eq!(follow(&cache), [Change::Attributes(ino)]);
    assert_eq!(content(&cache, ino).unwrap(), b"longer");
    let counters = cache.status().counters;
    assert_eq!((counters.changes_told, counters.changes_lost), (3, 1));
}

/// Tests a truncation that is not reported yet: the bytes that were cut off never read as zeros.
#[test]
fn what_was_cut_off_is_not_zeros() {
    let (cache, below) = fresh(CacheOptions { coherence_ns: HOUR, read_ahead: 0, ..options() });
    let ino = written(&cache, b"f", &[7; 30_000]);
    let cut = |size| {
        cache.setxattr(ino, b"keepstone.cache.invalidate", b"", SetXattr::Any).unwrap();
        let mut first = [0; 10];
        assert_eq!(cache.read(ino, 0, &mut first), Ok(10));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        below.setattr(&Caller::ROOT, ino, &set).unwrap();
    };
    cut(20_000);
    let mut bytes = [0; 10_000];
    assert_eq!(cache.read(ino, 15_000, &mut bytes), Ok(5000));
    assert_eq!(&bytes[..5000], [7; 5000]);
    cut(10_000);
    assert_eq!(cache.read(ino, 15_000, &mut bytes), Ok(0));
    cut(5000);
    cache.write(ino, 8000, b"mine").unwrap();
    let mut expected = [&[7; 5000][..], &[0; 3000], b"mine"].concat();
    let found = content(&cache, ino).unwrap();
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!((found.len(), differs), (expected.len(), None));
    cache.drain_all(&|_| {}).unwrap();
    cut(3000);
    expected.truncate(3000);
    assert!(cache.getxattr(ino, b"keepstone.cache.warm").is_ok());
    let found = content(&cache, ino).unwrap();
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!((found.len(), differs), (expected.len(), None));
}

#[test]
fn an_error_is_not_taken_for_an_answer() {
    let (cache, below) = told(Watch::Notify);
    let ino = written(&cache, b"f", b"mine");
    change_unseen(&below, ino, b"ours");
    below.tell(Change::Content(ino));
    follow(&cache);
    below.fail(&[ModelCall::Getattr], Errno::IO);
    let mut buf = [0; 4];
    assert_eq!(cache.read(ino, 0, &mut buf), Err(Errno::IO));
    assert_eq!(cache.read(ino, 0, &mut buf), Err(Errno::IO));
    below.heal();
    assert_eq!(content(&cache, ino).unwrap(), b"ours");
}

#[test]
fn a_conflict_is_found_when_it_is_told() {
    let (cache, below) = told(Watch::Notify);
    let ino = written(&cache, b"f", b"mine");
    cache.write(ino, 0, b"M").unwrap();
    below.write(ino, 0, b"theirs").unwrap();
    assert!(cache.status().troubles.is_empty());
    below.tell(Change::Content(ino));
    follow(&cache);
    let troubles = cache.status().troubles;
    assert!(troubles[0].path == "f" && troubles[0].dirty_bytes > 0, "{troubles:?}");
    assert_eq!(content(&cache, ino), Err(Errno::STALE));
    assert_eq!(content(&below, ino).unwrap(), b"theirs");
}

/// A late report concerns a state that the cache has seen already, and causes no conflict
/// (behind-B2).
#[test]
fn what_is_told_late_is_no_conflict() {
    let (cache, below) = told(Watch::Notify);
    let ino = written(&cache, b"f", b"mine");
    below.write(ino, 0, b"theirs").unwrap();
    below.tell(Change::Attributes(ino));
    follow(&cache);
    assert_eq!(content(&cache, ino).unwrap(), b"theirs");
    cache.write(ino, 0, b"T").unwrap();
    below.tell(Change::Content(ino));
    follow(&cache);
    assert_eq!(content(&cache, ino).unwrap(), b"Theirs");
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(content(&below, ino).unwrap(), b"Theirs");
}

#[test]
fn who_opens_a_file_waits_until_it_is_below() {
    let (cache, below) = told(Watch::Permission);
    assert!(cache.guards() && cache.status().watch == "permission");
    let ino = written(&cache, b"f", b"mine");
    assert!(!below.is_guarded(ino));
    assert!(below.open_by_other(ino, 7).recv().unwrap(), "nothing of it is missing");
    cache.write(ino, 0, b"ours").unwrap();
    assert!(below.is_guarded(ino));
    let answers = [7, 8].map(|pid| below.open_by_other(ino, pid));
    cache.take_openings(Duration::ZERO).unwrap();
    assert!(answers.iter().all(|answer| answer.try_recv() == Err(TryRecvError::Empty)));
    assert_eq!(content(&below, ino).unwrap(), b"mine");
    cache.serve_openers(Duration::ZERO);
    assert_eq!(answers[0].try_recv(), Ok(true));
    assert_eq!(content(&below, ino).unwrap(), b"ours");
    cache.serve_openers(Duration::ZERO);
    assert_eq!(answers[1].try_recv(), Ok(true));
    cache.serve_openers(Duration::ZERO);
    assert!(!below.is_guarded(ino));
    let counters = cache.status().counters;
    assert_eq!((counters.openers_waited, counters.openers_refused), (2, 0));
}

#[test]
fn what_cannot_be_written_back_is_not_opened() {
    let (cache, below) = told(Watch::Permission);
    let ino = written(&cache, b"f", b"mine");
    cache.write(ino, 0, b"ours").unwrap();
    let open = |pid| {
        let answer = below.open_by_other(ino, pid);
        cache.take_openings(Duration::ZERO).unwrap();
        cache.serve_openers(Duration::ZERO);
        answer.try_recv()
    };
    below.fail(&[ModelCall::Write], Errno::NOSPC);
    assert_eq!(open(4711), Ok(false));
    let troubles = cache.status().troubles;
    assert!(troubles[0].path == "f" && troubles[0].what.contains("process 4711"), "{troubles:?}");
    below.heal();
    assert_eq!(open(4711), Ok(true));
    assert!(cache.status().troubles.is_empty());
    // The file is in conflict now.
    cache.write(ino, 0, b"M").unwrap();
    below.write(ino, 0, b"theirs").unwrap();
    assert_eq!(open(4712), Ok(false));
    let troubles = cache.status().troubles;
    assert!(troubles[0].what.contains("process 4712"), "{troubles:?}");
    assert_eq!(cache.status().counters.openers_refused, 2);
}

#[test]
fn nobody_waits_for_ever() {
    let late = CacheOptions { opener_wait: Duration::ZERO, ..options() };
    let (cache, below) = fresh(late);
    cache.watch(Watch::Permission).unwrap();
    let ino = file(&cache, b"f");
    cache.write(ino, 0, b"mine").unwrap();
    let answer = below.open_by_other(ino, 7);
    cache.take_openings(Duration::ZERO).unwrap();
    assert_eq!(answer.try_recv(), Ok(false));
    let troubles = cache.status().troubles;
    assert!(troubles[0].what.contains("process 7 was refused"), "{troubles:?}");
    cache.serve_openers(Duration::ZERO);
    assert!(cache.status().troubles.is_empty());
    assert_eq!(cache.status().counters.openers_refused, 1);
    assert_eq!(content(&below, ino).unwrap(), b"mine", "it is written back all the same");
    // Openings in the queue of a cache that is dropped are permitted.
    cache.write(ino, 0, b"ours").unwrap();
    let answer = below.open_by_other(ino, 7);
    let slow = attach(copy(&cache), &below, options()).unwrap();
    slow.take_openings(Duration::ZERO).unwrap();
    drop(slow);
    assert_eq!(answer.try_recv(), Ok(true));
}

/// Files with data that was not written back when the cache was detached are guarded when it is
/// attached again.
#[test]
fn what_was_left_is_guarded() {
    let (cache, below) = told(Watch::Permission);
    let ino = written(&cache, b"f", b"mine");
    cache.write(ino, 0, b"ours").unwrap();
    let left = copy(&cache);
    drop(cache);
    below.unguard_all();
    let again = attach(left, &below, options()).unwrap();
    assert!(!below.is_guarded(ino));
    again.watch(Watch::Permission).unwrap();
    assert!(below.is_guarded(ino));
    again.unlink(ROOT, b"f").unwrap();
    again.forget(ino, u64::MAX);
    assert!(!below.is_guarded(ino));
}

/// A read-only cache writes nothing back, so no process waits for it.
#[test]
fn nobody_waits_for_a_cache_that_changes_nothing() {
    let (cache, below) = fresh(options());
    let ino = written(&cache, b"f", b"mine");
    cache.write(ino, 0, b"ours").unwrap();
    let left = copy(&cache);
    drop(cache);
    let again = attach(left, &below, CacheOptions { read_only: true, ..options() }).unwrap();
    again.watch(Watch::Permission).unwrap();
    assert!(!again.guards() && again.status().watch == "notify");
}

#[test]
fn what_cannot_watch_says_so() {
    let (cache, _below) = fresh(options());
    let status = cache.status();
    assert_eq!((status.watch.as_str(), status.watch_problem), ("off", None));
    cache.note_watch_problem("it cannot".into());
    assert_eq!(cache.status().watch_problem.as_deref(), Some("it cannot"));
    assert!(!cache.guards());
}
