//! Stores through the file, by system calls: no mapping is writable.

#![allow(unsafe_code)]

use crate::{Error, Region};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The file of a region. After a failed store its health stays bad.
#[derive(Debug)]
pub(super) struct ByFile {
    file: OwnedFd,
    /// Errno of the first failure, or 0.
    error: AtomicI32,
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl ByFile {
    /// Duplicates the file of a region; `None` if it cannot be written by system calls (memory,
    /// devdax).
    pub(super) fn of(region: &Region) -> Option<Self> {
        let file = region.regular_file()?.try_clone().ok()?;
        Some(Self { file, error: AtomicI32::new(0) })
    }

    /// Fails if a region has no such file.
    pub(super) fn usable(region: &Region) -> Result<(), Error> {
        match region.regular_file() {
            Some(_) => Ok(()),
            None => Err(Error::NoFile(region.path().to_owned())),
        }
    }

    /// Writes `data` at `off` by `pwrite(2)`. A failure shows in [`health`](Self::health).
    pub(super) fn write(&self, mut off: u64, mut data: &[u8]) {
        while !data.is_empty() {
            match rustix::io::pwrite(&self.file, data, off) {
                Ok(0) => return self.fail(Errno::NOSPC),
                Ok(n) => {
                    off += n as u64;
                    data = &data[n..];
                }
                Err(Errno::INTR) => {}
                Err(e) => return self.fail(e),
            }
        }
    }

    /// Writes `len` zeros at `off`, as [`write`](Self::write).
    pub(super) fn zero(&self, off: u64, len: u64) {
        for at in (off..off + len).step_by(ZEROS.len()) {
            let n = (off + len - at).min(ZEROS.len() as u64);
            self.write(at, &ZEROS[..n as usize]);
        }
    }

    /// Copies from another range of the region.
    pub(super) fn copy(&self, dst: u64, region: &Region, src: u64, len: u64) {
        const STEP: usize = 4096;
        let mut part = [0; STEP];
        for at in (0..len).step_by(STEP) {
            let part = &mut part[..(len - at).min(STEP as u64) as usize];
            // SAFETY: 1. the caller of `copy_nt` has been checked. 2. the region's own mapping is
            // readable.
            unsafe { region.read_at(region.base(), src + at, part) };
            self.write(dst + at, part);
        }
    }

    /// Returns the first failure.
    pub(super) fn health(&self) -> io::Result<()> {
        match self.error.load(Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    #[cold]
    fn fail(&self, errno: Errno) {
        tracing::error!(error = %errno, "a store through the file failed");
        let _ = self.error.compare_exchange(0, errno.raw_os_error(), Relaxed, Relaxed);
    }
}
