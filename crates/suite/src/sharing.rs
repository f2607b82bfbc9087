//! How the shared state of a pool is found: one at a time, by all who use it, whatever becomes of its file.

#![allow(unsafe_code)]

use bpfs::{Bpfs, Error, FormatOptions, MountOptions};
use pmem::{Access, Lock, OpenOptions, Region};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use vfs::{Caller, Errno, FileSystem as _, NewKind, NewNode, ROOT};

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
    Bpfs::attach(region, &place, &MountOptions { threads: Some(1), ..MountOptions::default() })
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

/// In a process of its own, whose `/dev/shm` is a tmpfs with little room: what is made beyond it is refused, what
/// is there stays usable, and with room again all goes on.
#[test]
fn a_full_shm_refuses_and_kills_nobody() {
    let dir = std::env::temp_dir().join(format!("keepstone-full-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let pool = Pool(dir.join("pool"));
    let mut test = std::process::Command::new("unshare");
    test.args(["--mount", "--propagation", "private", "--"]).arg(std::env::current_exe().unwrap());
    test.args(["--exact", "in_a_small_shm"]).env("KEEPSTONE_POOL", &pool.0);
    let output = test.output().expect("unshare: install util-linux");
    drop(pool);
    std::fs::remove_dir(&dir).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

extern "C" fn on_bus_error(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes what a handler with SA_SIGINFO gets.
    if !pool::handle_fault(unsafe { (*info).si_addr() } as usize) {
        std::process::abort();
    }
}

/// Fills `/dev/shm` but for `left` bytes.
fn fill_shm(left: u64) {
    let room = rustix::fs::statvfs("/dev/shm").unwrap();
    let file = std::fs::File::create("/dev/shm/fill").unwrap();
    let bytes = (room.f_bavail * room.f_frsize).saturating_sub(left);
    let how = rustix::fs::FallocateFlags::empty();
    if bytes > 0 {
        rustix::fs::fallocate(&file, how, 0, bytes).unwrap();
    }
}

#[test]
fn in_a_small_shm() {
    // Part of the test above.
    let Some(pool) = std::env::var_os("KEEPSTONE_POOL").map(PathBuf::from) else { return };
    let small = ["-t", "tmpfs", "-o", "size=32M", "none", "/dev/shm"];
    assert!(std::process::Command::new("mount").args(small).status().unwrap().success());
    // SAFETY: the action is zeros but for a handler of its type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
    let region = Region::create(&pool, 64 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    drop(region);

    fill_shm(1 << 20);
    let refused = attach(&pool).err().expect("there is no room for it").to_string();
    assert!(refused.contains("there is no room") && !state(&pool).exists(), "{refused}");
    std::fs::remove_file("/dev/shm/fill").unwrap();

    let fs = attach(&pool).unwrap();
    let node = NewNode { kind: NewKind::File, mode: 0o755, umask: 0 };
    let make = |i: u32| fs.create(&Caller::ROOT, ROOT, format!("file-{i}").as_bytes(), &node);
    make(0).unwrap();
    fill_shm(0);
    let made = (1..200_000).map(make).take_while(Result::is_ok).count() as u32;
    assert_eq!(make(made + 1).err(), Some(Errno::NOSPC));
    let refused = attach(&pool).err().expect("there is no room for more").to_string();
    assert!(refused.contains("there is no room"), "{refused}");
    for i in 0..=made {
        let ino = fs.lookup(ROOT, format!("file-{i}").as_bytes()).unwrap().ino;
        fs.forget(ino, 2);
    }
    std::fs::remove_file("/dev/shm/fill").unwrap();
    fs.reap_processes().unwrap();
    make(made + 1).unwrap();
    drop(attach(&pool).unwrap());

    // What a scan needs is known when it has ended.
    assert!((made + 2..made + 60_000).all(|i| make(i).is_ok()));
    drop(fs);
    fill_shm(4 << 20);
    let refused =
        attach(&pool).err().expect("there is no room for what the scan makes").to_string();
    let says = |part| refused.contains(part);
    assert!(says("there is no room") && says("takes more than the"), "{refused}");
    assert!(!state(&pool).exists());
    std::fs::remove_file("/dev/shm/fill").unwrap();
    let fs = attach(&pool).unwrap();
    fs.lookup(ROOT, format!("file-{}", made + 59_999).as_bytes()).unwrap();
}
