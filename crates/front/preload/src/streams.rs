//! Streams of libc on files that are served here.
//!
//! A stream (`FILE`) transfers by functions that a table names: read, write, seek, close and stat.
//! glibc exports the tables of streams on files, so the library can change them. The five places
//! get functions of the library. These call the process layer if the stream's descriptor belongs to
//! that, Chell-Direct if it may be of a file that Chell-Direct serves, and libc's function
//! otherwise.
//!
//! - **streams-S1** The tables are changed only if their contents are the expected ones: the five
//!   places hold libc's functions of these names, and a stream that libc has made lies in memory as
//!   expected. Otherwise streams get the kernel's descriptors.
//! - **streams-S2** They are changed before the first stream has a descriptor of ours, and stay
//!   changed.
//! - **streams-S3** Closing a stream is no cancellation point: a thread that ends there could not
//!   end it again.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};

use libc::{FILE, PT_GNU_RELRO, dl_phdr_info, off_t, size_t, ssize_t};
use rustix::mm::{MprotectFlags, mprotect};

use posix::Process;

use crate::start::process;
use crate::stats::Class;
use crate::{calls, cancel, direct, inherited, real, stats};

/// A stream as all known versions of glibc lay it out in memory, with the fields that are used
/// here.
#[repr(C)]
struct Stream {
    flags: c_int,
    buffers: [usize; 13],
    fd: c_int,
    flags2: c_int,
    other: [usize; 3],
    /// The descriptor's offset, if it is known; negative: it is not.
    offset: off_t,
    more: [usize; 8],
    table: *const StreamTable,
}

const _: () = assert!(std::mem::offset_of!(Stream, fd) == 112);
const _: () = assert!(std::mem::offset_of!(Stream, offset) == 144);
const _: () = assert!(std::mem::offset_of!(Stream, table) == 216);

/// Bit of `flags`: an error was met.
const ERROR_SEEN: c_int = 0x20;
/// Bit of `flags2`: transfers are no cancellation points.
const NOT_CANCELLED: c_int = 2;

/// The operations of a kind of stream.
#[repr(C)]
struct StreamTable {
    other: [usize; 14],
    places: [AtomicPtr<c_void>; PLACES],
    more: [usize; 2],
}

const PLACES: usize = 5;

/// libc's functions in the five places.
const THEIRS: [&CStr; PLACES] =
    [c"_IO_file_read", c"_IO_file_write", c"_IO_file_seek", c"_IO_file_close", c"_IO_file_stat"];

/// Tables of streams, and of those that have wide characters.
const TABLES: [&CStr; 2] = [c"_IO_file_jumps", c"_IO_wfile_jumps"];

type Read = unsafe extern "C-unwind" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;
type Write = unsafe extern "C-unwind" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Seek = unsafe extern "C-unwind" fn(*mut FILE, off_t, c_int) -> off_t;
type Close = unsafe extern "C-unwind" fn(*mut FILE) -> c_int;
type Stat = unsafe extern "C-unwind" fn(*mut FILE, *mut c_void) -> c_int;

/// libc's functions, once the tables have the library's.
static ORIGINALS: [AtomicPtr<c_void>; PLACES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; PLACES];

const UNKNOWN: u8 = 0;
const SERVED: u8 = 1;
const IMPOSSIBLE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Makes streams able to have descriptors of ours from now on; returns whether that is possible
/// (streams-S1, streams-S2).
pub fn are_served() -> bool {
    match STATE.load(Acquire) {
        UNKNOWN => {
            // Two threads that do so at once do the same.
            let state = if change_tables().is_some() { SERVED } else { IMPOSSIBLE };
            STATE.store(state, Release);
            state == SERVED
        }
        state => state == SERVED,
    }
}

/// Makes a stream of a descriptor of ours. `mode` is `r`, `w` or `a`, with or without `+`. `None`:
/// it cannot be made, and the descriptor is as it was.
pub fn make(fd: c_int, mode: &CStr) -> Option<NonNull<FILE>> {
    if !are_served() {
        return None;
    }
    // SAFETY: two strings.
    let made = NonNull::new(unsafe { real::fopen(c"/dev/null".as_ptr(), mode.as_ptr()) })?;
    let stream = made.cast::<Stream>().as_ptr();
    // SAFETY: the stream is not shared yet; `is_known` checks its layout before the fields are
    // used.
    unsafe {
        if !is_known(made) {
            real::fclose(made.as_ptr());
            return None;
        }
        real::close((*stream).fd);
        (*stream).fd = fd;
    }
    Some(made)
}

/// Checks whether a stream may have a descriptor of ours.
#[inline]
pub fn have_ours() -> bool {
    STATE.load(Acquire) == SERVED
}

/// Checks whether a stream that libc makes on this descriptor is served.
pub fn are_served_at(fd: c_int) -> bool {
    process().is_some_and(|process| process.table().owns(fd)) && are_served()
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn change_tables() -> Option<()> {
    let ours: [*mut c_void; PLACES] = [
        read as *mut c_void,
        write as *mut c_void,
        seek as *mut c_void,
        close as *mut c_void,
        stat as *mut c_void,
    ];
    for (original, name) in ORIGINALS.iter().zip(THEIRS) {
        original.store(symbol(name)?, Release);
    }
    let mut tables = Vec::with_capacity(TABLES.len());
    for name in TABLES {
        // SAFETY: glibc's object of that name is a table of operations, never freed; its contents
        // are compared.
        let table = unsafe { symbol(name)?.cast::<StreamTable>().as_ref()? };
        let mut places = table.places.iter().zip(ORIGINALS.iter().zip(ours));
        let is_known = places.all(|(place, (original, ours))| {
            let now = place.load(Acquire);
            now == original.load(Acquire) || now == ours
        });
        if !is_known {
            return None;
        }
        tables.push(table);
    }
    tables.into_iter().try_for_each(|table| change(table, &ours))
}

/// Changes a table. It must lie in memory that is protected once its object is loaded. (Anywhere
/// else, the other contents of its pages would be unknown.)
fn change(table: &'static StreamTable, ours: &[*mut c_void; PLACES]) -> Option<()> {
    let start = std::ptr::from_ref(table) as usize;
    let pages = pages_of(start..start + size_of::<StreamTable>());
    if !is_protected(&pages) {
        return None;
    }
    let protect = |flags| {
        // SAFETY: pages of libc's tables, which no thread executes or unmaps; at the end they are
        // protected as before.
        unsafe { mprotect(pages.start as *mut c_void, pages.len(), flags) }.ok()
    };
    protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
    for (place, ours) in table.places.iter().zip(ours) {
        place.store(*ours, Release);
    }
    protect(MprotectFlags::READ)
}

fn pages_of(bytes: Range<usize>) -> Range<usize> {
    let page = rustix::param::page_size();
    bytes.start / page * page..bytes.end.next_multiple_of(page)
}

/// Checks whether pages are among those that the loader made read-only after it had relocated an
/// object (`PT_GNU_RELRO`).
fn is_protected(pages: &Range<usize>) -> bool {
    unsafe extern "C" fn look(info: *mut dl_phdr_info, _: size_t, pages: *mut c_void) -> c_int {
        // SAFETY: the loader passes an object's description, and what is passed below.
        let (info, pages) = unsafe { (&*info, &*pages.cast::<Range<usize>>()) };
        // SAFETY: the headers that the description names.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let holds = headers.iter().filter(|h| h.p_type == PT_GNU_RELRO).any(|h| {
            let start = (info.dlpi_addr + h.p_vaddr) as usize;
            let end = start + h.p_memsz as usize;
            let page = rustix::param::page_size();
            start <= pages.start && pages.end <= end / page * page
        });
        holds.into()
    }
    let pages: *const Range<usize> = pages;
    // SAFETY: the function takes the pointer that is passed, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), pages.cast_mut().cast()) != 0 }
}

/// Returns the function that stood in a place.
///
/// # Safety
/// `F` is its type.
unsafe fn original<F: Copy>(place: usize) -> F {
    let address = ORIGINALS[place].load(Acquire);
    // SAFETY: the tables have ours, so it was stored before; the caller answers for its type.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Returns the descriptor of a stream, if a call of this class is served here.
///
/// # Safety
/// `stream` is a stream.
pub unsafe fn served(stream: *mut FILE, class: Class) -> Option<c_int> {
    // SAFETY: streams-S1.
    let fd = unsafe { (*stream.cast::<Stream>()).fd };
    let is_ours = |process: &Process| {
        process.table().owns(fd) || inherited::is_served_now(process, class, fd)
    };
    (process().is_some_and(is_ours) || direct::watches(fd)).then_some(fd)
}

/// Checks whether the library sees all that is done with a stream that libc has opened, its closing
/// included. [`crate::direct`] may then serve its descriptor.
pub fn is_seen(stream: NonNull<FILE>) -> bool {
    // SAFETY: streams-S1, which the state of the tables confirms.
    are_served() && unsafe { is_known(stream) }
}

/// Checks whether a stream lies in memory as expected, and has one of the tables.
///
/// # Safety
/// `stream` is a stream that no other thread uses now.
unsafe fn is_known(stream: NonNull<FILE>) -> bool {
    let fields = stream.cast::<Stream>().as_ptr();
    // SAFETY: memory of a stream, which has at least this size; this function compares its layout.
    unsafe {
        libc::fileno(stream.as_ptr()) == (*fields).fd
            && TABLES.iter().any(|name| symbol(name) == Some((*fields).table.cast_mut().cast()))
    }
}

/// Makes a call as a cancellation point, unless the stream's transfers are no cancellation points.
///
/// # Safety
/// `stream` is a stream.
unsafe fn transfer<T>(stream: *mut FILE, call: impl FnOnce() -> T) -> T {
    // SAFETY: streams-S1.
    let flags = unsafe { (*stream.cast::<Stream>()).flags2 };
    if flags & NOT_CANCELLED == 0 { call() } else { cancel::not_here(call) }
}

/// Makes a call of libc's, and counts it if the kernel has opened the file in a pool.
///
/// # Safety
/// `stream` is a stream.
unsafe fn counted(stream: *mut FILE, class: Class, call: impl FnOnce() -> ssize_t) -> ssize_t {
    // SAFETY: streams-S1.
    let fd = unsafe { (*stream.cast::<Stream>()).fd };
    stats::unserved(class, fd);
    let moved = call();
    stats::moved_by_kernel(class, &[fd], moved as i64);
    moved
}

unsafe extern "C-unwind" fn read(stream: *mut FILE, buf: *mut c_void, count: ssize_t) -> ssize_t {
    // SAFETY: libc passes a stream and its buffer.
    unsafe {
        match served(stream, Class::Read) {
            Some(fd) => transfer(stream, || calls::read(fd, buf, count as size_t)),
            None => {
                let read = || original::<Read>(0)(stream, buf, count);
                counted(stream, Class::Read, read)
            }
        }
    }
}

/// Writes all bytes, or up to an error, which it notes in the stream; returns the bytes written.
unsafe extern "C-unwind" fn write(
    stream: *mut FILE,
    data: *const c_void,
    count: ssize_t,
) -> ssize_t {
    // SAFETY: libc passes a stream, and bytes of its buffer or of its caller.
    unsafe {
        let Some(fd) = served(stream, Class::Write) else {
            let write = || original::<Write>(1)(stream, data, count);
            return counted(stream, Class::Write, write);
        };
        let mut done = 0;
        while done < count {
            let rest = (count - done) as size_t;
            let n = transfer(stream, || calls::write(fd, data.byte_offset(done), rest));
            if n < 0 {
                (*stream.cast::<Stream>()).flags |= ERROR_SEEN;
                break;
            }
            done += n;
        }
        let offset = &mut (*stream.cast::<Stream>()).offset;
        if *offset >= 0 {
            *offset += done as off_t;
        }
        done
    }
}

unsafe extern "C-unwind" fn seek(stream: *mut FILE, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: libc passes a stream.
    unsafe {
        match served(stream, Class::Seek) {
            Some(fd) => calls::lseek(fd, offset, whence),
            None => original::<Seek>(2)(stream, offset, whence),
        }
    }
}

unsafe extern "C-unwind" fn close(stream: *mut FILE) -> c_int {
    // SAFETY: libc passes a stream.
    unsafe {
        match served(stream, Class::Close) {
            // streams-S3.
            Some(fd) => cancel::not_here(|| calls::close(fd)),
            None => original::<Close>(3)(stream),
        }
    }
}

unsafe extern "C-unwind" fn stat(stream: *mut FILE, stat: *mut c_void) -> c_int {
    // SAFETY: libc passes a stream and room for its attributes.
    unsafe {
        match served(stream, Class::Stat) {
            Some(fd) => calls::fstat(fd, stat.cast()),
            None => original::<Stat>(4)(stream, stat),
        }
    }
}
