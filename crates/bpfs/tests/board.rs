//! What the mount's server posts is seen by all who use the pool, and survives recoveries.

use bpfs::{Bpfs, FormatOptions, MountOptions};
use mounts::Board as _;
use pmem::{Access, Lock, OpenOptions, Region};
use std::path::PathBuf;
use vfs::{Caller, FileSystem as _, NewKind, NewNode, ROOT};

/// Removed when dropped.
struct Pool(PathBuf);

impl Pool {
    fn attach(&self) -> Bpfs<Region> {
        let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
        let region = options.open(&self.0, Access::ReadWrite).unwrap();
        let place = bpfs::place(&region).unwrap();
        Bpfs::attach(region, &place, &MountOptions::default()).unwrap()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn posts_are_shared_and_outlast_recoveries() {
    let pool = Pool(format!("/dev/shm/keepstone-board-{}", std::process::id()).into());
    let region = Region::create(&pool.0, 16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    drop(region);

    let (server, program) = (pool.attach(), pool.attach());
    let node = NewNode { kind: NewKind::File, mode: 0o755, umask: 0 };
    let make = || server.create(&Caller::ROOT, ROOT, b"program", &node).unwrap().ino;
    let ino = make();
    server.begin_execution(ino);
    server.post_mount_change();
    server.rehearse_recovery().unwrap();
    assert!(program.is_executed(ino));
    assert_eq!(program.mount_changes(), 1);
    server.end_execution(ino);
    // Once more than it began: there is nothing less than not at all.
    server.end_execution(ino);
    assert!(!program.is_executed(ino));

    // Who executed it has died: what has its number next is not executed.
    server.begin_execution(ino);
    server.unlink(ROOT, b"program").unwrap();
    server.forget(ino, 1);
    assert_eq!(make(), ino, "numbers are used again");
    assert!(!program.is_executed(ino));
}
