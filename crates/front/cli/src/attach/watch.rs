//! Threads of the server that follow changes which others make in the directory of a cache.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result};
use backing::{Change, Watch};
use fuse::Invalidator;

use super::Attached;

/// Longest wait of a thread between two checks that the cache still exists.
pub const LIMIT: Duration = Duration::from_millis(200);

/// Begins to watch, before any program uses the cache. If `asked` is `None`, does what the file
/// system supports, and notes why it cannot do more.
pub fn begin(cache: &Attached, asked: Option<Watch>) -> Result<()> {
    let begun = cache.watch(asked.unwrap_or(Watch::Notify));
    match (begun, asked) {
        (Err(errno), None) => {
            cache.note_watch_problem(reason(errno));
            Ok(())
        }
        (begun, _) => {
            let how = asked.unwrap_or_default();
            begun
                .map_err(|errno| anyhow::anyhow!(reason(errno)))
                .with_context(|| format!("--watch {how}"))
        }
    }
}

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

/// Starts the threads that follow changes by others, for as long as the cache exists.
pub fn follow(cache: &Arc<Attached>, kernel: Invalidator) -> Result<()> {
    let forget = move |change: &Change| forget_in(&kernel, change);
    let watch = cache.status().watch;
    if watch != Watch::Off.to_string() {
        repeat("changes", Arc::downgrade(cache), move |cache| {
            cache.follow_changes(LIMIT, &forget).is_ok()
        })?;
    }
    if cache.guards() {
        repeat("openings", Arc::downgrade(cache), |cache| {
            if let Err(errno) = cache.take_openings(LIMIT) {
                tracing::error!("a program could not open a file behind the cache: {errno}");
                std::thread::sleep(Duration::from_millis(1));
            }
            true
        })?;
        repeat("openers", Arc::downgrade(cache), |cache| {
            cache.serve_openers(LIMIT);
            true
        })?;
    }
    Ok(())
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
