//! Counts calls that were served and calls through the mount, over all programs of a `keepstone
//! run`, and for the one that this process executes ([`counters`]).
//!
//! Calls on files of pools that the kernel has opened are counted, too, if that is known: a byte
//! for each descriptor records it ([`mark`]).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering::Relaxed};

use counters::{CLOSING_LINE, Counters, EXPLAIN, JSON, ProgramIndex, SlotIndex, TIMED};
pub use counters::{Class, Reason};
use rustix::fd::BorrowedFd;

use crate::start::{opens_in_user_space, process};
use crate::{environment, guard, real, streams};

/// Descriptors below this number can be marked.
const NUMBERS: usize = 1024;

static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());

/// The program that this process counts for ([`ProgramIndex::to_word`]), once it counts.
static PROGRAM: AtomicU32 = AtomicU32::new(0);

/// Whether the process is ending: a slot of its own would not be given back any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Marks of descriptors that the kernel has on files of pools and that are not served here: the
/// reason plus 1; else 0.
static MARKED: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// The reason that pools are left to the kernel in this process, if they are.
static WHY: AtomicU8 = AtomicU8::new(Reason::Namespace as u8);

/// A duplicate of the first program's stderr, as that may close its own before it ends; -1 in other
/// programs.
static STDERR: AtomicI32 = AtomicI32::new(-1);

os::thread_cell! {
    /// Returns the slot in which the calling thread counts ([`SlotIndex::to_word`]).
    fn slot_word -> u32, "ks_stats_slot", 16
}

/// Maps the file that the environment names. Without it nothing is counted.
pub fn start() {
    let Some(path) = environment::variable(c"KEEPSTONE_STATS") else { return };
    let Some(counters) = Counters::inherited(path) else { return };
    counters.start(own_pid());
    COUNTERS.store(std::ptr::from_ref(counters).cast_mut(), Relaxed);
}

/// Returns the name by which this program was executed, without directories. It is the kernel's
/// name of the process, but not cut off after 15 bytes, and costs no system call. For a script it
/// is the script's name, for an executed descriptor the file's.
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

/// Takes a slot when the calling thread counts for the first time.
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

/// Returns the program that this process executes; registers it when it first counts.
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

/// Makes the child of a fork count in a slot of its own, and not as the first program.
pub fn forked(process: Option<&posix::Process>) {
    slot_word().set(0);
    PROGRAM.store(0, Relaxed);
    let stderr = STDERR.swap(-1, Relaxed);
    if stderr >= 0 {
        // A reader that waits for the end of the program's stderr must not wait for its children.
        match process {
            Some(process) => process.fd_allocator().unhide(stderr),
            // SAFETY: the library's own descriptor.
            None => unsafe {
                let _ = real::close(stderr);
            },
        }
    }
}

/// Start time of a call, in ns, if calls are counted: 1 if it is not measured, 0 if calls are not
/// counted.
#[derive(Clone, Copy, Debug)]
pub struct Begun(u64);

/// Begins a call.
#[inline]
pub fn begin() -> Begun {
    Begun(counters().map_or(0, |counters| if counters.flags() & TIMED == 0 { 1 } else { now_ns() }))
}

/// Counts a call that was served in user space.
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

/// Counts a call on a descriptor of a pool's file that goes to the kernel.
#[cold]
pub fn left_to_kernel(class: Class, fd: c_int, reason: Reason) {
    count(class, fd, reason, 1, 0);
}

/// Counts a call that the kernel has made on a descriptor, with the bytes it has moved.
#[cold]
pub fn made_by_kernel(class: Class, fd: c_int, reason: Reason, bytes: u64) {
    count(class, fd, reason, 1, bytes);
}

/// Counts a call on a path in a pool that goes to the kernel.
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

/// Sets the reason that pools are left to the kernel from now on.
pub fn set_why(reason: Reason) {
    WHY.store(reason as u8, Relaxed);
}

/// Returns the reason that pools are left to the kernel in this process, if they are.
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

/// Marks a descriptor that the kernel has on a file of a pool, with the reason; `None`: it is not
/// of a pool, or is served.
pub fn mark(fd: c_int, reason: Option<Reason>) {
    if let Some(place) = MARKED.get(fd.cast_unsigned() as usize)
        && counters().is_some()
    {
        place.store(reason.map_or(0, |reason| reason as u8 + 1), Relaxed);
    }
}

/// Removes the marks of the descriptors from `first` to `last`.
pub fn unmark(first: c_int, last: c_int) {
    let (first, last) = (first.max(0) as usize, last.max(0) as usize);
    MARKED
        .iter()
        .take(last.saturating_add(1))
        .skip(first)
        .for_each(|place| place.store(0, Relaxed));
}

/// Copies the mark of `old` to `new`, a duplicate that the kernel has made; -1: it failed.
pub fn duplicated(old: c_int, new: c_int) -> c_int {
    if counters().is_some() && new >= 0 {
        mark(new, marked(old));
    }
    new
}

/// Marks a file that the kernel has opened, if it is in a pool; -1: it failed.
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
            // The library's functions for streams then count the bytes that streams transfer.
            streams::are_served();
        }
    }
    fd
}

/// Counts a call that the kernel is about to make on a descriptor that is not served.
#[inline]
pub fn unserved(class: Class, fd: c_int) {
    if let Some(reason) = marked(fd) {
        count(class, fd, reason, 1, 0);
    }
}

/// Counts bytes that the kernel has moved from or to one of these descriptors.
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

/// Executes a program by `f`, and counts that. `failed` tells from the result of `f` whether that
/// failed.
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

/// Checks whether this process has to report at its end what was served.
fn is_to_close(counters: &Counters) -> bool {
    counters.flags() & CLOSING_LINE != 0 && counters.is_root(own_pid())
}

/// Keeps a duplicate of stderr for the closing line, hidden from the program.
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

/// Ends counting: other processes of the program may use this one's slots. The first program
/// reports what was served.
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
