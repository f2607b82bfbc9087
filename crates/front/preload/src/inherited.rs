//! Files of pools that the program finds open when it starts: what a shell has redirected, or another program has left open.
//!
//! - **inherited-I1** They are served like others as soon as that pays. To attach a pool takes as long as some calls of the
//!   kernel's, so the first are left to it, unless the program uses the pool anyway.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use posix::Process;

use crate::stats::{Class, Reason};
use crate::{guard, stats, streams};

/// Numbers that are looked at when the program starts: shells redirect single digits.
const NUMBERS: c_int = 10;

/// A pool is attached for the sake of them at this call: to attach takes 0.3 ms, and a call of the mount's 0.02.
const WORTH: u32 = 16;

/// Those of files in pools that are not served yet: a bit for each.
static FOUND: AtomicU32 = AtomicU32::new(0);

/// So much in one call is worth it, in bytes.
const WORTH_BYTES: u32 = 1 << 16;

/// Calls that were left to the kernel; large ones count for several.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Looks what the program has found open.
pub fn start(process: &Process) {
    let found = (0..NUMBERS)
        .filter(|fd| process.contents().is_in_pool(*fd))
        .fold(0, |all, fd| all | 1 << fd);
    FOUND.store(found, Relaxed);
    (0..NUMBERS)
        .filter(|fd| found & 1 << fd != 0)
        .for_each(|fd| stats::mark(fd, Some(Reason::FirstCalls)));
    if found & 0b111 != 0 {
        // libc has streams on these already.
        streams::are_served();
    }
}

/// Whether a call on a descriptor that is not served is to be served from now on. One load where nothing was found.
#[inline]
pub fn is_served_now(process: &Process, class: Class, fd: c_int) -> bool {
    FOUND.load(Relaxed) != 0
        && matches!(class, Class::Read | Class::Write | Class::Seek | Class::Copy)
        && look(process, class, fd)
}

/// The kernel has moved bytes by one of these calls.
#[inline]
pub fn moved(bytes: i64) {
    if FOUND.load(Relaxed) != 0 {
        let calls = bytes.clamp(0, WORTH_BYTES.into()) as u32 / (WORTH_BYTES / WORTH);
        CALLS.fetch_add(calls, Relaxed);
    }
}

#[cold]
fn look(process: &Process, class: Class, fd: c_int) -> bool {
    let bit = if (0..NUMBERS).contains(&fd) { 1 << fd } else { 0 };
    if FOUND.load(Relaxed) & bit == 0 || guard::is_inside() {
        return false;
    }
    // inherited-I1. What copies files copies them whole.
    let is_worth = class == Class::Copy || CALLS.fetch_add(1, Relaxed) >= WORTH;
    if !is_worth && !process.contents().is_attached(fd) {
        return false;
    }
    // Tried once: what cannot be served now is the kernel's. Another thread may be at it.
    let is_first = FOUND.fetch_and(!bit, Relaxed) & bit != 0;
    let is_served = is_first && guard::run(|| process.contents().recognize(fd)).unwrap_or(false);
    if is_first {
        stats::mark(fd, (!is_served).then(stats::why));
    }
    is_served
}
