//! Descriptors of our own, which the program does not see: pool files and placeholders of mounts.
//! They have high numbers.

use crate::family::{HIDDEN, raise};
use crate::parked::Parked;
use crate::table::DescriptorTable;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU32, Ordering::*};
use vfs::Errno;

/// Descriptors below the descriptor limit that are meant for our own.
const HIDDEN_FDS: i32 = 256;
/// Descriptors of our own stay below this, so that the kernel's table stays small.
const HIDDEN_BELOW: i32 = 1024;

/// Descriptors that the kernel gives out: the program's (`parked`), and our own.
pub struct FdAllocator {
    table: DescriptorTable,
    /// Descriptors that are parked.
    pub(crate) parked: Parked,
    /// `RLIMIT_NOFILE`.
    fd_limit: AtomicU32,
}

impl FdAllocator {
    pub(crate) fn new(table: DescriptorTable) -> Self {
        let fds = Self { table, parked: Parked::default(), fd_limit: AtomicU32::new(0) };
        fds.read_limits();
        fds
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> &DescriptorTable {
        &self.table
    }

    /// Moves a descriptor of the caller's own, such as a pool file, to a high number that the
    /// program neither sees nor can close. Returns the new number. Closes the descriptor if that
    /// fails.
    pub fn hide(&self, fd: i32) -> Result<i32, Errno> {
        let hidden = self.hidden_duplicate(fd);
        let _ = self.close_fd(fd);
        hidden
    }

    /// Moves several descriptors like [`hide`](Self::hide), or none: after an error all stay as
    /// they are. Returns the new numbers.
    pub fn hide_all(&self, fds: &[i32]) -> Result<SmallVec<[i32; 4]>, Errno> {
        let mut hidden = SmallVec::<[i32; 4]>::new();
        for &fd in fds {
            match self.hidden_duplicate(fd) {
                Ok(fd) => hidden.push(fd),
                Err(errno) => {
                    hidden.into_iter().for_each(|fd| self.unhide(fd));
                    return Err(errno);
                }
            }
        }
        for &fd in fds {
            let _ = self.close_fd(fd);
        }
        Ok(hidden)
    }

    /// Duplicates a descriptor to a high number, close-on-exec, and marks it as hidden. `EMFILE` if
    /// there is no room.
    fn hidden_duplicate(&self, fd: i32) -> Result<i32, Errno> {
        let limit = self.fd_limit.load(Relaxed).clamp(1, HIDDEN_BELOW as u32) as i32;
        let min = (limit - HIDDEN_FDS).max(limit / 2);
        let hidden = match self.task().kernel.dup(fd, min, true) {
            Err(Errno::INVAL | Errno::MFILE) => self.task().kernel.dup(fd, limit / 2, true),
            done => done,
        }?;
        if self.mark_hidden(hidden) {
            return Ok(hidden);
        }
        let _ = self.close_fd(hidden);
        Err(Errno::MFILE)
    }

    /// Makes the program believe that `fd` is closed. Returns `false` if `fd` is beyond our table.
    pub(crate) fn mark_hidden(&self, fd: i32) -> bool {
        let Some(entry) = self.table().entry(fd) else { return false };
        raise(&self.table().member().segment().fd_end, fd as u32 + 1);
        entry.store(HIDDEN, Release);
        true
    }

    /// Closes a hidden descriptor.
    pub fn unhide(&self, fd: i32) {
        if let Some(entry) = self.table().entry(fd) {
            entry.store(0, Release);
        }
        let _ = self.close_fd(fd);
    }

    /// Reads `RLIMIT_FSIZE` and `RLIMIT_NOFILE`.
    pub(crate) fn read_limits(&self) {
        use rustix::process::{Resource, getrlimit};
        let size = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        self.task().file_size_max.store(size, Relaxed);
        let fds = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.fd_limit.store(fds.min(u64::from(u32::MAX)) as u32, Relaxed);
        // A parked descriptor may be above the limit now.
        self.unpark();
    }
}
