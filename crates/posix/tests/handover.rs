//! Handing descriptors to the kernel, and families of processes.

mod common;

use common::{World, done};
use mounts::Alias;
use posix::Served;
use vfs::FileSystem as _;

const RW: i32 = libc::O_RDWR | libc::O_CREAT;

/// One test, because it forks and counts descriptors.
#[test]
fn handover() {
    materialising_keeps_the_offset();
    low_numbers_are_handed_over();
    exec_takes_what_it_inherits();
    locks_are_the_kernels();
    closing_drops_posix_locks();
    a_forked_family_shares_offsets();
    a_family_materialises_together();
    the_dead_are_swept();
    a_killed_holder_of_an_offset_is_taken_over();
    private_mappings_are_snapshots();
    shared_mappings_hand_over_every_descriptor();
}

fn kernel_offset(fd: i32) -> i64 {
    // SAFETY: moves nothing.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }
}

/// Runs `child` in a forked process as a front end would; its result must be true.
fn in_child(world: &World, child: impl FnOnce() -> bool) {
    world.process.before_fork();
    // SAFETY: the child only makes calls of this crate and ends.
    match unsafe { libc::fork() } {
        0 => {
            world.process.after_fork_child();
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            world.process.detach();
            // SAFETY: ends at once, without what the parent's test harness would do.
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

fn opened(world: &World) -> Vec<String> {
    let calls = world.stage.calls.lock().unwrap();
    calls.iter().filter(|call| call.starts_with("open")).cloned().collect()
}

fn materialising_keeps_the_offset() {
    let world = World::new();
    let p = &world.process;
    let fd = world.open("a", RW | libc::O_CLOEXEC);
    let twin = done(p.dup(fd)).unwrap();
    done(p.write(fd, b"0123456789")).unwrap();
    assert!(!p.is_materialised(fd));
    p.materialise(fd).unwrap();
    assert!(p.is_materialised(fd) && p.is_materialised(twin));
    assert_eq!(p.write(fd, b"x"), Served::Kernel);
    assert_eq!((kernel_offset(fd), kernel_offset(twin)), (10, 10));
    // SAFETY: asks for a flag.
    let flags = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) };
    assert_eq!((flags(fd), flags(twin)), (libc::FD_CLOEXEC, 0));
    let entry = world.fs.peek(world.fs.root(), b"a").unwrap();
    let alias = Alias { secret: 0xabc, ino: entry.ino, generation: entry.generation };
    assert_eq!(opened(&world), [format!("open /{alias}")]);
    // SAFETY: descriptors of this test, the kernel's now.
    unsafe {
        libc::close(fd);
        libc::close(twin);
    }
}

fn low_numbers_are_handed_over() {
    let world = World::new();
    let p = &world.process;
    // SAFETY: keeps standard input aside.
    let saved = unsafe { libc::dup(0) };
    let fd = world.open("a", RW);
    assert_eq!(done(p.dup2(fd, 0)), Ok(0));
    assert_eq!(p.read(0, &mut [0; 1]), Served::Kernel);
    assert_eq!(kernel_offset(0), 0);
    // SAFETY: standard input as it was.
    unsafe {
        libc::dup2(saved, 0);
        libc::close(saved);
        libc::close(fd);
    }
}

fn exec_takes_what_it_inherits() {
    let world = World::new();
    let p = &world.process;
    let (kept, closed) = (world.open("a", RW), world.open("b", RW | libc::O_CLOEXEC));
    p.before_exec().unwrap();
    assert!(p.is_materialised(kept) && !p.is_materialised(closed));
    // SAFETY: the kernel's now.
    unsafe { libc::close(kept) };
}

fn lock(kind: i32, start: i64, len: i64) -> libc::flock {
    // SAFETY: a flock is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_CUR as i16;
    (lock.l_start, lock.l_len) = (start, len);
    lock
}

fn locks_are_the_kernels() {
    let world = World::new();
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.flock(fd, libc::LOCK_EX | libc::LOCK_NB)).unwrap();
    assert_eq!(opened(&world).len(), 1);
    done(p.flock(fd, libc::LOCK_UN)).unwrap();
    assert_eq!(opened(&world).len(), 1, "one description in the kernel is enough");
    assert!(!p.is_materialised(fd));
}

/// Whether another process sees a POSIX lock on a number that it inherits.
fn is_locked(fd: i32) -> bool {
    // SAFETY: the child asks and ends.
    unsafe {
        match libc::fork() {
            0 => {
                let mut asked = lock(libc::F_WRLCK, 0, 0);
                asked.l_whence = libc::SEEK_SET as i16;
                libc::fcntl(fd, libc::F_GETLK, &mut asked);
                libc::_exit((asked.l_type != libc::F_UNLCK as i16).into())
            }
            pid => {
                let mut status = 0;
                libc::waitpid(pid, &mut status, 0);
                status != 0
            }
        }
    }
}

fn closing_drops_posix_locks() {
    let world = World::new();
    let p = &world.process;
    let (fd, other) = (world.open("a", RW), world.open("a", RW));
    done(p.fcntl_lock(fd, libc::F_SETLK, &mut lock(libc::F_WRLCK, 0, 10))).unwrap();
    let hidden = (300..1024).rev().find(|fd| p.owns(*fd)).unwrap();
    assert!(is_locked(hidden));
    done(p.close(other)).unwrap();
    assert!(!is_locked(hidden), "closing any descriptor of a file drops its locks");
    done(p.fcntl_lock(fd, libc::F_SETLK, &mut lock(libc::F_WRLCK, 0, 10))).unwrap();
    assert!(is_locked(hidden));
}

fn a_forked_family_shares_offsets() {
    let world = World::new();
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.write(fd, b"0123456789abcdef")).unwrap();
    done(p.lseek(fd, 2, libc::SEEK_SET)).unwrap();
    in_child(&world, || {
        let mut buf = [0; 4];
        let read = done(p.read(fd, &mut buf));
        let own = world.open("a", libc::O_RDONLY);
        done(p.close(fd)).unwrap();
        read == Ok(4) && &buf == b"2345" && own == fd + 1 && !p.owns(fd)
    });
    let mut buf = [0; 4];
    assert_eq!(done(p.read(fd, &mut buf)), Ok(4));
    assert_eq!(&buf, b"6789");
}

fn a_family_materialises_together() {
    let world = World::new();
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.write(fd, b"0123456789")).unwrap();
    in_child(&world, || {
        p.materialise(fd).unwrap();
        // SAFETY: the kernel's description, moved for all who share it.
        unsafe { libc::lseek(fd, 7, libc::SEEK_SET) == 7 }
    });
    assert_eq!(p.read(fd, &mut [0; 1]), Served::Kernel);
    assert_eq!(kernel_offset(fd), 7);
    // SAFETY: the kernel's now.
    unsafe { libc::close(fd) };
}

/// Forks a child that is killed; `pid` is reaped unless `zombie`.
fn killed_child(world: &World, child: impl FnOnce()) -> i32 {
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

fn the_dead_are_swept() {
    let world = World::new();
    let p = &world.process;
    let fd = world.open("a", RW);
    // More processes than a family has places for, all killed.
    for _ in 0..300 {
        let pid = killed_child(&world, || ());
        kill(pid);
        wait_for(pid, libc::SIGKILL);
    }
    in_child(&world, || done(p.pwrite(fd, b"x", 0)) == Ok(1));
    done(p.close(fd)).unwrap();
}

fn a_killed_holder_of_an_offset_is_taken_over() {
    let world = World::new();
    let p = &world.process;
    let dir = world.open("", libc::O_RDONLY | libc::O_DIRECTORY);
    let (mut told, mut tells) = ([0; 2], [0u8; 1]);
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(told.as_mut_ptr()) }, 0);
    let pid = killed_child(&world, || {
        // A listing holds the offset while entries are taken.
        let _ = p.getdents(dir, &mut |_| {
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
    // Not reaped yet: the parent may be the one who waits.
    assert_eq!(done(p.lseek(dir, 0, libc::SEEK_SET)), Ok(0));
    wait_for(pid, libc::SIGKILL);
}

fn private_mappings_are_snapshots() {
    let world = World::new();
    let p = &world.process;
    let fd = world.open("a", RW);
    done(p.write(fd, b"before")).unwrap();
    let at = done(p.mmap(0, 8192, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0)).unwrap();
    done(p.pwrite(fd, b"after!", 0)).unwrap();
    // SAFETY: mapped above, unmapped below.
    unsafe {
        let seen = std::slice::from_raw_parts(at as *const u8, 8192);
        assert_eq!(&seen[..7], b"before\0");
        libc::munmap(at as *mut _, 8192);
    }
    assert!(!p.is_materialised(fd));
}

fn shared_mappings_hand_over_every_descriptor() {
    let world = World::new();
    let p = &world.process;
    let (fd, other, third) =
        (world.open("a", RW), world.open("a", libc::O_RDONLY), world.open("b", RW));
    let map = p.mmap(0, 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
    assert_eq!(map, Served::Kernel);
    assert!(p.is_materialised(fd) && p.is_materialised(other) && !p.is_materialised(third));
    let again = p.open(libc::AT_FDCWD, &world.path("a"), libc::O_RDONLY, 0);
    assert_eq!(again, Served::Kernel);
    for fd in [fd, other] {
        // SAFETY: the kernel's now.
        unsafe { libc::close(fd) };
    }
}
