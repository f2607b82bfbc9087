//! Private mappings (§IV-B2) without support in the kernel: a range is mapped for an access, at an
//! address that no other thread knows, and unmapped after it.
//!
//! The paper's driver does the same with a page table entry of its CPU, at almost no cost. A
//! process needs two system calls, which change the page table that all its threads share.

#![allow(unsafe_code)]

use super::Tally;
use crate::{Error, Region};
use rustix::fd::OwnedFd;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::ptr;
use std::sync::Arc;

/// A region whose own mapping allows no access.
#[derive(Debug)]
pub(super) struct Private {
    file: OwnedFd,
    flags: MapFlags,
    /// The unit of offsets and lengths of mappings, in bytes.
    grain: u64,
    tally: Arc<Tally>,
}

impl Private {
    /// Forbids all access through the mapping of the region. Each access then maps its range.
    pub(super) fn new(region: &Region, tally: Arc<Tally>) -> Result<Self, Error> {
        let (file, flags) = region.file_to_map()?;
        region.forbid_access().map_err(|e| Error::Io {
            path: region.path().to_owned(),
            action: "close the mapping",
            source: e.into(),
        })?;
        Ok(Self { file, flags, grain: region.grain(), tally })
    }

    /// Lets `get` load from `off..off + len`. Passes it the address at which offset 0 would be.
    pub(super) fn load<R>(&self, off: u64, len: u64, get: impl FnOnce(*mut u8) -> R) -> R {
        self.with(off, len, ProtFlags::READ, get)
    }

    /// Lets `put` store to `off..off + len`. Passes it the address at which offset 0 would be.
    pub(super) fn store<R>(&self, off: u64, len: u64, put: impl FnOnce(*mut u8) -> R) -> R {
        self.with(off, len, ProtFlags::READ | ProtFlags::WRITE, put)
    }

    /// Maps the range with the protection `prot` for `access`, and unmaps it. Panics if the kernel
    /// refuses.
    fn with<R>(&self, off: u64, len: u64, prot: ProtFlags, access: impl FnOnce(*mut u8) -> R) -> R {
        let start = off - off % self.grain;
        let bytes = (off + len.max(1) - start).next_multiple_of(self.grain) as usize;
        self.tally.count();
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases no reference.
        let mapped = self.tally.timed(|| unsafe {
            mm::mmap(ptr::null_mut(), bytes, prot, self.flags, &self.file, start)
        });
        let at = mapped.unwrap_or_else(|e| {
            panic!("cannot map {bytes} bytes of a region: {e}; raise the limits on memory")
        });
        let result = access(at.cast::<u8>().wrapping_sub(start as usize));
        // SAFETY: the mapping made above; `access` is over, and no other thread knows the address.
        let unmapped = self.tally.timed(|| unsafe { mm::munmap(at, bytes) });
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
        result
    }
}
