//! Locking memory (`mlockall`).
//!
//! libc's `mlockall` would lock pools and shared states as well: it would take the memory of all
//! their holes, and more than a limit allows. So the library locks the program's own mappings one
//! by one.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::{MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT};
use posix::Errno;

use crate::direct;
use crate::mounts::read;
use crate::serve::set_errno;
use crate::start::process;
use crate::{guard, real};

export! {
    fn mlockall (flags: c_int) -> c_int {
        const KNOWN: c_int = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
        let is_valid = flags & !KNOWN == 0 && flags & (MCL_CURRENT | MCL_FUTURE) != 0;
        if process().is_none() || guard::is_inside() || !is_valid {
            return real::mlockall(flags);
        }
        if flags & MCL_CURRENT != 0
            && let Some(Err(err)) = guard::run(|| lock_own(flags & MCL_ONFAULT == 0))
        {
            set_errno(err);
            return -1;
        }
        let locks_future = flags & MCL_FUTURE != 0;
        LOCKS_FUTURE.store(locks_future, Relaxed);
        // A later mapping may be a pool: its pages are locked as they are touched.
        if locks_future { real::mlockall(MCL_FUTURE | MCL_ONFAULT) } else { 0 }
    }
}

/// Whether later mappings will be locked.
static LOCKS_FUTURE: AtomicBool = AtomicBool::new(false);

/// Unlocks the library's mappings, after a pool has been mapped.
pub fn unlock_ours() {
    if LOCKS_FUTURE.load(Relaxed)
        && let Ok(table) = read(c"/proc/self/maps")
    {
        for mapping in mappings(&table).filter(LockedMapping::is_ours) {
            // SAFETY: changes no content.
            let _ = unsafe { call(libc::SYS_munlock, &mapping.range, 0) };
        }
    }
}

fn mappings(table: &[u8]) -> impl Iterator<Item = LockedMapping> {
    table.split(|&byte| byte == b'\n').filter_map(LockedMapping::parse)
}

/// Locks all current mappings of the program, or none.
fn lock_own(populate: bool) -> Result<(), Errno> {
    let table = read(c"/proc/self/maps")?;
    let mut own = mappings(&table).filter(|mapping| !mapping.is_ours());
    let failed = own.find_map(|mapping| Some((mapping.range.start, mapping.lock(populate).err()?)));
    let Some((end, err)) = failed else { return Ok(()) };
    for mapping in mappings(&table).take_while(|mapping| mapping.range.start < end) {
        // SAFETY: changes no content.
        unsafe { call(libc::SYS_munlock, &mapping.range, 0)? };
    }
    Err(err)
}

/// A line of `/proc/self/maps`: `FROM-TO rwxp …`.
struct LockedMapping {
    range: Range<usize>,
    is_writable: bool,
}

impl LockedMapping {
    fn parse(line: &[u8]) -> Option<Self> {
        /// The longest pair of addresses, and the access.
        const BYTES: usize = 38;
        let start = line.get(..BYTES).unwrap_or(line);
        let (range, rest) = std::str::from_utf8(start).ok()?.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        let range = number(from)?..number(to)?;
        // Above that is the kernel's page of vsyscalls.
        let is_program = range.end <= isize::MAX as usize;
        is_program.then_some(Self { range, is_writable: rest.as_bytes().get(1) == Some(&b'w') })
    }

    /// Whether the library made the mapping, unknown to the program.
    fn is_ours(&self) -> bool {
        let address = self.range.start;
        ::pool::is_mapped(address)
            || process().is_some_and(|process| process.table().shares(address))
            || direct::direct().is_some_and(|direct| direct.has_memory_in(&self.range))
    }

    /// Locks the pages that are present and, with `populate`, all that can be populated.
    fn lock(&self, populate: bool) -> Result<(), Errno> {
        let advice =
            if self.is_writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: none changes content. A range that is no longer mapped cannot be synchronised.
        unsafe {
            match call(libc::SYS_mlock2, &self.range, libc::MLOCK_ONFAULT as c_int) {
                Err(Errno::NOMEM) if call(libc::SYS_msync, &self.range, 0).is_err() => {
                    return Ok(());
                }
                locked => locked?,
            }
            if populate {
                // A page that cannot be touched may stay absent.
                let _ = call(libc::SYS_madvise, &self.range, advice);
            }
        }
        Ok(())
    }
}

/// Makes a system call about part of the memory.
///
/// # Safety
/// As the call.
unsafe fn call(number: c_long, memory: &Range<usize>, argument: c_int) -> Result<(), Errno> {
    let args = [memory.start, memory.len(), argument as usize, 0, 0];
    // SAFETY: the caller's.
    unsafe { os::syscalls::syscall(number, args) }.map(drop)
}
