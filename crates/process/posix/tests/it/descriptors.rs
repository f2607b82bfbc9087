//! Descriptors, descriptions and offsets.

#![allow(unsafe_code)]

use crate::common::{TestEngine, TestWorld, done, on_each_engine, stat};
use posix::{Errno, Served};

on_each_engine!(descriptors);

const RW: i32 = libc::O_RDWR | libc::O_CREAT;

/// The lowest descriptor that is free in this process.
fn lowest_free() -> i32 {
    // SAFETY: a descriptor that is closed at once.
    unsafe {
        let fd = libc::dup(2);
        libc::close(fd);
        fd
    }
}

/// Whether the kernel has a descriptor.
fn kernel_knows(fd: i32) -> bool {
    // SAFETY: asks for a flag.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

fn offset(world: &TestWorld, fd: i32) -> i64 {
    done(world.process.contents().lseek(fd, 0, libc::SEEK_CUR)).unwrap()
}

/// A single test, because tests of one process share its descriptors.
fn descriptors(engine: TestEngine) {
    numbers_are_the_kernels(engine);
    duplicates_share_an_offset(engine);
    a_missed_call_fails_rather_than_loses(engine);
    nothing_of_ours_can_be_closed(engine);
    a_wanted_number_is_given_up(engine);
    ranges_close_what_is_in_them(engine);
    files_live_while_they_are_open(engine);
    close_on_exec_is_the_kernels(engine);
    limits_hold(engine);
    foreign_descriptors_are_left_alone(engine);
    nameless_files_get_names(engine);
}

fn numbers_are_the_kernels(engine: TestEngine) {
    let world = TestWorld::new(engine);
    world.open("warm-up", RW);
    let free = lowest_free();
    assert_eq!(world.open("a", RW), free);
    assert!(world.process.table().owns(free));
    let next = done(world.process.descriptors().dup(free)).unwrap();
    assert_eq!(next, lowest_free() - 1);
    done(world.process.descriptors().close(free)).unwrap();
    assert_eq!(done(world.process.names().fstat(free)).map(drop), Err(Errno::BADF));
    assert_eq!(world.open("b", RW), free);
    done(world.process.descriptors().close(free)).unwrap();
    world.process.fd_allocator().unpark();
    assert!(!kernel_knows(free));
    assert_eq!(world.open("b", RW), free);
    assert_eq!(done(world.process.descriptors().fcntl(free, libc::F_DUPFD, 100)).unwrap(), 100);
    assert_eq!(world.process.descriptors().close(999), Served::Kernel);
}

fn duplicates_share_an_offset(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    let other = done(p.descriptors().dup(fd)).unwrap();
    assert_eq!(done(p.contents().write(fd, b"hello")), Ok(5));
    assert_eq!(offset(&world, other), 5);
    let own = world.open("a", libc::O_RDONLY);
    assert_eq!(offset(&world, own), 0);
    assert_eq!(done(p.descriptors().dup2(own, fd)), Ok(fd));
    let mut buf = [0; 9];
    assert_eq!(done(p.contents().read(fd, &mut buf)), Ok(5));
    assert_eq!(offset(&world, own), 5);
    assert_eq!(done(p.descriptors().dup2(own, own)), Ok(own));
    assert_eq!(done(p.descriptors().dup2(own, -1)), Err(Errno::BADF));
    done(p.descriptors().close(own)).unwrap();
    assert_eq!(offset(&world, fd), 5);
}

fn a_missed_call_fails_rather_than_loses(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let fd = world.open("a", RW);
    // SAFETY: plain bytes; the descriptor is a placeholder.
    let ret = unsafe { libc::write(fd, b"lost".as_ptr().cast(), 4) };
    assert_eq!((ret, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EBADF)));
}

fn nothing_of_ours_can_be_closed(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    // SAFETY: a new descriptor.
    let own = p.fd_allocator().hide(unsafe { libc::dup(2) }).unwrap();
    assert!(own > 100);
    assert_eq!(done(p.descriptors().close(own)), Err(Errno::BADF));
    assert_eq!(done(p.names().fstat(own)).map(drop), Err(Errno::BADF));
    assert_eq!(done(p.descriptors().dup(own)), Err(Errno::BADF));
    assert!(kernel_knows(own));
}

fn a_wanted_number_is_given_up(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.contents().flock(fd, libc::LOCK_SH)).unwrap();
    let hidden: Vec<i32> = (300..1024).filter(|fd| p.table().owns(*fd)).collect();
    assert_eq!(hidden.len(), 2, "the placeholder and the kernel's description: {hidden:?}");
    for number in &hidden {
        assert_eq!(done(p.descriptors().dup2(fd, *number)), Ok(*number));
        assert_eq!(done(p.contents().write(*number, b"x")), Ok(1));
    }
    // The moved descriptor still works.
    done(p.contents().flock(fd, libc::LOCK_UN)).unwrap();
    world.open("b", RW);
}

fn ranges_close_what_is_in_them(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    let high = done(p.descriptors().fcntl(fd, libc::F_DUPFD, 200)).unwrap();
    done(p.descriptors().close_range(high as u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)).unwrap();
    assert!(p.table().owns(high));
    done(p.descriptors().close_range(high as u32, u32::MAX, 0)).unwrap();
    assert!(!p.table().owns(high) && !kernel_knows(high));
    world.open("b", RW);
    assert_eq!(offset(&world, fd), 0);
}

fn files_live_while_they_are_open(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    let ino = done(p.names().fstat(fd)).unwrap().st_ino;
    done(p.contents().write(fd, b"kept")).unwrap();
    done(p.names().unlink(libc::AT_FDCWD, &world.path("a"), 0)).unwrap();
    let mut buf = [0; 4];
    assert_eq!(done(p.contents().pread(fd, &mut buf, 0)), Ok(4));
    assert_eq!(&buf, b"kept");
    assert!(world.is_live(ino));
    done(p.descriptors().close(fd)).unwrap();
    assert!(!world.is_live(ino));
    // Walks give back their references.
    done(p.names().mkdir(libc::AT_FDCWD, &world.path("d"), 0o755)).unwrap();
    let ino = done(stat(p, libc::AT_FDCWD, &world.path("d/../d/."), 0)).unwrap().st_ino;
    done(p.names().chdir(&world.path("d"))).unwrap();
    done(p.names().unlink(libc::AT_FDCWD, &world.path("d"), libc::AT_REMOVEDIR)).unwrap();
    assert_eq!(done(p.names().getcwd(&mut [0; 99])), Err(Errno::NOENT));
    assert!(world.is_live(ino));
    done(p.names().chdir(&world.path(""))).unwrap();
    assert!(!world.is_live(ino));
}

fn close_on_exec_is_the_kernels(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW | libc::O_CLOEXEC);
    // SAFETY: asks for a flag.
    let cloexec = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == libc::FD_CLOEXEC;
    assert!(cloexec(fd));
    assert_eq!(done(p.descriptors().fcntl(fd, libc::F_GETFD, 0)), Ok(libc::FD_CLOEXEC));
    assert_eq!(done(p.descriptors().fcntl(fd, libc::F_SETFD, 0)), Ok(0));
    assert!(!cloexec(fd) && p.table().owns(fd));
    assert!(!cloexec(done(p.descriptors().dup(fd)).unwrap()));
    // A parked descriptor gets the flags of the file that takes it.
    done(p.descriptors().close(fd)).unwrap();
    assert_eq!(world.open("a", libc::O_RDONLY | libc::O_CLOEXEC), fd);
    assert!(cloexec(fd));
    assert!(cloexec(done(p.descriptors().dup3(fd, 150, libc::O_CLOEXEC)).unwrap()));
    done(p.descriptors().close(150)).unwrap();
}

fn limits_hold(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    let set_limit = |bytes: Option<u64>| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
        p.limits_changed();
    };
    set_limit(Some(10));
    assert_eq!(done(p.contents().write(fd, b"12345678")), Ok(8));
    assert_eq!(done(p.contents().write(fd, b"12345678")), Ok(2));
    assert_eq!(done(p.contents().write(fd, b"1")), Err(Errno::FBIG));
    assert_eq!(done(p.contents().pwrite(fd, b"", 99)), Ok(0));
    assert_eq!(done(p.contents().ftruncate(fd, 11)), Err(Errno::FBIG));
    assert_eq!(done(p.contents().ftruncate(fd, 10)), Ok(()));
    set_limit(None);
    let raised = format!("raise {}", libc::SIGXFSZ);
    assert_eq!(world.stage.calls.lock().unwrap().iter().filter(|c| **c == raised).count(), 2);
    assert_eq!(done(p.contents().write(fd, b"1")), Ok(1));
}

fn foreign_descriptors_are_left_alone(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", RW);
    // SAFETY: a new descriptor.
    let foreign = unsafe { libc::dup(2) };
    assert_eq!(p.contents().read(foreign, &mut [0; 1]), Served::Kernel);
    assert_eq!(p.descriptors().dup2(foreign, 180), Served::Kernel);
    // The kernel's file replaces ours, so the descriptor is not ours any more.
    assert_eq!(done(p.descriptors().dup2(foreign, fd)), Ok(fd));
    assert!(!p.table().owns(fd) && kernel_knows(fd));
    // SAFETY: descriptors of this test.
    unsafe {
        libc::close(fd);
        libc::close(foreign);
    }
    for path in ["relative", "/elsewhere", "/dev/shm/../dev/shm"] {
        assert!(matches!(stat(p, libc::AT_FDCWD, path.as_bytes(), 0), Served::Kernel));
    }
}

fn nameless_files_get_names(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let flags = libc::O_TMPFILE | libc::O_RDWR;
    let fd = world.open("", flags);
    let link = |fd: i32, name: &str| {
        let from = format!("/proc/self/fd/{fd}");
        let cwd = libc::AT_FDCWD;
        done(p.names().link(cwd, from.as_bytes(), cwd, &world.path(name), libc::AT_SYMLINK_FOLLOW))
    };
    assert_eq!(link(fd, "named"), Ok(()));
    assert_eq!(done(p.names().fstat(fd)).unwrap().st_nlink, 1);
    assert_eq!(link(fd, "named"), Err(Errno::EXIST));
    let exclusive = world.open("", flags | libc::O_EXCL);
    assert_eq!(link(exclusive, "other"), Err(Errno::NOENT));
    // The kernel checks the new name first.
    assert_eq!(link(exclusive, "named"), Err(Errno::EXIST));
}
