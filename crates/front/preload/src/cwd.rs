//! The working directory, after the kernel has changed it without the process layer: by a path or
//! descriptor that is not a pool's. It may lie in a pool all the same, or paths may lead from it
//! into a pool. The process layer checks that at the first relative path.

use std::ffi::c_int;

use posix::Process;

use crate::guard;

/// Notes a `chdir` or `fchdir` that the kernel alone has made; returns `result`.
pub fn changed_by_kernel(process: Option<&Process>, result: c_int) -> c_int {
    if let Some(process) = process.filter(|_| result == 0) {
        guard::run(|| process.working_dir().left_pool());
    }
    result
}
