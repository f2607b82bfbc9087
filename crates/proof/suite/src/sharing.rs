//! Tests how processes find the shared state of a pool: all use the same one, whatever happens to
//! its file.

use crate::{Engine, FILE, PoolFile, attach, mount, open_shared, place, state_at, try_attach};
use pmem::{Access, Lock, OpenOptions, Region};
use pool::FormatOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use vfs::{Caller, Errno, FileSystem as _, ROOT};

/// Returns the path of the shared state.
fn state<E: Engine>(pool: &Path) -> PathBuf {
    state_at(&place::<E>(&open_shared(pool)).unwrap())
}

/// Tests a state file that a user truncates: operations fail, no process dies, and the next mount
/// finds the pool whole.
pub fn a_truncated_state_kills_nobody<E: Engine>() {
    pool::handle_faults(pool::Otherwise::PassOn).unwrap();
    for left in [0, 4096, 100_000, 300_000, 3 << 20] {
        let pool = PoolFile::new::<E>("truncated-state", 16 << 20);
        let [first, second] = [(), ()].map(|()| attach::<E>(&pool.0));
        first.create(&Caller::ROOT, ROOT, b"before", &FILE).unwrap();
        first.sync().unwrap();
        let file = std::fs::File::options().write(true).open(state::<E>(&pool.0)).unwrap();
        file.set_len(left).unwrap();
        let make = |i: u32| first.create(&Caller::ROOT, ROOT, format!("{i}").as_bytes(), &FILE);
        let failed = (0..1000).find_map(|i| make(i).err());
        assert_eq!(failed, Some(Errno::IO), "{left}");
        for fs in [&first, &second] {
            // A process that has not touched the lost memory may not notice; after these calls both
            // have.
            let _ = fs.reap_processes();
            let _ = fs.getattr(ROOT);
            let _ = fs.sync();
        }
        assert_eq!(first.lookup(ROOT, b"before").err(), Some(Errno::IO));
        let _ = first.statfs();
        let refused = try_attach::<E>(&pool.0).err().expect("two still have it").to_string();
        assert!(refused.contains("truncated"), "{refused}");
        drop((first, second));
        let again = attach::<E>(&pool.0);
        again.lookup(ROOT, b"before").unwrap();
        again.create(&Caller::ROOT, ROOT, b"after", &FILE).unwrap();
    }
}

/// As [`a_truncated_state_kills_nobody`], but the file has its old size again before a process uses
/// it.
pub fn a_state_of_zeros_kills_nobody<E: Engine>() {
    pool::handle_faults(pool::Otherwise::PassOn).unwrap();
    let pool = PoolFile::new::<E>("zero-state", 16 << 20);
    let first = attach::<E>(&pool.0);
    first.create(&Caller::ROOT, ROOT, b"before", &FILE).unwrap();
    let path = state::<E>(&pool.0);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(0).unwrap();
    file.set_len(len).unwrap();
    for i in 0..100_u32 {
        let _ = first.create(&Caller::ROOT, ROOT, format!("{i}").as_bytes(), &FILE);
        let _ = first.lookup(ROOT, b"before");
    }
    let _ = first.reap_processes();
    drop(first);
    let _ = std::fs::remove_file(&path);
}

/// Tests that no process creates a new state while another still uses one whose file was removed.
pub fn a_state_that_was_removed_has_no_successor_beside_it<E: Engine>() {
    let pool = PoolFile::new::<E>("removed", 16 << 20);
    let first = attach::<E>(&pool.0);
    std::fs::remove_file(state::<E>(&pool.0)).unwrap();
    let refused = try_attach::<E>(&pool.0).err().expect("the first still has the pool").to_string();
    assert!(refused.contains("it was removed"), "{refused}");
    assert!(!state::<E>(&pool.0).exists());
    first.getattr(first.root()).unwrap();
    drop(first);
    drop(attach::<E>(&pool.0));
}

/// Tests that a state file of another user is refused, and that the message names it and its owner.
pub fn a_strangers_file_is_named<E: Engine>() {
    let pool = PoolFile::new::<E>("strangers", 16 << 20);
    let state = state::<E>(&pool.0);
    std::fs::create_dir_all(state.parent().unwrap()).unwrap();
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(4711), None).unwrap();
    let refused = try_attach::<E>(&pool.0).err().expect("it may be a trap").to_string();
    std::fs::remove_file(&state).unwrap();
    assert!(
        refused.contains("user 4711") && refused.contains(state.to_str().unwrap()),
        "{refused}"
    );
    drop(attach::<E>(&pool.0));
}

/// Tests that processes can attach while others come and go.
pub fn all_who_come_at_once_get_in<E: Engine>() {
    let pool = PoolFile::new::<E>("at-once", 16 << 20);
    for _ in 0..20 {
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| drop(attach::<E>(&pool.0)));
            }
        });
        assert!(!state::<E>(&pool.0).exists());
    }
}

/// Tests that a pool is either used exclusively or shared.
pub fn who_has_the_pool_alone_is_not_joined<E: Engine>() {
    let pool = PoolFile::new::<E>("alone", 16 << 20);
    let alone = OpenOptions::default().open(&pool.0, Access::ReadWrite).unwrap();
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    assert!(options.open(&pool.0, Access::ReadWrite).is_err());
    let first = mount::<E, _>(alone);
    drop(first);
    let shared = attach::<E>(&pool.0);
    assert!(OpenOptions::default().open(&pool.0, Access::ReadWrite).is_err());
    drop(shared);
    OpenOptions::default().open(&pool.0, Access::ReadWrite).unwrap();
}

/// Tests a `/dev/shm` with little room, in a process of its own. Creations that need more are
/// refused, the existing files stay usable, and after room is free again everything works.
pub fn a_full_shm_refuses_and_kills_nobody<E: Engine>() {
    let dir =
        std::env::temp_dir().join(format!("keepstone-full-{}-{}", E::NAME, std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let pool = PoolFile(dir.join("pool"));
    let mut test = std::process::Command::new("unshare");
    test.args(["--mount", "--propagation", "private", "--"]).arg(std::env::current_exe().unwrap());
    test.args(["--exact", "suite::sharing::in_a_small_shm"]).env("KEEPSTONE_POOL", &pool.0);
    let output = test.output().expect("unshare: install util-linux");
    drop(pool);
    std::fs::remove_dir(&dir).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

/// Fills `/dev/shm` except for `left` bytes.
fn fill_shm(left: u64) {
    let room = rustix::fs::statvfs("/dev/shm").unwrap();
    let file = std::fs::File::create("/dev/shm/fill").unwrap();
    let bytes = (room.f_bavail * room.f_frsize).saturating_sub(left);
    let how = rustix::fs::FallocateFlags::empty();
    if bytes > 0 {
        rustix::fs::fallocate(&file, how, 0, bytes).unwrap();
    }
}

/// Runs the part of [`a_full_shm_refuses_and_kills_nobody`] that needs a process and a mount
/// namespace of its own: it mounts a `tmpfs` of 32 MiB at `/dev/shm`. Does nothing unless
/// `KEEPSTONE_POOL` names the pool.
pub fn in_a_small_shm<E: Engine>() {
    let Some(pool) = std::env::var_os("KEEPSTONE_POOL").map(PathBuf::from) else { return };
    let small = ["-t", "tmpfs", "-o", "size=32M", "none", "/dev/shm"];
    assert!(std::process::Command::new("mount").args(small).status().unwrap().success());
    pool::handle_faults(pool::Otherwise::PassOn).unwrap();
    let region = Region::create(&pool, 64 << 20).unwrap();
    E::format(&region, &FormatOptions::default()).unwrap();
    drop(region);

    fill_shm(1 << 20);
    let refused = try_attach::<E>(&pool).err().expect("there is no room for it").to_string();
    assert!(refused.contains("there is no room") && !state::<E>(&pool).exists(), "{refused}");
    std::fs::remove_file("/dev/shm/fill").unwrap();

    let fs = attach::<E>(&pool);
    let make = |i: u32| fs.create(&Caller::ROOT, ROOT, format!("file-{i}").as_bytes(), &FILE);
    make(0).unwrap();
    fill_shm(0);
    let made = (1..200_000).map(make).take_while(Result::is_ok).count() as u32;
    assert_eq!(make(made + 1).err(), Some(Errno::NOSPC));
    let refused = try_attach::<E>(&pool).err().expect("there is no room for more").to_string();
    assert!(refused.contains("there is no room"), "{refused}");
    for i in 0..=made {
        let ino = fs.lookup(ROOT, format!("file-{i}").as_bytes()).unwrap().ino;
        fs.forget(ino, 2);
    }
    std::fs::remove_file("/dev/shm/fill").unwrap();
    fs.reap_processes().unwrap();
    make(made + 1).unwrap();
    drop(attach::<E>(&pool));

    // The memory that a scan needs is known only after the scan.
    assert!((made + 2..made + 60_000).all(|i| make(i).is_ok()));
    drop(fs);
    fill_shm(4 << 20);
    let refused =
        try_attach::<E>(&pool).err().expect("there is no room for what the scan makes").to_string();
    let says = |part| refused.contains(part);
    assert!(says("there is no room") && says("takes more than the"), "{refused}");
    assert!(!state::<E>(&pool).exists());
    std::fs::remove_file("/dev/shm/fill").unwrap();
    let fs = attach::<E>(&pool);
    fs.lookup(ROOT, format!("file-{}", made + 59_999).as_bytes()).unwrap();
}
