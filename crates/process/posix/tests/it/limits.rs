//! Limits of an engine, as the process layer enforces them.

use crate::common::{TestEngine, TestWorld, done};
use posix::{Errno, Process};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use vfs::Limits;
use vfs::model::Model;

const SMALL: Limits = Limits {
    name: 20,
    symlink: 100,
    file_size: 10_000,
    links: 3,
    xattr: 50,
    xattr_list: 60,
    clones: true,
};

fn on_a_small_model(test: impl FnOnce(&Process, &dyn Fn(&str) -> Vec<u8>)) {
    let world = TestWorld::new(TestEngine::Bpfs);
    let dir = tempfile::Builder::new().prefix("keepstone-p-").tempdir_in("/dev/shm").unwrap();
    let mountpoint = dir.path().as_os_str().as_bytes().to_vec();
    let model = Arc::new(Model::with_limits(&SMALL));
    let spec = TestWorld::spec_of(mountpoint.clone(), &world.table, model, world.fs.clone());
    world.process.add_mount(spec).unwrap();
    test(&world.process, &|name| [&mountpoint[..], name.as_bytes()].join(&b'/'));
}

fn open(p: &Process, path: &[u8]) -> Result<i32, Errno> {
    done(p.contents().open(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_RDWR, 0o644))
}

#[test]
fn names_and_targets() {
    on_a_small_model(|p, path| {
        let (longest, long) = ("n".repeat(20), "n".repeat(21));
        for _ in 0..2 {
            // First by a walk, then by the path cache.
            open(p, &path(&longest)).unwrap();
            assert_eq!(open(p, &path(&long)), Err(Errno::NAMETOOLONG));
            assert_eq!(
                done(p.names().unlink(libc::AT_FDCWD, &path(&long), 0)),
                Err(Errno::NAMETOOLONG)
            );
        }
        let below = format!("{long}/f");
        assert_eq!(open(p, &path(&below)), Err(Errno::NAMETOOLONG));
        let link = |len| done(p.names().symlink(&vec![b't'; len], libc::AT_FDCWD, &path("link")));
        assert_eq!(link(101), Err(Errno::NAMETOOLONG));
        assert_eq!(link(100), Ok(()));
        let fd = open(p, &path(&longest)).unwrap();
        assert_eq!(done(p.names().fstatvfs(fd)).unwrap().f_namemax, 20);
    });
}

#[test]
fn sizes() {
    on_a_small_model(|p, path| {
        let fd = open(p, &path("file")).unwrap();
        // The bytes that fit are written, the rest is refused.
        assert_eq!(done(p.contents().pwrite(fd, &[1; 100], 9_950)), Ok(50));
        assert_eq!(done(p.contents().pwrite(fd, b"x", 10_000)), Err(Errno::FBIG));
        assert_eq!(done(p.contents().ftruncate(fd, 10_001)), Err(Errno::FBIG));
        assert_eq!(done(p.contents().fallocate(fd, 0, 9_000, 1_001)), Err(Errno::FBIG));
        assert_eq!(done(p.contents().fallocate(fd, 0, 9_000, 1_000)), Ok(()));
    });
}
