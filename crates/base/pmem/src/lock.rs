//! Locks on the file of a region, which decide which processes may have it open at the same time.
//! They end when the file is closed.
//!
//! - `flock` separates processes that need the region exclusively from all others.
//! - Among the others, locks on a range far beyond any data (`F_OFD_SETLK`) separate writers from
//!   readers. Each process that attaches locks one byte of [`SIDES`] for writing. A process that
//!   only reads, and must not see stores, locks the whole range for reading.
//! - A process that relies on a part of the region, and on nothing else, takes none of these. It
//!   locks bytes of [`PARTS`] that stand for the part.

#![allow(unsafe_code)]

use crate::error::Error;
use crate::open::{Access, Lock};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::ops::Range;
use std::path::Path;

/// The range of bytes that are locked, and never read or written: above the end of the largest
/// file.
const SIDES: Range<i64> = 1 << 62..(1 << 62) + (1 << 40);
/// The range of bytes that stand for parts of a region ([`crate::Region::lock_part`]).
const PARTS: Range<i64> = SIDES.end..SIDES.end + (1 << 32);
/// The distance of two bytes that a process tries. It exceeds the largest process number, so that
/// processes try different bytes.
const STRIDE: i64 = 1 << 23;
/// The number of bytes that a process tries.
const TRIES: i64 = 1024;

/// Attempts to share the region, and the sleep between them: the first process to share it holds it
/// exclusively for a moment.
const SHARED_TRIES: u32 = 5;
const SHARED_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Locks `fd`, or fails as it is in use.
pub(crate) fn take(path: &Path, fd: &OwnedFd, lock: Lock, access: Access) -> Result<(), Error> {
    if lock == Lock::None {
        return Ok(());
    }
    let mut taken = rustix::fs::flock(fd, lock.operation());
    for _ in 0..SHARED_TRIES {
        if lock == Lock::Shared && taken == Err(Errno::WOULDBLOCK) {
            let _ = rustix::thread::nanosleep(&SHARED_NAP);
            taken = rustix::fs::flock(fd, lock.operation());
        }
    }
    let taken = taken.and_then(|()| match (lock, access) {
        (Lock::Shared, Access::ReadOnly) => read_side(fd),
        (Lock::Shared, Access::ReadWrite) => write_side(fd),
        _ => Ok(()),
    });
    taken.map_err(|e| match e {
        Errno::WOULDBLOCK | Errno::ACCESS => Error::InUse(path.to_owned()),
        e => Error::io(path, "lock the file", e),
    })
}

/// Locks bytes of [`PARTS`], or unlocks them. `false` if another process has a lock that excludes
/// this one.
pub(crate) fn lock_part(fd: &OwnedFd, part: Range<u32>, lock: Lock) -> Result<bool, Errno> {
    let kind = match lock {
        Lock::Exclusive => libc::F_WRLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::None => libc::F_UNLCK,
    };
    let bytes = PARTS.start + i64::from(part.start)..PARTS.start + i64::from(part.end);
    match control(fd, libc::F_OFD_SETLK, &mut range(kind, bytes)) {
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => Ok(false),
        taken => taken.map(|()| true),
    }
}

/// Locks for reading: keeps processes out that attach.
fn read_side(fd: &OwnedFd) -> Result<(), Errno> {
    let mut lock = range(libc::F_RDLCK, SIDES);
    control(fd, libc::F_OFD_SETLK, &mut lock)
}

/// Locks one byte for writing: keeps processes out that only read.
fn write_side(fd: &OwnedFd) -> Result<(), Errno> {
    let own = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    for byte in (0..TRIES).map(|attempt| SIDES.start + own + attempt * STRIDE) {
        let mut lock = range(libc::F_WRLCK, byte..byte + 1);
        match control(fd, libc::F_OFD_SETLK, &mut lock) {
            Err(Errno::WOULDBLOCK | Errno::ACCESS) => {}
            taken => return taken,
        }
        // A reader holds the lock, or another attach does: of this process, or of one with the same
        // number in another namespace.
        control(fd, libc::F_OFD_GETLK, &mut lock)?;
        if i32::from(lock.l_type) == libc::F_RDLCK {
            break;
        }
    }
    Err(Errno::WOULDBLOCK)
}

/// Makes the argument of `fcntl(2)` for a lock of this kind (`F_RDLCK` or `F_WRLCK`) on `bytes`.
fn range(kind: i32, bytes: Range<i64>) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: bytes.start,
        l_len: bytes.end - bytes.start,
        l_pid: 0,
    }
}

/// Calls `fcntl(2)` without libc, whose function may be interposed in a program that opens a pool.
fn control(fd: &OwnedFd, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
    let result: isize;
    // SAFETY: the system call reads and writes `lock`, which outlives it, and the kernel preserves
    // all registers except those named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_fcntl as isize => result,
            in("rdi") fd.as_raw_fd() as isize,
            in("rsi") command as isize,
            in("rdx") std::ptr::from_mut(lock),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}
