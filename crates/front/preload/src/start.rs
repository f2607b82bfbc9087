//! From loading the library to the first call that touches a pool.
//!
//! A process that sees no mount of a pool gets no [`Process`]. If it is given no directories, it
//! gets no [`Direct`](::direct::Direct) either; each function then costs one load more than libc's.
//! A process that sees a mount pays for a reading of `/proc/self/mountinfo`; it attaches the pool
//! when it first uses a path below the mount point.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use ::mounts::PoolMount;
use posix::Process;

use crate::direct::{self, direct};
use crate::{
    engine, environment, exec, exit, fork, guard, inherited, mounts, next, real, record, signals,
    stats,
};

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the process layer; `None` if libc serves everything.
#[inline]
pub fn process() -> Option<&'static Process> {
    // SAFETY: null, or a box that is never dropped.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Checks whether anything is served in this process.
#[inline]
pub fn serves() -> bool {
    process().is_some() || direct().is_some()
}

/// Leaves everything to libc, in a child that `clone` has made and that the process layer does not
/// know.
pub fn serve_no_more(clone_flags: u64) {
    fork::own_memory();
    direct::serve_no_more();
    let process = PROCESS.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null, or a box that is never dropped.
    if let Some(process) = unsafe { process.as_ref() } {
        process.promotions().unmap_inherited();
    }
    if clone_flags & libc::CLONE_FILES as u64 == 0 {
        forget_table();
    } else if !process.is_null() {
        TABLE.store(process, Ordering::Release);
    }
}

/// Leaves everything to libc until `f` returns. This process is stopped meanwhile, and a child in
/// its memory calls.
pub fn while_unserved<T>(f: impl FnOnce() -> T) -> T {
    let process = PROCESS.swap(std::ptr::null_mut(), Ordering::AcqRel);
    let result = f();
    PROCESS.store(process, Ordering::Release);
    result
}

/// The process layer of a served process, in one that shares its table of descriptors, but not its
/// memory.
static TABLE: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the process layer whose descriptors this process must leave open, though it is not
/// served.
#[inline]
pub fn table() -> Option<&'static Process> {
    // SAFETY: as of `process`.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Checks whether a descriptor is the library's own, in the process whose table of descriptors this
/// one shares.
#[inline]
pub fn is_hidden_in_table(fd: std::ffi::c_int) -> bool {
    table().is_some_and(|process| process.table().hides(fd))
}

/// Notes that the table of descriptors is now this process's own.
pub fn forget_table() {
    TABLE.store(std::ptr::null_mut(), Ordering::Release);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        real::start();
        // If anything fails here, libc serves everything.
        guard::run(begin);
    }
    start
};

fn begin() {
    exec::start();
    stats::start();
    record::start();
    if let Some(limit) = ::mounts::scarce_address_space() {
        debug(format_args!(
            "pools are left to their mounts: the address space is limited to {} MiB (`ulimit -v`), the library needs {} MiB",
            limit >> 20,
            ::mounts::ADDRESS_SPACE_MIN >> 20
        ));
        return;
    }
    let pools = start_pools(mounts::find());
    direct::start();
    if pools.is_none() && direct::direct().is_none() {
        return;
    }
    if !debugging() {
        // The program's stderr is not for the library's messages.
        std::panic::set_hook(Box::new(|_| {}));
    }
    choose_descriptors();
    if let Some(process) = pools {
        PROCESS.store(Box::into_raw(Box::new(process)), Ordering::Release);
    }
    signals::start();
    fork::start();
    exit::start();
    stats::keep_stderr(process());
    if let Some(process) = process().filter(|_| opens_in_user_space()) {
        inherited::start(process);
    }
}

/// Number of other users' mounts on which calls are counted.
const FOREIGN_MAX: usize = 4;

/// Makes the process layer for the mounted pools; `None` if there are none.
fn start_pools(mut mounts: Vec<PoolMount>) -> Option<Process> {
    // A read-only mount is left to the kernel: its server has a view of its own.
    mounts.retain(|mount| mount.state.flags & libc::ST_RDONLY == 0);
    // Mounts of other users are left to the kernel. A few get a place, so that reports can name the
    // reason.
    let users = mounts::believed_users();
    let (mut believed, mut others): (Vec<_>, Vec<_>) =
        mounts.into_iter().partition(|mount| mount.is_by(&users));
    others.truncate(FOREIGN_MAX);
    believed.append(&mut others);
    let mounts = believed;
    if mounts.is_empty() {
        return None;
    }
    let process = Process::start().ok()?;
    let mut served = Vec::new();
    for mount in mounts {
        let device = mounts::device_number(&mount);
        if process.add_mount(engine::spec(mount)).is_ok() {
            served.push(device);
        }
    }
    mounts::serve(served);
    Some(process)
}

/// Whether every descriptor is the kernel's from the start (`--fds real`).
static DESCRIPTORS_ARE_REAL: AtomicBool = AtomicBool::new(false);

/// Checks whether files are opened here. A program that gives descriptors to the kernel unseen by
/// libc (in a ring of io_uring that it fills itself) gets those of the mount.
pub fn opens_in_user_space() -> bool {
    !DESCRIPTORS_ARE_REAL.load(Ordering::Relaxed)
}

/// Lets the kernel open all files from now on.
pub fn open_by_kernel() {
    DESCRIPTORS_ARE_REAL.store(true, Ordering::Relaxed);
    inherited::stop();
    direct::stop();
}

/// Sets the kind of descriptors according to `KEEPSTONE_FDS`. Stops Chell-Direct if the program may
/// submit requests to the kernel, which then changes files unseen.
fn choose_descriptors() {
    if environment::variable(c"KEEPSTONE_FDS") == Some(c"real") {
        open_by_kernel();
    } else {
        // Searched only if Chell-Direct serves anything.
        direct::tell(|direct| {
            if next::is_any_defined(&[c"io_uring_queue_init", c"io_submit"]) {
                direct.stop();
            }
        });
    }
}

/// Checks whether the user wants to know why a pool is not served here (`KEEPSTONE_DEBUG=1`).
pub fn debugging() -> bool {
    environment::is_set(c"KEEPSTONE_DEBUG")
}

/// Prints a message on stderr, if the user wants to know.
pub fn debug(message: std::fmt::Arguments<'_>) {
    if debugging() {
        let line = format!("keepstone[{}]: {message}\n", rustix::process::getpid());
        // SAFETY: 2 is not closed while this runs, or the write fails.
        let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
        let _ = rustix::io::write(stderr, line.as_bytes());
    }
}
