//! What was served, counted over all processes of a `keepstone run --stats`.
//!
//! `KEEPSTONE_STATS` leads to a file without a name that all of them map (`/proc/PID/fd/N`); those that have
//! inherited descriptor N need not be allowed to look at process PID. It holds [`MAGIC`], the number of records
//! (8 bytes each), then per class a name of 16 bytes padded with zeros and three counters of 8 bytes: calls
//! served in user space, calls handed over to the kernel, and the nanoseconds that the former took.
//! All in host byte order.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The first 8 bytes of the file.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"KSRUN003");
const NAME_BYTES: usize = 16;

#[repr(C)]
struct Record {
    name: [u8; NAME_BYTES],
    served: AtomicU64,
    handed_over: AtomicU64,
    served_ns: AtomicU64,
}

#[repr(C)]
struct File {
    magic: AtomicU64,
    records_len: AtomicU64,
    records: [Record; Class::NAMES.len()],
}

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident $name:literal,)*) => {
        /// A class of calls.
        #[derive(Clone, Copy, Debug)]
        pub enum Class { $($(#[$doc])* $class,)* }

        impl Class {
            const NAMES: [&'static str; [$(Class::$class),*].len()] = [$($name),*];
        }
    };
}

classes! {
    /// Opening.
    Open "open",
    /// Closing.
    Close "close",
    /// Duplicates and flags of descriptors.
    Descriptor "descriptor",
    /// Reading.
    Read "read",
    /// Writing.
    Write "write",
    /// Moving the offset.
    Seek "seek",
    /// Changing sizes and allocation.
    Size "size",
    /// Waiting for durability.
    Sync "sync",
    /// Asking for attributes and permissions.
    Stat "stat",
    /// Changing attributes.
    Attributes "attributes",
    /// Extended attributes.
    Xattr "xattr",
    /// Creating, removing, renaming, reading links.
    Names "names",
    /// Listing directories.
    List "list",
    /// Mapping.
    Map "map",
    /// Locks.
    Lock "lock",
    /// Copying between descriptors.
    Copy "copy",
    /// Everything else.
    Other "other",
}

impl Class {
    /// Whether a thread can be cancelled in libc's functions of this class, those that wait for locks
    /// apart.
    pub const fn is_cancellation_point(self) -> bool {
        use Class::{Close, Copy, Open, Read, Sync, Write};
        matches!(self, Close | Copy | Open | Read | Sync | Write)
    }
}

static FILE: AtomicPtr<File> = AtomicPtr::new(std::ptr::null_mut());

/// Maps the file, if the environment names one. Without it nothing is counted.
pub fn start() {
    // SAFETY: the name is a string; nobody changes the environment this early.
    let path: *const c_char = unsafe { libc::getenv(c"KEEPSTONE_STATS".as_ptr()) };
    if path.is_null() {
        return;
    }
    // SAFETY: `getenv` returned a string.
    let path = unsafe { CStr::from_ptr(path) };
    if !inherited(path).is_some_and(map)
        && let Ok(file) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    {
        map(file.as_fd());
    }
}

/// The descriptor that the path names by its number.
fn inherited(path: &CStr) -> Option<BorrowedFd<'static>> {
    let number = path.to_str().ok()?.rsplit('/').next()?.parse().ok()?;
    // SAFETY: whatever it is now, nothing that runs this early closes it before it is mapped.
    (number > 2).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

/// Maps the file, if it is one that `keepstone run` has made and nobody can shorten.
fn map(file: BorrowedFd<'_>) -> bool {
    let mut magic = [0; 8];
    let sealed = rustix::fs::fcntl_get_seals(file);
    if !sealed.is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        || rustix::io::pread(file, &mut magic, 0) != Ok(8)
        || magic != MAGIC.to_ne_bytes()
        || !rustix::fs::fstat(file).is_ok_and(|stat| stat.st_size as usize >= size_of::<File>())
    {
        return false;
    }
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, as long as `File`, of a file that nobody can shorten.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), size_of::<File>(), prot, flags, file, 0) };
    let Ok(file) = mapped.map(<*mut std::ffi::c_void>::cast::<File>) else {
        return false;
    };
    // SAFETY: mapped and large enough; every process writes the same names and nothing else but
    // atomics.
    unsafe {
        for (index, name) in Class::NAMES.iter().enumerate() {
            let to = (&raw mut (*file).records[index].name).cast::<u8>();
            std::ptr::copy_nonoverlapping(name.as_ptr(), to, name.len());
        }
        (*file).records_len.store(Class::NAMES.len() as u64, Relaxed);
    }
    FILE.store(file, Relaxed);
    true
}

fn record(class: Class) -> Option<&'static Record> {
    // SAFETY: null, or a mapping that stays until the process ends.
    unsafe { FILE.load(Relaxed).as_ref() }.map(|file| &file.records[class as usize])
}

/// When a call began, where calls are counted.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Option<u64>);

/// A call begins.
#[inline]
pub fn begin() -> Begun {
    Begun((!FILE.load(Relaxed).is_null()).then(now_ns))
}

/// The call has been served in user space.
#[inline]
pub fn served(class: Class, begun: Begun) {
    if let (Some(begun_ns), Some(record)) = (begun.0, record(class)) {
        record.served.fetch_add(1, Relaxed);
        record.served_ns.fetch_add(now_ns().saturating_sub(begun_ns), Relaxed);
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A call on a pool goes to the kernel.
pub fn handed_over(class: Class) {
    if let Some(record) = record(class) {
        record.handed_over.fetch_add(1, Relaxed);
    }
}
