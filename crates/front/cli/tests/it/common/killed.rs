//! Runs a command and kills it at a chosen point: when it makes its n-th system call, or a number
//! of instructions later. A debugger's calls (`ptrace(2)`) stop it there, so the point does not
//! depend on time.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{c_int, c_long, pid_t};

/// A system call that begins: its number and arguments.
pub type SystemCall = (c_long, [u64; 6]);

/// The point at which a command is killed.
#[derive(Clone, Copy, Debug)]
pub struct KillPoint {
    /// The system call that it does not make any more, from 1 on.
    pub call: usize,
    /// If this is not 0, the command makes the call and executes that many instructions.
    pub instructions: usize,
}

/// How a command has ended.
#[derive(Debug)]
pub struct Traced {
    /// The number of its system calls.
    pub calls: usize,
    /// The exit status; `None` if it was killed.
    pub code: Option<i32>,
}

/// Runs a command under this debugger, and kills it at `point`. System calls count from the first
/// one on that `begins` accepts.
pub fn run(
    mut command: Command,
    begins: fn(&SystemCall) -> bool,
    point: Option<KillPoint>,
) -> Traced {
    // SAFETY: the call has no arguments, and is made by the child that will execute the command.
    unsafe {
        command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0, 0).map(drop));
    }
    // The traced processes are children of this thread alone, so it does not wait for others.
    #[expect(clippy::zombie_processes, reason = "the tracer waits for all of its children")]
    let tracing = std::thread::spawn(move || {
        let child = command.spawn().unwrap();
        Tracer {
            pid: child.id() as pid_t,
            begins,
            point,
            has_begun: false,
            calls: 0,
            stepping: None,
            seen: HashSet::new(),
        }
        .trace()
    });
    tracing.join().unwrap()
}

struct Tracer {
    pid: pid_t,
    begins: fn(&SystemCall) -> bool,
    point: Option<KillPoint>,
    has_begun: bool,
    calls: usize,
    /// The thread that executes single instructions, and how many are left.
    stepping: Option<(pid_t, usize)>,
    seen: HashSet<pid_t>,
}

impl Tracer {
    fn trace(mut self) -> Traced {
        let mut code = None;
        loop {
            let mut status = 0;
            // SAFETY: the status is ours.
            let tid =
                unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            if tid < 0 {
                assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ECHILD));
                return Traced { calls: self.calls, code };
            }
            if libc::WIFEXITED(status) && tid == self.pid {
                code = Some(libc::WEXITSTATUS(status));
            }
            if libc::WIFSTOPPED(status) {
                self.stopped(tid, status);
            }
        }
    }

    /// Lets a thread go on that has stopped, or kills the command.
    fn stopped(&mut self, tid: pid_t, status: c_int) {
        let signal = libc::WSTOPSIG(status);
        if self.seen.insert(tid) && tid == self.pid {
            let options = libc::PTRACE_O_TRACESYSGOOD
                | libc::PTRACE_O_TRACECLONE
                | libc::PTRACE_O_TRACEFORK
                | libc::PTRACE_O_TRACEVFORK
                | libc::PTRACE_O_EXITKILL;
            ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as usize).unwrap();
        }
        let is_event = status >> 16 != 0;
        let is_call = signal == libc::SIGTRAP | 0x80;
        // A new thread begins with a stop.
        let is_own = is_event || is_call || matches!(signal, libc::SIGTRAP | libc::SIGSTOP);
        let passed = if is_own { 0 } else { signal as usize };
        if is_call && self.stepping.is_none() && self.reaches(tid) {
            match self.point.map(|point| point.instructions) {
                Some(0) => return self.kill(),
                steps => self.stepping = Some((tid, steps.unwrap_or(0))),
            }
        }
        let how = match &mut self.stepping {
            Some((thread, 0)) if *thread == tid => return self.kill(),
            Some((thread, left)) if *thread == tid => {
                *left -= 1;
                libc::PTRACE_SINGLESTEP
            }
            _ => libc::PTRACE_SYSCALL,
        };
        // The thread may have been killed since.
        let _ = ptrace(how, tid, 0, passed);
    }

    /// Counts a system call that begins; returns whether the command has reached its point.
    fn reaches(&mut self, tid: pid_t) -> bool {
        let Some(call) = beginning(tid) else { return false };
        self.has_begun |= (self.begins)(&call);
        self.calls += usize::from(self.has_begun);
        self.has_begun && self.point.is_some_and(|point| point.call == self.calls)
    }

    fn kill(&self) {
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

/// Returns the system call that a stopped thread begins; `None` at the end of one.
fn beginning(tid: pid_t) -> Option<SystemCall> {
    // SAFETY: plain numbers.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let len = size_of_val(&info);
    ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, len, (&raw mut info).addr()).ok()?;
    (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| {
        // SAFETY: `op` is the kind of the part that is there.
        let entry = unsafe { info.u.entry };
        (entry.nr as c_long, entry.args)
    })
}

fn ptrace(request: libc::c_uint, tid: pid_t, addr: usize, data: usize) -> io::Result<c_long> {
    // SAFETY: requests of this file. Only `GET_SYSCALL_INFO` writes memory, to a place that its
    // caller has.
    let done = unsafe { libc::ptrace(request, tid, addr, data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
