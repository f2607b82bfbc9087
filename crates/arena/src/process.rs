//! Which processes are alive.
//!
//! A process is known by its number and its start time, because numbers come again. `/proc` is read
//! by system calls of our own: arenas are used inside programs whose libc calls are interposed.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Longest `/proc/PID/stat` that is looked at; what counts is near its start.
const STAT_BYTES: usize = 768;

/// A process: number in the upper half, low bits of the start time in the lower; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub u64);

impl ProcessId {
    /// The calling process.
    pub fn own() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let start = Stat::of(pid).map_or(0, |s| s.start);
        Self::new(pid, start)
    }

    fn new(pid: u32, start: u64) -> Self {
        Self(u64::from(pid) << 32 | start & 0xffff_ffff)
    }

    /// The process number.
    pub fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether any process with this number runs.
    pub fn is_taken(pid: u32) -> bool {
        match Stat::of(pid) {
            Ok(stat) => !stat.is_zombie(),
            Err(err) => !is_gone(err),
        }
    }

    /// Whether it still runs. A zombie does not, unless threads of it do.
    pub fn is_alive(self) -> bool {
        match Stat::of(self.pid()) {
            Ok(stat) => Self::new(self.pid(), stat.start) == self && !stat.is_zombie(),
            Err(err) => !is_gone(err),
        }
    }
}

/// What reading about a process says that is not there. In any other case (no descriptor is left, say)
/// it is better taken for alive.
fn is_gone(err: Errno) -> bool {
    matches!(err, Errno::NOENT | Errno::SRCH)
}

/// What `/proc/PID/stat` says (proc(5)).
struct Stat {
    state: u8,
    threads: u64,
    start: u64,
}

impl Stat {
    fn of(pid: u32) -> Result<Self, Errno> {
        let mut path = [0u8; 32];
        let path = proc_path(pid, &mut path);
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = [0; STAT_BYTES];
        let n = rustix::io::read(&fd, &mut bytes)?;
        Self::parse(&bytes[..n]).ok_or(Errno::IO)
    }

    /// The second field, the name in parentheses, may hold anything; so it is skipped from the end.
    fn parse(stat: &[u8]) -> Option<Self> {
        let after = stat.iter().rposition(|b| *b == b')')? + 1;
        let mut fields = stat[after..].split(|b| *b == b' ').filter(|f| !f.is_empty());
        let number = |f: &[u8]| std::str::from_utf8(f).ok()?.parse().ok();
        let state = *fields.next()?.first()?;
        // Fields 3 (state) … 20 (threads), 22 (start time).
        let threads = number(fields.nth(16)?)?;
        let start = number(fields.nth(1)?)?;
        Some(Self { state, threads, start })
    }

    /// The first thread may be gone while others run.
    fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

fn proc_path(pid: u32, buf: &mut [u8; 32]) -> &std::ffi::CStr {
    use std::io::Write as _;
    let _ = write!(&mut buf[..], "/proc/{pid}/stat\0");
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
        assert_eq!((s.state, s.threads, s.start), (b'S', 3, 4711));
        assert!(Stat::parse(b"7 (x").is_none());
        assert!(Stat::parse(b"7 (x) S 1 2").is_none());
    }

    #[test]
    fn the_living_the_dead_and_the_undead() {
        let own = ProcessId::own();
        assert!(own.is_alive());
        assert!(!ProcessId(own.0 ^ 1).is_alive(), "another start time is another process");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::new(child.id(), Stat::of(child.id()).unwrap().start);
        assert!(id.is_alive());
        child.kill().unwrap();
        while id.is_alive() {
            std::thread::yield_now();
        }
        assert!(Stat::of(child.id()).is_ok_and(|s| s.is_zombie()), "not waited for yet");
        child.wait().unwrap();
        assert!(!id.is_alive() && !ProcessId::is_taken(id.pid()));
    }

    /// A process whose first thread has ended, and another one has not.
    #[test]
    fn a_process_lives_as_long_as_its_last_thread() {
        // SAFETY: the child, which has one thread of this test's, calls functions that are safe after
        // a fork in it; the pipe ends are its own.
        let (child, mut end) = unsafe {
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            match libc::fork() {
                0 => {
                    libc::close(pipe[1]);
                    std::thread::spawn(move || {
                        // Until the test lets go of the other end.
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
        let id = ProcessId::new(child, Stat::of(child).unwrap().start);
        while Stat::of(child).unwrap().state != b'Z' {
            std::thread::yield_now();
        }
        assert!(id.is_alive() && ProcessId::is_taken(child), "one thread is left");
        drop(end.take());
        while id.is_alive() {
            std::thread::yield_now();
        }
        assert!(!ProcessId::is_taken(child));
        // SAFETY: a child of this test.
        unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) };
    }
}
