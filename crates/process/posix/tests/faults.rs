//! Failing calls of the kernel, in each operation of a program on descriptors.
//!
//! A scenario runs again and again. In each run another call of the kernel fails: the first, the
//! second, and so on, until a run ends before its fault. Whatever fails, the call returns that
//! error or succeeds, and everything from before stays: contents, offsets, flags and locks. Every
//! descriptor is what the table records. In the end no descriptors, inodes and mappings are left.

#![allow(unsafe_code)]

#[path = "it/common/mod.rs"]
mod common;
#[path = "faults/scenarios.rs"]
mod scenarios;

use common::{KernelFault, TestEngine, TestWorld, done, libc_result};
use posix::{Errno, Served};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scenarios::SCENARIOS;
use std::collections::BTreeMap;
use vfs::Ino;

const RW: i32 = libc::O_RDWR | libc::O_CREAT;
/// Limit of this process's descriptors.
const LIMIT: i32 = 96;
/// Descriptors from this one on are the library's own.
const OWN: i32 = LIMIT / 2;

/// Expected state of an open file description.
#[derive(Clone, Debug)]
struct Description {
    name: &'static str,
    ino: u64,
    offset: i64,
}

/// A descriptor of the program.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    /// Index of its description.
    of: usize,
    cloexec: bool,
    /// Whether it is the kernel's alone.
    is_left_to_kernel: bool,
}

/// A program, with its expected state.
struct TestedProgram {
    world: TestWorld,
    setting: Setting,
    descriptions: Vec<Description>,
    numbers: BTreeMap<i32, Number>,
    /// Descriptors of other files.
    foreign: Vec<i32>,
    /// Descriptors that were open before the scenario.
    before: BTreeMap<i32, String>,
    /// The inode with a POSIX lock.
    locked: Option<u64>,
    /// Whether the program has asked for a lock.
    asked_for_lock: bool,
    /// Inodes that are mapped.
    mapped: Vec<u64>,
}

/// Circumstances of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    Plain,
    /// The process has a POSIX lock on the file.
    Locked,
    /// The process has another thread.
    Threads,
    ThreadsAndLocked,
    /// No descriptor is free.
    Full,
    /// No descriptor is free, and the process has a lock.
    FullAndLocked,
    /// The limit was lowered below descriptors of the program.
    BelowLimit,
}

const SETTINGS: [Setting; 7] = [
    Setting::Plain,
    Setting::Locked,
    Setting::Threads,
    Setting::ThreadsAndLocked,
    Setting::Full,
    Setting::FullAndLocked,
    Setting::BelowLimit,
];

impl Setting {
    fn locks(self) -> bool {
        matches!(self, Self::Locked | Self::ThreadsAndLocked | Self::FullAndLocked)
    }

    fn threads(self) -> bool {
        matches!(self, Self::Threads | Self::ThreadsAndLocked)
    }

    fn fills(self) -> bool {
        matches!(self, Self::Full | Self::FullAndLocked)
    }
}

/// The result of a call that failed, or was left to the kernel.
type ScenarioOutcome = Result<(), Errno>;

type FaultScenario = fn(&mut TestedProgram) -> ScenarioOutcome;

/// Returns close-on-exec of a descriptor, if the kernel has it.
fn flag_of(fd: i32) -> Option<bool> {
    // SAFETY: asks for a flag.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags >= 0).then_some(flags & libc::FD_CLOEXEC != 0)
}

fn kernel_offset(fd: i32) -> i64 {
    // SAFETY: does not move the offset.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }
}

fn set_limit(to: u64) {
    let had = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: Some(to), maximum: had.maximum.map(|most| most.max(to)) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// The open descriptors of this process, and the files that they refer to.
fn descriptors() -> BTreeMap<i32, String> {
    // The listing itself needs one more descriptor.
    let limit = getrlimit(Resource::Nofile).current.unwrap();
    set_limit(4096);
    let list = std::fs::read_dir("/proc/self/fd").unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let fd = entry.unwrap().file_name().into_string().unwrap();
        fd.parse::<i32>().unwrap()
    };
    let numbers: Vec<i32> = list.map(name).collect();
    set_limit(limit);
    let link = |fd: i32| {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        Some((fd, path.to_string_lossy().into_owned()))
    };
    numbers.into_iter().filter_map(link).collect()
}

impl TestedProgram {
    fn new(engine: TestEngine, setting: Setting) -> Self {
        let before = descriptors();
        let world = TestWorld::new(engine);
        let mut program = Self {
            world,
            setting,
            descriptions: Vec::new(),
            numbers: BTreeMap::new(),
            foreign: Vec::new(),
            before,
            locked: None,
            asked_for_lock: false,
            mapped: Vec::new(),
        };
        set_limit(LIMIT as u64);
        program.world.process.limits_changed();
        // SAFETY: makes a descriptor.
        program.foreign.push(unsafe { libc::dup(2) });
        let p = &program.world.process;
        for name in ["a", "gone", "other"] {
            let fd = program.world.open(name, RW);
            done(p.contents().write(fd, format!("content of {name}").as_bytes())).unwrap();
            done(p.descriptors().close(fd)).unwrap();
        }
        // 0: a file with two descriptors; 1: a file without a name; 2: the file of 0 again; 3: a
        // directory.
        program.open("a", libc::O_RDWR).unwrap();
        program.dup(program.number(0), libc::F_DUPFD_CLOEXEC, 0).unwrap();
        program.open("gone", libc::O_RDWR).unwrap();
        program.open("a", libc::O_RDWR).unwrap();
        program.open("", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let p = &program.world.process;
        done(p.names().unlink(libc::AT_FDCWD, &program.world.path("gone"), 0)).unwrap();
        for (of, offset) in [(0, 3), (1, 5), (2, 7)] {
            done(p.contents().lseek(program.number(of), offset, libc::SEEK_SET)).unwrap();
            program.descriptions[of].offset = offset;
        }
        // Two descriptors are parked.
        let parked = [(); 2].map(|()| program.world.open("other", libc::O_RDONLY));
        parked.iter().for_each(|fd| done(p.descriptors().close(*fd)).unwrap());
        if setting.locks() {
            // A promoted description of its own.
            program.open("a", libc::O_RDWR).unwrap();
            program.lock(program.descriptions.len() - 1).unwrap();
        }
        if setting.fills() {
            program.world.process.fd_allocator().unpark();
            loop {
                // SAFETY: makes a descriptor.
                match unsafe { libc::dup(2) } {
                    -1 => break,
                    fd => program.foreign.push(fd),
                }
            }
        }
        if setting == Setting::BelowLimit {
            program.world.process.fd_allocator().unpark();
            // Sandboxes lower the limit like this.
            set_limit(program.number(0) as u64);
            program.world.process.limits_changed();
        }
        program
    }

    /// The lowest descriptor of a description.
    fn number(&self, of: usize) -> i32 {
        *self.numbers.iter().find(|(_, number)| number.of == of).expect("has a number").0
    }

    fn own_number(&self) -> i32 {
        let own = |fd: &i32| self.world.process.table().owns(*fd) && !self.numbers.contains_key(fd);
        (OWN..LIMIT).find(own).expect("the placeholder")
    }

    fn add(&mut self, fd: i32, of: usize, cloexec: bool) {
        self.numbers.insert(fd, Number { of, cloexec, is_left_to_kernel: false });
    }

    fn open(&mut self, name: &'static str, flags: i32) -> ScenarioOutcome {
        let path = self.world.path(name);
        let fd = done(self.world.process.contents().open(libc::AT_FDCWD, &path, flags, 0o644))?;
        let ino = done(self.world.process.names().fstat(fd)).unwrap().st_ino;
        self.descriptions.push(Description { name, ino, offset: 0 });
        self.add(fd, self.descriptions.len() - 1, flags & libc::O_CLOEXEC != 0);
        if flags & (libc::O_TRUNC | libc::O_EXCL) != 0 {
            done(self.world.process.contents().pwrite(
                fd,
                format!("content of {name}").as_bytes(),
                0,
            ))
            .unwrap();
        }
        Ok(())
    }

    fn dup(&mut self, fd: i32, cmd: i32, min: i64) -> ScenarioOutcome {
        let new = done(self.world.process.descriptors().fcntl(fd, cmd, min))?;
        let of = self.numbers[&fd].of;
        self.add(new, of, cmd == libc::F_DUPFD_CLOEXEC);
        Ok(())
    }

    /// Notes that a descriptor is closed, which ends locks on its file.
    fn closed(&mut self, fd: i32) {
        if let Some(number) = self.numbers.remove(&fd)
            && Some(self.descriptions[number.of].ino) == self.locked
        {
            self.locked = None;
        }
    }

    fn dup_to(&mut self, fd: i32, to: i32, cloexec: bool) -> ScenarioOutcome {
        let limit = getrlimit(Resource::Nofile).current.unwrap();
        let saved = (to == 0).then(|| {
            set_limit(1024);
            // SAFETY: keeps standard input at a high number.
            let saved = unsafe { libc::fcntl(0, libc::F_DUPFD, 512) };
            set_limit(limit);
            saved
        });
        let p = &self.world.process;
        let made = if cloexec {
            p.descriptors().dup3(fd, to, libc::O_CLOEXEC)
        } else {
            p.descriptors().dup2(fd, to)
        };
        if let Ok(new) = done(made) {
            assert_eq!(new, to);
        }
        if let Some(saved) = saved {
            // SAFETY: restores standard input, which closes a file that may have come there.
            unsafe {
                if self.world.process.table().owns(0) {
                    done(self.world.process.descriptors().close(0)).ok();
                }
                libc::dup2(saved, 0);
                libc::close(saved);
            }
            if made == Served::Done(Ok(to))
                && self.locked == Some(self.descriptions[self.numbers[&fd].of].ino)
            {
                self.locked = None;
            }
            return done(made).map(drop);
        }
        done(made)?;
        self.foreign.retain(|fd| *fd != to);
        self.closed(to);
        self.add(to, self.numbers[&fd].of, cloexec);
        Ok(())
    }

    fn dup_foreign(&mut self, to: i32) -> ScenarioOutcome {
        let from = self.foreign[0];
        assert_eq!(done(self.world.process.descriptors().dup2(from, to))?, to);
        self.closed(to);
        self.foreign.push(to);
        Ok(())
    }

    fn close(&mut self, fd: i32) -> ScenarioOutcome {
        let closed = if self.numbers[&fd].is_left_to_kernel {
            // SAFETY: a descriptor of this test.
            libc_result(unsafe { libc::close(fd) }.into()).map(drop)
        } else {
            done(self.world.process.descriptors().close(fd))
        };
        // As in the kernel, the descriptor is closed whatever the call returns.
        self.closed(fd);
        closed
    }

    fn close_all(&mut self) -> ScenarioOutcome {
        let numbers: Vec<i32> = self.numbers.keys().copied().collect();
        numbers.into_iter().map(|fd| self.close(fd)).fold(Ok(()), ScenarioOutcome::and)
    }

    fn promote(&mut self, of: usize) -> ScenarioOutcome {
        let numbers: Vec<i32> =
            self.numbers.iter().filter(|n| n.1.of == of).map(|n| *n.0).collect();
        self.world.process.promotions().promote(numbers[0])?;
        for fd in numbers {
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
            assert!(link.starts_with(self.world.dir.path()), "{fd}: {link:?}");
            if self.descriptions[of].name.is_empty() {
                continue;
            }
            assert_ne!(link, self.world.dir.path(), "{fd} is a placeholder");
            assert_eq!(
                kernel_offset(fd),
                self.descriptions[of].offset,
                "{fd} {:?}",
                self.descriptions[of]
            );
        }
        Ok(())
    }

    fn leave_to_kernel(&mut self, fd: i32) -> ScenarioOutcome {
        self.world.process.promotions().leave_to_kernel(fd)?;
        self.numbers.get_mut(&fd).unwrap().is_left_to_kernel = true;
        Ok(())
    }

    fn lock(&mut self, of: usize) -> ScenarioOutcome {
        // SAFETY: a flock is plain numbers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
        self.asked_for_lock = true;
        done(self.world.process.contents().fcntl_lock(self.number(of), libc::F_SETLK, &mut lock))?;
        self.locked = Some(self.descriptions[of].ino);
        Ok(())
    }

    fn read(&mut self, of: usize) -> ScenarioOutcome {
        let mut buf = [0; 64];
        let got = done(self.world.process.contents().read(self.number(of), &mut buf[..4]))?;
        let description = &mut self.descriptions[of];
        let content = format!("content of {}", description.name);
        let from = content.len().min(description.offset as usize);
        let expected = &content.as_bytes()[from..content.len().min(from + 4)];
        assert_eq!(buf[..got].escape_ascii().to_string(), expected.escape_ascii().to_string());
        description.offset += got as i64;
        Ok(())
    }

    fn map(&mut self, of: usize) -> ScenarioOutcome {
        let (fd, p) = (self.number(of), &self.world.process);
        match p.contents().mmap(0, 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0) {
            Served::Done(result) => {
                return Err(result.expect_err("shared mappings are the kernel's"));
            }
            Served::Kernel => self.mapped.push(self.descriptions[of].ino),
        }
        Ok(())
    }

    fn exec(&mut self) -> ScenarioOutcome {
        self.world.process.before_exec()?;
        self.world.process.before_image_ends();
        for (fd, number) in &self.numbers {
            let regular = !self.descriptions[number.of].name.is_empty();
            if regular && !number.cloexec {
                let offset = self.descriptions[number.of].offset;
                assert_eq!(kernel_offset(*fd), offset, "{fd} is inherited");
            }
        }
        Ok(())
    }

    fn close_range(&mut self, flags: u32) -> ScenarioOutcome {
        let (first, last) = (self.number(0), *self.numbers.keys().next_back().unwrap());
        let closed = self.world.process.descriptors().close_range(first as u32, last as u32, flags);
        let marks = flags & libc::CLOSE_RANGE_CLOEXEC != 0;
        let all: Vec<i32> = self.numbers.range(first..=last).map(|n| *n.0).collect();
        for fd in all {
            // A failed call may have changed some descriptors.
            if marks {
                let number = self.numbers.get_mut(&fd).unwrap();
                number.cloexec = number.cloexec || flag_of(fd) == Some(true);
                assert!(number.cloexec || done(closed).is_err());
            } else if !matches!(self.world.process.names().fstat(fd), Served::Done(Ok(_))) {
                self.closed(fd);
            } else {
                assert!(done(closed).is_err());
            }
        }
        self.foreign.retain(|fd| flag_of(*fd).is_some());
        done(closed)
    }

    /// Forks like a front end. The child reports a fault to the parent.
    fn fork(&mut self, child: impl FnOnce(&mut Self) -> ScenarioOutcome) -> ScenarioOutcome {
        const FINE: i32 = 0;
        const HIT: i32 = 3;
        self.world.process.before_fork();
        // SAFETY: the child makes calls of this crate and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            self.world.process.after_fork_child();
            self.locked = None;
            let played = std::panic::AssertUnwindSafe(|| {
                let outcome = child(self);
                let fault = self.world.stage.fault.lock().unwrap().take().filter(|f| f.hit);
                self.check_outcome(outcome, fault.map(|fault| fault.errno));
                self.check();
                fault.is_some()
            });
            let code = match std::panic::catch_unwind(played) {
                Ok(hit) => {
                    if hit {
                        HIT
                    } else {
                        FINE
                    }
                }
                Err(_) => 1,
            };
            self.world.process.detach();
            // SAFETY: ends at once, without the parent's test harness.
            unsafe { libc::_exit(code) }
        }
        assert!(pid > 0);
        self.world.process.after_fork_parent(pid);
        let mut status = 0;
        // SAFETY: a child of this test, room for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "the child died");
        match libc::WEXITSTATUS(status) {
            FINE => {}
            HIT => {
                let mut fault = self.world.stage.fault.lock().unwrap();
                fault.iter_mut().for_each(|fault| fault.hit = true);
            }
            _ => panic!("the child failed"),
        }
        // The family shares offsets.
        for of in 0..self.descriptions.len() {
            if self.descriptions[of].name.is_empty() {
                continue;
            }
            let seek = self.world.process.contents().lseek(self.number(of), 0, libc::SEEK_CUR);
            self.descriptions[of].offset = match seek {
                Served::Done(Ok(offset)) => offset,
                // If the fault hit this call, the kernel still has the offset.
                Served::Done(Err(_)) | Served::Kernel => kernel_offset(self.number(of)),
            };
        }
        Ok(())
    }

    fn beyond_the_table(&mut self) -> ScenarioOutcome {
        const BEYOND: i32 = 66_000;
        let fd = self.number(0);
        match self.world.process.descriptors().dup2(fd, BEYOND) {
            Served::Done(result) => Err(result.expect_err("such a number is the kernel's")),
            Served::Kernel => {
                assert_eq!(kernel_offset(fd), self.descriptions[0].offset);
                Ok(())
            }
        }
    }

    /// Checks that a call returns the error of its fault, and no other error except a lack of
    /// descriptors.
    fn check_outcome(&self, outcome: ScenarioOutcome, met: Option<Errno>) {
        let Err(errno) = outcome else { return };
        let full = self.setting.fills() || self.setting == Setting::BelowLimit;
        let lacks_numbers = full && matches!(errno, Errno::MFILE | Errno::INVAL | Errno::BADF);
        assert!(Some(errno) == met || lacks_numbers, "{errno:?}, but met {met:?}");
    }

    /// Checks that every descriptor is as expected, and that no others are open.
    fn check(&mut self) {
        let p = &self.world.process;
        let (root, open) = (self.world.dir.path().to_str().unwrap().to_owned(), descriptors());
        for (fd, link) in &open {
            if self.before.contains_key(fd) {
                continue;
            }
            if self.numbers.contains_key(fd) || self.foreign.contains(fd) {
                continue;
            }
            let kept = self.asked_for_lock
                && self.numbers.values().any(|number| {
                    link.starts_with(&format!("{root}/{}-", self.descriptions[number.of].ino))
                });
            let is_own = *fd >= OWN && (*link == root || link == "/dev/shm") || kept;
            // Any other descriptor must be parked.
            assert!(p.table().owns(*fd) && (is_own || *link == root), "{fd} is open: {link}");
            assert_eq!(
                done(p.names().fstat(*fd)).map(|st| st.st_ino),
                Err(Errno::BADF),
                "{fd}: {link}"
            );
        }
        for (fd, number) in &self.numbers {
            let description = &self.descriptions[number.of];
            assert_eq!(flag_of(*fd), Some(number.cloexec), "{fd} {number:?}");
            if number.is_left_to_kernel {
                continue;
            }
            assert_eq!(
                done(p.names().fstat(*fd)).unwrap().st_ino,
                description.ino,
                "{fd} {number:?}"
            );
            let link = &open[fd];
            let own = *link == root || link.starts_with(&format!("{root}/{}-", description.ino));
            assert!(
                own || description.name.is_empty(),
                "{fd} leads to {link}, not {description:?}"
            );
        }
        if let Some(ino) = self.locked {
            assert!(self.is_locked(ino), "the lock was lost");
        }
        for of in 0..self.descriptions.len() {
            let mapped = self.mapped.contains(&self.descriptions[of].ino);
            let number = self.numbers.values().find(|number| number.of == of);
            let served = number.is_some_and(|number| !number.is_left_to_kernel);
            if served && !self.descriptions[of].name.is_empty() && !mapped {
                self.read(of).unwrap();
            }
        }
    }

    /// Whether another process sees a POSIX lock on an inode.
    fn is_locked(&self, ino: u64) -> bool {
        let generation = self.world.fs.getattr(Ino(ino)).unwrap().generation;
        let file = self.world.dir.path().join(format!("{ino}-{generation}"));
        let path = crate::common::cstring(file.as_os_str().as_encoded_bytes());
        crate::common::another_sees_lock(|| {
            // SAFETY: the child frees a descriptor, whatever the limit is; `path` is a C string.
            unsafe { libc::close(0) };
            set_limit(4096);
            // SAFETY: as above.
            unsafe { libc::open(path.as_ptr(), libc::O_RDWR) }
        })
    }

    /// Uses and closes every descriptor, and checks that none is left.
    fn finish(mut self) {
        self.check();
        // Raises the limit again.
        set_limit(LIMIT as u64);
        self.world.process.limits_changed();
        // SAFETY: descriptors of this test.
        self.foreign.drain(..).for_each(|fd| unsafe {
            libc::close(fd);
            self.world.process.fd_allocator().fd_freed(fd);
        });
        self.check();
        for of in 0..self.descriptions.len() {
            let number = self.numbers.values().find(|number| number.of == of);
            if number.is_some_and(|number| !number.is_left_to_kernel) {
                self.promote(of).unwrap();
            }
        }
        self.check();
        let inodes: Vec<u64> = self.descriptions.iter().map(|of| of.ino).collect();
        let was_locked = self.locked;
        self.close_all().unwrap();
        if let Some(ino) = was_locked {
            assert!(!self.is_locked(ino), "closing any descriptor of a file drops its locks");
        }
        self.check();
        // Parked descriptors are taken again.
        for _ in 0..8 {
            self.open("other", libc::O_RDONLY).unwrap();
        }
        self.read(self.descriptions.len() - 1).unwrap();
        for fd in self.numbers.keys().filter(|fd| **fd > 2) {
            // SAFETY: asks for flags.
            let flags = unsafe { libc::fcntl(*fd, libc::F_GETFL) };
            assert_ne!(flags & libc::O_PATH, 0, "{fd} is a placeholder");
        }
        self.close_all().unwrap();
        let p = &self.world.process;
        p.before_exec().unwrap();
        p.working_dir().left_pool();
        p.before_image_ends();
        for ino in &inodes {
            assert!(!self.world.fs.is_mapped(Ino(*ino)), "{ino} is mapped");
        }
        self.world.remove_all();
        assert!(self.world.live_inodes().is_empty(), "somebody still holds them");
        let TestWorld { process, dir, .. } = self.world;
        drop(process);
        drop(dir);
        assert_eq!(descriptors(), self.before);
    }
}

/// Runs a scenario with one fault. Returns whether the fault was reached.
fn play(engine: TestEngine, setting: Setting, scenario: FaultScenario, fault: KernelFault) -> bool {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let thread = setting.threads().then(|| std::thread::spawn(move || told.recv()));
    let mut program = TestedProgram::new(engine, setting);
    *program.world.stage.fault.lock().unwrap() = Some(fault);
    let outcome = scenario(&mut program);
    let fault = program.world.stage.fault.lock().unwrap().take().unwrap();
    program.check_outcome(outcome, fault.hit.then_some(fault.errno));
    drop(tell);
    if let Some(thread) = thread {
        let _ = thread.join();
    }
    program.finish();
    set_limit(1024);
    fault.hit
}

/// Fails a call while the pool is attached. If attaching fails, the mount serves.
fn attach(engine: TestEngine, fault: KernelFault) -> bool {
    let before = descriptors();
    let world = TestWorld::new(engine);
    let p = &world.process;
    *world.stage.fault.lock().unwrap() = Some(fault);
    let opened = p.contents().open(libc::AT_FDCWD, &world.path("a"), RW, 0o644);
    let fault = world.stage.fault.lock().unwrap().take().unwrap();
    match opened {
        Served::Done(Ok(fd)) => done(p.descriptors().close(fd)).unwrap(),
        Served::Done(Err(errno)) => assert_eq!((fault.hit, errno), (true, fault.errno)),
        Served::Kernel => {
            assert!(fault.hit);
            for fd in descriptors().keys().filter(|fd| !before.contains_key(fd)) {
                assert!(p.table().owns(*fd), "{fd} is nobody's");
            }
        }
    }
    drop(world);
    assert_eq!(descriptors(), before);
    fault.hit
}

/// Runs `play` with each fault until one is not reached. Returns the number of runs, and the fault
/// of a failed run.
fn play_all(seed: usize, play: impl Fn(KernelFault) -> bool) -> (u64, Option<KernelFault>) {
    let errnos = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::IO];
    let mut played = 0;
    for stays in [false, true] {
        for after in 0.. {
            let errno = errnos[(after as usize + seed) % errnos.len()];
            let fault = KernelFault { after, errno, stays, hit: false };
            played += 1;
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(fault))) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return (played, Some(fault)),
            }
        }
    }
    (played, None)
}

/// Runs `play` in a process of its own, which may have threads. Returns whether it succeeded.
fn in_child(name: &str, play: impl FnOnce() -> (u64, Option<KernelFault>)) -> bool {
    // SAFETY: the child plays and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let (played, failed) = play();
        println!("{name}: {played} played");
        if let Some(fault) = failed {
            println!("FAILED {name}: {fault:?}");
        }
        // SAFETY: ends at once.
        unsafe { libc::_exit(failed.is_some().into()) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: a child of this test, room for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status == 0
}

/// Runs all scenarios on an engine.
fn play_on(engine: TestEngine) {
    let mut failed = Vec::new();
    let mut run = |name: String, seed, play: &dyn Fn(KernelFault) -> bool| {
        if !in_child(&name, || play_all(seed, play)) {
            failed.push(name);
        }
    };
    run("attaching".into(), 0, &|fault| attach(engine, fault));
    for (name, scenario) in SCENARIOS {
        for setting in SETTINGS {
            let name = format!("{name}, {setting:?}");
            run(name, setting as usize, &|fault| play(engine, setting, *scenario, fault));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Answers cargo or nextest like a test harness. The usual harness has threads, and a process of
/// one thread opens files in another way.
fn main() {
    let tests = [("bpfs", TestEngine::Bpfs), ("scmfs", TestEngine::Scmfs)];
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--list") {
        let listed = if has("--ignored") { &[][..] } else { &tests[..] };
        listed.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let named =
        |name: &str| args.iter().all(|arg| arg.starts_with('-') || name.contains(arg.as_str()));
    for (_, engine) in tests.into_iter().filter(|(name, _)| named(name)) {
        play_on(engine);
    }
}
