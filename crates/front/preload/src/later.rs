//! Caches that are attached while the program runs.
//!
//! Under `keepstone run`, the state that serves files of caches is made when the program starts, as
//! signals, forks and threads have to find it there. While there is no cache it is not used, and
//! calls cost what they cost without it. Only an opening reads the clock, checks from time to time
//! whether a mount has come, and if so whether it is a cache's. The file that is opened is served
//! then, and so are all files opened later.
//!
//! - **later-L1** From some moment on it is used, for good. Descriptors that were open by then are
//!   the kernel's, so events that it was not notified of before could not have changed its state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};

use crate::{direct, guard, mounts};

/// Period at which openings check for a new mount, in ns.
const PERIOD_NS: u64 = 100_000_000;

/// Whether a cache may come.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Time of the next check, by the coarse clock.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Starts to look for caches.
pub fn wait() {
    WAITS.store(true, Relaxed);
}

/// Stops looking: caches attached later are not served.
pub fn nothing_comes() {
    WAITS.store(false, Relaxed);
}

/// Checks for a new cache if it is time, after the kernel has opened a file.
#[inline]
pub fn look() {
    if WAITS.load(Relaxed) && !guard::is_inside() {
        look_at_times();
    }
}

#[cold]
fn look_at_times() {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let next = NEXT.load(Relaxed);
    if now < next || NEXT.compare_exchange(next, now + PERIOD_NS, Relaxed, Relaxed).is_err() {
        return;
    }
    guard::run(|| {
        if mounts::has_cache_come() && WAITS.swap(false, Relaxed) {
            direct::begin();
        }
    });
}
