//! Handlers of faults: signals that an instruction raises (SIGSEGV, SIGBUS).
//!
//! - **faults-F1** A fault that a handler does not repair goes to the handler that the program had
//!   before. If it had none, the signal ends the process.
//! - **faults-F2** A handler is installed once, so one that the program installs later stays.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::{io, mem, ptr};

use libc::siginfo_t;

/// A function that the kernel calls with `SA_SIGINFO`.
pub type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The action that the program had for a signal before a handler of Keepstone.
pub struct PreviousAction(OnceLock<libc::sigaction>);

impl PreviousAction {
    /// Returns the place of an action, which is not known yet.
    #[expect(clippy::new_without_default, reason = "for statics, whose values are constants")]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns whether the handler has been installed.
    pub fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// Installs a handler, the first time (faults-F2). It makes only calls that a handler may make.
    /// It runs on the alternative stack of a thread that has such a stack.
    ///
    /// # Errors
    /// Those of `sigaction`.
    pub fn replace(&self, signal: c_int, handler: Handler, flags: c_int) -> io::Result<()> {
        let mut before = mem::MaybeUninit::uninit();
        // SAFETY: without a new action, the call only stores the present one, a plain structure.
        let before = unsafe {
            if libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            before.assume_init()
        };
        if self.0.set(before).is_err() {
            return Ok(());
        }
        // SAFETY: the action is zeros except for a handler of the right type, and its flags.
        let result = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = flags | libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, ptr::null_mut())
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Passes a signal to the handler of the program, or lets it end the process (faults-F1).
    ///
    /// # Safety
    /// These are the arguments that the kernel has passed to a handler of [`replace`](Self::replace).
    pub unsafe fn pass_on(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let is_function = |action: &&libc::sigaction| {
            !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
        };
        match self.0.get().filter(is_function) {
            Some(action) if action.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: it was installed as a function of this type, for these arguments.
                unsafe {
                    let handler: Handler = mem::transmute(action.sa_sigaction);
                    handler(signal, info, context);
                }
            }
            Some(action) => {
                // SAFETY: a handler without SA_SIGINFO takes the number alone.
                unsafe {
                    let handler: unsafe extern "C" fn(c_int) = mem::transmute(action.sa_sigaction);
                    handler(signal);
                }
            }
            None => end_by(signal),
        }
    }
}

/// A function that gets the address of a fault, and returns whether the instruction can be executed
/// again. It makes system calls only.
pub type Repair = fn(usize) -> bool;

/// The effect of a SIGBUS that is not repaired.
#[derive(Clone, Copy, Debug)]
pub enum Otherwise {
    /// It goes to the handler that the program had before.
    PassOn,
    /// It ends the process, with these words on stderr.
    End(&'static str),
}

/// The action of the program for SIGBUS.
static BEFORE: PreviousAction = PreviousAction::new();
/// The arguments of the first [`handle_sigbus`].
static REPAIR: OnceLock<(Repair, Otherwise)> = OnceLock::new();

/// Handles SIGBUS: the kernel has no page for a mapped address.
///
/// The first call of the process decides (faults-F2).
///
/// # Errors
/// Those of `sigaction`.
pub fn handle_sigbus(repair: Repair, otherwise: Otherwise) -> io::Result<()> {
    REPAIR.get_or_init(|| (repair, otherwise));
    BEFORE.replace(libc::SIGBUS, on_sigbus, 0)
}

unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some((repair, otherwise)) = REPAIR.get() else { return };
    // SAFETY: the kernel passes the arguments of a handler with SA_SIGINFO. The words are a slice.
    unsafe {
        if repair((*info).si_addr() as usize) {
            return;
        }
        match otherwise {
            Otherwise::PassOn => BEFORE.pass_on(signal, info, context),
            Otherwise::End(words) => {
                let _ = libc::write(2, words.as_ptr().cast(), words.len());
                end_by(signal);
            }
        }
    }
}

/// Lets a signal end the process when its handler returns.
fn end_by(signal: c_int) {
    // SAFETY: an action of zeros is the default action. A signal that no instruction raised does
    // not come again by itself.
    unsafe {
        let action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, &raw const action, ptr::null_mut());
        libc::raise(signal);
    }
}
