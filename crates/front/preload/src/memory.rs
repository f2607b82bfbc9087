//! Access to the program's memory, which may not be mapped.
//!
//! A bad buffer must give `EFAULT`, as from the kernel, and not end the program in the middle of
//! the engine. So every page of a buffer is touched before the engine uses it, by the few
//! instructions between `ks_probe_begin` and `ks_probe_end`. On a fault there, the library's
//! handler of SIGSEGV and SIGBUS ([`recover`]) continues at `ks_probe_fault`. The program's own
//! handlers cannot displace it, because they are wrapped. Memory that another thread unmaps between
//! probe and use is not protected.
//!
//! As in Linux, a buffer is used up to its first inaccessible byte; values need not be aligned; and
//! a buffer that a call only reads may lie in memory that cannot be written.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use libc::{c_void, iovec, ucontext_t};
use posix::{Errno, Served, Unaligned};
use smallvec::SmallVec;

/// Bytes that Linux transfers in one call at most (`MAX_RW_COUNT`).
pub const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;
/// End of the addresses that a process can map on x86-64 with four levels of page tables.
const ADDRESS_END: usize = 1 << 47;
const PAGE_BYTES: usize = 4096;

// All: rdi = address, rsi = length in bytes; rax = number of accessible bytes from the address on.
std::arch::global_asm!(
    ".hidden ks_probe_begin",
    ".hidden ks_probe_end",
    ".hidden ks_probe_fault",
    ".hidden ks_probe_loads",
    ".hidden ks_probe_stores",
    ".hidden ks_probe_stores_alone",
    ".globl ks_probe_begin, ks_probe_end, ks_probe_fault",
    ".globl ks_probe_loads, ks_probe_stores, ks_probe_stores_alone",
    "ks_probe_begin:",
    "ks_probe_loads:",
    "mov rax, rdi",
    "lea rdx, [rdi + rsi]",
    "2:",
    "cmp rax, rdx",
    "jae 4f",
    "mov cl, byte ptr [rax]",
    "or rax, 0xfff",
    "inc rax",
    "jmp 2b",
    "ks_probe_stores:",
    "mov rax, rdi",
    "lea rdx, [rdi + rsi]",
    "3:",
    "cmp rax, rdx",
    "jae 4f",
    "lock or byte ptr [rax], 0",
    "or rax, 0xfff",
    "inc rax",
    "jmp 3b",
    "ks_probe_stores_alone:",
    "mov rax, rdi",
    "lea rdx, [rdi + rsi]",
    "5:",
    "cmp rax, rdx",
    "jae 4f",
    "or byte ptr [rax], 0",
    "or rax, 0xfff",
    "inc rax",
    "jmp 5b",
    "4:",
    "mov rax, rsi",
    "ret",
    "ks_probe_end:",
    "ks_probe_fault:",
    "sub rax, rdi",
    "ret",
);

unsafe extern "C" {
    static ks_probe_begin: u8;
    static ks_probe_end: u8;
    static ks_probe_fault: u8;
    fn ks_probe_loads(address: usize, len: usize) -> usize;
    fn ks_probe_stores(address: usize, len: usize) -> usize;
    fn ks_probe_stores_alone(address: usize, len: usize) -> usize;
}

/// Ends a probe that was interrupted, with the number of bytes that it has found; `false` if none
/// was.
pub fn recover(context: &mut ucontext_t) -> bool {
    let at = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let probe = (&raw const ks_probe_begin as i64)..(&raw const ks_probe_end as i64);
    let probing = probe.contains(at);
    if probing {
        *at = &raw const ks_probe_fault as i64;
    }
    probing
}

fn probe(
    address: usize,
    len: usize,
    walk: unsafe extern "C" fn(usize, usize) -> usize,
) -> Result<usize, Errno> {
    if address.checked_add(len).is_none_or(|end| end > ADDRESS_END) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the walk touches [address, address + len) without changing it; a fault ends it early
    // by `recover`, whose handler is installed before any pool is used.
    match unsafe { walk(address, len) } {
        0 if len > 0 => Err(Errno::FAULT),
        there => Ok(there),
    }
}

/// Checks whether a process can map this address. The kernel checks that before it looks at files.
pub fn may_be_mapped(at: *const c_void) -> bool {
    (at as usize) < ADDRESS_END
}

/// Returns `len` bytes to read from, or the accessible part. `EFAULT` if the first is inaccessible.
pub fn readable<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    let len = probe(data as usize, len.min(TRANSFER_BYTES_MAX), ks_probe_loads)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the range is mapped and readable, and the program lends it for the call.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Returns `len` bytes to write to, or the accessible part. `EFAULT` if the first is inaccessible.
pub fn writable<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    // A locked instruction keeps concurrent stores of other threads, but waits for all stores
    // before it.
    let walk = if os::threads::is_only_one() { ks_probe_stores_alone } else { ks_probe_stores };
    let len = probe(buf as usize, len.min(TRANSFER_BYTES_MAX), walk)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as for `readable`, and the range can be stored to.
    Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) })
}

/// Reads a value at any alignment. `EFAULT` if a byte of it is inaccessible.
pub fn load<T: Copy>(at: *const T) -> Result<T, Errno> {
    if readable(at.cast(), size_of::<T>())?.len() < size_of::<T>() {
        return Err(Errno::FAULT);
    }
    // SAFETY: all of it can be read, and it is of a C type that has no invalid values.
    Ok(unsafe { at.read_unaligned() })
}

/// Reads a value as [`load`] does; a null pointer gives `None`.
pub fn load_optional<T: Copy>(at: *const T) -> Result<Option<T>, Errno> {
    if at.is_null() { Ok(None) } else { load(at).map(Some) }
}

/// Returns the place to store a value at any alignment, without reading it. `EFAULT` if a byte of
/// it is inaccessible.
pub fn place<'a, T>(at: *mut T) -> Result<&'a mut Unaligned<T>, Errno> {
    if writable(at.cast(), size_of::<T>())?.len() < size_of::<T>() {
        return Err(Errno::FAULT);
    }
    // SAFETY: all of it can be stored to, needs no alignment, and is of a C type that has no
    // invalid values.
    Ok(unsafe { &mut *at.cast() })
}

/// Stores a value at any alignment. `EFAULT` if a byte of it is inaccessible.
pub fn store<T>(at: *mut T, value: T) -> Result<(), Errno> {
    place(at).map(|place| *place = Unaligned(value))
}

/// Returns all of `len` bytes to read from. `EFAULT` if one is inaccessible.
pub fn readable_whole<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    readable(data, len)
        .and_then(|there| if there.len() < len { Err(Errno::FAULT) } else { Ok(there) })
}

/// Calls `fill` with a buffer of `len` bytes; it returns how many it has stored. Behaves like calls
/// for which the kernel has a buffer of its own: `EFAULT` only if the bytes that were stored do not
/// fit into the accessible part.
pub fn fill(
    buf: *mut c_void,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Served<usize>,
) -> Served<usize> {
    let there = writable(buf, len).unwrap_or_default();
    if there.len() == len {
        return fill(there);
    }
    let mut own = vec![0; len];
    let filled = fill(&mut own);
    if let Served::Done(Ok(bytes)) = filled {
        let Some(to) = there.get_mut(..bytes) else { return Served::Done(Err(Errno::FAULT)) };
        to.copy_from_slice(&own[..bytes]);
    }
    filled
}

/// Returns a string without its NUL. `EFAULT` if it is inaccessible, `ENAMETOOLONG` if no NUL comes
/// within `PATH_MAX`.
pub fn string<'a>(at: *const c_char) -> Result<&'a [u8], Errno> {
    let mut len = 0;
    while len < libc::PATH_MAX as usize {
        let rest = at.wrapping_add(len);
        let to_page_end = PAGE_BYTES - rest as usize % PAGE_BYTES;
        let page = readable(rest.cast(), to_page_end)?;
        // SAFETY: the bytes of a slice.
        let end = unsafe { libc::strnlen(page.as_ptr().cast(), page.len()) };
        if end < page.len() {
            // SAFETY: all of it has been found readable.
            return Ok(unsafe { std::slice::from_raw_parts(at.cast(), len + end) });
        }
        len += page.len();
    }
    Err(Errno::NAMETOOLONG)
}

/// Returns the buffers of a vectored call. Like the kernel: `EINVAL` for a bad count; bytes that
/// exceed one transfer are cut off, and so are bytes after the first inaccessible one.
fn vector(
    list: *const iovec,
    count: c_int,
    mut each: impl FnMut(&iovec) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > 1024 {
        return Err(Errno::INVAL);
    }
    let bytes = count * size_of::<iovec>();
    if readable(list.cast(), bytes)?.len() < bytes {
        return Err(Errno::FAULT);
    }
    let mut taken = 0;
    for index in 0..count {
        // SAFETY: the whole list is readable.
        let mut item = unsafe { list.add(index).read_unaligned() };
        if isize::try_from(item.iov_len).is_err() {
            return Err(Errno::INVAL);
        }
        item.iov_len = item.iov_len.min(TRANSFER_BYTES_MAX - taken);
        match each(&item) {
            Ok(len) => {
                taken += len;
                if len < item.iov_len {
                    break;
                }
            }
            Err(_) if taken > 0 => break,
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Returns buffers to read from.
pub fn sources<'a>(
    list: *const iovec,
    count: c_int,
) -> Result<SmallVec<[std::io::IoSlice<'a>; 16]>, Errno> {
    let mut slices = SmallVec::new();
    vector(list, count, |item| {
        let slice = readable(item.iov_base, item.iov_len)?;
        slices.push(std::io::IoSlice::new(slice));
        Ok(slice.len())
    })?;
    Ok(slices)
}

/// Returns buffers to write to.
pub fn targets<'a>(
    list: *const iovec,
    count: c_int,
) -> Result<SmallVec<[std::io::IoSliceMut<'a>; 16]>, Errno> {
    let mut slices = SmallVec::new();
    vector(list, count, |item| {
        let slice = writable(item.iov_base, item.iov_len)?;
        let len = slice.len();
        slices.push(std::io::IoSliceMut::new(slice));
        Ok(len)
    })?;
    Ok(slices)
}
