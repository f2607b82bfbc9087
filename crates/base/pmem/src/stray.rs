//! Stray writes: stores through wild pointers that hit the mapping of a protected region (PMBD
//! §IV-B).
//!
//! The store raises SIGSEGV and changes nothing. A handler, installed with the first protected
//! region, reports the address, counts the store, and has the symbols of the stack looked up. It
//! then passes the signal to the previous handler. By default that ends the process, as a program
//! with wild pointers should not go on.
//!
//! The handler does only async-signal-safe work. It walks the stack (by an unwinder that takes no
//! lock, in glibc from 2.35 on), writes one line to stderr, and wakes a thread that may allocate.
//! It waits for that thread to do the rest, for a second at most. A forked process does not have
//! the thread, so it only writes the line, unless it calls [`after_fork`].

#![allow(unsafe_code)]

use crate::Error;
use os::faults::PreviousAction;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// Bit of the error code of a page fault: it was a store.
const WRITE: i64 = 1 << 1;

/// The most watched mappings.
const WATCHED_MAX: usize = 64;

/// The most stack frames in a report.
const FRAMES: usize = 48;

/// The most reports, if the previous handler lets the process live.
const REPORTS_MAX: u64 = 8;

/// Milliseconds that a handler waits for symbols.
const PATIENCE_MS: u32 = 1000;

/// Start and end of each watched mapping; an end of 0 marks a free entry.
static WATCHED: [(AtomicUsize, AtomicUsize); WATCHED_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; WATCHED_MAX];

/// The paths of their regions.
static PATHS: Mutex<[Option<PathBuf>; WATCHED_MAX]> = Mutex::new([const { None }; WATCHED_MAX]);

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The action before ours.
static PREVIOUS: PreviousAction = PreviousAction::new();

/// Returns the number of stray writes to protected regions of this process.
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// A mapping in which a fault is a stray write, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched(usize);

impl Watched {
    /// Watches `len` bytes from `base`, of the region at `path`.
    pub(crate) fn new(path: &Path, base: *mut u8, len: u64) -> Result<Self, Error> {
        install().map_err(|e| Error::io(path, "handle SIGSEGV", e))?;
        let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        let place = paths.iter().position(Option::is_none);
        let place = place.ok_or_else(|| Error::TooMany(path.to_owned()))?;
        paths[place] = Some(path.to_owned());
        let (start, end) = &WATCHED[place];
        start.store(base.addr(), Relaxed);
        end.store(base.addr() + len as usize, Release);
        Ok(Self(place))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHED[self.0].1.store(0, Release);
        PATHS.lock().unwrap_or_else(PoisonError::into_inner)[self.0] = None;
    }
}

/// A stray write, as the handler passes it to the reporter.
struct Found {
    place: usize,
    address: usize,
    offset: usize,
    instruction: usize,
    kind: &'static str,
    thread: u32,
    frames: [usize; FRAMES],
    depth: usize,
}

/// The state of the only report: free, a handler fills it in, the reporter has it, or done.
static TURN: AtomicU32 = AtomicU32::new(FREE);
const FREE: u32 = 0;
const FILLING: u32 = 1;
const FULL: u32 = 2;
const DONE: u32 = 3;

struct StrayReport(UnsafeCell<MaybeUninit<Found>>);
// SAFETY: only the handler that has changed TURN from FREE to FILLING writes it, and only the
// reporter reads it, while TURN is FULL.
unsafe impl Sync for StrayReport {}
static REPORT: StrayReport = StrayReport(UnsafeCell::new(MaybeUninit::uninit()));

/// The process in which the reporter runs.
static REPORTER: AtomicU32 = AtomicU32::new(0);

/// Installs the handler and starts the reporter, once.
fn install() -> std::io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // The unwinder loads libraries at its first use: let it do so now, not in the handler.
    walk(&mut [0; FRAMES]);
    start_reporter()?;
    PREVIOUS.replace(libc::SIGSEGV, on_fault, libc::SA_NODEFER)?;
    *installed = true;
    Ok(())
}

/// Starts the thread that looks up symbols in a forked process, if the parent had it.
pub fn after_fork() -> std::io::Result<()> {
    if !PREVIOUS.is_known() {
        return Ok(()); // Nothing is protected.
    }
    TURN.store(FREE, Release);
    start_reporter()
}

/// Starts the thread that looks up symbols and reports.
fn start_reporter() -> std::io::Result<()> {
    std::thread::Builder::new().name("stray-reporter".into()).spawn(report)?;
    REPORTER.store(std::process::id(), Release);
    Ok(())
}

/// Collects the return addresses of the stack. Returns their number.
fn walk(frames: &mut [usize; FRAMES]) -> usize {
    let mut depth = 0;
    // SAFETY: a handler may use the unsynchronised form: it omits the lock on the symbol tables,
    // which are not used.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            frames[depth] = frame.ip().addr();
            depth += 1;
            depth < FRAMES
        });
    }
    depth
}

/// Handles SIGSEGV: counts and reports a stray write, then passes the signal on.
unsafe extern "C" fn on_fault(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: SA_SIGINFO: both point to what the kernel has put there for this handler.
    let (address, registers) = unsafe {
        ((*info).si_addr().addr(), &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs)
    };
    if let Some((place, start)) = place_of(address) {
        let before = COUNT.fetch_add(1, Relaxed);
        // A stray write during another report, or after the last one, is only counted.
        if before < REPORTS_MAX && TURN.compare_exchange(FREE, FILLING, Acquire, Relaxed).is_ok() {
            // SAFETY: gettid has no arguments.
            let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
            let mut found = Found {
                place,
                address,
                offset: address - start,
                instruction: registers[libc::REG_RIP as usize] as usize,
                kind: if registers[libc::REG_ERR as usize] & WRITE != 0 { "write" } else { "read" },
                thread,
                frames: [0; FRAMES],
                depth: 0,
            };
            found.depth = walk(&mut found.frames);
            Line::default().say(&found);
            // SAFETY: we have set TURN to FILLING.
            unsafe { (*REPORT.0.get()).write(found) };
            have_reported();
        }
    }
    // SAFETY: the arguments of this handler.
    unsafe { PREVIOUS.pass_on(signal, info, context) };
}

/// Returns the watched mapping that holds an address, and its start.
fn place_of(address: usize) -> Option<(usize, usize)> {
    WATCHED.iter().enumerate().find_map(|(place, (start, end))| {
        let end = end.load(Acquire);
        let start = start.load(Relaxed);
        (start <= address && address < end).then_some((place, start))
    })
}

/// Wakes the reporter and waits until it is done, at most [`PATIENCE_MS`].
fn have_reported() {
    if REPORTER.load(Acquire) != std::process::id() {
        TURN.store(FREE, Release);
        return;
    }
    TURN.store(FULL, Release);
    let _ = futex::wake(&TURN, futex::Flags::PRIVATE, u32::MAX);
    for _ in 0..PATIENCE_MS / 10 {
        if TURN.load(Acquire) == DONE {
            break;
        }
        let nap = futex::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = futex::wait(&TURN, futex::Flags::PRIVATE, FULL, Some(&nap));
    }
    // If the reporter is still reading, TURN stays, and the next stray write is not reported.
    let _ = TURN.compare_exchange(DONE, FREE, AcqRel, Relaxed);
}

/// Text made without allocation.
struct Line {
    text: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { text: [0; 256], len: 0 }
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = &mut self.text[self.len..];
        let n = s.len().min(room.len());
        room[..n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

impl Line {
    /// Writes the first line of the report to stderr.
    fn say(mut self, found: &Found) {
        let Found { address, offset, thread, instruction, kind, .. } = found;
        let block = offset / 4096;
        let _ = writeln!(
            self,
            "keepstone: stray {kind} at {address:#x}, offset {offset} of a protected region (4 KiB block \
             {block}), by thread {thread} at instruction {instruction:#x}; it was stopped, the data is unharmed"
        );
        // SAFETY: writes initialised bytes to a descriptor; that may fail.
        unsafe { libc::write(2, self.text.as_ptr().cast(), self.len) };
    }
}

/// Runs the reporter: waits for stray writes and prints their stacks.
fn report() {
    loop {
        let turn = TURN.load(Acquire);
        if turn != FULL {
            let _ = futex::wait(&TURN, futex::Flags::PRIVATE, turn, None);
            continue;
        }
        // SAFETY: TURN is FULL: the report is filled in, and no handler writes it before we set
        // DONE.
        let found = unsafe { (*REPORT.0.get()).assume_init_ref() };
        let mut text = String::new();
        for (n, ip) in found.frames[..found.depth].iter().enumerate() {
            backtrace::resolve(ptr::without_provenance_mut(*ip), |symbol| {
                let name = symbol.name().map_or_else(|| "?".into(), |name| name.to_string());
                let _ = write!(text, "\n{n:4}: {name}");
                if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
                    let _ = write!(text, "\n         at {}:{line}", file.display());
                }
            });
        }
        let path = PATHS.lock().unwrap_or_else(PoisonError::into_inner)[found.place].clone();
        let path = path.unwrap_or_default();
        tracing::error!(
            path = %path.display(),
            offset = found.offset,
            thread = found.thread,
            kind = found.kind,
            "stray access to a protected region"
        );
        eprintln!("keepstone: {}: stray {} by:{text}", path.display(), found.kind);
        TURN.store(DONE, Release);
        let _ = futex::wake(&TURN, futex::Flags::PRIVATE, u32::MAX);
    }
}
