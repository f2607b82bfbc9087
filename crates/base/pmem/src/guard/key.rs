//! Protection keys: the per-thread private mapping of the paper (§IV-B2), done by the CPU.
//!
//! The region is mapped twice: read-only for all threads, and writable under a key that every
//! thread's PKRU register denies. A thread that stores enables the key for itself, which costs some
//! 15 ns and concerns no other thread, page table or TLB. All regions of a process share one key,
//! as there are only 15.
//!
//! A new thread inherits the register of its creator, or the kernel's default, which denies all
//! keys. Signal handlers run with that default. So no thread has to set anything up.

#![allow(unsafe_code)]

use super::Tally;
use crate::flush::prefetch;
use crate::mapping::Mapping;
use crate::{Error, Region};
use rustix::io::Errno;
use std::arch::asm;
use std::sync::{Arc, OnceLock};

/// Loads and stores denied: the two bits of a key in PKRU.
const DENIED: u32 = 3;

/// A second mapping, writable by a thread that enables its key.
#[derive(Debug)]
pub(super) struct Keyed {
    mapping: Mapping,
    /// The bits of the key in PKRU.
    bits: u32,
    tally: Arc<Tally>,
}

/// Returns the key of this process.
fn key() -> Result<u32, Errno> {
    static KEY: OnceLock<Result<u32, Errno>> = OnceLock::new();
    *KEY.get_or_init(|| {
        // systemd's `@system-service` does not have the call.
        if os::syscalls::are_filtered() {
            return Err(Errno::PERM);
        }
        // SAFETY: allocates a key and denies it to this thread; no memory is concerned.
        match unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, DENIED) } {
            -1 => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS))
            }
            key => Ok(key as u32),
        }
    })
}

/// Whether CPU and kernel have protection keys, and one is free.
pub(super) fn available() -> bool {
    key().is_ok()
}

impl Keyed {
    /// Maps the region a second time with a protection key, and makes the first mapping read-only.
    pub(super) fn new(region: &Region, tally: Arc<Tally>) -> Result<Self, Error> {
        let fail = |action, e| Error::Io { path: region.path().to_owned(), action, source: e };
        let key = key().map_err(|_| Error::NoKeys(region.path().to_owned()))?;
        let mapping = region.map_again()?;
        mapping.set_key(key).map_err(|e| fail("put a protection key on the mapping", e))?;
        region.forbid_stores().map_err(|e| fail("make the mapping read-only", e.into()))?;
        Ok(Self { mapping, bits: DENIED << (2 * key), tally })
    }

    /// Returns the address of the second mapping.
    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.addr()
    }

    /// Lets `put` store to `off` and beyond through the second mapping (guard-G1).
    #[inline]
    pub(super) fn with<R>(&self, off: u64, put: impl FnOnce(*mut u8) -> R) -> R {
        self.tally.count();
        // Neither the store nor the translation of its address begins before PKRU is written. The
        // prefetch does the translation before that. As access is still denied, it loads nothing
        // into the cache.
        prefetch(self.mapping.addr().wrapping_add(off as usize));
        let denied = read_pkru() | self.bits;
        // SAFETY: the key's bits concern no memory but mappings of this module.
        unsafe { write_pkru(denied & !self.bits) };
        let result = put(self.mapping.addr());
        // SAFETY: as above.
        unsafe { write_pkru(denied) };
        result
    }
}

/// Reads the rights of this thread for all protection keys.
#[inline]
fn read_pkru() -> u32 {
    let pkru: u32;
    // SAFETY: a CPU with keys has PKRU; ECX must be 0, and EDX is cleared.
    unsafe {
        asm!("rdpkru", in("ecx") 0, out("eax") pkru, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    pkru
}

/// Sets which keys this thread may use.
///
/// # Safety
/// Memory under a key that is denied is not accessed afterwards.
#[inline]
unsafe fn write_pkru(pkru: u32) {
    // SAFETY: as above. For the compiler it touches memory, so that it moves no store over it.
    unsafe {
        asm!("wrpkru", in("eax") pkru, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags));
    }
}
