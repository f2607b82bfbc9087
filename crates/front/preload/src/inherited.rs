//! Files of pools that the program finds open when it starts: those that a shell has redirected, or
//! another program has left open.
//!
//! - **inherited-I1** They are served like others as soon as that pays. Attaching a pool takes as
//!   long as several calls to the kernel, so the first calls are left to the kernel, unless the
//!   program uses the pool anyway.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use posix::Process;

use crate::stats::{Class, Reason};
use crate::{guard, mounts, real, stats, streams};

/// Descriptors that are checked when the program starts: shells redirect single digits.
const NUMBERS: c_int = 10;

/// Calls after which a pool is attached for inherited files: attaching takes 0.3 ms, a call of the
/// mount 0.02 ms.
const WORTH: u32 = 16;

/// The inherited descriptors in pools that are not served yet: a bit for each.
static FOUND: AtomicU32 = AtomicU32::new(0);

/// Bytes in one call after which the pool is attached.
const WORTH_BYTES: u32 = 1 << 16;

/// Calls that were left to the kernel; large ones count for several.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Looks for files of pools that the program has found open.
pub fn start(process: &Process) {
    let found = (0..NUMBERS)
        .filter(|fd| process.contents().is_in_pool(*fd))
        .fold(0, |all, fd| all | 1 << fd);
    FOUND.store(found, Relaxed);
    (0..NUMBERS)
        .filter(|fd| found & 1 << fd != 0)
        .for_each(|fd| stats::mark(fd, Some(Reason::FirstCalls)));
    if found & 0b111 != 0 {
        // libc has streams on the standard descriptors already.
        streams::are_served();
    }
}

/// Leaves those that are not served yet to the kernel for good.
pub fn stop() {
    FOUND.store(0, Relaxed);
}

/// Decides whether a descriptor that is not served is served from this call on. Costs one load if
/// the program inherited none.
#[inline]
pub fn is_served_now(process: &Process, class: Class, fd: c_int) -> bool {
    FOUND.load(Relaxed) != 0
        && matches!(class, Class::Read | Class::Write | Class::Seek | Class::Copy)
        && look(process, class, fd)
}

/// Counts bytes that the kernel has moved by one of these calls.
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
    // inherited-I1. A program that copies a file copies all of it.
    let is_worth = class == Class::Copy || CALLS.fetch_add(1, Relaxed) >= WORTH;
    if !is_worth && !process.contents().is_attached(fd) {
        if class == Class::Write {
            before_append_by_kernel(fd);
        }
        return false;
    }
    // Tried once: a file that cannot be served now stays the kernel's. Another thread may be trying
    // it.
    let is_first = FOUND.fetch_and(!bit, Relaxed) & bit != 0;
    let is_served = is_first && guard::run(|| process.contents().recognize(fd)).unwrap_or(false);
    if is_first {
        stats::mark(fd, (!is_served).then(stats::why));
    }
    is_served
}

/// Makes sure that the kernel has the size of a file before it appends: it takes the descriptor's
/// position after an append from there.
fn before_append_by_kernel(fd: c_int) {
    // SAFETY: asks about a descriptor.
    let appends = unsafe { real::fcntl(fd, libc::F_GETFL, 0) } & libc::O_APPEND != 0;
    if appends {
        guard::run(|| posix::update_kernel_size(fd, mounts::is_served_device));
    }
}
