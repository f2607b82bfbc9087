//! Names that others add below while the cache writes back (writeback-W8).

use crate::changes::{conflicts, content, remove, sweep};
use crate::common::Below;
use crate::loading::{Tested, again, empty, find, fresh, make};
use crate::writeback::{compare_below, file, rename, write_back};
use backing::model::ModelCall;
use vfs::{Backed as _, Errno, FileKind, FileSystem, Ino, NewKind, ROOT};

/// Lets others do something at the first call of a kind below.
fn others_at(below: &Below, call: ModelCall, change: impl Fn(&dyn FileSystem) + Send + 'static) {
    let store = std::sync::Arc::downgrade(&below.0);
    let mut is_done = false;
    below.fail_where(move |now| {
        if now == call && !std::mem::replace(&mut is_done, true) {
            change(&*store.upgrade().unwrap().model());
        }
        None
    });
}

fn names(fs: &dyn FileSystem, path: &str) -> Vec<String> {
    let mut names = vec![];
    fs.readdir(find(fs, path), 0, &mut |e| {
        let name = String::from_utf8(e.name.to_vec()).unwrap();
        names.extend((!name.starts_with('.')).then_some(name));
        true
    })
    .unwrap();
    names.sort();
    names
}

fn project(fs: &dyn FileSystem, path: &str) -> Ino {
    let dir = make(fs, find(fs, path), "project", NewKind::Dir);
    file(fs, dir, "source", b"precious")
}

fn check(fs: &Tested, path: &str) {
    write_back(fs, "names of others");
    sweep(fs);
    assert_eq!(content(fs, path), b"precious");
    assert_eq!(content(&**fs.backing(), path), b"precious");
    assert_eq!(conflicts(fs), Vec::<String>::new());
    write_back(fs, "afterwards");
    compare_below(fs, "names of others");
}

/// Returns a cache in whose directory `dir` programs have made, replaced and removed a file.
fn changed() -> (Below, Tested) {
    let below = empty();
    let dir = make(&below, ROOT, "dir", NewKind::Dir);
    file(&below, dir, "gone", b"it");
    file(&below, dir, "old", b"old");
    let fs = fresh(&below);
    file(&fs, find(&fs, "dir"), "new", b"new");
    file(&fs, find(&fs, "dir"), "old.new", b"new");
    rename(&fs, "dir/old.new", "dir/old");
    remove(&fs, "dir/gone");
    (below, fs)
}

/// Others add a directory to `dir`, and write-back changes only what programs have changed.
fn others_add_a_project(below: &Below, fs: &Tested) {
    project(below, "dir");
    check(fs, "dir/project/source");
    assert_eq!(names(below, "dir"), ["new", "old", "project"]);
    assert_eq!(content(&**below, "dir/old"), b"new");
}

#[test]
fn what_others_add_while_a_pass_runs_stays() {
    for call in [ModelCall::Create, ModelCall::Write, ModelCall::Rename, ModelCall::Unlink] {
        let below = empty();
        let dir = make(&below, ROOT, "dir", NewKind::Dir);
        file(&below, dir, "gone", b"it");
        file(&below, dir, "gone too", b"it");
        let fs = fresh(&below);
        write_back(&fs, "the root");
        file(&fs, find(&fs, "dir"), "new", b"new");
        remove(&fs, "dir/gone");
        remove(&fs, "dir/gone too");
        others_at(&below, call, |fs| _ = project(fs, "dir"));
        fs.write_back().unwrap();
        below.heal();
        assert_eq!(content(&*below, "dir/project/source"), b"precious", "{call:?}");
        check(&fs, "dir/project/source");
        assert_eq!(names(&fs, "dir"), ["new", "project"], "{call:?}");
    }
}

/// A pass that fails leaves directories busy.
#[test]
fn what_others_add_after_a_pass_that_failed_stays() {
    let (below, fs) = changed();
    below.fail(&[ModelCall::Rename, ModelCall::Link, ModelCall::Unlink], Errno::NOSPC);
    let written = fs.write_back().unwrap();
    assert!(!written.errors.is_empty(), "{written:?}");
    below.heal();
    assert!(fs.pool().residence(find(&fs, "dir")).unwrap().is_busy);
    others_add_a_project(&below, &fs);
}

/// The next server knows them by their times.
#[test]
fn what_others_add_after_the_death_of_a_server_stays() {
    let (below, fs) = changed();
    below.fail(&[ModelCall::Rename, ModelCall::Unlink], Errno::IO);
    fs.write_back().unwrap();
    below.heal();
    let fs = again(fs);
    // Times below have a resolution of a tick, and marks one of 4 ms.
    std::thread::sleep(std::time::Duration::from_millis(30));
    others_add_a_project(&below, &fs);
}

#[test]
fn a_name_that_both_add_while_a_pass_runs_is_a_conflict() {
    let below = empty();
    make(&below, ROOT, "dir", NewKind::Dir);
    let fs = fresh(&below);
    file(&fs, find(&fs, "dir"), "both", b"ours");
    others_at(&below, ModelCall::Write, |fs| _ = file(fs, find(fs, "dir"), "both", b"theirs"));
    let both = find(&fs, "dir/both");
    assert_eq!(fs.write_back().unwrap().conflicts, [both]);
    below.heal();
    assert_eq!(fs.write_back().unwrap().conflicts, [both], "it stays one");
    assert_eq!(content(&*below, "dir/both"), b"theirs");
    assert_eq!(content(&fs, "dir/both"), b"ours");
    let troubles = fs.status().troubles;
    assert_eq!(troubles.iter().map(|t| &t.path[..]).collect::<Vec<_>>(), ["dir/both"]);
    // Without theirs, ours gets the name.
    remove(&*below, "dir/both");
    write_back(&fs, "one side is gone");
    assert_eq!(content(&*below, "dir/both"), b"ours");
    compare_below(&fs, "one side is gone");
}

#[test]
fn a_removed_directory_stays_with_what_others_have_put_into_it() {
    for is_attached_again in [false, true] {
        let below = empty();
        let dir = make(&below, ROOT, "dir", NewKind::Dir);
        let deep = make(&below, dir, "deep", NewKind::Dir);
        file(&below, deep, "gone", b"it");
        file(&below, dir, "gone", b"it");
        let fs = fresh(&below);
        remove(&fs, "dir/deep/gone");
        remove(&fs, "dir/gone");
        fs.rmdir(find(&fs, "dir"), b"deep").unwrap();
        fs.rmdir(ROOT, b"dir").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        project(&below, "dir/deep");
        let fs = if is_attached_again { again(fs) } else { fs };
        check(&fs, "dir/deep/project/source");
        assert_eq!(names(&fs, "dir"), ["deep"], "again: {is_attached_again}");
    }
}

#[test]
fn a_directory_that_is_removed_after_a_change_by_others_goes() {
    let below = empty();
    make(&below, ROOT, "dir", NewKind::Dir);
    let fs = fresh(&below);
    project(&below, "dir");
    sweep(&fs);
    remove(&fs, "dir/project/source");
    fs.rmdir(find(&fs, "dir"), b"project").unwrap();
    fs.rmdir(ROOT, b"dir").unwrap();
    write_back(&fs, "all of it was seen");
    compare_below(&fs, "all of it was seen");
    assert_eq!(below.peek(ROOT, b"dir").map(|attr| attr.kind), Err::<FileKind, _>(Errno::NOENT));
}

/// A file that was renamed here, and changed by others, is not touched by any pass.
#[test]
fn a_conflict_of_a_renamed_file_stays() {
    let below = empty();
    let sub = make(&below, ROOT, "sub", NewKind::Dir);
    for name in ["f1", "f2", "f4"] {
        file(&below, sub, name, &[b'o'; 30_000]);
    }
    below.link(find(&below, "sub/f4"), sub, b"l4").unwrap();
    let fs = fresh(&below);
    names(&fs, "sub");
    for name in ["f1", "f2", "f4"] {
        content(&fs, &format!("sub/{name}"));
    }
    rename(&fs, "sub/f1", "sub/g1");
    fs.write(find(&fs, "sub/f2"), 0, b"MINE").unwrap();
    rename(&fs, "sub/f2", "sub/g2");
    remove(&fs, "sub/l4");
    for name in ["f1", "f2", "f4"] {
        below.write(find(&below, &format!("sub/{name}")), 0, &[b'T'; 50_000]).unwrap();
    }
    sweep(&fs);
    let all = ["sub/f4", "sub/g1", "sub/g2"];
    assert_eq!(conflicts(&fs), all);
    for _ in 0..3 {
        assert_eq!(fs.write_back_all(), Err(Errno::STALE));
        assert_eq!(conflicts(&fs), all);
        for name in ["f1", "f2", "f4", "l4"] {
            assert!(content(&*below, &format!("sub/{name}")) == [b'T'; 50_000], "{name}");
        }
        assert_eq!(content(&fs, "sub/g2")[..5], *b"MINEo");
    }
}
