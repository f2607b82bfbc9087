//! What the mount's server posts is seen by all who use the pool, and survives recoveries.

use bpfs::{Bpfs, FormatOptions, MountOptions};
use mounts::Board as _;
use pmem::{Access, Lock, OpenOptions, Region};
use std::path::PathBuf;
use vfs::{Caller, FileSystem as _, NewKind, NewNode, ROOT};

/// Removed when dropped.
struct Pool(PathBuf);

impl Pool {
    fn new(name: &str) -> Self {
        let pool = Self(format!("/dev/shm/keepstone-{name}-{}", std::process::id()).into());
        let region = Region::create(&pool.0, 16 << 20).unwrap();
        bpfs::format(&region, &FormatOptions::default()).unwrap();
        pool
    }

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
    let pool = Pool::new("board");
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

#[test]
fn mappings_end_with_those_who_count_them() {
    let pool = Pool::new("mappings");
    let (server, program) = (pool.attach(), pool.attach());
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let ino = server.create(&Caller::ROOT, ROOT, b"file", &node).unwrap().ino;
    assert!(!program.is_mapped(ino));
    server.begin_mapping(ino).unwrap();
    program.begin_mapping(ino).unwrap();
    program.begin_mapping(ino).unwrap();
    // Recoveries know the sum, and what is nobody's is not taken from others.
    server.rehearse_recovery().unwrap();
    for _ in 0..3 {
        server.end_mapping(ino);
        assert!(server.is_mapped(ino) && program.is_mapped(ino));
    }
    program.end_mapping(ino);
    assert!(server.is_mapped(ino));
    program.end_mapping(ino);
    assert!(!server.is_mapped(ino) && !program.is_mapped(ino));

    // What a process leaves is cleared away, whether it died or its mount ended.
    program.begin_mapping(ino).unwrap();
    program.begin_mapping(ino).unwrap();
    drop(program);
    assert!(server.is_mapped(ino));
    assert_eq!(server.tend().unwrap(), 1);
    assert!(!server.is_mapped(ino));
    let next = pool.attach();
    next.begin_mapping(ino).unwrap();
    server.begin_mapping(ino).unwrap();
    server.begin_mapping(ino).unwrap();
    server.end_mappings();
    assert!(server.is_mapped(ino));
    next.end_mappings();
    assert!(!server.is_mapped(ino));

    // Who dies with a mapping is not counted by a recovery either.
    next.begin_mapping(ino).unwrap();
    drop(next);
    server.rehearse_recovery().unwrap();
    assert!(!server.is_mapped(ino));
    assert!(server.begin_mapping(vfs::Ino(1 << 63)).is_err());
}

#[test]
fn a_pool_of_one_process_counts_mappings_too() {
    let region = Region::anonymous(16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    fs.begin_mapping(ROOT).unwrap();
    assert!(fs.is_mapped(ROOT));
    fs.end_mapping(ROOT);
    fs.end_mapping(ROOT);
    assert!(!fs.is_mapped(ROOT));
}
