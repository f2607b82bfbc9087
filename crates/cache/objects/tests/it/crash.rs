//! The store or the machine fails at each request: then the tree is as the last commit or the next
//! one leaves it.

use crate::common::{Fault, Faulty, content, create, find, open, options};
use objects::{ObjectFs, StoreOptions};
use rng::Rng;
use std::sync::Arc;
use vfs::conformance::{Handles, Outcome, apply, gen_op};
use vfs::model::Model;
use vfs::script::Op;
use vfs::tree::{Tree, diff, tree};
use vfs::{Errno, FileSystem, ROOT, Result};

/// Calls between two commits.
const STEP: usize = 6;
const STEPS: usize = 42;

/// Options with small chunks, of which few are staged, so that all cases occur.
fn small() -> StoreOptions {
    StoreOptions { chunk_bytes: 4096, staged_max: 16 << 10, ..options() }
}

/// Generates calls that do not commit.
fn ops(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let drawn = std::iter::repeat_with(|| gen_op(&mut rng));
    drawn.filter(|op| !matches!(op, Op::Fsync(_))).take(STEP * STEPS).collect()
}

/// Does the calls of a step, and commits everything, or one file.
fn step(fs: &ObjectFs, handles: &mut Handles, ops: &[Op], number: usize) -> Result<()> {
    for op in ops {
        apply(fs, handles, op);
    }
    if number % 3 == 2 { fs.fsync(ROOT) } else { fs.sync() }
}

/// Returns the tree that a process finds that opens the store now.
fn committed(store: &Arc<Faulty>) -> Tree {
    tree(&open(&store.fork(), small())).unwrap()
}

/// Runs without failures. Returns the tree after each commit, and the number of requests.
fn reference(seed: u64) -> (Vec<Tree>, u64) {
    let store = Faulty::new();
    let fs = open(&store, small());
    let mut handles = Handles::new(ROOT);
    let mut trees = vec![committed(&store)];
    for (number, ops) in ops(seed).chunks(STEP).enumerate() {
        step(&fs, &mut handles, ops, number).unwrap();
        trees.push(committed(&store));
        if number % 3 != 2 {
            let now = tree(&fs).unwrap();
            assert_eq!(diff(&now, &trees[number + 1]), None, "seed {seed}, after commit {number}");
        }
    }
    (trees, store.count())
}

/// Returns the number of requests that opening a tree takes.
fn opened() -> u64 {
    let store = Faulty::new();
    let _fs = open(&store, small());
    store.count()
}

/// Lets the machine fail after `n` requests.
fn crash(seed: u64, trees: &[Tree], n: u64) {
    let store = Faulty::new();
    let fs = open(&store, small());
    store.fail(Fault::From(n));
    let mut handles = Handles::new(ROOT);
    let mut done = 0;
    for (number, ops) in ops(seed).chunks(STEP).enumerate() {
        let result = step(&fs, &mut handles, ops, number);
        if store.has_failed() {
            break;
        }
        result.unwrap();
        done = number + 1;
    }
    drop(fs);
    let fork = store.fork();
    let fs = open(&fork, small());
    let found = tree(&fs).unwrap();
    let next = trees.get(done + 1).unwrap_or(&trees[done]);
    if let (Some(last), Some(next)) = (diff(&trees[done], &found), diff(next, &found)) {
        panic!("seed {seed}, request {n}: after commit {done}\n{last}\n\nnor the next\n{next}");
    }
    // Garbage is deleted, and nothing else.
    fs.collect().unwrap();
    assert_eq!(
        diff(&committed(&fork), &found),
        None,
        "seed {seed}, request {n}: collected too much"
    );
    fs.sync().unwrap();
}

#[test]
fn a_crash_leaves_the_last_commit_or_the_next() {
    for seed in 0..2 {
        let (trees, requests) = reference(seed);
        for n in opened()..requests {
            crash(seed, &trees, n);
        }
    }
}

/// One request fails, or its answer is lost. A failed call has changed nothing, and the next commit
/// has all changes.
#[test]
fn a_failure_is_made_good_by_the_next_commit() {
    let seed = 3;
    let (_, requests) = reference(seed);
    for n in opened()..requests {
        for fault in [Fault::At(n), Fault::Lost(n)] {
            let store = Faulty::new();
            let fs = open(&store, small());
            store.fail(fault);
            let model = Model::new();
            let (mut handles, mut expected) = (Handles::new(ROOT), Handles::new(ROOT));
            for (number, ops) in ops(seed).chunks(STEP).enumerate() {
                for op in ops {
                    if apply(&fs, &mut handles, op) != Outcome::Failed(Errno::IO) {
                        apply(&model, &mut expected, op);
                    }
                }
                let committed = if number % 3 == 2 { fs.fsync(ROOT) } else { fs.sync() };
                assert!(committed.is_ok() || store.has_failed(), "{fault:?}: {committed:?}");
            }
            store.fail(Fault::None);
            fs.sync().unwrap();
            assert_eq!(diff(&tree(&model).unwrap(), &tree(&fs).unwrap()), None, "{fault:?}: now");
            assert_eq!(diff(&tree(&model).unwrap(), &committed(&store)), None, "{fault:?}: then");
            fs.collect().unwrap();
            assert_eq!(diff(&tree(&model).unwrap(), &committed(&store)), None, "{fault:?}: last");
        }
    }
}

/// A synced file is complete, even if others are not.
#[test]
fn a_synced_file_is_whole_beside_one_that_is_not() {
    let store = Faulty::new();
    let fs = open(&store, small());
    let (kept, other) = (create(&fs, ROOT, "kept"), create(&fs, ROOT, "other"));
    fs.write(other, 0, &[1; 10_000]).unwrap();
    fs.fsync(other).unwrap();
    fs.write(other, 5000, &[2; 30_000]).unwrap();
    fs.write(kept, 3, &[3; 20_000]).unwrap();
    fs.fsync(kept).unwrap();
    // Also after a snapshot.
    for i in 0..40 {
        create(&fs, ROOT, &format!("more-{i}"));
        fs.fsync(ROOT).unwrap();
    }
    let fs = open(&store.fork(), small());
    assert_eq!(content(&fs, find(&fs, "other").unwrap()), [1; 10_000]);
    assert_eq!(content(&fs, find(&fs, "kept").unwrap()), [&[0; 3][..], &[3; 20_000]].concat());
    assert!(find(&fs, "more-39").is_ok());
}

/// Staging is bounded: written data is uploaded before a sync, and is not visible before it is
/// committed.
#[test]
fn much_is_uploaded_before_it_is_committed() {
    let store = Faulty::new();
    let fs = open(&store, small());
    let (file, other) = (create(&fs, ROOT, "file"), create(&fs, ROOT, "other"));
    fs.sync().unwrap();
    for i in 0..100u64 {
        fs.write(file, i * 4096, &[i as u8 + 1; 4096]).unwrap();
        fs.write(other, i * 4096, &[i as u8; 100]).unwrap();
    }
    let data = store.names().iter().filter(|name| name.starts_with("data/")).count();
    assert!(data > 180, "{data} chunks");
    let lost = open(&store.fork(), small());
    assert_eq!(lost.getattr(find(&lost, "file").unwrap()).unwrap().size, 0);
    fs.sync().unwrap();
    let found = open(&store.fork(), small());
    let bytes = content(&found, find(&found, "file").unwrap());
    assert!(bytes.chunks(4096).zip(1..).all(|(chunk, i)| chunk == [i; 4096]));
    // An empty read needs no request.
    let count = store.count();
    assert_eq!(fs.read(file, 0, &mut []), Ok(0));
    assert_eq!(store.count(), count);
}
