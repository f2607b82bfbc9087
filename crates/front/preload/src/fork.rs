//! New processes that share this one's memory image.
//!
//! `fork` of libc itself runs [`before`], [`in_parent`] and [`in_child`] (`pthread_atfork`),
//! whichever function calls it. In the child the engine's own handler has to come first, so the
//! library registers its handler again, after that one, when a pool is attached. `vfork` does the
//! same as `fork`: its child would run the library's code in its parent's memory. The child of a
//! `clone` gets only descriptors of the kernel and is not served. (preload-P5.)

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::pid_t;
use posix::Process;

use crate::direct;
use crate::serve::{before_fd, fail, give_to_kernel, leave_streams_to_kernel, leave_to_kernel};
use crate::start::{
    forget_table, open_by_kernel, process, serve_no_more, serves, table, while_unserved,
};
use crate::{cwd, guard, real, record, stats};

thread_local! {
    /// Whether the thread is in [`fork_by`], which reports the child to the process layer.
    static TELLS: Cell<bool> = const { Cell::new(false) };
    /// Whether the thread is ending the process.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Forks that are under way.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Whether a thread is ending the process by `exit`.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The process that this memory belongs to; 0 if nothing is served in it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Notes that this memory belongs to the calling process.
pub fn own_memory() {
    OWNER.store(rustix::process::getpid().as_raw_pid(), Ordering::Relaxed);
}

/// Checks whether the end of this process ends what uses its memory. It does not in a child of
/// `clone` with `CLONE_VM` that is no thread: the memory stays its parent's.
pub fn owns_memory() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner == 0 || owner == rustix::process::getpid().as_raw_pid()
}

/// Whether a pool is attached, and so the handler that runs after the engine's is registered.
static ATTACHED: AtomicBool = AtomicBool::new(false);

/// Registers with libc.
pub fn start() {
    own_memory();
    // SAFETY: the handlers are functions that stay.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child_first)) };
}

/// Registers the handler for the child, after the engine has registered its own.
pub fn attached() {
    if !ATTACHED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a function that stays.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Prepares the process layer and direct access for a fork; takes their locks.
extern "C" fn before() {
    if let Some(process) = process() {
        guard::run(|| process.before_fork());
    }
    if let Some(direct) = direct::direct() {
        guard::run(|| direct.before_fork());
    }
}

/// Runs in the child before the engine's handler. If no pool is attached, the engine has none, and
/// [`in_child`] runs at once.
extern "C" fn in_child_first() {
    forget_table();
    if let Some(direct) = direct::direct() {
        guard::run(|| direct.after_fork_child());
    }
    if !ATTACHED.load(Ordering::Acquire) {
        in_child();
    }
}

/// Takes over descriptors in the child, after the engine's handler.
extern "C" fn in_child() {
    own_memory();
    if let Some(process) = process() {
        guard::run(|| process.after_fork_child());
    }
    stats::forked(process());
    record::forked();
}

/// Ends a fork in the parent if another function than [`fork_by`] has forked.
extern "C" fn in_parent() {
    if !TELLS.get() {
        // Only the code that forked knows the child; 0 stands for no child.
        tell(0);
    }
}

/// Ends a fork in the parent: releases what [`before`] has locked. The process layer waits until
/// the child has its copies. `child` is its process ID, -1 if the fork failed, 0 if it is unknown.
fn tell(child: pid_t) {
    if let Some(direct) = direct::direct() {
        guard::run(|| direct.after_fork_parent());
    }
    if let Some(process) = process() {
        guard::run(|| process.after_fork_parent(child));
    }
}

/// Forks by a function that runs the handlers, and reports the child to the process layer.
fn fork_by(f: impl FnOnce() -> pid_t) -> pid_t {
    begin();
    let outer = TELLS.replace(true);
    let child = f();
    if child == 0 {
        // The child does not have the other threads that were forking.
        FORKING.store(0, Ordering::SeqCst);
    } else {
        tell(child);
        FORKING.fetch_sub(1, Ordering::SeqCst);
    }
    TELLS.set(outer);
    child
}

/// Announces a fork. If the process is ending, waits for its end instead.
fn begin() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    if ENDING.load(Ordering::SeqCst) && !ENDS.get() {
        FORKING.fetch_sub(1, Ordering::SeqCst);
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
}

/// Waits until no other thread forks, and keeps later forks out. When `exit` finalises the library,
/// libc forgets its handlers, and aborts in a thread that is about to call them.
pub fn end() {
    ENDS.set(true);
    ENDING.store(true, Ordering::SeqCst);
    // A signal handler may end a process that is forking.
    let own = u32::from(TELLS.get());
    while FORKING.load(Ordering::SeqCst) > own {
        rustix::thread::sched_yield();
    }
}

export! {
    fn fork | __fork | __libc_fork () -> pid_t {
        fork_by(|| real::fork())
    }

    fn _Fork () -> pid_t {
        // The handlers are needed.
        if serves() { fork() } else { real::_Fork() }
    }

    fn forkpty (
        master: *mut c_int, name: *mut c_char, terminal: *const c_void, window: *const c_void
    ) -> pid_t {
        // In the child, libc makes the terminal its standard streams.
        leave_streams_to_kernel();
        fork_by(|| real::forkpty(master, name, terminal, window))
    }

    fn daemon (keep_directory: c_int, keep_streams: c_int) -> c_int {
        // Only the child returns. libc has changed its directory and its streams by calls of its
        // own.
        leave_streams_to_kernel();
        let result = fork_by(|| real::daemon(keep_directory, keep_streams));
        if keep_directory == 0 { cwd::changed_by_kernel(process(), result) } else { result }
    }

    fn login_tty (fd: c_int) -> c_int {
        // libc makes it the standard streams, and closes it.
        leave_streams_to_kernel();
        match leave_to_kernel(fd) {
            Ok(()) => real::login_tty(fd),
            Err(err) => fail::<c_int>(err),
        }
    }

    fn clone | __clone (
        function: extern "C-unwind" fn(*mut c_void) -> c_int, stack: *mut c_void, flags: c_int,
        argument: *mut c_void, parent_tid: *mut pid_t, tls: *mut c_void, child_tid: *mut pid_t
    ) -> c_int {
        if flags & libc::CLONE_VM != 0 && flags & libc::CLONE_FILES == 0 {
            // The child's descriptors are its own, but the tables here are not.
            direct::stop();
        }
        before_thread(flags as u64);
        if flags & libc::CLONE_VM != 0 || !serves() && table().is_none() {
            return clone_sharing_memory(flags, || {
                let function = function as *const c_void;
                real::clone(function, stack, flags, argument, parent_tid, tls, child_tid)
            });
        }
        before_clone(flags as u64);
        // The child has a copy of this frame, and of what it points to.
        let start = Start { function, argument, flags };
        let (function, start) = (child_of_clone as *const c_void, (&raw const start).cast_mut());
        let child = real::clone(function, stack, flags, start.cast(), parent_tid, tls, child_tid);
        after_clone(flags as u64);
        child
    }
}

/// Makes a child by `clone` that shares this process's memory, or a child of a process that is not
/// served. If the child has a table of descriptors of its own, the descriptors are the kernel's
/// before. A child that stops this process, as that of `vfork`, is not served.
fn clone_sharing_memory(flags: c_int, clone: impl FnOnce() -> c_int) -> c_int {
    let Some(process) = process().filter(|_| flags & libc::CLONE_FILES == 0) else {
        return clone();
    };
    if flags & libc::CLONE_VFORK != 0 && os::threads::is_only_one() {
        for_each_owned(process, |fd| give_to_kernel(&[fd]));
        return while_unserved(clone);
    }
    leave_table_to_kernel();
    clone()
}

/// Ends in the parent what [`before_clone`] began.
pub fn after_clone(flags: u64) {
    if flags & libc::CLONE_VM as u64 == 0
        && let Some(process) = process()
    {
        process.promotions().release_mappings();
    }
}

/// Gives every descriptor to the kernel, for a child that is not served. A child that shares the
/// table of descriptors, but not the memory with its contents, may put anything there. One that
/// shares only the memory changes contents that do not hold here. From then on, the table is the
/// kernel's alone.
pub fn before_clone(flags: u64) {
    let shared = flags & (libc::CLONE_FILES | libc::CLONE_VM) as u64;
    let is_lost = shared == libc::CLONE_FILES as u64 || shared == libc::CLONE_VM as u64;
    if is_lost {
        open_by_kernel();
    }
    direct::tell(|direct| {
        direct.before_fork();
        direct.after_fork_parent();
    });
    if let Some(process) = process() {
        if is_lost {
            leave_all_to_kernel();
        } else {
            for_each_owned(process, |fd| give_to_kernel(&[fd]));
        }
        if flags & libc::CLONE_VM as u64 == 0 {
            process.promotions().hold_mappings();
        }
    }
}

/// Lets the kernel open all files from now on, and makes each descriptor the kernel's for good.
pub fn leave_table_to_kernel() {
    open_by_kernel();
    leave_all_to_kernel();
}

/// Makes each descriptor of the process layer the kernel's for good.
fn leave_all_to_kernel() {
    if let Some(process) = process() {
        for_each_owned(process, leave_to_kernel);
    }
}

/// Calls `give` for each descriptor of the process layer. If it fails, calls on the descriptor are
/// answered as before.
fn for_each_owned(process: &Process, give: impl Fn(c_int) -> Result<(), posix::Errno>) {
    // SAFETY: no preconditions.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) } as c_int;
    before_fd();
    (0..limit).filter(|&fd| process.table().owns(fd)).for_each(|fd| {
        let _ = give(fd);
    });
}

/// Notes before a `clone` with these flags that a thread unknown to libc has its own credentials,
/// and maybe its own `umask`.
pub fn before_thread(flags: u64) {
    if flags & libc::CLONE_VM as u64 != 0
        && let Some(process) = process()
    {
        process.adds_uncounted_thread(flags & libc::CLONE_SETTLS as u64 == 0);
        if flags & libc::CLONE_FS as u64 == 0 {
            process.task().umask_is_unshared();
        }
    }
}

/// The function that the child of a `clone` is to call.
struct Start {
    function: extern "C-unwind" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    flags: c_int,
}

/// Runs the program's function in the child of a `clone`, which is not served.
unsafe extern "C-unwind" fn child_of_clone(start: *const Start) -> c_int {
    // SAFETY: `clone` passes the address of its own `Start`.
    let Start { function, argument, flags } = unsafe { start.read() };
    serve_no_more(flags as u64);
    stats::forked(None);
    function(argument)
}

/// `vfork` of libc. Does the same as `fork` if pools are served; else jumps to libc's function,
/// which returns twice into the frame of its caller.
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {serves}",
        "add rsp, 8",
        "test al, al",
        "jnz {fork}",
        "sub rsp, 8",
        "call {address}",
        "add rsp, 8",
        "jmp rax",
        serves = sym serves_any,
        fork = sym fork,
        address = sym real::address_of::vfork,
    )
}

/// Another name of [`vfork`].
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    std::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

extern "C" fn serves_any() -> bool {
    serves()
}
