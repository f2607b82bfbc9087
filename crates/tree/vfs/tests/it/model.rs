//! The parts of the model that the conformance suite leaves free: clock, clones, sparseness, and
//! the report of a comparison of trees.

use std::sync::atomic::{AtomicI64, Ordering};

use rng::Rng;
use vfs::conformance::{Handles, apply, gen_ops};
use vfs::model::Model;
use vfs::tree::{diff, tree};
use vfs::{Caller, Fallocate, FileSystem, Ino, Limits, NewKind, NewNode, ROOT, Seek, Timestamp};

fn file(fs: &Model, name: &[u8]) -> Ino {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    fs.create(&Caller::ROOT, ROOT, name, &node).unwrap().ino
}

#[test]
fn the_clock_is_injected() {
    let ticks = AtomicI64::new(0);
    let fs = Model::with_clock(move || Timestamp(ticks.fetch_add(1, Ordering::Relaxed)));
    let ino = file(&fs, b"a");
    assert_eq!(fs.getattr(ino).unwrap().btime, Timestamp(1));
    fs.write(ino, 0, b"x").unwrap();
    let attr = fs.getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (Timestamp(2), Timestamp(2)));
    assert_eq!((attr.atime, attr.btime), (Timestamp(1), Timestamp(1)));
}

#[test]
fn clones_are_independent() {
    let fs = Model::new();
    let ino = file(&fs, b"a");
    fs.write(ino, 0, b"before").unwrap();
    let copy = fs.clone();
    assert_eq!(diff(&tree(&fs).unwrap(), &tree(&copy).unwrap()), None);
    fs.write(ino, 0, b"after!").unwrap();
    file(&fs, b"b");
    let text = diff(&tree(&copy).unwrap(), &tree(&fs).unwrap()).unwrap();
    assert_eq!(
        text,
        "/a: content of 1 blocks, the first at offset 0\n/b: only on the right (File)"
    );
}

#[test]
fn a_huge_file_costs_what_was_written() {
    let fs = Model::new();
    let ino = file(&fs, b"a");
    fs.write(ino, Limits::MAX.file_size - 1, b"x").unwrap();
    fs.fallocate(ino, Fallocate::Allocate { keep_size: false }, 0, Limits::MAX.file_size).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 8);
    assert_eq!(fs.seek(ino, 0, Seek::Data), Ok(Limits::MAX.file_size - 4096));
    let other = file(&fs, b"b");
    assert_eq!(
        fs.copy_range((ino, 1), (other, 0), Limits::MAX.file_size),
        Ok(Limits::MAX.file_size - 1)
    );
    assert_eq!(tree(&fs).unwrap().nodes()[b"b".as_slice()].content.len(), 1);
}

/// A saved model loads as it was. Damaged bytes never load as a model in which an invariant does
/// not hold.
#[test]
fn a_model_is_bytes_and_back() {
    let mut refused = 0;
    for seed in 0..20 {
        let fs = Model::new();
        let mut handles = Handles::new(ROOT);
        gen_ops(seed, 120).iter().for_each(|op| drop(apply(&fs, &mut handles, op)));
        let saved = fs.save();
        handles.release(&fs);
        let loaded = Model::load(&saved, Timestamp::now).unwrap();
        assert_eq!(diff(&tree(&fs).unwrap(), &tree(&loaded).unwrap()), None, "seed {seed}");
        assert_eq!(loaded.save(), saved);

        let mut rng = Rng::new(seed);
        for _ in 0..300 {
            let mut broken = saved.clone();
            let at = rng.below(broken.len() as u64) as usize;
            broken[at] ^= 1 << rng.below(8);
            if rng.below(8) == 0 {
                broken.truncate(at);
            }
            // Damage that makes another valid model is no error: the model can be used.
            match Model::load(&broken, Timestamp::now) {
                Ok(other) => {
                    tree(&other).unwrap();
                    let mut handles = Handles::new(ROOT);
                    gen_ops(1, 30).iter().for_each(|op| drop(apply(&other, &mut handles, op)));
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 300, "{refused} refused");
}

/// The same with inodes that are held without a name: calls continue on the loaded model as on the
/// saved one.
#[test]
fn what_is_held_is_saved_where_it_is_wanted() {
    for seed in 0..20 {
        let fs = Model::new();
        let mut handles = Handles::new(ROOT);
        let ops = gen_ops(seed, 300);
        let (before, after) = ops.split_at(200);
        before.iter().for_each(|op| drop(apply(&fs, &mut handles, op)));
        let saved = fs.save_held();
        let loaded = Model::load_held(&saved, Timestamp::now).unwrap();
        assert_eq!(loaded.save_held(), saved);
        for ino in handles.held().iter().flatten() {
            loaded.lookup(*ino, b".").unwrap();
        }
        let mut others = handles.clone();
        for op in after {
            let (want, got) = (apply(&fs, &mut handles, op), apply(&loaded, &mut others, op));
            assert_eq!(want, got, "seed {seed}: {op}");
        }
        assert_eq!(diff(&tree(&fs).unwrap(), &tree(&loaded).unwrap()), None, "seed {seed}");

        let mut rng = Rng::new(seed);
        for _ in 0..100 {
            let mut broken = saved.clone();
            broken[rng.below(saved.len() as u64) as usize] ^= 1 << rng.below(8);
            if let Ok(other) = Model::load_held(&broken, Timestamp::now) {
                tree(&other).unwrap();
                tree(&other.after_kill()).unwrap();
            }
        }
    }
}
