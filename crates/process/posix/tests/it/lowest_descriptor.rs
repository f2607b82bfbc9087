//! POSIX's rule for new descriptors: the lowest that is free. Random calls open, close and
//! duplicate files in the pool, between descriptors that the kernel alone gives out and takes back,
//! under a limit that is often reached.
//!
//! `KEEPSTONE_OPS` sets the number of calls (100 000), `KEEPSTONE_SEED` the sequence.

#![allow(unsafe_code)]

use crate::common::{TestEngine, TestWorld, done, on_each_engine, stat};
use posix::{Errno, Served};
use rng::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;

on_each_engine!(descriptors_are_the_lowest_that_are_free);

/// Limit of this process's descriptors: low, so that it runs out of them.
const LIMIT: i32 = 48;

/// The owner of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The test program, from before.
    Fixed,
    /// The kernel alone.
    Kernel,
    /// A file in the pool.
    Pool { cloexec: bool },
}

/// The open descriptors of the program, by POSIX's rule.
struct DescriptorModel {
    open: BTreeMap<i32, Whose>,
    rng: Rng,
}

impl DescriptorModel {
    fn lowest(&self, min: i32) -> Result<i32, Errno> {
        let free = (min..LIMIT).find(|fd| !self.open.contains_key(fd));
        free.ok_or(Errno::MFILE)
    }

    /// Draws a descriptor that may be closed.
    fn any(&mut self) -> Option<i32> {
        let open: Vec<i32> =
            self.open.iter().filter(|(_, w)| **w != Whose::Fixed).map(|(fd, _)| *fd).collect();
        (!open.is_empty()).then(|| open[self.rng.below(open.len() as u64) as usize])
    }

    fn give(&mut self, expected: Result<i32, Errno>, got: Result<i32, Errno>, whose: Whose) {
        assert_eq!(got, expected, "{whose:?} with {:?}", self.open);
        if let Ok(fd) = got {
            self.open.insert(fd, whose);
        }
    }
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

/// Returns close-on-exec of a descriptor, if the kernel has it.
fn flag_of(fd: i32) -> Option<bool> {
    // SAFETY: asks for a flag.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags >= 0).then_some(flags & libc::FD_CLOEXEC != 0)
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap())
}

/// Checks that calls on a closed descriptor answer `EBADF`, here or from the kernel.
fn check_closed(world: &TestWorld, fd: i32) {
    let p = &world.process;
    assert!(matches!(p.names().fstat(fd), Served::Kernel | Served::Done(Err(Errno::BADF))));
    assert!(matches!(
        p.contents().read(fd, &mut [0]),
        Served::Kernel | Served::Done(Err(Errno::BADF))
    ));
    assert!(matches!(p.descriptors().dup(fd), Served::Kernel | Served::Done(Err(Errno::BADF))));
    assert!(matches!(p.descriptors().close(fd), Served::Kernel | Served::Done(Err(Errno::BADF))));
    let directory = stat(p, fd, b"a", 0);
    assert!(matches!(directory, Served::Kernel | Served::Done(Err(Errno::BADF))));
    if p.table().owns(fd) {
        // As in the front end, before a call of the kernel.
        assert_eq!(p.promotions().promote(fd), Ok(()));
    }
    assert_eq!(flag_of(fd), None, "{fd} is closed");
}

fn descriptors_are_the_lowest_that_are_free(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let flags = libc::O_RDWR | libc::O_CREAT;
    let fd = world.open("a", flags);
    done(p.descriptors().close(fd)).unwrap();
    p.fd_allocator().unpark();
    let limit = Rlimit { current: Some(LIMIT as u64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    p.limits_changed();
    let open = (0..LIMIT).filter(|fd| flag_of(*fd).is_some()).map(|fd| (fd, Whose::Fixed));
    let mut model =
        DescriptorModel { open: open.collect(), rng: Rng::new(env("KEEPSTONE_SEED", 1)) };
    let path = world.path("a");
    let before = world.stage.count.load(std::sync::atomic::Ordering::Relaxed);
    let ops = env("KEEPSTONE_OPS", 100_000);
    for _ in 0..ops {
        match model.rng.below(24) {
            0..=7 => {
                let cloexec = model.rng.below(4) == 0;
                let create = if model.rng.one_in(2) { flags } else { libc::O_RDONLY };
                let flags = create | if cloexec { libc::O_CLOEXEC } else { 0 };
                let got = done(p.contents().open(libc::AT_FDCWD, &path, flags, 0o644));
                model.give(model.lowest(0), got, Whose::Pool { cloexec });
            }
            8..=17 => {
                let Some(fd) = model.any() else { continue };
                match model.open.remove(&fd) {
                    Some(Whose::Pool { cloexec }) => {
                        assert_eq!(flag_of(fd), Some(cloexec));
                        assert_eq!(done(p.descriptors().close(fd)), Ok(()));
                    }
                    _ => {
                        assert!(!p.table().owns(fd));
                        // SAFETY: a descriptor of this test.
                        assert_eq!(unsafe { libc::close(fd) }, 0);
                        p.fd_allocator().fd_freed(fd);
                    }
                }
                if model.rng.below(4) == 0 {
                    check_closed(&world, fd);
                }
            }
            18 => {
                p.fd_allocator().unpark();
                // SAFETY: makes a descriptor.
                let fd = unsafe { libc::dup(2) };
                let got = if fd < 0 { Err(last_errno()) } else { Ok(fd) };
                model.give(model.lowest(0), got, Whose::Kernel);
            }
            19 => {
                // A call such as `accept` that fails: the parked descriptors are not needed.
                p.fd_allocator().unpark();
            }
            20 | 21 => {
                let Some(fd) = model.any().filter(|fd| p.table().owns(*fd)) else { continue };
                let cloexec = model.rng.one_in(2);
                let min = model.rng.below(8) as i32;
                let cmd = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
                let got = done(p.descriptors().fcntl(fd, cmd, min.into()));
                model.give(model.lowest(min), got, Whose::Pool { cloexec });
            }
            22 => {
                let (Some(from), to) = (model.any(), model.rng.below(LIMIT as u64) as i32) else {
                    continue;
                };
                if from == to || model.open.get(&to) == Some(&Whose::Fixed) {
                    continue;
                }
                match p.descriptors().dup2(from, to) {
                    Served::Done(got) => assert_eq!(got, Ok(to)),
                    // SAFETY: descriptors of this test.
                    Served::Kernel => assert_eq!(unsafe { libc::dup2(from, to) }, to),
                }
                let whose = match model.open[&from] {
                    Whose::Pool { .. } => Whose::Pool { cloexec: false },
                    kernels => kernels,
                };
                model.open.insert(to, whose);
            }
            _ => {
                let Some(fd) = model.any().filter(|fd| p.table().owns(*fd)) else { continue };
                let cloexec = model.rng.one_in(2);
                let flag = if cloexec { libc::FD_CLOEXEC } else { 0 };
                assert_eq!(done(p.descriptors().fcntl(fd, libc::F_SETFD, flag.into())), Ok(0));
                assert_eq!(done(p.descriptors().fcntl(fd, libc::F_GETFD, 0)), Ok(flag));
                model.open.insert(fd, Whose::Pool { cloexec });
            }
        }
    }
    let calls = world.stage.count.load(std::sync::atomic::Ordering::Relaxed) - before;
    println!("{ops} calls compared, {calls} calls of the kernel");
}
