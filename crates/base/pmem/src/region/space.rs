//! The space of a region's file.

use super::Region;
use crate::Medium as _;
use crate::error::Error;
use crate::holes;
use crate::host::FsType;
use crate::lost::RegionWatch;
use crate::open::{self, OpenOptions};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Region {
    /// Allocates the holes of the file, so that no store finds the file system full. In an
    /// in-memory file system it also faults in the pages. The content stays.
    pub fn allocate(&self) -> Result<(), Error> {
        let Some(file) = self.regular_file() else { return Ok(()) };
        let stat =
            rustix::fs::fstat(file).map_err(|e| Error::io(&self.path, "examine the file", e))?;
        let len = self.limit();
        let taken = stat.st_blocks.cast_unsigned().saturating_mul(512);
        open::check_room(&self.path, file, len.saturating_sub(taken))?;
        open::allocate(&self.path, file, 0..len)?;
        if FsType::of(file).is_ok_and(|(fs, _)| fs.in_memory()) {
            match self.mapping.populate(len, self.writable) {
                // Kernels before 5.14 do not have this advice.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(e) => return Err(Error::io(&self.path, "fault in the pages", e)),
            }
        }
        Ok(())
    }

    /// As [`Medium::grow`](crate::Medium::grow), but takes no space.
    pub fn grow_sparse(&self, len: u64) -> Result<(), Error> {
        self.grow_by(&OpenOptions { sparse: true, ..OpenOptions::default() }, len)
    }

    /// Implements [`Medium::grow`](crate::Medium::grow), with these options for the file.
    pub(super) fn grow_by(&self, options: &OpenOptions, len: u64) -> Result<(), Error> {
        let bad = |cause: &str| {
            let cause = cause.to_owned();
            Err(Error::BadLength { path: self.path.clone(), len, cause })
        };
        match self.regular_file() {
            _ if len < self.limit() => bad("a region only grows"),
            _ if len == self.limit() => Ok(()),
            _ if self.is_lost() => bad("part of it is gone"),
            Some(_) if !self.writable => bad("it was opened read-only"),
            Some(_) if len > self.mapping.len() => {
                bad("not while it is in use: no address space is left beside it; open it anew")
            }
            Some(file) => {
                let stat = rustix::fs::fstat(file)
                    .map_err(|e| Error::io(&self.path, "examine the file", e))?;
                if stat.st_size.cast_unsigned() < len {
                    // A part without space must not look like one that another process has added.
                    let extended = options.extend(&self.path, file, self.limit()..len);
                    extended.inspect_err(|_| {
                        let _ = rustix::fs::ftruncate(file, stat.st_size.cast_unsigned());
                    })?;
                }
                self.len.store(len, Ordering::Release);
                Ok(())
            }
            None => bad("only files can grow"),
        }
    }

    /// Checks an access beyond the known length, which another process may have extended. Panics if
    /// the region does not hold it.
    #[cold]
    #[inline(never)]
    pub(super) fn check_again(&self, off: u64, len: u64, limit: u64) {
        let path = self.path.display();
        if limit == 0 && !self.writable {
            panic!("{path}: store of {len} bytes at {off} to a region opened read-only");
        }
        let limit = self.current_len();
        if off.checked_add(len).is_none_or(|end| end > limit) {
            panic!("{path}: access of {len} bytes at {off} in a region of {limit} bytes");
        }
    }

    /// Takes over the length of the file, if other processes may extend it. The added part is
    /// mapped already ([`OpenOptions::reserve`]).
    pub(super) fn follow_file(&self) {
        if !self.follows_file {
            return;
        }
        // A program may have closed the file. Then whatever is mapped counts: a part that the file
        // does not have is found to be lost.
        let end = match self.watch.as_ref().and_then(RegionWatch::file) {
            Some(file) => rustix::fs::fstat(file).map_or(0, |stat| stat.st_size.cast_unsigned()),
            None => u64::MAX,
        };
        self.len.fetch_max(end.min(self.mapping.len()), Ordering::AcqRel);
    }

    /// Returns whether the file takes space when that is [provisioned](crate::Medium::provision),
    /// and not before: it is in memory that keeps no content, or an ordinary file, on a file system
    /// that can reserve space.
    pub fn can_be_thin(&self) -> bool {
        self.fs.is_some_and(FsType::reserves_space)
    }

    /// Implements [`Medium::provision`](crate::Medium::provision). Asks for huge pages as
    /// [`OpenOptions::create`] does. In a program that has closed the region's descriptor, the
    /// pages are faulted in instead.
    pub(super) fn provision_range(&self, range: Range<u64>) -> Result<(), Errno> {
        let Some(fs) = self.fs else { return Ok(()) };
        match self.watch.as_ref().and_then(RegionWatch::file) {
            Some(file) => holes::fill(file, fs, &self.mapping, range),
            None => {
                if fs == FsType::Tmpfs {
                    crate::huge::provision_mapped(&self.mapping, range.clone());
                }
                self.mapping.populate_range(range)
            }
        }
    }
}
