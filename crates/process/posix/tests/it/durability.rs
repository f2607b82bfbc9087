//! Durability on request, over an engine that makes writes durable only when asked (vfs-C6): a
//! crash loses other writes, and keeps these.

use crate::common::{TestEngine, TestWorld, done};
use posix::Process;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use vfs::model::Model;
use vfs::{FileSystem as _, ROOT};

/// Returns the content of the file after a crash.
fn left(model: &Model) -> Option<Vec<u8>> {
    let model = model.after_crash();
    let file = model.lookup(ROOT, b"file").ok()?;
    let mut content = vec![0; file.size as usize];
    assert_eq!(model.read(file.ino, 0, &mut content), Ok(content.len()));
    Some(content)
}

/// Opens a new file with `flags`, and writes to it by `write`. Returns its content after a crash.
fn written(flags: i32, write: impl FnOnce(&Process, i32)) -> Option<Vec<u8>> {
    let world = TestWorld::new(TestEngine::Bpfs);
    let dir = tempfile::Builder::new().prefix("keepstone-p-").tempdir_in("/dev/shm").unwrap();
    let mountpoint = dir.path().as_os_str().as_bytes().to_vec();
    let model = Arc::new(Model::durable_on_sync());
    let spec =
        TestWorld::spec_of(mountpoint.clone(), &world.table, model.clone(), world.fs.clone());
    world.process.add_mount(spec).unwrap();
    let path = [&mountpoint[..], b"file"].join(&b'/');
    let flags = flags | libc::O_CREAT | libc::O_RDWR;
    let fd = done(world.process.contents().open(libc::AT_FDCWD, &path, flags, 0o644)).unwrap();
    write(&world.process, fd);
    left(&model)
}

/// Writes in each way, on a description with `flags`.
fn ways(flags: i32) -> Vec<Option<Vec<u8>>> {
    let parts = [IoSlice::new(b"a"), IoSlice::new(b"bc")];
    vec![
        written(flags, |p, fd| assert_eq!(done(p.contents().write(fd, b"abc")), Ok(3))),
        written(flags, |p, fd| assert_eq!(done(p.contents().pwrite(fd, b"abc", 0)), Ok(3))),
        written(flags, |p, fd| assert_eq!(done(p.contents().writev(fd, &parts)), Ok(3))),
        written(flags | libc::O_APPEND, |p, fd| {
            assert_eq!(done(p.contents().write(fd, b"abc")), Ok(3))
        }),
        written(flags, |p, fd| assert_eq!(done(p.contents().fallocate(fd, 0, 0, 3)), Ok(()))),
    ]
}

#[test]
fn what_is_not_asked_for_is_lost() {
    assert_eq!(ways(0), vec![None; 5]);
    let twice = written(0, |p, fd| {
        assert_eq!(done(p.contents().write(fd, b"abc")), Ok(3));
        assert_eq!(done(p.contents().fsync(fd)), Ok(()));
        assert_eq!(done(p.contents().write(fd, b"def")), Ok(3));
    });
    assert_eq!(twice.as_deref(), Some(&b"abc"[..]));
}

#[test]
fn a_description_may_ask_for_it() {
    for flags in [libc::O_DSYNC, libc::O_SYNC] {
        let mut expected = vec![Some(b"abc".to_vec()); 4];
        expected.push(Some(vec![0; 3]));
        assert_eq!(ways(flags), expected);
    }
}

#[test]
fn a_single_write_may_ask_for_it() {
    for (flags, expected) in [
        (0, None),
        (libc::RWF_DSYNC, Some(b"abc".to_vec())),
        (libc::RWF_SYNC, Some(b"abc".to_vec())),
    ] {
        let write = |p: &Process, fd| {
            assert_eq!(done(p.contents().pwritev2(fd, &[IoSlice::new(b"abc")], 0, flags)), Ok(3));
        };
        assert_eq!(written(0, write), expected);
    }
}

#[test]
fn a_call_may_ask_for_it() {
    type FdCall = fn(&Process, i32);
    let calls: [(&str, FdCall); 5] = [
        ("fsync", |p, fd| assert_eq!(done(p.contents().fsync(fd)), Ok(()))),
        ("fdatasync", |p, fd| assert_eq!(done(p.contents().fdatasync(fd)), Ok(()))),
        ("sync_file_range", |p, fd| {
            assert_eq!(done(p.contents().sync_file_range(fd, 0, 0, 7)), Ok(()))
        }),
        ("syncfs", |p, fd| assert_eq!(done(p.contents().syncfs(fd)), Ok(()))),
        ("sync", |p, _| p.contents().sync()),
    ];
    for (name, call) in calls {
        let content = written(0, |p, fd| {
            assert_eq!(done(p.contents().write(fd, b"abc")), Ok(3));
            call(p, fd);
        });
        assert_eq!(content.as_deref(), Some(&b"abc"[..]), "{name}");
    }
}
