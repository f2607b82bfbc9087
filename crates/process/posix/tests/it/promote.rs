//! Descriptors that the kernel has, too, and families of processes.

#![allow(unsafe_code)]

use crate::common::{TestEngine, TestWorld, done, on_each_engine};
use posix::Served;
use vfs::Errno;

on_each_engine!(promotion);

const RW: i32 = libc::O_RDWR | libc::O_CREAT;

/// A single test, because it forks and counts descriptors.
fn promotion(engine: TestEngine) {
    promotion_keeps_the_offset(engine);
    a_descriptor_left_to_the_kernel_is_its_alone(engine);
    streams_are_promoted_directories_are_not(engine);
    exec_takes_what_it_inherits(engine);
    locks_are_the_kernels(engine);
    closing_drops_posix_locks(engine);
    promotion_keeps_posix_locks(engine);
    a_forked_family_shares_offsets(engine);
    a_family_promotes_together(engine);
    the_dead_are_swept(engine);
    a_killed_holder_of_an_offset_is_taken_over(engine);
    private_mappings_are_snapshots(engine);
    what_is_mapped_is_the_kernels(engine);
}

fn kernel_offset(fd: i32) -> i64 {
    // SAFETY: does not move the offset.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }
}

/// Runs `child` in a forked process like a front end. Its result must be true.
pub fn in_child(world: &TestWorld, child: impl FnOnce() -> bool) {
    world.process.before_fork();
    // SAFETY: the child only makes calls of this crate and ends.
    match unsafe { libc::fork() } {
        0 => {
            world.process.after_fork_child();
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            world.process.detach();
            // SAFETY: ends at once, without the parent's test harness.
            unsafe { libc::_exit(if ok { 0 } else { 1 }) }
        }
        pid => {
            assert!(pid > 0);
            world.process.after_fork_parent(pid);
            wait_for(pid, 0);
        }
    }
}

fn wait_for(pid: i32, expected: i32) {
    let mut status = 0;
    // SAFETY: a child of this test, room for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, expected, "the child failed");
}

fn opened(world: &TestWorld) -> Vec<String> {
    let calls = world.stage.calls.lock().unwrap();
    calls.iter().filter(|call| call.starts_with("open")).cloned().collect()
}

fn promotion_keeps_the_offset(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW | libc::O_CLOEXEC);
    let twin = done(p.descriptors().dup(fd)).unwrap();
    done(p.contents().write(fd, b"0123456789")).unwrap();
    assert!(!p.descriptors().is_promoted(fd));
    p.promotions().promote(fd).unwrap();
    assert!(p.descriptors().is_promoted(fd) && p.descriptors().is_promoted(twin));
    // SAFETY: asks for a flag.
    let flags = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) };
    assert_eq!((flags(fd), flags(twin)), (libc::FD_CLOEXEC, 0));
    let entry = world.fs.peek(world.fs.root(), b"a").unwrap();
    assert_eq!(opened(&world), [format!("open /{}-{}", entry.ino.0, entry.generation)]);
    // Data is served as before, at the kernel's offset.
    assert_eq!((kernel_offset(fd), kernel_offset(twin)), (10, 10));
    assert_eq!(done(p.contents().write(fd, b"xyz")), Ok(3));
    assert_eq!(kernel_offset(twin), 13);
    assert_eq!((done(p.contents().lseek(twin, 8, libc::SEEK_SET)), kernel_offset(fd)), (Ok(8), 8));
    assert_eq!((done(p.contents().lseek(fd, -3, libc::SEEK_CUR)), kernel_offset(twin)), (Ok(5), 5));
    assert_eq!(done(p.contents().lseek(fd, -6, libc::SEEK_CUR)), Err(Errno::INVAL));
    assert_eq!(done(p.contents().lseek(fd, 3, libc::SEEK_CUR)), Ok(8));
    let mut buf = [0; 16];
    assert_eq!(done(p.contents().read(fd, &mut buf)), Ok(5));
    assert_eq!(&buf[..5], b"89xyz");
    assert_eq!((done(p.contents().read(fd, &mut buf)), kernel_offset(fd)), (Ok(0), 13));
    assert_eq!((done(p.contents().lseek(fd, -1, libc::SEEK_END)), kernel_offset(fd)), (Ok(12), 12));
    assert_eq!((done(p.contents().pread(fd, &mut buf, 10)), kernel_offset(fd)), (Ok(3), 12));
    done(p.descriptors().fcntl(fd, libc::F_SETFL, libc::O_APPEND.into())).unwrap();
    assert_eq!((done(p.contents().write(twin, b"end")), kernel_offset(fd)), (Ok(3), 16));
    // SAFETY: asks for flags.
    assert_ne!(unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_APPEND, 0);
    done(p.descriptors().close(fd)).unwrap();
    let third = done(p.descriptors().dup(twin)).unwrap();
    assert!(p.descriptors().is_promoted(third) && kernel_offset(third) == 16);
    done(p.descriptors().close(twin)).unwrap();
    done(p.descriptors().close(third)).unwrap();
}

fn a_descriptor_left_to_the_kernel_is_its_alone(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    let twin = done(p.descriptors().dup(fd)).unwrap();
    p.promotions().leave_to_kernel(fd).unwrap();
    assert!(!p.table().owns(fd) && p.table().owns(twin));
    assert_eq!(p.contents().write(fd, b"x"), Served::Kernel);
    assert_eq!(done(p.contents().write(twin, b"xy")), Ok(2));
    assert_eq!(kernel_offset(fd), 2);
    done(p.descriptors().close(twin)).unwrap();
    // SAFETY: the descriptor is the kernel's.
    unsafe { libc::close(fd) };
}

fn streams_are_promoted_directories_are_not(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    // SAFETY: keeps standard input aside.
    let saved = unsafe { libc::dup(0) };
    let fd = world.open("a", RW);
    let dir = world.open("", libc::O_RDONLY | libc::O_DIRECTORY);
    assert_eq!(done(p.descriptors().dup2(fd, 0)), Ok(0));
    assert_eq!((done(p.contents().read(0, &mut [0; 1])), kernel_offset(0)), (Ok(0), 0));
    let before = opened(&world);
    assert_eq!(done(p.descriptors().dup2(dir, 0)), Ok(0));
    assert!(!p.descriptors().is_promoted(0));
    assert_eq!(opened(&world), before);
    done(p.descriptors().close(dir)).unwrap();
    done(p.descriptors().close(fd)).unwrap();
    assert_eq!(done(p.descriptors().dup2(saved, 0)), Ok(0));
    // SAFETY: restores standard input.
    unsafe { libc::close(saved) };
}

fn exec_takes_what_it_inherits(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let (kept, closed) = (world.open("a", RW), world.open("b", RW | libc::O_CLOEXEC));
    p.before_exec().unwrap();
    assert!(p.descriptors().is_promoted(kept) && !p.descriptors().is_promoted(closed));
    done(p.descriptors().close(kept)).unwrap();
}

fn lock(kind: i32, start: i64, len: i64) -> libc::flock {
    // SAFETY: a flock is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_CUR as i16;
    (lock.l_start, lock.l_len) = (start, len);
    lock
}

fn locks_are_the_kernels(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.contents().flock(fd, libc::LOCK_EX | libc::LOCK_NB)).unwrap();
    assert_eq!(opened(&world).len(), 1);
    done(p.contents().flock(fd, libc::LOCK_UN)).unwrap();
    assert_eq!(opened(&world).len(), 1, "one description in the kernel is enough");
    assert_eq!(done(p.contents().write(fd, b"abc")), Ok(3), "data is served as before");
}

/// Whether another process sees a POSIX lock on a descriptor that it inherits.
fn is_locked(fd: i32) -> bool {
    crate::common::another_sees_lock(|| fd)
}

fn lock_all(world: &TestWorld, fd: i32) {
    done(world.process.contents().fcntl_lock(fd, libc::F_SETLK, &mut lock(libc::F_WRLCK, 0, 10)))
        .unwrap();
    assert!(is_locked(fd));
}

fn closing_drops_posix_locks(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let (fd, other) = (world.open("a", RW), world.open("a", RW));
    let path_only = world.open("a", libc::O_PATH);
    lock_all(&world, fd);
    done(p.descriptors().close(path_only)).unwrap();
    assert!(is_locked(fd), "a descriptor of O_PATH has no locks");
    done(p.descriptors().close(other)).unwrap();
    assert!(!is_locked(fd), "closing any descriptor of a file drops its locks");
}

fn promotion_keeps_posix_locks(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let (fd, other, third) = (world.open("a", RW), world.open("a", RW), world.open("a", RW));
    lock_all(&world, fd);
    p.promotions().promote(other).unwrap();
    assert!(is_locked(fd));
    let open = || -> Vec<i32> { (0..1024).filter(|fd| kernel_offset(*fd) >= 0).collect() };
    let before = open();
    // In a process of several threads, the description lands on another descriptor, which stays
    // open.
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || told.recv());
    p.promotions().promote(third).unwrap();
    drop(tell);
    let _ = thread.join();
    assert!(is_locked(fd));
    assert_eq!(open().len(), before.len() + 2, "{before:?}");
    done(p.descriptors().close(fd)).unwrap();
    // The descriptors that stayed open for the locks were closed with them.
    assert_eq!(open().len(), before.len() - 1, "{before:?}");
    done(p.descriptors().close(other)).unwrap();
    done(p.descriptors().close(third)).unwrap();
}

fn a_forked_family_shares_offsets(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.contents().write(fd, b"0123456789abcdef")).unwrap();
    done(p.contents().lseek(fd, 2, libc::SEEK_SET)).unwrap();
    in_child(&world, || {
        let mut buf = [0; 4];
        let read = done(p.contents().read(fd, &mut buf));
        let own = world.open("a", libc::O_RDONLY);
        done(p.descriptors().close(fd)).unwrap();
        read == Ok(4) && &buf == b"2345" && own == fd + 1 && !p.table().owns(fd)
    });
    let mut buf = [0; 4];
    assert_eq!(done(p.contents().read(fd, &mut buf)), Ok(4));
    assert_eq!(&buf, b"6789");
}

fn a_family_promotes_together(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.contents().write(fd, b"0123456789")).unwrap();
    in_child(&world, || {
        // SAFETY: moves the offset of the kernel's description, for all who share it.
        p.descriptors().is_promoted(fd) && unsafe { libc::lseek(fd, 7, libc::SEEK_SET) == 7 }
    });
    let mut buf = [0; 2];
    assert_eq!((done(p.contents().read(fd, &mut buf)), &buf), (Ok(2), b"78"));
    assert_eq!(kernel_offset(fd), 9);
    done(p.descriptors().close(fd)).unwrap();
}

/// Forks a child that is killed; `pid` is reaped unless `zombie`.
fn killed_child(world: &TestWorld, child: impl FnOnce()) -> i32 {
    world.process.before_fork();
    // SAFETY: the child makes calls of this crate and waits to be killed.
    match unsafe { libc::fork() } {
        0 => {
            world.process.after_fork_child();
            child();
            loop {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
        }
        pid => {
            world.process.after_fork_parent(pid);
            pid
        }
    }
}

fn kill(pid: i32) {
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn the_dead_are_swept(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    // More processes than a family has segments, all killed.
    for _ in 0..300 {
        let pid = killed_child(&world, || ());
        kill(pid);
        wait_for(pid, libc::SIGKILL);
    }
    in_child(&world, || done(p.contents().pwrite(fd, b"x", 0)) == Ok(1));
    done(p.descriptors().close(fd)).unwrap();
}

fn a_killed_holder_of_an_offset_is_taken_over(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let dir = world.open("", libc::O_RDONLY | libc::O_DIRECTORY);
    let (mut told, mut tells) = ([0; 2], [0u8; 1]);
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(told.as_mut_ptr()) }, 0);
    let pid = killed_child(&world, || {
        // A listing holds the offset while entries are taken.
        let _ = p.names().getdents(dir, &mut |_| {
            // SAFETY: one byte to the parent, then waits to be killed.
            unsafe {
                libc::write(told[1], [1u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        });
    });
    // SAFETY: room for one byte; the pipe is this test's.
    unsafe {
        assert_eq!(libc::read(told[0], tells.as_mut_ptr().cast(), 1), 1);
        libc::close(told[0]);
        libc::close(told[1]);
    }
    kill(pid);
    // The child is not reaped yet: the parent may be the waiting process.
    assert_eq!(done(p.contents().lseek(dir, 0, libc::SEEK_SET)), Ok(0));
    wait_for(pid, libc::SIGKILL);
}

fn private_mappings_are_snapshots(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.contents().write(fd, b"before")).unwrap();
    let at = done(p.contents().mmap(0, 8192, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0)).unwrap();
    done(p.contents().pwrite(fd, b"after!", 0)).unwrap();
    // SAFETY: mapped above, unmapped below.
    unsafe {
        let seen = std::slice::from_raw_parts(at as *const u8, 8192);
        assert_eq!(&seen[..7], b"before\0");
        libc::munmap(at as *mut _, 8192);
    }
    assert!(!p.descriptors().is_promoted(fd));
}

fn what_is_mapped_is_the_kernels(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let (fd, other, third) =
        (world.open("a", RW), world.open("a", libc::O_RDONLY), world.open("b", RW));
    let map = p.contents().mmap(0, 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
    assert_eq!(map, Served::Kernel);
    assert!(p.descriptors().is_promoted(fd));
    let calls = world.stage.calls.lock().unwrap().clone();
    assert!(calls.contains(&format!("drop_cache {fd}")), "{calls:?}");
    assert_eq!(p.contents().pread(other, &mut [0; 4], 0), Served::Kernel);
    assert_eq!(p.contents().write(fd, b"x"), Served::Kernel);
    assert_eq!(p.contents().fsync(fd), Served::Kernel);
    assert_eq!(p.contents().truncate(&world.path("a"), 0), Served::Kernel);
    let again = world.open("a", RW);
    assert_eq!(p.contents().pwrite(again, b"x", 0), Served::Kernel);
    assert_eq!(done(p.contents().pwrite(third, b"x", 0)), Ok(1));
    // Another process that uses the pool sees that, too.
    let ino = vfs::Ino(done(p.names().fstat(fd)).unwrap().st_ino);
    assert!(world.fs.is_mapped(ino));
    p.before_image_ends();
    assert!(!world.fs.is_mapped(ino));
    p.exec_failed();
    assert!(world.fs.is_mapped(ino));
    for fd in [fd, other, third, again] {
        done(p.descriptors().close(fd)).unwrap();
    }
}
