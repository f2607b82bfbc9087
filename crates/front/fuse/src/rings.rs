//! Processes that have a ring of io_uring.
//!
//! A request at the file's own position (offset -1) is asynchronous for the kernel. With
//! `FOPEN_DIRECT_IO`, Linux does not move the position of asynchronous requests (`fuse_direct_IO`
//! leaves `ki_pos` as it is): a program would write over its own data. So the files of such a
//! process go through the page cache.

use std::path::Path;

/// Descriptors that are examined: programs make their rings early.
const LOOK_AT: usize = 128;
const RING: &str = "anon_inode:[io_uring]";

/// Whether the process of this thread has a ring among its first descriptors. An invisible process
/// counts as without.
pub(crate) fn has_ring(thread: u32) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{thread}/fd")) else { return false };
    let mut targets = descriptors.flatten().take(LOOK_AT).map(|fd| std::fs::read_link(fd.path()));
    targets.any(|target| target.is_ok_and(|target| target == Path::new(RING)))
}
