//! Recordings of this process's accesses to a pool (`keepstone run --record FILE`), for
//! `keepstone simulate memory`.
//!
//! Each process writes a trace of its own, `FILE.PID`, of the first pool that it uses. The trace
//! ends when the process exits or executes another program, which has `FILE.PID.1`, and so on. A
//! child of `fork` is not recorded until it executes a program. A process that is killed leaves a
//! trace without its end.

use std::io::{self, Write};
use std::os::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};

use memsim::record::Recorder;
use pmem::SharedObserver;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::environment;
use crate::start::process;

/// Programs that a process is recorded in at most, one after the other.
const PROGRAMS_MAX: u32 = 1000;

/// The file of the traces, without the process.
static FILE: OnceLock<Vec<u8>> = OnceLock::new();
/// The recorder, once a pool is observed.
static RECORDER: OnceLock<Arc<Recorder>> = OnceLock::new();

/// Reads the environment.
pub fn start() {
    if let Some(file) = environment::variable(c"KEEPSTONE_RECORD") {
        let _ = FILE.set(file.to_bytes().to_vec());
    }
}

/// Returns the observer of a pool that is being opened. `None` if nothing is to be recorded,
/// another pool is, or the file cannot be made.
pub fn observer() -> Option<SharedObserver> {
    let name = FILE.get()?;
    if RECORDER.get().is_some() {
        return None;
    }
    let file = create(name)?;
    let hidden = process()?.fd_allocator().hide(file.into_raw_fd()).ok()?;
    let recorder = Recorder::new(Hidden(hidden), false);
    RECORDER.set(recorder.clone()).ok()?;
    Some(recorder)
}

/// Creates the file of this program. Earlier programs of the process have others.
fn create(name: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    for program in 0..PROGRAMS_MAX {
        let mut file = name.to_vec();
        file.extend_from_slice(format!(".{}", std::process::id()).as_bytes());
        if program > 0 {
            file.extend_from_slice(format!(".{program}").as_bytes());
        }
        match open(&*file, flags, Mode::from_raw_mode(0o644)) {
            Err(Errno::EXIST) => {}
            opened => return opened.ok(),
        }
    }
    None
}

/// Completes the trace. Later accesses are not recorded.
pub fn end() {
    if let Some(recorder) = RECORDER.get() {
        // Nobody is left to be told that it failed.
        let _ = recorder.finish();
    }
}

/// Stops recording in a child.
pub fn forked() {
    if let Some(recorder) = RECORDER.get() {
        recorder.abandon();
    }
}

/// A descriptor of the library's own, which is never closed. It is written to by system calls that
/// the library does not intercept.
struct Hidden(i32);

impl Write for Hidden {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        // SAFETY: the program can neither see nor close it.
        #[allow(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(self.0) };
        Ok(rustix::io::write(fd, data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
