//! Requests that the kernel completes later: Linux AIO, and io_uring as liburing submits it.
//!
//! - **requests-Q1** A read, write or sync of a file that is served here is done when it is
//!   submitted. In its place the kernel gets a write of the same number of bytes to `/dev/null`.
//!   Its completion arrives when and where the program expects it, with the same result.
//! - **requests-Q2** The kernel gets every other request, on a descriptor that has become its own:
//!   one that fails here, one that is chained to others or waits for them (the kernel keeps their
//!   order), and one for another operation.
//! - **requests-Q3** The library cannot see a ring that the program fills and submits itself.
//!   Before it is made, all open files become the kernel's for good. From then on, the kernel opens
//!   files.
//! - **requests-Q4** The kernel closes a descriptor that a ring is to close, and may give its
//!   number to the ring's next file at once. So it becomes the kernel's for good when the request
//!   is submitted.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

use libc::{c_ulong, iocb, iovec, off_t, sigset_t, timespec};
use smallvec::SmallVec;

use super::descriptors::fcntl;
use super::{content, copying};
use crate::serve::{before_fd, fd_freed, give_pool_files_to_kernel, leave_to_kernel};
use crate::start::process;
use crate::{fork, memory, real};

/// The operation of a request.
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
    /// Whether `address` and `len` describe a list of `iovec`; else bytes.
    is_list: bool,
    address: u64,
    len: u64,
    /// Offset in the file, in bytes; -1: at the descriptor's offset.
    offset: off_t,
    /// Flags of `preadv2`.
    flags: c_int,
}

impl Request {
    /// Does the request if the file is served here; returns the bytes it has moved and the
    /// descriptor that stands in for it. `None`: the descriptor may go to the kernel (requests-Q2).
    unsafe fn perform(self) -> Option<(usize, c_int)> {
        let Self { fd, operation, is_list, address, len, offset, flags } = self;
        let single = iovec { iov_base: address as *mut c_void, iov_len: len as usize };
        let (parts, count) =
            if is_list { (address as *const iovec, len as c_int) } else { (&raw const single, 1) };
        let stand_in = stand_in()?;
        // SAFETY: these functions may use the request's memory as the kernel may.
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

/// Checks whether a file is served under this descriptor.
fn is_served(fd: c_int) -> bool {
    process().is_some_and(|process| process.table().owns(fd))
}

/// Makes the descriptor of a request the kernel's.
fn leave(fd: c_int) {
    // If that fails, the request fails as calls do on a descriptor that is not open.
    let _ = give_pool_files_to_kernel(&[fd]);
}

/// `/dev/null`, hidden from the program; -1 until the first request.
static NULL: AtomicI32 = AtomicI32::new(-1);

/// Returns the descriptor that stands in for finished requests.
fn stand_in() -> Option<c_int> {
    let known = NULL.load(Acquire);
    // SAFETY: asks about a descriptor, which an unseen call may have closed.
    if known >= 0 && unsafe { real::fcntl(known, libc::F_GETFD, 0) } >= 0 {
        return Some(known);
    }
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty()).ok()?;
    let opened = rustix::fd::IntoRawFd::into_raw_fd(opened);
    let hidden = process()?.fd_allocator().hide(opened).ok()?;
    match NULL.compare_exchange(known, hidden, AcqRel, Acquire) {
        Ok(_) => Some(hidden),
        // Another thread's descriptor serves as well; this one stays open until the process ends.
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

/// Does a request; returns the one that the kernel gets in its place. Returns `None` if it was not
/// done: then the kernel gets it unchanged, on a descriptor that has become the kernel's.
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
    // A program resubmits requests that the kernel has no room for now: an append would be done
    // twice.
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

/// Submits requests of a context, like the system call. Does those on files that are served, and
/// puts stand-ins in their places during the call. The addresses stay: the program recognises its
/// requests by them.
pub unsafe fn submit(context: c_long, count: c_long, list: *const *mut iocb) -> c_long {
    let mut originals = SmallVec::<[(*mut iocb, iocb); 16]>::new();
    if process().is_some() {
        for index in 0..count.max(0) as usize {
            // If an entry cannot be read, the kernel refuses it and all that follow.
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
            // libaio returns the error number that others leave in `errno`.
            -1 => -*libc::__errno_location(),
            count => count as c_int,
        }
    }
}

// io_uring. The types are liburing's binary interface, which does not change.

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
    entries: *mut RequestEntry,
    /// The entries that the program has filled and not yet submitted.
    filled: [u32; 2],
    ring: [usize; 2],
    rest: [u32; 4],
}

/// A ring (`struct io_uring`), up to the last field that is needed.
#[repr(C)]
pub struct Ring {
    submissions: Submissions,
    completions: [usize; 11],
    flags: c_uint,
}

/// `IORING_SETUP_IOPOLL`: a stand-in cannot be polled, and neither can files of a mount.
const POLLED: u32 = 1 << 0;
/// `IORING_SETUP_SQE128`: entries are twice as long.
const LONG_ENTRIES: u32 = 1 << 10;

/// A request (`struct io_uring_sqe`).
#[repr(C)]
struct RequestEntry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    offset: u64,
    address: u64,
    len: u32,
    /// Flags of `preadv2`, or of the operation.
    operation_flags: u32,
    data: u64,
    buffer: u16,
    personality: u16,
    /// Source of a splice, or the registered file to open or close, counted from 1.
    from: c_int,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<RequestEntry>() == 64 && std::mem::offset_of!(Ring, flags) == 192);

// Operations.
const READV: u8 = 1;
const WRITEV: u8 = 2;
const FSYNC: u8 = 3;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const ACCEPT: u8 = 13;
const OPENAT: u8 = 18;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const READ: u8 = 22;
const WRITE: u8 = 23;
const OPENAT2: u8 = 28;
const SPLICE: u8 = 30;
const TEE: u8 = 33;
const SOCKET: u8 = 45;

/// `IORING_FSYNC_DATASYNC`.
const DATASYNC: u32 = 1;

// Flags of an entry.
const FIXED_FILE: u8 = 1 << 0;
const DRAIN: u8 = 1 << 1;
const LINK: u8 = 1 << 2;
const HARDLINK: u8 = 1 << 3;
const BUFFER_SELECT: u8 = 1 << 5;

impl RequestEntry {
    /// Does the request, if it is to be done here.
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

    /// Whether the request concerns a registered file. Those have numbers of their own, and are the
    /// kernel's already.
    fn is_on_registered(&self) -> bool {
        self.flags & FIXED_FILE != 0 || self.opcode == CLOSE && self.from != 0
    }

    /// Prepares the descriptors that the request names besides its own, opens or closes.
    fn prepare_others(&self) {
        match self.opcode {
            SPLICE | TEE => {
                leave(self.from);
                copying::update_kernel_size(self.from);
            }
            ACCEPT | OPENAT | OPENAT2 | SOCKET => before_fd(),
            FILES_UPDATE => register(self.address as *const c_int, self.len),
            CLOSE if self.from == 0 => {
                // requests-Q4. If that fails, the request does, too.
                let _ = leave_to_kernel(self.fd);
                before_fd();
                fd_freed(self.fd);
            }
            _ => {}
        }
    }
}

/// Does the new requests of a ring that concern served files, before they go to the kernel.
unsafe fn prepare(ring: *mut Ring) {
    if process().is_none() {
        return;
    }
    // SAFETY: liburing made the ring and all that it points to. The program is submitting it, so no
    // other thread does.
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
            entry.prepare_others();
            if entry.is_on_registered() || !is_served(entry.fd) {
                continue;
            }
            let done = if in_order || is_chained { None } else { entry.perform() };
            let Some((moved, stand_in)) = done else {
                leave(entry.fd);
                continue;
            };
            // The address must be one that the process can have, although nothing is read there.
            (entry.opcode, entry.fd) = (WRITE, stand_in);
            (entry.offset, entry.address) = (0, entry as *const RequestEntry as u64);
            (entry.len, entry.operation_flags) = (moved as u32, 0);
            (entry.buffer, entry.from, entry.rest) = (0, 0, [0; 2]);
        }
    }
}

/// Makes files the kernel's that the program registers with a ring.
fn register(files: *const c_int, count: c_uint) {
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
        fork::leave_table_to_kernel();
        real::io_uring_setup(entries, parameters)
    }
}
