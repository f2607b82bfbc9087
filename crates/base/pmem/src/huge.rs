//! Huge pages for files on tmpfs, as devices of persistent memory have.
//!
//! Almost everywhere tmpfs is mounted without huge pages, but `MADV_COLLAPSE` (Linux 6.1) makes
//! them nevertheless, in less than half the time that small pages take. They belong to the file:
//! later mappings have them, too.

use crate::mapping::{HUGE_PAGE, Mapping};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::MapFlags;
use std::ops::Range;

/// Allocates the whole huge pages in the range `new` of a file, as far as the kernel has free ones.
/// The file must be long enough. Other parts of the range get small pages when they are allocated.
/// Returns the number of huge pages made.
pub(crate) fn allocate(file: &OwnedFd, new: Range<u64>) -> usize {
    let whole = whole(&new);
    if whole.is_empty() {
        return 0;
    }
    let page = rustix::param::page_size() as u64;
    match Mapping::file(file.as_fd(), whole.end, page, true, MapFlags::SHARED) {
        Ok(mapping) => provision(file.as_fd(), &mapping, whole),
        Err(_) => 0,
    }
}

/// As [`allocate`], for a file that is mapped from its start, to the end of `new` at least.
pub(crate) fn provision(file: BorrowedFd<'_>, mapping: &Mapping, new: Range<u64>) -> usize {
    let page = rustix::param::page_size() as u64;
    let allocate = |at| rustix::fs::fallocate(file, FallocateFlags::empty(), at, page);
    provision_by(mapping, new, allocate)
}

/// As [`provision`], in a process that has closed the file: faults in a page of each huge page.
pub(crate) fn provision_mapped(mapping: &Mapping, new: Range<u64>) -> usize {
    provision_by(mapping, new, |at| mapping.populate_range(at..at + 1))
}

/// Makes the whole huge pages in the range `new`. `allocate` allocates the small page at a place.
fn provision_by(
    mapping: &Mapping,
    new: Range<u64>,
    allocate: impl Fn(u64) -> rustix::io::Result<()>,
) -> usize {
    let whole = whole(&new);
    // The kernel can replace small pages by a huge one only if at least one exists.
    if whole.clone().step_by(HUGE_PAGE as usize).any(|start| allocate(start).is_err()) {
        return 0; // Full; the caller will find out.
    }
    mapping.collapse(whole)
}

/// Returns the whole huge pages in a range.
fn whole(range: &Range<u64>) -> Range<u64> {
    let start = range.start.next_multiple_of(HUGE_PAGE);
    start..(range.end - range.end % HUGE_PAGE).max(start)
}

/// Returns whether this kernel can make huge pages of a file on tmpfs; allocates one to find out.
pub(crate) fn possible() -> bool {
    let Ok(file) = rustix::fs::memfd_create(c"keepstone-probe", MemfdFlags::CLOEXEC) else {
        return false;
    };
    rustix::fs::ftruncate(&file, HUGE_PAGE).is_ok() && allocate(&file, 0..HUGE_PAGE) == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn whole_huge_pages_are_allocated_and_nothing_else() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let fd = OwnedFd::from(file.try_clone().unwrap());
        let taken = |file: &File| file.metadata().unwrap().blocks() * 512;
        file.set_len(4 * HUGE_PAGE - 1).unwrap();
        file.write_all_at(b"kept", 2 * HUGE_PAGE).unwrap();
        let one_page = taken(&file);
        assert_eq!(allocate(&fd, 10..HUGE_PAGE), 0);
        assert_eq!(taken(&file), one_page);
        // If memory is fragmented or the kernel is old, small pages stay.
        let made = allocate(&fd, 10..4 * HUGE_PAGE - 1);
        assert!(made <= 2);
        let least = made as u64 * HUGE_PAGE + (2 - made as u64) * one_page;
        assert_eq!(taken(&file), least);
        let mut first = [0; 8];
        file.read_exact_at(&mut first, 2 * HUGE_PAGE).unwrap();
        assert_eq!(&first, b"kept\0\0\0\0");
        assert_eq!(file.metadata().unwrap().len(), 4 * HUGE_PAGE - 1);
    }

    #[test]
    fn a_mapping_is_enough() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let fd = OwnedFd::from(file.try_clone().unwrap());
        file.set_len(4 * HUGE_PAGE).unwrap();
        let page = rustix::param::page_size() as u64;
        let len = 4 * HUGE_PAGE;
        let mapping = Mapping::file(fd.as_fd(), len, page, true, MapFlags::SHARED).unwrap();
        let made = provision_mapped(&mapping, 10..3 * HUGE_PAGE + 10) as u64;
        assert!(made <= 2);
        let taken = file.metadata().unwrap().blocks() * 512;
        assert_eq!(taken, made * HUGE_PAGE + (2 - made) * page, "and nothing else");
    }
}
