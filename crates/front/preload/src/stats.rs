//! What was served, and what went through the mount, counted over all programs of a `keepstone run`, and for the one that this
//! process executes ([`counters`]).
//!
//! Calls on files of pools that the kernel has opened are counted, too, where that is known: by a byte for each descriptor
//! ([`mark`]).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering::Relaxed};

use counters::{CLOSING_LINE, Counters, EXPLAIN, JSON, ProgramIndex, SlotIndex, TIMED};
pub use counters::{Class, Reason};
use rustix::fd::BorrowedFd;

use crate::start::{opens_in_user_space, process};
use crate::{environment, guard, real, streams};

/// Numbers that can be marked are below this one.
const NUMBERS: usize = 1024;

static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

/// The program that this process counts for ([`ProgramIndex::to_word`]), once it does.
static PROGRAM: AtomicU32 = AtomicU32::new(0);

/// Whether the process is ending: slots of its own would not be given back.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Of descriptors that the kernel has on files of pools, and nobody here serves: the reason, and 1; else 0.
static MARKED: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// Why pools are left to the kernel in this process, if they are.
static WHY: AtomicU8 = AtomicU8::new(Reason::Namespace as u8);

/// In the first program: a duplicate of its stderr, which it may close before it ends; else -1.
static STDERR: AtomicI32 = AtomicI32::new(-1);

os::thread_cell! {
    /// Where the calling thread counts ([`SlotIndex::to_word`]).
    fn slot_word -> u32, "ks_stats_slot", 16
}

/// Maps the file, if the environment names one. Without it nothing is counted.
pub fn start() {
    let Some(path) = environment::variable(c"KEEPSTONE_STATS") else { return };
    let Some(counters) = Counters::inherited(path) else { return };
    counters.start(own_pid());
    COUNTERS.store(std::ptr::from_ref(counters).cast_mut(), Relaxed);
}

/// What this program was executed as, without directories: the kernel's name of the process, not cut off after 15 bytes, and
/// without a system call. Of a script it is the script's. Where a descriptor was executed, it is the file's.
fn program_name(buf: &mut [u8; 512]) -> &[u8] {
    // SAFETY: no preconditions; what it returns is a string that stays, or null.
    let executed = unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        if path.is_null() { c"/proc/self/exe" } else { CStr::from_ptr(path) }
    };
    let mut path = executed.to_bytes();
    if path.starts_with(b"/dev/fd/") || path.starts_with(b"/proc/") {
        // SAFETY: a string, and a buffer of that size.
        let len = unsafe {
            real::readlink(c"/proc/self/exe".as_ptr(), buf.as_mut_ptr().cast(), buf.len())
        };
        path = &buf[..usize::try_from(len).unwrap_or(0)];
    }
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_pid().cast_unsigned()
}

#[inline]
fn counters() -> Option<&'static Counters> {
    // SAFETY: null, or a mapping that stays until the process ends.
    unsafe { COUNTERS.load(Relaxed).as_ref() }
}

#[inline]
fn own_slot(counters: &Counters) -> SlotIndex {
    SlotIndex::from_word(slot_word().get()).unwrap_or_else(|| first_slot(counters))
}

/// The calling thread counts for the first time.
#[cold]
fn first_slot(counters: &Counters) -> SlotIndex {
    let program = program(counters);
    let slot = if ENDED.load(Relaxed) {
        SlotIndex::shared(program)
    } else {
        counters.claim(own_pid(), program)
    };
    slot_word().set(slot.to_word());
    slot
}

/// The program that this process executes, which takes a place when it first counts.
fn program(counters: &Counters) -> ProgramIndex {
    if let Some(program) = ProgramIndex::from_word(PROGRAM.load(Relaxed)) {
        return program;
    }
    let program = counters.program(program_name(&mut [0; 512]));
    if PROGRAM.compare_exchange(0, program.to_word(), Relaxed, Relaxed).is_ok() {
        counters.add_process(program);
    }
    program
}

/// In the child of a fork: it counts in a slot of its own, and is not the first program.
pub fn forked(process: Option<&posix::Process>) {
    slot_word().set(0);
    PROGRAM.store(0, Relaxed);
    let stderr = STDERR.swap(-1, Relaxed);
    if stderr >= 0 {
        // Who waits for the end of what is written there does not wait for children.
        match process {
            Some(process) => process.fd_allocator().unhide(stderr),
            // SAFETY: the library's own descriptor.
            None => unsafe {
                let _ = real::close(stderr);
            },
        }
    }
}

/// When a call began, where calls are counted: 1 where it is not measured.
#[derive(Clone, Copy, Debug)]
pub struct Begun(u64);

/// A call begins.
#[inline]
pub fn begin() -> Begun {
    Begun(counters().map_or(0, |counters| if counters.flags() & TIMED == 0 { 1 } else { now_ns() }))
}

/// Whether a report is wanted that may cost calls to the kernel.
pub fn is_timed() -> bool {
    counters().is_some_and(|counters| counters.flags() & TIMED != 0)
}

/// The call has been served in user space.
#[inline]
pub fn served(class: Class, begun: Begun, bytes: u64) {
    if begun.0 == 0 {
        return;
    }
    if let Some(counters) = counters() {
        let ns = if begun.0 == 1 { 0 } else { now_ns().saturating_sub(begun.0) };
        counters.served(own_slot(counters), class, bytes, ns);
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A call on a descriptor of a pool's file goes to the kernel.
#[cold]
pub fn left_to_kernel(class: Class, fd: c_int, reason: Reason) {
    count(class, fd, reason, 1, 0);
}

/// The kernel has made a call on a descriptor, which has moved so many bytes.
#[cold]
pub fn made_by_kernel(class: Class, fd: c_int, reason: Reason, bytes: u64) {
    count(class, fd, reason, 1, bytes);
}

/// A call on a path in a pool goes to the kernel.
#[cold]
pub fn path_by_kernel(class: Class, path: &[u8]) {
    if let Some(counters) = counters() {
        counters.by_kernel(own_slot(counters), class, why(), 1, 0);
        if counters.flags() & EXPLAIN != 0 {
            counters.explain(path, why(), 1, 0);
        }
    }
}

#[cold]
fn count(class: Class, fd: c_int, reason: Reason, calls: u64, bytes: u64) {
    let Some(counters) = counters() else { return };
    counters.by_kernel(own_slot(counters), class, reason, calls, bytes);
    if counters.flags() & EXPLAIN != 0 {
        let mut buf = [0; 512];
        let link = format!("/proc/self/fd/{fd}\0");
        // SAFETY: a string, and a buffer of that size.
        let len =
            unsafe { real::readlink(link.as_ptr().cast(), buf.as_mut_ptr().cast(), buf.len()) };
        counters.explain(&buf[..usize::try_from(len).unwrap_or(0)], reason, calls, bytes);
    }
}

/// Why pools are left to the kernel from now on.
pub fn set_why(reason: Reason) {
    WHY.store(reason as u8, Relaxed);
}

/// Why pools are left to the kernel in this process, where they are.
pub fn why() -> Reason {
    if !opens_in_user_space() {
        return Reason::KernelDescriptors;
    }
    Reason::from_number(WHY.load(Relaxed)).unwrap_or(Reason::Unusable)
}

#[inline]
fn marked(fd: c_int) -> Option<Reason> {
    let mark = MARKED.get(fd.cast_unsigned() as usize)?.load(Relaxed);
    Reason::from_number(mark.checked_sub(1)?)
}

/// A descriptor is the kernel's on a file of a pool, for this reason; `None`: it is not, or served.
pub fn mark(fd: c_int, reason: Option<Reason>) {
    if let Some(place) = MARKED.get(fd.cast_unsigned() as usize)
        && counters().is_some()
    {
        place.store(reason.map_or(0, |reason| reason as u8 + 1), Relaxed);
    }
}

/// The marks of the descriptors from `first` to `last` are gone.
pub fn unmark(first: c_int, last: c_int) {
    let (first, last) = (first.max(0) as usize, last.max(0) as usize);
    MARKED
        .iter()
        .take(last.saturating_add(1))
        .skip(first)
        .for_each(|place| place.store(0, Relaxed));
}

/// The kernel has put what `old` is onto `new`, or failed (-1).
pub fn duplicated(old: c_int, new: c_int) -> c_int {
    if counters().is_some() && new >= 0 {
        mark(new, marked(old));
    }
    new
}

/// The kernel has opened a file, or failed (-1): if it may be one of a pool, it is looked at.
pub fn opened_by_kernel(fd: c_int) -> c_int {
    if counters().is_some() && fd >= 0 && !guard::is_inside() {
        let is_left = |process: &&posix::Process| {
            !opens_in_user_space() || process.contents().leaves_to_kernel()
        };
        let is_in_pool = process()
            .filter(is_left)
            .is_some_and(|process| guard::run(|| process.contents().is_of_pool(fd)) == Some(true));
        mark(fd, is_in_pool.then(why));
        if is_in_pool {
            count(Class::Open, fd, why(), 1, 0);
            // What streams transfer passes our functions, to be counted.
            streams::are_served();
        }
    }
    fd
}

/// The kernel is about to make a call on a descriptor that is not served.
#[inline]
pub fn unserved(class: Class, fd: c_int) {
    if let Some(reason) = marked(fd) {
        count(class, fd, reason, 1, 0);
    }
}

/// The kernel has moved bytes from or to one of these descriptors.
#[inline]
pub fn moved_by_kernel(class: Class, fds: &[c_int], bytes: i64) {
    if bytes > 0 && counters().is_some() {
        let owned = |fd| process().is_some_and(|process| process.table().owns(fd));
        let reason = |&fd: &c_int| {
            let reason = marked(fd).or_else(|| owned(fd).then_some(Reason::KernelOnly))?;
            Some((fd, reason))
        };
        if let Some((fd, reason)) = fds.iter().find_map(reason) {
            count(class, fd, reason, 0, bytes.cast_unsigned());
        }
    }
}

/// A program is to be executed by `f`, which says whether that failed.
pub fn executing<T>(path: *const c_char, f: impl FnOnce() -> T, failed: impl Fn(&T) -> bool) -> T {
    let Some(counters) = counters() else { return f() };
    counters.executes();
    if counters.flags() & EXPLAIN != 0
        && let Ok(path) = crate::memory::string(path)
    {
        counters.explain(path, Reason::Executed, 1, 0);
    }
    let result = f();
    if failed(&result) {
        counters.execute_failed();
    }
    result
}

/// Whether this process is to say at its end what was served.
fn is_to_close(counters: &Counters) -> bool {
    counters.flags() & CLOSING_LINE != 0 && counters.is_root(own_pid())
}

/// Keeps stderr for the closing line, out of the program's sight.
pub fn keep_stderr(process: Option<&posix::Process>) {
    if !counters().is_some_and(is_to_close) {
        return;
    }
    // SAFETY: 2 is not closed while this runs, or the call fails.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let min = 900;
    let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(stderr, min) else { return };
    let copy = rustix::fd::IntoRawFd::into_raw_fd(copy);
    let hidden = process.and_then(|process| process.fd_allocator().hide_all(&[copy]).ok());
    STDERR.store(hidden.and_then(|fds| fds.first().copied()).unwrap_or(copy), Relaxed);
}

/// The process ends: others of its program count where it has counted. The first program says what was served.
pub fn end() {
    let Some(counters) = counters() else { return };
    ENDED.store(true, Relaxed);
    slot_word().set(0);
    counters.release(own_pid());
    let stderr = STDERR.swap(-1, Relaxed);
    if stderr < 0 || !is_to_close(counters) {
        return;
    }
    if let Some(line) = counters.sums().closing_line() {
        let line = if counters.flags() & JSON == 0 {
            format!("keepstone: {line}\n")
        } else {
            format!("{{\"notice\":\"{line}\"}}\n")
        };
        // SAFETY: the library's own descriptor.
        let stderr = unsafe { BorrowedFd::borrow_raw(stderr) };
        let _ = rustix::io::write(stderr, line.as_bytes());
    }
}
