//! Fences of the page-cache domain: an `msync` of the bytes stored since the last fence.
//!
//! The dirty bytes are kept as one range, from the lowest to the highest: an `msync` of clean pages
//! costs next to nothing, but a second `msync` costs another journal commit of the file system
//! below.

#![allow(unsafe_code)]

use crate::mapping::Mapping;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The range of a page-cache region that the next fence has to write.
#[derive(Debug, Default)]
pub(crate) struct PageSync {
    dirty: Mutex<Option<Range<u64>>>,
    /// Held while writing, so that a fence also waits for a range that another thread's fence is
    /// writing.
    writing: Mutex<()>,
    /// Errno of the first failure, or 0.
    error: AtomicI32,
}

impl PageSync {
    /// Adds `off..off + len` to the range that the next fence writes.
    pub(crate) fn note(&self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = off + len;
        let mut dirty = lock(&self.dirty);
        *dirty = Some(match dirty.take() {
            None => off..end,
            Some(d) => d.start.min(off)..d.end.max(end),
        });
    }

    /// Writes the dirty range and waits. Returns at once if it is empty.
    ///
    /// The kernel reports a failed write-back only once and then treats the pages as clean. So
    /// [`error`](Self::error) returns the first failure for ever.
    pub(crate) fn sync(&self, mapping: &Mapping) {
        let _turn = lock(&self.writing);
        let Some(range) = lock(&self.dirty).take() else {
            return;
        };
        if let Err(errno) = mapping.sync(range.start, range.end) {
            tracing::error!(
                start = range.start,
                end = range.end,
                error = %errno,
                "msync failed: data since the last fence may be lost"
            );
            let errno = errno.raw_os_error();
            let _ = self.error.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the first failure of a fence.
    pub(crate) fn error(&self) -> Option<io::Error> {
        match self.error.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while holding one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::MapFlags;

    #[test]
    fn a_failed_write_is_remembered() {
        let mapping = Mapping::anonymous(4 << 20, MapFlags::empty()).unwrap();
        let pages = PageSync::default();
        pages.note(5000, 10);
        pages.note(100, 0);
        pages.note(9000, 10);
        assert_eq!(*lock(&pages.dirty), Some(5000..9010));
        pages.sync(&mapping);
        assert!(pages.error().is_none() && lock(&pages.dirty).is_none());
        // A hole in the mapping makes msync fail. The mapping is leaked, as its drop could unmap
        // memory that another test has mapped in the hole.
        let mapping = std::mem::ManuallyDrop::new(mapping);
        // SAFETY: the page belongs to the mapping, and is not read any more.
        unsafe { rustix::mm::munmap(mapping.addr().wrapping_add(1 << 20).cast(), 4096) }.unwrap();
        pages.note(0, 2 << 20);
        pages.sync(&mapping);
        assert_eq!(pages.error().and_then(|e| e.raw_os_error()), Some(libc::ENOMEM));
        pages.note(0, 10);
        pages.sync(&mapping);
        assert!(pages.error().is_some(), "sticky");
    }
}
