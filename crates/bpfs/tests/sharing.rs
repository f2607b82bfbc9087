//! How the shared state of a pool is found: one at a time, by all who use it, whatever becomes of its file.

use bpfs::{Bpfs, Error, FormatOptions, MountOptions};
use pmem::{Access, Lock, OpenOptions, Region};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use vfs::FileSystem as _;

/// A pool of 16 MiB, removed when dropped.
struct Pool(PathBuf);

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pool(name: &str) -> Pool {
    let pool = Pool(format!("/dev/shm/sharing-{name}-{}", std::process::id()).into());
    let region = Region::create(&pool.0, 16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    pool
}

fn open(pool: &Path) -> Region {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    options.open(pool, Access::ReadWrite).unwrap()
}

fn attach(pool: &Path) -> Result<Bpfs<Region>, Error> {
    let region = open(pool);
    let place = bpfs::place(&region)?;
    Bpfs::attach(region, &place, &MountOptions { threads: 1, ..MountOptions::default() })
}

/// Where the shared state is.
fn state(pool: &Path) -> PathBuf {
    bpfs::place(&open(pool)).unwrap().path.into_string().unwrap().into()
}

#[test]
fn a_state_that_was_removed_has_no_successor_beside_it() {
    let pool = pool("removed");
    let first = attach(&pool.0).unwrap();
    std::fs::remove_file(state(&pool.0)).unwrap();
    let refused = attach(&pool.0).err().expect("the first still has the pool").to_string();
    assert!(refused.contains("it was removed"), "{refused}");
    assert!(!state(&pool.0).exists());
    first.getattr(first.root()).unwrap();
    drop(first);
    drop(attach(&pool.0).unwrap());
}

#[test]
fn a_strangers_file_is_named() {
    let pool = pool("strangers");
    let state = state(&pool.0);
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(4711), None).unwrap();
    let refused = attach(&pool.0).err().expect("it may be a trap").to_string();
    std::fs::remove_file(&state).unwrap();
    assert!(
        refused.contains("user 4711") && refused.contains(state.to_str().unwrap()),
        "{refused}"
    );
    drop(attach(&pool.0).unwrap());
}

#[test]
fn all_who_come_at_once_get_in() {
    let pool = pool("at-once");
    for _ in 0..20 {
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| drop(attach(&pool.0).unwrap()));
            }
        });
        assert!(!state(&pool.0).exists());
    }
}

#[test]
fn who_has_the_pool_alone_is_not_joined() {
    let pool = pool("alone");
    let alone = OpenOptions::default().open(&pool.0, Access::ReadWrite).unwrap();
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    assert!(options.open(&pool.0, Access::ReadWrite).is_err());
    let first = Bpfs::mount(alone, &MountOptions::default()).unwrap();
    drop(first);
    let shared = attach(&pool.0).unwrap();
    assert!(OpenOptions::default().open(&pool.0, Access::ReadWrite).is_err());
    drop(shared);
    OpenOptions::default().open(&pool.0, Access::ReadWrite).unwrap();
}
