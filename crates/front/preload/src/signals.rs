//! Signal handlers of the program, wrapped.
//!
//! A signal handler may call `read`, `write`, `open` and the like, and may leave by `siglongjmp`.
//! Neither is allowed in the middle of the engine. So the kernel knows only the library's handler.
//! If the thread is outside, that calls the program's handler at once. If the thread is inside, it
//! keeps the signal's description and blocks all signals in the interrupted code. When the thread
//! comes out, it sends the signal to itself again ([`send_again`]).
//!
//! The library always handles SIGSEGV and SIGBUS, because [`crate::memory`] probes buffers. A
//! program that only uses the C interface gets these two handlers with its first pool, and no
//! others.
//! `sigaction` and the older functions return to the program the handler that it set itself.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{SIG_DFL, SIG_ERR, SIG_IGN, c_void, sighandler_t, siginfo_t, sigset_t, ucontext_t};

use os::syscalls::syscall;

use crate::guard::{self, Mask};
use crate::start::serves;
use crate::{memory, real};

/// Signals are 1 to 64.
const SIGNALS: usize = 65;

/// The program's handler of a signal.
struct Disposition {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static DISPOSITIONS: [Disposition; SIGNALS] =
    [const { Disposition { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0) } };
        SIGNALS];

/// Signals that `siginterrupt` lets interrupt calls: handlers that `signal` sets for them later do,
/// too.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Signals of an instruction, which would be executed again.
const SYNCHRONOUS: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
/// Signals that the library always handles.
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Returns the mask of all signals that can wait.
fn deferrable() -> Mask {
    SYNCHRONOUS.iter().fold(Mask::MAX, |mask, &signal| mask & !bit(signal))
}

/// Returns the mask of one signal.
fn bit(signal: c_int) -> Mask {
    1 << (signal - 1)
}

/// Whether the library handles SIGSEGV and SIGBUS.
static HANDLES_FAULTS: AtomicBool = AtomicBool::new(false);

/// Installs the library's handler of SIGSEGV and SIGBUS, once. It passes faults of the program on
/// to the handlers that the program has then, or sets later.
pub fn start() {
    if HANDLES_FAULTS.swap(true, Ordering::AcqRel) {
        return;
    }
    for signal in FAULTS {
        // SAFETY: a null action is a question, and `old` is ours to write.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            real::sigaction(signal, std::ptr::null(), &mut old);
            install(signal, &old, std::ptr::null_mut());
        }
    }
}

/// Handles a signal for the program. A fault by a probe or by missing memory is recovered. Inside
/// the library, other signals are kept for later. Else calls the program's handler, or does the
/// default action.
unsafe extern "C-unwind" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO.
    let (told, interrupted) = unsafe { (&*info, &mut *context.cast::<ucontext_t>()) };
    let by_instruction = SYNCHRONOUS.contains(&signal) && told.si_code > 0;
    if by_instruction {
        // SAFETY: the kernel passes an address with the signals that instructions raise.
        let lacked_room = || pool::handle_fault(unsafe { told.si_addr() } as usize);
        if FAULTS.contains(&signal)
            && (signal == libc::SIGBUS && lacked_room()
                || memory::recover(interrupted)
                || ::direct::recover(interrupted))
        {
            return;
        }
    } else if guard::is_inside() {
        // The kernel's set has 8 bytes; the rest of libc's type belongs to the frame.
        let blocked = (&raw mut interrupted.uc_sigmask).cast::<Mask>();
        // SAFETY: the frame has a set of signals there.
        if guard::keep(told, unsafe { blocked.read() }) {
            // SAFETY: as above.
            unsafe { blocked.write(deferrable()) };
            return;
        }
    }
    let disposition = &DISPOSITIONS[signal as usize];
    let handler = disposition.handler.load(Ordering::Acquire);
    let flags = disposition.flags.load(Ordering::Relaxed);
    if handler == SIG_DFL || flags & libc::SA_RESETHAND != 0 {
        disposition.handler.store(SIG_DFL, Ordering::Release);
        restore_default(signal);
    }
    if handler == SIG_DFL {
        if !by_instruction {
            send_again(told, 0);
        }
    } else if handler != SIG_IGN && flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program installed a function of this type.
        let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        // SAFETY: called as the kernel would.
        unsafe { handler(signal, info, context) };
    } else if handler != SIG_IGN {
        // SAFETY: as above.
        let handler: unsafe extern "C-unwind" fn(c_int) = unsafe { std::mem::transmute(handler) };
        // SAFETY: as above.
        unsafe { handler(signal) };
    } else if by_instruction {
        // The kernel does not let a fault be ignored either.
        restore_default(signal);
    }
}

/// Leaves the signal to the kernel.
fn restore_default(signal: c_int) {
    // SAFETY: an action of zeros is the default one.
    unsafe {
        let action: libc::sigaction = std::mem::zeroed();
        real::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// Sends a kept signal to this thread again, then restores the mask of the time when it came.
pub fn send_again(info: &siginfo_t, mask: Mask) {
    // SAFETY: system calls on our own thread; `info` and `mask` are valid for reads.
    unsafe {
        let (pid, tid) = (libc::getpid() as usize, libc::gettid() as usize);
        let (signal, value) = (info.si_signo as usize, std::ptr::from_ref(info).addr());
        if syscall(libc::SYS_rt_tgsigqueueinfo, [pid, tid, signal, value, 0]).is_err() {
            let _ = syscall(libc::SYS_tgkill, [pid, tid, signal, 0, 0]);
        }
        let how = libc::SIG_SETMASK as usize;
        let args = [how, (&raw const mask).addr(), 0, size_of::<Mask>(), 0];
        let _ = syscall(libc::SYS_rt_sigprocmask, args);
    }
}

/// Calls `sigaction` with the library's handler in the place of the program's.
unsafe fn install(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let disposition = &DISPOSITIONS[signal as usize];
    let before = disposition.handler.load(Ordering::Acquire);
    let flags_before = disposition.flags.load(Ordering::Relaxed);
    // SAFETY: the caller's pointers, which libc would read and write as well.
    unsafe {
        let mut action = if new.is_null() { None } else { Some(*new) };
        if let Some(action) = &mut action {
            let wanted = action.sa_sigaction;
            let is_function = wanted != SIG_DFL && wanted != SIG_IGN;
            if is_function || FAULTS.contains(&signal) {
                disposition.flags.store(action.sa_flags, Ordering::Relaxed);
                disposition.handler.store(wanted, Ordering::Release);
                action.sa_sigaction = handle as *const () as sighandler_t;
                if !is_function {
                    action.sa_flags = libc::SA_ONSTACK;
                }
                action.sa_flags = (action.sa_flags & !libc::SA_RESETHAND) | libc::SA_SIGINFO;
            }
        }
        let new = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let result = real::sigaction(signal, new, old);
        if result == 0 && !old.is_null() && (*old).sa_sigaction == handle as *const () as usize {
            (*old).sa_sigaction = before;
            (*old).sa_flags = flags_before;
        }
        result
    }
}

/// Checks whether the handler of `signal` has to be wrapped. In a program that only uses the C
/// interface, those of faults are.
fn wraps(signal: c_int) -> bool {
    (1..SIGNALS as c_int).contains(&signal)
        && (serves() || FAULTS.contains(&signal) && HANDLES_FAULTS.load(Ordering::Acquire))
}

/// Returns the set of one signal.
fn set_of(signal: c_int) -> sigset_t {
    let mut set = no_signals();
    // SAFETY: the set is ours.
    unsafe { libc::sigaddset(&mut set, signal) };
    set
}

/// Returns the empty set of signals.
fn no_signals() -> sigset_t {
    // SAFETY: a set is plain data, and empty if it is zeros.
    unsafe { std::mem::zeroed() }
}

/// Sets a handler as `signal` and its variants do; returns the one before.
unsafe fn set_handler(
    signal: c_int,
    handler: sighandler_t,
    mask: sigset_t,
    flags: c_int,
) -> sighandler_t {
    // SAFETY: plain data.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    (new.sa_sigaction, new.sa_mask, new.sa_flags) = (handler, mask, flags);
    // SAFETY: both are ours.
    if unsafe { install(signal, &new, &mut old) } == 0 { old.sa_sigaction } else { SIG_ERR }
}

export! {
    fn sigaction | __sigaction (
        signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction
    ) -> c_int {
        if wraps(signal) { install(signal, new, old) } else { real::sigaction(signal, new, old) }
    }

    fn signal | bsd_signal | ssignal (signum: c_int, handler: sighandler_t) -> sighandler_t {
        if wraps(signum) && handler != SIG_ERR {
            let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signum) != 0;
            let flags = if interrupts { 0 } else { libc::SA_RESTART };
            set_handler(signum, handler, set_of(signum), flags)
        } else {
            real::signal(signum, handler)
        }
    }

    fn sysv_signal | __sysv_signal (signum: c_int, handler: sighandler_t) -> sighandler_t {
        if wraps(signum) && handler != SIG_ERR {
            set_handler(signum, handler, no_signals(), libc::SA_RESETHAND | libc::SA_NODEFER)
        } else {
            real::sysv_signal(signum, handler)
        }
    }

    fn sigset (signum: c_int, handler: sighandler_t) -> sighandler_t {
        const SIG_HOLD: sighandler_t = 2;
        if !wraps(signum) || handler == SIG_ERR {
            return real::sigset(signum, handler);
        }
        let (only, mut before) = (set_of(signum), no_signals());
        let mut old: libc::sigaction = std::mem::zeroed();
        let done = if handler == SIG_HOLD {
            libc::pthread_sigmask(libc::SIG_BLOCK, &only, &mut before) == 0
                && install(signum, std::ptr::null(), &mut old) == 0
        } else {
            old.sa_sigaction = set_handler(signum, handler, no_signals(), 0);
            old.sa_sigaction != SIG_ERR
                && libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, &mut before) == 0
        };
        match done {
            false => SIG_ERR,
            true if libc::sigismember(&before, signum) == 1 => SIG_HOLD,
            true => old.sa_sigaction,
        }
    }

    fn sigignore (signum: c_int) -> c_int {
        if !wraps(signum) {
            return real::sigignore(signum);
        }
        let is_set = set_handler(signum, SIG_IGN, no_signals(), 0) != SIG_ERR;
        if is_set { 0 } else { -1 }
    }

    fn siginterrupt (signum: c_int, interrupts: c_int) -> c_int {
        if !wraps(signum) {
            return real::siginterrupt(signum, interrupts);
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        if install(signum, std::ptr::null(), &mut action) != 0 {
            return -1;
        }
        if interrupts != 0 {
            INTERRUPTING.fetch_or(bit(signum), Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(signum), Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        install(signum, &action, std::ptr::null_mut())
    }
}
