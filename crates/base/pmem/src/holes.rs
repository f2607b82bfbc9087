//! Parts of a file that take no space and read as zeros.

use crate::host::FsType;
use crate::huge;
use crate::mapping::Mapping;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::ops::Range;

/// Makes holes of the whole pages in a range. Returns their range, which is empty if the file
/// system has no holes.
pub(crate) fn punch(file: &OwnedFd, range: Range<u64>, page: u64) -> io::Result<Range<u64>> {
    let start = range.start.next_multiple_of(page);
    let end = range.end - range.end % page;
    if start >= end {
        return Ok(range.start..range.start);
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, start, end - start) {
        Ok(()) => Ok(start..end),
        Err(Errno::OPNOTSUPP) => Ok(range.start..range.start),
        Err(e) => Err(e.into()),
    }
}

/// Allocates the holes in a range of a file, which is mapped from its start: on tmpfs with huge
/// pages, if there are any. Its length stays: what was cut off is lost.
pub(crate) fn fill(
    file: BorrowedFd<'_>,
    fs: FsType,
    mapping: &Mapping,
    range: Range<u64>,
) -> Result<(), Errno> {
    if fs == FsType::Tmpfs {
        huge::provision(file, mapping, range.clone());
    }
    let len = range.end - range.start;
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, range.start, len) {
        // Some file systems cannot reserve space; go on without.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Returns the first part of a range that is not a hole, as far as the file system reports holes.
/// If the whole range is a hole, the result is empty, at its end.
pub(crate) fn data(file: &OwnedFd, range: Range<u64>) -> Range<u64> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(range.start)) {
        Ok(start) => start.min(range.end),
        Err(Errno::NXIO) => range.end,
        Err(_) => return range, // Holes are not reported.
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(start));
    start..hole.unwrap_or(range.end).clamp(start, range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn whole_pages_become_holes_and_are_found() {
        const PAGE: u64 = 4096;
        for dir in ["/dev/shm", "/var/tmp"] {
            let file = tempfile::tempfile_in(dir).unwrap();
            file.write_all_at(&[7; 8 * PAGE as usize], 0).unwrap();
            file.sync_all().unwrap();
            let blocks = || file.metadata().unwrap().blocks();
            let before = blocks();
            let fd = OwnedFd::from(file.try_clone().unwrap());
            let end = 8 * PAGE;
            assert_eq!(punch(&fd, 100..2 * PAGE - 1, PAGE).unwrap(), 100..100);
            assert_eq!(blocks(), before);
            assert_eq!(punch(&fd, PAGE - 1..4 * PAGE + 1, PAGE).unwrap(), PAGE..4 * PAGE);
            assert!(blocks() < before, "{dir}");
            assert_eq!(data(&fd, 0..end), 0..PAGE);
            assert_eq!(data(&fd, PAGE..end), 4 * PAGE..end);
            assert_eq!(data(&fd, PAGE..3 * PAGE), 3 * PAGE..3 * PAGE);
            assert_eq!(punch(&fd, 0..end, PAGE).unwrap(), 0..end);
            assert_eq!(data(&fd, 0..end), end..end);
        }
    }
}
