//! Threads of the server that follow changes which others make in the directory of a cache.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::time::Duration;

use anyhow::Result;
use backing::Change;
use fuse::Invalidator;

/// Longest wait of a thread between two checks that the cache still exists.
pub const LIMIT: Duration = Duration::from_millis(200);

/// Explains why changes are not reported.
pub fn reason(errno: rustix::io::Errno) -> String {
    use rustix::io::Errno;
    match errno {
        Errno::PERM => "needs CAP_SYS_ADMIN".into(),
        Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS => {
            "the kernel does not report changes of this file system".into()
        }
        Errno::MFILE => "too many watches exist already (fs.fanotify.max_user_groups)".into(),
        errno => errno.to_string(),
    }
}

/// Makes the kernel forget what a change concerns.
pub fn forget_in(kernel: &Invalidator, change: &Change) {
    match change {
        Change::Content(ino) => kernel.content(*ino),
        Change::Attributes(ino) => kernel.attributes(*ino),
        Change::Name(dir, name) => kernel.name(*dir, name),
        Change::Lost => {}
    }
}

/// Starts a thread that repeats `step` until it returns false. A panic ends only the step, because
/// other processes wait for this thread.
pub fn repeat<C: Send + Sync + 'static>(
    name: &str,
    cache: Weak<C>,
    step: impl Fn(&C) -> bool + Send + 'static,
) -> Result<()> {
    let steps = move || {
        while let Some(cache) = cache.upgrade() {
            if !catch_unwind(AssertUnwindSafe(|| step(&cache))).unwrap_or(true) {
                break;
            }
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(steps)?;
    Ok(())
}
