//! The working directory, where the kernel has changed it without the process layer: at the start of
//! the program, and by paths and descriptors that are not a pool's. It may lie in a pool all the
//! same. That is found out when the first relative path comes.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use posix::Process;

use crate::{guard, mounts};

static UNKNOWN: AtomicBool = AtomicBool::new(true);

/// After a `chdir` or `fchdir` that the kernel alone has made, and that gave `result`.
pub fn changed_by_kernel(process: Option<&Process>, result: c_int) -> c_int {
    if let Some(process) = process.filter(|_| result == 0) {
        guard::run(|| process.left_pool());
        UNKNOWN.store(true, Ordering::Release);
    }
    result
}

/// Before a relative path is looked up.
#[inline]
pub fn find_out(process: &Process) {
    if UNKNOWN.load(Ordering::Relaxed) {
        guard::run(|| look(process));
    }
}

#[cold]
fn look(process: &Process) {
    UNKNOWN.store(false, Ordering::Release);
    if let Ok(path) = rustix::process::getcwd(Vec::new())
        && mounts::is_served(path.as_bytes())
    {
        // Where that is refused, relative paths are the kernel's.
        let _ = process.chdir(path.as_bytes());
    }
}
