//! Caches that are attached while the program runs.
//!
//! Under `keepstone run`, what serves files of caches is made when the program starts, as signals, forks and threads have to find
//! it there. As long as there is no cache it is not used, and calls cost what they cost without it; only an opening looks at the
//! clock, from time to time whether a mount has come, and if so whether it is one of a cache. The file that is opened is served
//! then, and what is opened after it.
//!
//! - **later-L1** It is used from some moment on, for good. Descriptors that were open by then are the kernel's, so nothing that it
//!   was not told before could have changed what it knows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};

use crate::{direct, guard, mounts};

/// So often an opening looks whether a mount has come, in ns.
const PERIOD_NS: u64 = 100_000_000;

/// Whether a cache may come.
static WAITS: AtomicBool = AtomicBool::new(false);
/// When to look again, by the coarse clock.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Looks for caches from now on.
pub fn wait() {
    WAITS.store(true, Relaxed);
}

/// Whatever is attached, it is not served.
pub fn nothing_comes() {
    WAITS.store(false, Relaxed);
}

/// The kernel has opened something.
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
