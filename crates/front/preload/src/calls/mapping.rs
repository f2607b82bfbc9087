//! Mappings of files. A mapping of a pool's file may map the pool's own memory; the library then
//! also handles calls on its addresses ([`posix::Process::promotions`]).

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use libc::{off_t, size_t};
use posix::{Errno, Process, Served};

use crate::serve::{answer, set_errno, to_c};
use crate::start::process;
use crate::stats::Class;
use crate::{guard, mounts, real};

/// Returns the process layer if it has mapped some of these addresses directly.
fn mapped(address: *mut c_void, len: size_t) -> Option<&'static Process> {
    process().filter(|process| {
        process.promotions().maps_directly(address.addr(), len) && !guard::is_inside()
    })
}

/// Runs a call by which the kernel maps something at an address; with `fixed`, in place of an
/// existing mapping.
fn map_by_kernel(
    address: *mut c_void,
    len: size_t,
    fixed: bool,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    match mapped(address, len).filter(|_| fixed) {
        Some(process) => {
            let _inside = guard::Inside::enter();
            process
                .promotions()
                .replace_mapping(address.addr(), len, call, |at| *at != libc::MAP_FAILED)
        }
        None => call(),
    }
}

/// Converts a result of the process layer to an address, or to `MAP_FAILED` with `errno`.
fn to_address(mapped: Result<usize, Errno>) -> *mut c_void {
    mapped.map_or_else(
        |err| {
            set_errno(err);
            libc::MAP_FAILED
        },
        |address| address as *mut c_void,
    )
}

export! {
    fn mmap | mmap64 | __mmap (
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t
    ) -> *mut c_void {
        let by_kernel = || {
            let fixed = flags & libc::MAP_FIXED != 0;
            let map = || real::mmap(address, len, protection, flags, fd, offset);
            map_by_kernel(address, len, fixed, map)
        };
        let Some(process) = process().filter(|_| flags & libc::MAP_ANONYMOUS == 0) else {
            return by_kernel();
        };
        let by_kernel = || {
            guard::run(|| posix::update_kernel_size(fd, mounts::is_served_device));
            by_kernel()
        };
        if !process.table().owns(fd) {
            return by_kernel();
        }
        let mapped = answer(process, Class::Map, &[fd], |process| {
            process.contents().mmap(address as usize, len, protection, flags, fd, offset)
        });
        mapped.map_or_else(by_kernel, to_address)
    }

    fn munmap | __munmap (address: *mut c_void, len: size_t) -> c_int {
        let by_kernel = || real::munmap(address, len);
        let Some(process) = mapped(address, len) else { return by_kernel() };
        answer(process, Class::Map, &[], |process| process.promotions().munmap(address.addr(), len))
            .map_or_else(by_kernel, to_c)
    }

    fn mremap (
        address: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void
    ) -> *mut c_void {
        let by_kernel = || {
            let fixed = flags & libc::MREMAP_FIXED != 0;
            let map = || real::mremap(address, old_len, new_len, flags, new);
            map_by_kernel(new, new_len, fixed, map)
        };
        let Some(process) = mapped(address, old_len.max(1)) else { return by_kernel() };
        let moved = answer(process, Class::Map, &[], |process| {
            process.promotions().mremap(address.addr(), old_len, new_len, flags, new.addr())
        });
        moved.map_or_else(by_kernel, to_address)
    }

    fn msync (address: *mut c_void, len: size_t, flags: c_int) -> c_int {
        let by_kernel = || real::msync(address, len, flags);
        let Some(process) = mapped(address, len) else { return by_kernel() };
        answer(process, Class::Sync, &[], |process| {
            process.promotions().msync(address.addr(), len, flags)
        })
            .map_or_else(by_kernel, to_c)
    }

    fn mprotect | __mprotect (address: *mut c_void, len: size_t, protection: c_int) -> c_int {
        let by_kernel = || real::mprotect(address, len, protection);
        match may_protect(address, len, protection) {
            Ok(()) => by_kernel(),
            Err(err) => to_c::<()>(Err(err)),
        }
    }

    fn madvise | __madvise (address: *mut c_void, len: size_t, advice: c_int) -> c_int {
        let by_kernel = || real::madvise(address, len, advice);
        let Some(process) = mapped(address, len) else { return by_kernel() };
        answer(process, Class::Map, &[], |process| {
            process.promotions().madvise(address.addr(), len, advice)
        })
            .map_or_else(by_kernel, to_c)
    }

    fn remap_file_pages (
        address: *mut c_void, len: size_t, protection: c_int, page: size_t, flags: c_int
    ) -> c_int {
        let by_kernel = || real::remap_file_pages(address, len, protection, page, flags);
        // The call's range may begin and end within pages.
        let start = address.map_addr(|at| at - at % rustix::param::page_size());
        let Some(process) = mapped(start, len) else { return by_kernel() };
        let remapped = answer(process, Class::Map, &[], |process| {
            process.promotions().remap_file_pages(address.addr(), len, protection, page)
        });
        remapped.map_or_else(by_kernel, to_c)
    }

    fn pkey_mprotect (
        address: *mut c_void, len: size_t, protection: c_int, key: c_int
    ) -> c_int {
        match may_protect(address, len, protection) {
            Ok(()) => real::pkey_mprotect(address, len, protection, key),
            Err(err) => to_c::<()>(Err(err)),
        }
    }
}

/// Counts the mappings that become writable.
fn may_protect(address: *mut c_void, len: size_t, protection: c_int) -> Result<(), Errno> {
    let Some(process) = mapped(address, len) else { return Ok(()) };
    match guard::run(|| process.promotions().mprotect(address.addr(), len, protection)) {
        Some(Served::Done(Err(err))) => Err(err),
        _ => Ok(()),
    }
}
