//! The operations in which calls of the kernel fail.

#![allow(unsafe_code)]

use crate::common::{done, libc_result};
use crate::{FaultScenario, RW};
use posix::{Errno, Served};

/// Scenarios with names, which failures print.
pub const SCENARIOS: &[(&str, FaultScenario)] = &[
    ("open", |p| p.open("other", libc::O_RDWR)),
    ("open of a new file", |p| p.open("new", RW | libc::O_EXCL)),
    ("open that truncates", |p| p.open("other", libc::O_RDWR | libc::O_TRUNC)),
    ("open of a removed file's number", |p| {
        p.close(p.number(1))?;
        p.open("other", libc::O_RDONLY | libc::O_CLOEXEC)
    }),
    ("dup", |p| p.dup(p.number(0), libc::F_DUPFD, 0)),
    ("dup from a number on", |p| p.dup(p.number(0), libc::F_DUPFD_CLOEXEC, 20)),
    ("dup2 to a free number", |p| p.dup_to(p.number(0), 40, false)),
    ("dup2 to another file", |p| p.dup_to(p.number(0), p.number(2), false)),
    ("dup3 to the same file", |p| p.dup_to(p.number(0), p.number(1), true)),
    ("dup2 to standard input", |p| p.dup_to(p.number(0), 0, false)),
    ("dup2 to a number of the library's own", |p| {
        let own = p.own_number();
        p.dup_to(p.number(2), own, false)
    }),
    ("dup2 of the kernel's number to one of ours", |p| p.dup_foreign(p.number(1))),
    ("dup2 of a closed number to one of the library's own", |p| {
        let own = p.own_number();
        match p.world.process.descriptors().dup2(47, own) {
            Served::Done(result) => result.map(drop),
            // As in the front end, the kernel decides on the error. SAFETY: descriptors of this
            // test.
            Served::Kernel => libc_result(unsafe { libc::dup2(47, own) }.into()).map(drop),
        }
        .or_else(|errno| if errno == Errno::BADF { Ok(()) } else { Err(errno) })
    }),
    ("close", |p| p.close(p.number(0))),
    ("close of all", |p| p.close_all()),
    ("promotion", |p| p.promote(0)),
    ("promotion twice", |p| p.promote(0).and_then(|()| p.promote(2))),
    ("promotion of a directory", |p| p.promote(3)),
    ("promotion, and another number", |p| {
        p.promote(0)?;
        p.dup(p.number(0), libc::F_DUPFD, 0)
    }),
    ("left to the kernel", |p| p.leave_to_kernel(p.number(0))),
    ("a record lock", |p| p.lock(2)),
    ("flock", |p| {
        let (a, p) = (p.number(0), &p.world.process);
        done(p.contents().flock(a, libc::LOCK_EX | libc::LOCK_NB))?;
        done(p.contents().flock(a, libc::LOCK_UN))
    }),
    ("close-on-exec", |p| {
        let fd = p.number(0);
        done(p.world.process.descriptors().fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC.into()))?;
        p.numbers.get_mut(&fd).unwrap().cloexec = true;
        Ok(())
    }),
    ("status flags", |p| {
        p.promote(0)?;
        done(p.world.process.descriptors().fcntl(
            p.number(0),
            libc::F_SETFL,
            libc::O_NONBLOCK.into(),
        ))
        .map(drop)
    }),
    ("reading at the kernel's offset", |p| {
        p.promote(0)?;
        p.read(0)
    }),
    ("mapping", |p| p.map(0)),
    ("exec", |p| p.exec()),
    ("exec after a failure", |p| {
        p.exec()?;
        p.world.process.exec_failed();
        p.exec()
    }),
    ("close_range", |p| p.close_range(0)),
    ("close_range with a table of its own", |p| p.close_range(libc::CLOSE_RANGE_UNSHARE)),
    ("close_range that only marks", |p| p.close_range(libc::CLOSE_RANGE_CLOEXEC)),
    ("fork", |p| p.fork(|_| Ok(()))),
    ("fork, promotion in the child", |p| p.fork(|p| p.promote(0).and_then(|()| p.promote(2)))),
    ("fork, reading in the child", |p| p.fork(|p| p.read(0))),
    ("a number beyond the table", |p| p.beyond_the_table()),
    ("chdir", |p| {
        let path = p.world.path("");
        done(p.world.process.names().chdir(&path))
    }),
];
