//! The working directory, where the kernel has changed it without the process layer: by paths and
//! descriptors that are not a pool's. It may lie in a pool all the same, or paths may lead into one from
//! there: the process layer finds that out when the first relative path comes.

use std::ffi::c_int;

use posix::Process;

use crate::guard;

/// After a `chdir` or `fchdir` that the kernel alone has made, and that gave `result`.
pub fn changed_by_kernel(process: Option<&Process>, result: c_int) -> c_int {
    if let Some(process) = process.filter(|_| result == 0) {
        guard::run(|| process.working_dir().left_pool());
    }
    result
}
