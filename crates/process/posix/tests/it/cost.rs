//! Costs of calls that do not jitter: allocations, and calls of the kernel.

#![allow(unsafe_code)]

use crate::common::{TestEngine, TestWorld, done, on_each_engine, stat};
use posix::Served;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::Relaxed;

on_each_engine!(
    content_costs_neither,
    names_cost_neither,
    relative_paths_from_outside_cost_neither,
);

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the allocations and calls of the kernel that `call` makes.
fn cost<T>(world: &TestWorld, mut call: impl FnMut() -> T) -> (u64, u64) {
    // The first run may attach, or look at a mount for the first time.
    call();
    let before = (ALLOCATIONS.get(), world.stage.count.load(Relaxed));
    call();
    (ALLOCATIONS.get() - before.0, world.stage.count.load(Relaxed) - before.1)
}

fn content_costs_neither(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", libc::O_RDWR | libc::O_CREAT);
    let ino = vfs::Ino(done(p.names().fstat(fd)).unwrap().st_ino);
    let mut buf = [7; 4096];
    done(p.contents().write(fd, &buf)).unwrap();
    assert_eq!(cost(&world, || done(p.contents().lseek(fd, 0, libc::SEEK_SET))), (0, 0));
    assert_eq!(cost(&world, || done(p.contents().read(fd, &mut buf[..2000]))), (0, 0));
    assert_eq!(cost(&world, || done(p.contents().pread(fd, &mut buf, 0))), (0, 0));
    assert_eq!(cost(&world, || done(p.names().fstat(fd)).map(|st| st.st_size)), (0, 0));
    assert_eq!(cost(&world, || done(p.contents().fsync(fd))), (0, 0));
    let engine = cost(&world, || world.fs.write(ino, 0, &buf)).0;
    assert_eq!(cost(&world, || done(p.contents().pwrite(fd, &buf, 0))), (engine, 0));
    assert_eq!(cost(&world, || done(p.contents().writev(fd, &[IoSlice::new(&buf[..9]); 2]))).1, 0);
    let [mut a, mut b] = [[0; 100]; 2];
    let mut parts = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(cost(&world, || done(p.contents().preadv2(fd, &mut parts, 0, 0))), (0, 0));
}

fn names_cost_neither(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    done(p.names().mkdir(libc::AT_FDCWD, &world.path("d"), 0o755)).unwrap();
    let _ = world.open("d/a", libc::O_RDWR | libc::O_CREAT);
    let path = world.path("d/a");
    let open_and_close = || {
        let fd = done(p.contents().open(libc::AT_FDCWD, &path, libc::O_RDONLY, 0)).unwrap();
        done(p.descriptors().close(fd)).unwrap();
    };
    assert_eq!(cost(&world, open_and_close), (0, 0));
    let stat = || done(stat(p, libc::AT_FDCWD, &path, 0)).map(|st| st.st_size);
    assert_eq!(cost(&world, stat), (0, 0));
    let missing = world.path("d/missing");
    let open_missing = || done(p.contents().open(libc::AT_FDCWD, &missing, libc::O_RDONLY, 0));
    assert_eq!(cost(&world, open_missing), (0, 0));

    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let come_and_go = || {
        let fd = done(p.contents().open(libc::AT_FDCWD, &missing, flags, 0o644)).unwrap();
        done(p.descriptors().close(fd)).unwrap();
        done(p.names().unlink(libc::AT_FDCWD, &missing, 0)).unwrap();
    };
    assert_eq!(cost(&world, come_and_go), (0, 0));
    let rename =
        |from, to| done(p.names().rename(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0)).unwrap();
    let there_and_back = || {
        rename(&path, &missing);
        rename(&missing, &path);
    };
    assert_eq!(cost(&world, there_and_back), (0, 0));
}

fn relative_paths_from_outside_cost_neither(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    done(p.names().mkdir(libc::AT_FDCWD, &world.path("d"), 0o755)).unwrap();
    let _ = world.open("d/a", libc::O_RDWR | libc::O_CREAT);
    *world.stage.cwd.lock().unwrap() = Some(b"/dev".to_vec());
    let path = world.path("d/a");
    let is_served = |path| matches!(stat(p, libc::AT_FDCWD, path, 0), Served::Done(Ok(_)));
    let ours = path.strip_prefix(b"/dev/").unwrap();
    assert!(is_served(ours));
    assert_eq!(cost(&world, || is_served(ours)), (0, 0));
    for others in [&b"x"[..], b"x/y", b"shm/x", b"../x"] {
        assert!(!is_served(others));
        assert_eq!(cost(&world, || is_served(others)), (0, 0));
    }
}
