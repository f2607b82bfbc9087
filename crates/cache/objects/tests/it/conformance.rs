//! The contract's suite, and checks of trees that are opened again.

use crate::common::{Faulty, content, create, find, open, options};
use backing::{Backing as _, Identity};
use objects::{ObjectFs, StoreOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use vfs::conformance::{Handles, apply, gen_ops, run_all, run_generated, stress};
use vfs::tree::{diff, tree};
use vfs::{Caller, Errno, FileSystem, Ino, Mappings, NewKind, NewNode, Openings, ROOT, Result};

fn fresh(options: StoreOptions) -> ObjectFs {
    open(&Faulty::new(), options)
}

/// Options with which all written data is uploaded by the same call or the next one.
fn staging_nothing() -> StoreOptions {
    StoreOptions { chunk_bytes: 4096, staged_max: 0, ..options() }
}

/// A tree that is committed after each write.
struct Syncing(ObjectFs);

impl FileSystem for Syncing {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, append, drop_privileges, fallocate, seek, copy_range, clone_range, fsync, sync, getxattr,
        setxattr, listxattr, removexattr, statfs);

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(ino, offset, data)?;
        self.0.fsync(ino)
    }
}

impl Mappings for Syncing {}

impl Openings for Syncing {}

#[test]
fn the_contract_is_kept() {
    run_all(|| Box::new(fresh(options())));
    run_generated(|| Box::new(fresh(options())), 10, 300);
}

#[test]
fn the_contract_is_kept_by_whole_chunks() {
    run_all(|| Box::new(fresh(StoreOptions { chunk_bytes: 8 << 20, ..options() })));
}

#[test]
fn the_contract_is_kept_where_nothing_stays_staged() {
    run_all(|| Box::new(fresh(staging_nothing())));
    run_generated(|| Box::new(Syncing(fresh(staging_nothing()))), 6, 300);
}

#[test]
fn many_threads_are_served() {
    for seed in 0..4 {
        stress(&Syncing(fresh(staging_nothing())), 4, 150, seed).unwrap();
    }
}

/// Commits, some with snapshots, run concurrently with calls of other threads, in a slow store. The
/// committed state is a valid tree at any time, and has all changes in the end.
#[test]
fn commits_beside_calls_leave_whole_trees() {
    for seed in 0..3 {
        let store = Faulty::new();
        store.delay(Duration::from_micros(500));
        let fs = open(&store, StoreOptions { staged_max: 64 << 10, ..options() });
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut commits = 0;
                // Enough commits for a snapshot, however slow the machine is.
                while !is_done.load(SeqCst) || commits <= 10 {
                    fs.sync().unwrap();
                    commits += 1;
                    if commits % 10 == 0 {
                        fs.collect().unwrap();
                        tree(&open(&store.fork(), options())).unwrap();
                    }
                }
            });
            let stressed = stress(&fs, 3, 300, seed);
            is_done.store(true, SeqCst);
            stressed.unwrap();
        });
        fs.sync().unwrap();
        fs.collect().unwrap();
        let after = tree(&open(&store.fork(), options())).unwrap();
        assert_eq!(diff(&tree(&fs).unwrap(), &after), None, "seed {seed}");
    }
}

/// Among the commits are some that replace the logs by a snapshot.
#[test]
fn what_was_synced_is_there_again() {
    for seed in 0..12 {
        let store = Faulty::new();
        let mut fs = open(&store, options());
        for (round, ops) in gen_ops(seed, 400).chunks(80).enumerate() {
            let mut handles = Handles::new(ROOT);
            for (index, op) in ops.iter().enumerate() {
                apply(&fs, &mut handles, op);
                if index % 2 == 0 {
                    fs.sync().unwrap();
                }
            }
            fs.sync().unwrap();
            let before = tree(&fs).unwrap();
            drop(fs);
            fs = open(&store, options());
            let after = tree(&fs).unwrap();
            assert_eq!(diff(&before, &after), None, "seed {seed}, round {round}");
            fs.collect().unwrap();
            fs.sync().unwrap();
        }
        assert!(store.names().iter().filter(|name| name.starts_with("log/")).count() <= 32);
    }
}

/// A nameless file gets its first name after a snapshot was made.
#[test]
fn a_tmpfile_outlives_snapshots() {
    let store = Faulty::new();
    let fs = open(&store, options());
    let nameless = fs.tmpfile(&Caller::ROOT, ROOT, 0o600, 0).unwrap().ino;
    fs.write(nameless, 0, b"content").unwrap();
    fs.fsync(nameless).unwrap();
    for i in 0..80 {
        create(&fs, ROOT, &format!("file-{i}"));
        fs.fsync(ROOT).unwrap();
    }
    let identity = fs.identity(nameless).unwrap();
    fs.link(nameless, ROOT, b"named").unwrap();
    fs.fsync(nameless).unwrap();
    drop(fs);
    let fs = open(&store, options());
    let found = fs.find(&identity).unwrap().ino;
    assert_eq!((find(&fs, "named").unwrap(), content(&fs, found)), (found, b"content".to_vec()));
}

#[test]
fn inodes_are_found_by_identity() {
    let store = Faulty::new();
    let fs = open(&store, options());
    let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
    let dir = fs.create(&Caller::ROOT, ROOT, b"dir", &node).unwrap().ino;
    let file = create(&fs, dir, "file");
    fs.sync_metadata(file).unwrap();
    let count = store.count();
    fs.sync_metadata(file).unwrap();
    assert_eq!(store.count(), count, "nothing changed");
    fs.rename((dir, b"file"), (ROOT, b"moved"), vfs::RenameFlags::empty()).unwrap();
    let (identity, root) = (fs.identity(file).unwrap(), fs.identity(ROOT).unwrap());
    fs.sync().unwrap();
    let lost = create(&fs, ROOT, "lost");
    let lost = fs.identity(lost).unwrap();
    drop(fs);
    let fs = open(&store, options());
    assert_eq!(fs.find(&identity).unwrap().ino, file);
    assert_eq!(fs.identity(ROOT).unwrap(), root);
    assert_eq!(fs.find(&lost).err(), Some(Errno::STALE));
    assert_eq!(fs.find(&Identity(vec![1])).err(), Some(Errno::INVAL));
}

/// Checks the number of requests of calls, as in `docs/format/objects.md`.
#[test]
fn requests_are_as_few_as_can_be() {
    let store = Faulty::new();
    let fs = open(&store, options());
    let (ino, other) = (create(&fs, ROOT, "file"), create(&fs, ROOT, "other"));
    let count = |what: &str, wanted: u64, act: &dyn Fn()| {
        let before = store.count();
        act();
        assert_eq!(store.count() - before, wanted, "{what}");
    };
    count("names: a log and the manifest", 2, &|| fs.sync_metadata(ino).unwrap());
    count("nothing to commit", 0, &|| fs.sync().unwrap());
    count("what is only staged", 0, &|| fs.write(ino, 0, &[1; 20_000]).unwrap());
    count("what is staged is read here", 0, &|| drop(content(&fs, ino)));
    count("three chunks", 3 + 2, &|| fs.fsync(ino).unwrap());
    count("a read across two chunks", 2, &|| {
        assert_eq!(fs.read(ino, 5000, &mut [0; 8000]), Ok(8000));
    });
    count("whole blocks are staged without a read", 0, &|| {
        fs.write(ino, 4096, &[2; 4096]).unwrap()
    });
    count("the rest of the chunk, which then is another object", 2 + 2, &|| fs.fsync(ino).unwrap());
    count("a part of a block", 1, &|| fs.write(ino, 10_000, &[3; 10]).unwrap());
    count("the rest of that chunk; a hole where there is one is nothing", 2 + 2, &|| {
        let hole = vfs::Fallocate::PunchHole;
        fs.fallocate(ino, hole, 20_480, 1 << 30).unwrap();
        fs.fsync(ino).unwrap();
    });
    count("a file of one block", 1 + 2, &|| {
        fs.write(other, 0, &[4; 100]).unwrap();
        fs.sync().unwrap();
    });
    count("a cut at a chunk's end", 2, &|| {
        let set = vfs::SetAttr { size: Some(8192), ..Default::default() };
        fs.setattr(&Caller::ROOT, ino, &set).unwrap();
        fs.fsync(ino).unwrap();
    });
}

/// Unused objects are deleted: replaced chunks, chunks of deleted files, logs.
#[test]
fn the_store_keeps_only_what_is_needed() {
    let store = Faulty::new();
    let fs = open(&store, options());
    let data =
        |store: &Arc<Faulty>| store.names().iter().filter(|name| name.starts_with("data/")).count();
    let ino = create(&fs, ROOT, "file");
    for i in 0..40u8 {
        fs.write(ino, 0, &vec![i + 1; 20_000]).unwrap();
        fs.fsync(ino).unwrap();
    }
    fs.collect().unwrap();
    assert_eq!(data(&store), 3);
    fs.setattr(&Caller::ROOT, ino, &vfs::SetAttr { size: Some(100), ..Default::default() })
        .unwrap();
    fs.fsync(ino).unwrap();
    fs.collect().unwrap();
    assert_eq!(data(&store), 1);
    fs.unlink(ROOT, b"file").unwrap();
    fs.sync().unwrap();
    assert_eq!(content(&fs, ino), [40; 100], "it is held");
    fs.forget(ino, 1);
    fs.sync().unwrap();
    fs.collect().unwrap();
    assert_eq!(data(&store), 0);
}
