//! Tests of the model as a backing.

use backing::model::{ModelBacking, ModelCall};
use backing::{Backing as _, Identity};
use vfs::{Caller, Errno, FileSystem, Ino, NewKind, NewNode, ROOT};

fn file(fs: &ModelBacking, dir: Ino, name: &[u8]) -> Ino {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    fs.create(&Caller::ROOT, dir, name, &node).unwrap().ino
}

#[test]
fn the_contract_is_kept() {
    let make = || -> Box<dyn FileSystem> { Box::new(ModelBacking::new()) };
    vfs::conformance::run_all(make);
    vfs::conformance::run_generated(make, 4, 200);
}

#[test]
fn a_crash_takes_what_was_not_synced() {
    let fs = ModelBacking::new();
    let kept = file(&fs, ROOT, b"kept");
    let identity = fs.identity(kept).unwrap();
    fs.sync_metadata(kept).unwrap();
    let lost = file(&fs, ROOT, b"lost");
    let lost_identity = fs.identity(lost).unwrap();
    fs.crash();
    assert_eq!(fs.find(&identity).unwrap().ino, kept);
    assert_eq!(fs.find(&lost_identity), Err(Errno::STALE));
    assert_eq!(fs.find(&Identity(vec![1])), Err(Errno::INVAL));
}

#[test]
fn faults_are_told_and_calls_counted() {
    let fs = ModelBacking::new();
    let ino = file(&fs, ROOT, b"file");
    fs.fail(&[ModelCall::Write, ModelCall::Fsync], Errno::NOSPC);
    assert_eq!(fs.write(ino, 0, b"x"), Err(Errno::NOSPC));
    assert_eq!(fs.getattr(ino).unwrap().size, 0);
    let mut left = 1;
    fs.fail_where(move |call| {
        left -= i32::from(call == ModelCall::Write);
        (left < 0).then_some(Errno::IO)
    });
    assert_eq!(fs.write(ino, 0, b"x"), Ok(()));
    assert_eq!(fs.write(ino, 0, b"x"), Err(Errno::IO));
    fs.heal();
    assert_eq!(fs.write(ino, 0, b"x"), Ok(()));
    assert_eq!(fs.count(ModelCall::Write), 4);
}
