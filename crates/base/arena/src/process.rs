//! Identities of processes, and whether these are alive.
//!
//! The kernel reuses numbers, so a process is identified by its number and the time at which it
//! first asked for its own identity ([`ProcessId::own`]). A process that has the number now, and
//! started before that time, is that process. One that got the number after its death started
//! later.
//!
//! - process-L1: a process makes its identity without opening a file: it needs a clock and its
//!   number only. So that also works in the child of a fork whose table of descriptors is full.
//! - process-L2: a process that has no free descriptor learns of another one as much as is possible
//!   without. It finds that one dead if it has been waited for, or is a zombie.
//! - process-L3: if the kernel does not reveal whether a process is alive, the result is
//!   [`Life::Unknown`]. No process takes anything from such a process, and a process that waits for
//!   it lets others go first.
//! - process-L4: a program that `exec` has replaced is dead, though its process is not. The process
//!   finds that out, as it makes a new identity after the `exec`. An identity with its number that
//!   differs from its own is that of the replaced program, or of an earlier process.
//!
//! `/proc` is read by direct system calls: arenas are used inside programs whose libc calls are
//! interposed.

#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, getppid, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Bytes of `/proc/PID/stat` that are read; the fields needed are near its start.
const STAT_BYTES: usize = 768;
/// Bits of a process number (`PID_MAX_LIMIT` of the kernel).
const PID_BITS: u32 = 22;
const TIME_BITS: u32 = u64::BITS - PID_BITS;
/// Units of time per second: finer than the kernel's start times, as programs may replace each
/// other faster (process-L4).
pub(crate) const UNITS_PER_SECOND: u64 = 10_000;
/// Units in a tick of the kernel's start times (`USER_HZ`).
const UNITS_PER_TICK: u64 = UNITS_PER_SECOND / 100;

/// Whether a process is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It has ended, whether or not its parent has waited for it.
    Dead,
    /// The kernel does not reveal it (process-L3).
    Unknown,
}

/// The identity of a process: its number in the upper bits, below them the time at which the
/// identity was made, in units since the start of the machine. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub u64);

/// The identity of this process; 0: not made yet.
static OWN: AtomicU64 = AtomicU64::new(0);
/// Whether this process is in another PID namespace than the ancestor that made the first identity.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Resets the identity in the child of a fork: it is another process, and perhaps in another PID
/// namespace.
pub(crate) fn after_fork_child() {
    OWN.store(0, Relaxed);
    if getppid().is_none() {
        FOREIGN.store(true, Relaxed);
    }
}

impl ProcessId {
    /// Returns the calling process (process-L1).
    pub fn own() -> Self {
        crate::session::count_forks();
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        loop {
            let known = Self(OWN.load(Acquire));
            // A child that was not made by fork has its parent's copy.
            if known.pid() == pid {
                return known;
            }
            let new = Self::new(pid, now());
            if OWN.compare_exchange(known.0, new.0, AcqRel, Relaxed).is_ok() {
                return new;
            }
        }
    }

    fn new(pid: u32, time: u64) -> Self {
        Self(u64::from(pid) << TIME_BITS | time & ((1 << TIME_BITS) - 1))
    }

    /// The process number.
    pub fn pid(self) -> u32 {
        (self.0 >> TIME_BITS) as u32
    }

    fn time(self) -> u64 {
        self.0 & ((1 << TIME_BITS) - 1)
    }

    /// Whether the process still runs. A zombie counts as dead, unless threads of it run.
    pub fn life(self) -> Life {
        if self.is_former() { Life::Dead } else { life(self.pid(), Some(self.time())) }
    }

    /// Whether the calling process has the same number, but another identity (process-L4).
    fn is_former(self) -> bool {
        let own = Self::own();
        !FOREIGN.load(Relaxed) && self.pid() == own.pid() && self != own
    }

    /// Whether the process certainly no longer runs.
    pub fn is_dead(self) -> bool {
        self.life() == Life::Dead
    }

    /// Whether no process has its number any more, not even a zombie. Unlike
    /// [`is_dead`](Self::is_dead), this misses a dead process that has not been waited for, or
    /// whose number was reused. One system call.
    pub fn is_gone(self) -> bool {
        self.is_former() || is_gone(self.pid())
    }

    /// Whether certainly no process with this number runs.
    pub fn is_free(pid: u32) -> bool {
        life(pid, None) == Life::Dead
    }
}

/// Returns the time in units since the start of the machine.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * UNITS_PER_SECOND + time.tv_nsec as u64 / (1_000_000_000 / UNITS_PER_SECOND)
}

/// Returns the state of the process that had this number at `time`, or without `time`, of any
/// process that has it now.
fn life(pid: u32, time: Option<u64>) -> Life {
    if is_gone(pid) {
        return Life::Dead;
    }
    match Stat::of(pid) {
        Ok(stat) if stat.is_zombie() || time.is_some_and(|time| stat.start > time) => Life::Dead,
        Ok(_) => Life::Alive,
        // It has just ended; or it is hidden from us (`hidepid`), or `/proc` is missing.
        Err(Errno::NOENT | Errno::SRCH) if is_gone(pid) => Life::Dead,
        Err(Errno::NOENT | Errno::SRCH) => Life::Unknown,
        Err(_) if has_ended(pid) => Life::Dead,
        Err(_) => Life::Unknown,
    }
}

/// Whether no process has this number, not even a zombie.
fn is_gone(pid: u32) -> bool {
    let Some(number) = Pid::from_raw(pid as i32) else { return true };
    !FOREIGN.load(Relaxed) && test_kill_process(number) == Err(Errno::SRCH)
}

/// Whether an existing process is a zombie: it has one thread and no memory. Uses calls that need
/// no descriptor (process-L2).
fn has_ended(pid: u32) -> bool {
    /// Links of the directory of threads that are not for a thread.
    const LINKS: u64 = 2;
    let mut path = [0; 32];
    let threads = rustix::fs::stat(proc_path(pid, "task", &mut path)).map(|task| task.st_nlink);
    let mut program = [MaybeUninit::uninit(); 1];
    let program =
        rustix::fs::readlinkat_raw(rustix::fs::CWD, proc_path(pid, "exe", &mut path), &mut program);
    threads == Ok(LINKS + 1) && program.err() == Some(Errno::NOENT)
}

/// Fields of `/proc/PID/stat` (proc(5)).
struct Stat {
    state: u8,
    threads: u64,
    /// The start time in units, a whole number of ticks.
    start: u64,
}

impl Stat {
    /// Reads `/proc/PID/stat` by system calls, without allocation.
    fn of(pid: u32) -> Result<Self, Errno> {
        let mut path = [0u8; 32];
        let path = proc_path(pid, "stat", &mut path);
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = [0; STAT_BYTES];
        let n = rustix::io::read(&fd, &mut bytes)?;
        Self::parse(&bytes[..n]).ok_or(Errno::IO)
    }

    /// Parses the line. The second field, the name in parentheses, may contain anything, so the
    /// other fields begin after the last parenthesis.
    fn parse(stat: &[u8]) -> Option<Self> {
        let after = stat.iter().rposition(|b| *b == b')')? + 1;
        let mut fields = stat[after..].split(|b| *b == b' ').filter(|f| !f.is_empty());
        let number = |f: &[u8]| std::str::from_utf8(f).ok()?.parse::<u64>().ok();
        let state = *fields.next()?.first()?;
        // Fields 3 (state) … 20 (threads), 22 (start time).
        let threads = number(fields.nth(16)?)?;
        let start = number(fields.nth(1)?)?.checked_mul(UNITS_PER_TICK)?;
        Some(Self { state, threads, start })
    }

    /// Whether the process is a zombie. The first thread may have ended while others run.
    fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// Writes the path `/proc/PID/NAME` into `buf`, and returns it.
fn proc_path<'a>(pid: u32, name: &str, buf: &'a mut [u8; 32]) -> &'a std::ffi::CStr {
    use std::io::Write as _;
    let _ = write!(&mut buf[..], "/proc/{pid}/{name}\0");
    std::ffi::CStr::from_bytes_until_nul(buf).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd as _;

    #[test]
    fn a_hostile_name_does_not_confuse_the_parser() {
        let line = b"7 (a) Z 1) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 4711 1000 1\n";
        let s = Stat::parse(line).unwrap();
        assert_eq!((s.state, s.threads, s.start), (b'S', 3, 4711 * UNITS_PER_TICK));
        assert!(Stat::parse(b"7 (x").is_none());
        assert!(Stat::parse(b"7 (x) S 1 2").is_none());
    }

    /// Returns the state of a process, and whether it is found dead without a descriptor.
    fn both(id: ProcessId) -> (Life, bool) {
        (id.life(), is_gone(id.pid()) || has_ended(id.pid()))
    }

    #[test]
    fn the_living_the_dead_and_the_undead() {
        let own = ProcessId::own();
        assert_eq!(own, ProcessId::own());
        assert_eq!(both(own), (Life::Alive, false));
        let before = ProcessId::new(own.pid(), Stat::of(own.pid()).unwrap().start - 1);
        assert!(before.is_dead(), "who had this number before is another process");
        let replaced = ProcessId::new(own.pid(), Stat::of(own.pid()).unwrap().start);
        assert!(replaced == own || replaced.is_dead() && replaced.is_gone(), "L4");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::new(child.id(), now());
        assert_eq!(both(id), (Life::Alive, false));
        child.kill().unwrap();
        while !id.is_dead() {
            std::thread::yield_now();
        }
        assert!(Stat::of(child.id()).is_ok_and(|s| s.is_zombie()), "not waited for yet");
        assert_eq!(both(id), (Life::Dead, true));
        child.wait().unwrap();
        assert_eq!(both(id), (Life::Dead, true));
        assert!(ProcessId::is_free(id.pid()));
    }

    /// Checks process-L1–L3 in a process that cannot open any file.
    #[test]
    fn no_descriptor_is_needed() {
        let parent = ProcessId::own();
        // SAFETY: the children have one thread, and end without running code of the test.
        unsafe {
            let zombie = libc::fork();
            if zombie == 0 {
                libc::_exit(0);
            }
            let zombie = ProcessId::new(zombie as u32, now());
            while !zombie.is_dead() {
                std::thread::yield_now();
            }
            let child = libc::fork();
            if child == 0 {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none);
                let own = ProcessId::own();
                let is_right = Stat::of(own.pid()).err() == Some(Errno::MFILE)
                    && own.pid() == libc::getpid() as u32
                    && own == ProcessId::own()
                    && own.life() == Life::Unknown
                    && parent.life() == Life::Unknown
                    && ProcessId::new(zombie.pid(), now()).is_dead();
                libc::_exit(i32::from(!is_right));
            }
            let id = ProcessId::new(child as u32, now());
            assert_ne!(id.life(), Life::Unknown);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            libc::waitpid(zombie.pid() as i32, std::ptr::null_mut(), 0);
        }
    }

    /// Checks a process whose first thread has ended while another one runs.
    #[test]
    fn a_process_lives_as_long_as_its_last_thread() {
        // SAFETY: the child, which has one thread of this test's, calls functions that are safe
        // after a fork in it; the pipe ends are its own.
        let (child, mut end) = unsafe {
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            match libc::fork() {
                0 => {
                    libc::close(pipe[1]);
                    std::thread::spawn(move || {
                        // Returns when the test closes the other end.
                        let mut byte = 0u8;
                        libc::read(pipe[0], (&raw mut byte).cast(), 1);
                        libc::_exit(0);
                    });
                    libc::syscall(libc::SYS_exit, 0);
                    unreachable!("the first thread has ended");
                }
                child => {
                    libc::close(pipe[0]);
                    (child as u32, Some(std::fs::File::from_raw_fd(pipe[1])))
                }
            }
        };
        let id = ProcessId::new(child, now());
        while Stat::of(child).unwrap().state != b'Z' {
            std::thread::yield_now();
        }
        assert_eq!(both(id), (Life::Alive, false), "one thread is left");
        drop(end.take());
        while !id.is_dead() {
            std::thread::yield_now();
        }
        assert!(both(id).1 && ProcessId::is_free(child));
        // SAFETY: a child of this test.
        unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) };
    }
}
