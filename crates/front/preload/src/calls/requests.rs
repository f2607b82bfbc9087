//! Requests that the kernel does later: Linux AIO, and io_uring as liburing submits it.
//!
//! - **requests-Q1** A read, write or sync of a file that is served here is done when it is submitted. In its place the kernel
//!   gets a write of as many bytes to `/dev/null`: its completion comes when, where and to whom the program expects it, and
//!   says the same.
//! - **requests-Q2** The kernel keeps every other request, on a descriptor that has been made its own: what fails here, what is
//!   chained to others or waits for them (their order is the kernel's), and what asks for something else.
//! - **requests-Q3** A ring that the program fills and hands over itself is seen by nobody: from then on, files are opened by the
//!   kernel.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

use libc::{c_ulong, iocb, iovec, off_t, sigset_t, timespec};
use smallvec::SmallVec;

use super::content;
use super::descriptors::fcntl;
use crate::serve::give_pool_files_to_kernel;
use crate::start::{open_by_kernel, process};
use crate::{memory, real};

/// What is done of a request here.
enum Operation {
    Read,
    Write,
    Sync,
    SyncData,
}

/// A request.
struct Request {
    fd: c_int,
    operation: Operation,
    /// Whether what follows is a list of `iovec`, and how many; else of bytes.
    is_list: bool,
    address: u64,
    len: u64,
    /// Where in the file, in bytes; -1: at the descriptor's offset.
    offset: off_t,
    /// As those of `preadv2`.
    flags: c_int,
}

impl Request {
    /// Does it, where the file is served here: how many bytes it has moved, and who stands in for it. The kernel can have the
    /// descriptor otherwise (requests-Q2).
    unsafe fn perform(self) -> Option<(usize, c_int)> {
        let Self { fd, operation, is_list, address, len, offset, flags } = self;
        let single = iovec { iov_base: address as *mut c_void, iov_len: len as usize };
        let (parts, count) =
            if is_list { (address as *const iovec, len as c_int) } else { (&raw const single, 1) };
        let stand_in = stand_in()?;
        // SAFETY: what the kernel may do with the request's memory, these may.
        let moved = unsafe {
            match operation {
                Operation::Read => content::preadv2(fd, parts, count, offset, flags),
                Operation::Write => content::pwritev2(fd, parts, count, offset, flags),
                Operation::Sync => content::fsync(fd) as isize,
                Operation::SyncData => content::fdatasync(fd) as isize,
            }
        };
        usize::try_from(moved).ok().map(|moved| (moved, stand_in))
    }
}

/// Whether files are served under this descriptor.
fn is_served(fd: c_int) -> bool {
    process().is_some_and(|process| process.table().owns(fd))
}

/// A request on this descriptor is the kernel's, if it is not already.
fn leave(fd: c_int) {
    // Where that fails, the request fails as calls do on a descriptor that is not open.
    let _ = give_pool_files_to_kernel(&[fd]);
}

/// `/dev/null`, out of the program's sight; -1 until the first request.
static NULL: AtomicI32 = AtomicI32::new(-1);

/// The descriptor of what stands in for requests that are done.
fn stand_in() -> Option<c_int> {
    let known = NULL.load(Acquire);
    // SAFETY: asks about a descriptor, which may have been closed by a call that nobody saw.
    if known >= 0 && unsafe { real::fcntl(known, libc::F_GETFD, 0) } >= 0 {
        return Some(known);
    }
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty()).ok()?;
    let opened = rustix::fd::IntoRawFd::into_raw_fd(opened);
    let hidden = process()?.fd_allocator().hide(opened).ok()?;
    match NULL.compare_exchange(known, hidden, AcqRel, Acquire) {
        Ok(_) => Some(hidden),
        // Another thread's is as good; this one lasts as long as the process.
        Err(theirs) => Some(theirs),
    }
}

// Linux AIO.

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_FSYNC: u16 = 2;
const IOCB_CMD_FDSYNC: u16 = 3;
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;

/// What the kernel gets in place of a request, if it is done.
unsafe fn replaced(request: &iocb) -> Option<iocb> {
    let fd = request.aio_fildes as c_int;
    if !is_served(fd) {
        return None;
    }
    let (operation, is_list) = match request.aio_lio_opcode {
        IOCB_CMD_PREAD => (Operation::Read, false),
        IOCB_CMD_PWRITE => (Operation::Write, false),
        IOCB_CMD_PREADV => (Operation::Read, true),
        IOCB_CMD_PWRITEV => (Operation::Write, true),
        IOCB_CMD_FSYNC => (Operation::Sync, false),
        IOCB_CMD_FDSYNC => (Operation::SyncData, false),
        _ => {
            leave(fd);
            return None;
        }
    };
    let (offset, flags) = (request.aio_offset, request.aio_rw_flags);
    let (address, len) = (request.aio_buf, request.aio_nbytes);
    let request_here = Request { fd, operation, is_list, address, len, offset, flags };
    // What the kernel has no room for now is submitted once more: bytes would be appended twice.
    let appends = flags & libc::RWF_APPEND != 0
        // SAFETY: asks about a descriptor.
        || unsafe { fcntl(fd, libc::F_GETFL, 0) } & libc::O_APPEND != 0;
    // SAFETY: the caller's request.
    let done = if appends || offset < 0 { None } else { unsafe { request_here.perform() } };
    let Some((moved, stand_in)) = done else {
        leave(fd);
        return None;
    };
    let mut other = *request;
    other.aio_fildes = stand_in as u32;
    other.aio_lio_opcode = IOCB_CMD_PWRITE;
    other.aio_nbytes = moved as u64;
    (other.aio_offset, other.aio_rw_flags) = (0, 0);
    Some(other)
}

/// Submits requests of a context, as the system call: those on files that are served are done, and for the time of the call
/// something else stands in their places. Their addresses are what the program knows them by.
pub unsafe fn submit(context: c_long, count: c_long, list: *const *mut iocb) -> c_long {
    let mut originals = SmallVec::<[(*mut iocb, iocb); 16]>::new();
    if process().is_some() {
        for index in 0..count.max(0) as usize {
            // What cannot be read, the kernel refuses, and all that follows.
            let Ok(at) = memory::load(list.wrapping_add(index)) else { break };
            let Ok(original) = memory::load(at) else { break };
            // SAFETY: the caller's request.
            let Some(other) = (unsafe { replaced(&original) }) else { continue };
            if memory::store(at, other).is_err() {
                break;
            }
            originals.push((at, original));
        }
    }
    // SAFETY: as the caller's.
    let result = unsafe { real::syscall(libc::SYS_io_submit, context, count, list as _, 0, 0, 0) };
    for (at, original) in originals {
        let _ = memory::store(at, original);
    }
    result
}

export! {
    fn io_submit (context: c_ulong, count: c_long, list: *const *mut iocb) -> c_int {
        match submit(context as c_long, count, list) {
            // libaio returns what others leave in `errno`.
            -1 => -*libc::__errno_location(),
            count => count as c_int,
        }
    }
}

// io_uring. What follows is liburing's interface, and it does not change.

/// A ring's submissions (`struct io_uring_sq`).
#[repr(C)]
struct Submissions {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    mask: *const u32,
    count: *const u32,
    flags: *const u32,
    dropped: *const u32,
    array: *const u32,
    entries: *mut Entry,
    /// The entries that the program has filled and the kernel has not been told of.
    filled: [u32; 2],
    ring: [usize; 2],
    rest: [u32; 4],
}

/// A ring (`struct io_uring`), up to what is needed of it.
#[repr(C)]
pub struct Ring {
    submissions: Submissions,
    completions: [usize; 11],
    flags: c_uint,
}

/// `IORING_SETUP_IOPOLL`: what stands in for requests cannot be polled, no more than files of a mount.
const POLLED: u32 = 1 << 0;
/// `IORING_SETUP_SQE128`: entries are twice as long.
const LONG_ENTRIES: u32 = 1 << 10;

/// A request (`struct io_uring_sqe`).
#[repr(C)]
struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    offset: u64,
    address: u64,
    len: u32,
    /// As those of `preadv2`, or of the operation.
    operation_flags: u32,
    data: u64,
    buffer: u16,
    personality: u16,
    /// Of a splice.
    from: c_int,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64 && std::mem::offset_of!(Ring, flags) == 192);

// Operations.
const READV: u8 = 1;
const WRITEV: u8 = 2;
const FSYNC: u8 = 3;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const READ: u8 = 22;
const WRITE: u8 = 23;
const SPLICE: u8 = 30;
const TEE: u8 = 33;

/// `IORING_FSYNC_DATASYNC`.
const DATASYNC: u32 = 1;

// Flags of an entry.
const FIXED_FILE: u8 = 1 << 0;
const DRAIN: u8 = 1 << 1;
const LINK: u8 = 1 << 2;
const HARDLINK: u8 = 1 << 3;
const BUFFER_SELECT: u8 = 1 << 5;

impl Entry {
    /// Does the request, where that is to be done here.
    unsafe fn perform(&self) -> Option<(usize, c_int)> {
        if self.flags & BUFFER_SELECT != 0 || self.personality != 0 {
            return None;
        }
        let (operation, is_list) = match self.opcode {
            READ | READ_FIXED => (Operation::Read, false),
            WRITE | WRITE_FIXED => (Operation::Write, false),
            READV => (Operation::Read, true),
            WRITEV => (Operation::Write, true),
            FSYNC if self.operation_flags & DATASYNC != 0 => (Operation::SyncData, false),
            FSYNC => (Operation::Sync, false),
            _ => return None,
        };
        let (offset, flags) = (self.offset as off_t, self.operation_flags as c_int);
        let (fd, address, len) = (self.fd, self.address, self.len.into());
        let request = Request { fd, operation, is_list, address, len, offset, flags };
        // SAFETY: the program's request.
        unsafe { request.perform() }
    }
}

/// Does what a ring's new requests ask of files that are served, before the kernel is told of them.
unsafe fn prepare(ring: *mut Ring) {
    if process().is_none() {
        return;
    }
    // SAFETY: liburing has made the ring and everything that it points to; the program submits it, so nobody else does.
    unsafe {
        let (submissions, flags) = (&(*ring).submissions, (*ring).flags);
        if flags & POLLED != 0 {
            return;
        }
        let mask = *submissions.mask;
        let step = if flags & LONG_ENTRIES != 0 { 2 } else { 1 };
        let [from, to] = submissions.filled;
        let (mut is_chained, mut is_drained) = (false, false);
        for index in 0..to.wrapping_sub(from).min(mask + 1) {
            let place = (from.wrapping_add(index) & mask) as usize * step;
            let entry = &mut *submissions.entries.add(place);
            is_drained |= entry.flags & DRAIN != 0;
            let in_order = is_drained | is_chained;
            is_chained = entry.flags & (LINK | HARDLINK) != 0;
            if matches!(entry.opcode, SPLICE | TEE) {
                leave(entry.from);
            }
            // Registered files are numbered by themselves, and the kernel's already.
            if entry.flags & FIXED_FILE != 0 || !is_served(entry.fd) {
                continue;
            }
            let done = if in_order || is_chained { None } else { entry.perform() };
            let Some((moved, stand_in)) = done else {
                leave(entry.fd);
                continue;
            };
            // The address must be one that the process can have: nothing is read there.
            (entry.opcode, entry.fd) = (WRITE, stand_in);
            (entry.offset, entry.address) = (0, entry as *const Entry as u64);
            (entry.len, entry.operation_flags) = (moved as u32, 0);
            (entry.buffer, entry.from, entry.rest) = (0, 0, [0; 2]);
        }
    }
}

/// Files are registered with a ring: they are the kernel's from now on.
unsafe fn register(files: *const c_int, count: c_uint) {
    for index in 0..count as usize {
        let Ok(fd) = memory::load(files.wrapping_add(index)) else { break };
        leave(fd);
    }
}

export! {
    fn io_uring_submit (ring: *mut Ring) -> c_int {
        prepare(ring);
        real::io_uring_submit(ring.cast())
    }

    fn io_uring_submit_and_wait (ring: *mut Ring, count: c_uint) -> c_int {
        prepare(ring);
        real::io_uring_submit_and_wait(ring.cast(), count)
    }

    fn io_uring_submit_and_wait_timeout (
        ring: *mut Ring, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        prepare(ring);
        real::io_uring_submit_and_wait_timeout(ring.cast(), completion, count, timeout, mask)
    }

    fn io_uring_submit_and_wait_min_timeout (
        ring: *mut Ring, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        least: c_uint, mask: *const sigset_t
    ) -> c_int {
        prepare(ring);
        real::io_uring_submit_and_wait_min_timeout(
            ring.cast(), completion, count, timeout, least, mask,
        )
    }

    fn io_uring_submit_and_wait_reg (
        ring: *mut Ring, completion: *mut c_void, count: c_uint, index: c_int
    ) -> c_int {
        prepare(ring);
        real::io_uring_submit_and_wait_reg(ring.cast(), completion, count, index)
    }

    fn io_uring_submit_and_get_events (ring: *mut Ring) -> c_int {
        prepare(ring);
        real::io_uring_submit_and_get_events(ring.cast())
    }

    fn io_uring_wait_cqes (
        ring: *mut Ring, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        prepare(ring);
        real::io_uring_wait_cqes(ring.cast(), completion, count, timeout, mask)
    }

    fn io_uring_wait_cqes_min_timeout (
        ring: *mut Ring, completion: *mut c_void, count: c_uint, timeout: *const timespec,
        least: c_uint, mask: *const sigset_t
    ) -> c_int {
        prepare(ring);
        real::io_uring_wait_cqes_min_timeout(ring.cast(), completion, count, timeout, least, mask)
    }

    fn io_uring_wait_cqe_timeout (
        ring: *mut Ring, completion: *mut c_void, timeout: *const timespec
    ) -> c_int {
        prepare(ring);
        real::io_uring_wait_cqe_timeout(ring.cast(), completion, timeout)
    }

    fn io_uring_register_files (ring: *mut Ring, files: *const c_int, count: c_uint) -> c_int {
        register(files, count);
        real::io_uring_register_files(ring.cast(), files, count)
    }

    fn io_uring_register_files_tags (
        ring: *mut Ring, files: *const c_int, tags: *const c_void, count: c_uint
    ) -> c_int {
        register(files, count);
        real::io_uring_register_files_tags(ring.cast(), files, tags, count)
    }

    fn io_uring_register_files_update (
        ring: *mut Ring, first: c_uint, files: *const c_int, count: c_uint
    ) -> c_int {
        register(files, count);
        real::io_uring_register_files_update(ring.cast(), first, files, count)
    }

    fn io_uring_register_files_update_tag (
        ring: *mut Ring, first: c_uint, files: *const c_int, tags: *const c_void, count: c_uint
    ) -> c_int {
        register(files, count);
        real::io_uring_register_files_update_tag(ring.cast(), first, files, tags, count)
    }

    fn io_uring_setup (entries: c_uint, parameters: *mut c_void) -> c_int {
        open_by_kernel();
        real::io_uring_setup(entries, parameters)
    }
}
