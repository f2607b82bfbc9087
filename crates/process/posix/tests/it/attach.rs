//! Attaching of pools by one thread while other threads need them, or fork.

use crate::common::{TestEngine, TestWorld, done, stat};
use crate::promote::in_child;
use posix::{Errno, Served};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// A second mount of a process, whose attaching counts itself and takes a while.
struct Slow {
    world: TestWorld,
    home: tempfile::TempDir,
    begun: Arc<AtomicU32>,
}

impl Slow {
    fn new(goes_on: Duration) -> Self {
        let world = TestWorld::new(TestEngine::Bpfs);
        let home = tempfile::tempdir().unwrap();
        let mountpoint = home.path().as_os_str().as_bytes().to_vec();
        let mut spec =
            TestWorld::spec(mountpoint, &world.table, &TestWorld::pool(TestEngine::Bpfs));
        let begun = Arc::new(AtomicU32::new(0));
        let (attach, count) = (spec.attach, begun.clone());
        spec.attach = Box::new(move || {
            count.fetch_add(1, SeqCst);
            std::thread::sleep(goes_on);
            attach()
        });
        world.process.add_mount(spec).unwrap();
        Self { world, home, begun }
    }

    fn stat(&self) -> Served<libc::stat> {
        stat(&self.world.process, libc::AT_FDCWD, self.home.path().as_os_str().as_bytes(), 0)
    }

    fn is_served(&self) -> bool {
        matches!(self.stat(), Served::Done(Ok(_)))
    }

    /// Calls `f` while another thread attaches.
    fn meanwhile<R>(&self, f: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| self.is_served());
            while self.begun.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let result = f();
            assert!(other.join().unwrap());
            result
        })
    }
}

/// A file that a thread opens while another attaches is served like later ones.
#[test]
fn others_wait_for_a_thread_that_attaches() {
    let slow = Slow::new(Duration::from_millis(100));
    assert!(slow.meanwhile(|| slow.is_served()));
    assert_eq!(slow.begun.load(SeqCst), 1);
    slow.world.remove_all();
}

/// A fork meanwhile: the child has the pool, and counts as one of its users.
#[test]
fn a_fork_waits_for_a_thread_that_attaches() {
    let slow = Slow::new(Duration::from_millis(100));
    slow.meanwhile(|| in_child(&slow.world, || slow.is_served()));
    assert_eq!(slow.begun.load(SeqCst), 1);
    slow.world.remove_all();
}

/// If attaching takes too long, other threads leave the pool to the kernel. So does a forked child,
/// which lacks the attaching thread, so that its locks are never given back.
#[test]
fn nobody_waits_for_ever() {
    let slow = Slow::new(Duration::from_millis(2500));
    slow.meanwhile(|| {
        assert!(matches!(slow.stat(), Served::Kernel));
        in_child(&slow.world, || matches!(slow.stat(), Served::Kernel));
    });
    assert!(slow.is_served(), "it is, once the pool is attached");
    slow.world.remove_all();
}

/// A call that attaching itself makes does not wait for attaching.
#[test]
fn a_thread_does_not_wait_for_itself() {
    let world = Arc::new(TestWorld::new(TestEngine::Bpfs));
    let home = tempfile::tempdir().unwrap();
    let path = home.path().as_os_str().as_bytes().to_vec();
    let mut spec = TestWorld::spec(path.clone(), &world.table, &TestWorld::pool(TestEngine::Bpfs));
    let (caller, below) = (Arc::downgrade(&world), path.clone());
    spec.attach = Box::new(move || {
        let world = caller.upgrade().unwrap();
        assert!(matches!(stat(&world.process, libc::AT_FDCWD, &below, 0), Served::Kernel));
        Err(Errno::NODEV)
    });
    world.process.add_mount(spec).unwrap();
    assert!(matches!(stat(&world.process, libc::AT_FDCWD, &path, 0), Served::Kernel));
    done(stat(&world.process, libc::AT_FDCWD, &world.path(""), 0)).unwrap();
    world.remove_all();
}
