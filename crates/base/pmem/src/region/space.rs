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
                    options.extend(&self.path, file, self.limit()..len)?;
                }
                self.len.store(len, Ordering::Release);
                Ok(())
            }
            None => bad("only files can grow"),
        }
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
