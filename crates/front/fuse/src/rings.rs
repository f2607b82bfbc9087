//! Processes that have a ring of io_uring.
//!
//! A request at the file's own position (offset -1) is asynchronous for the kernel. With
//! `FOPEN_DIRECT_IO`, Linux does not move the position of asynchronous requests (`fuse_direct_IO`
//! leaves `ki_pos` as it is): a program would write over its own data. So the files of such a
//! process go through the page cache.
//!
//! The search for a ring is part of each open, so it has to be cheap, and an answer from memory has
//! to be right. Nothing that the kernel reports cheaply changes whenever a process makes a ring:
//! not the number of its descriptors (a ring can take the number of one that was closed), not its
//! mappings, not the modification time of the directory.
//!
//! - **rings-R1** Each search lists the numbers of open descriptors, and asks the kernel whether
//!   each is a ring. The results of earlier searches only choose the cheapest question.
//! - **rings-R2** A ring is open for reading and writing. So a descriptor whose link lacks one of
//!   both permissions is not a ring, and the link's target need not be read.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, openat, readlinkat_raw, seek, statat,
};

use crate::names::lock;

/// Descriptors that are examined: programs make their rings early.
const LOOK_AT: usize = 128;
/// Threads whose directories are kept open.
const KEPT: usize = 32;
const RING: &[u8] = b"anon_inode:[io_uring]";
/// Permissions of the link of a descriptor that is open for reading and writing (rings-R2).
const BOTH_WAYS: u32 = 0o600;

/// The search for rings, with the directories of threads that have opened files before.
#[derive(Default)]
pub(crate) struct Rings {
    /// The last thread that was searched is the last here.
    searched: Mutex<Vec<Searched>>,
}

/// A thread whose descriptors have been searched.
struct Searched {
    thread: u32,
    /// `/proc/THREAD/fd`. When the thread has ended, it can no longer be listed, even if another
    /// thread has got the same number.
    directory: OwnedFd,
    /// Numbers of descriptors that were open for reading and writing. Their links are read at once.
    both_ways: Vec<u32>,
}

impl Rings {
    /// Returns whether the process of this thread has a ring among its first descriptors. An
    /// invisible process counts as without.
    pub fn has_ring(&self, thread: u32) -> bool {
        // Other threads of the server search meanwhile, so the lock is not held.
        let known = {
            let mut searched = lock(&self.searched);
            let place = searched.iter().rposition(|known| known.thread == thread);
            place.map(|place| searched.remove(place))
        };
        let answer = known.and_then(|mut known| Some((known.has_ring().ok()?, known)));
        let answer = answer.or_else(|| {
            let mut new = Searched::new(thread).ok()?;
            Some((new.has_ring().ok()?, new))
        });
        let Some((has_ring, known)) = answer else { return false };
        let mut searched = lock(&self.searched);
        if searched.len() >= KEPT {
            searched.remove(0);
        }
        searched.push(known);
        has_ring
    }
}

impl Searched {
    fn new(thread: u32) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, format!("/proc/{thread}/fd"), flags, Mode::empty())?;
        Ok(Self { thread, directory, both_ways: Vec::new() })
    }

    /// Searches the thread's first descriptors (rings-R1).
    fn has_ring(&mut self) -> rustix::io::Result<bool> {
        seek(&self.directory, SeekFrom::Start(0))?;
        let mut buf = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&self.directory, &mut buf);
        let (mut both_ways, mut looked_at) = (Vec::with_capacity(self.both_ways.len()), 0);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = name.to_str().ok().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if self.both_ways.contains(&number) || self.is_both_ways(name) {
                if self.is_ring(name) {
                    return Ok(true);
                }
                both_ways.push(number);
            }
            looked_at += 1;
            if looked_at == LOOK_AT {
                break;
            }
        }
        self.both_ways = both_ways;
        Ok(false)
    }

    /// Returns whether a descriptor is open for reading and writing (rings-R2).
    fn is_both_ways(&self, number: &CStr) -> bool {
        let link = statat(&self.directory, number, AtFlags::SYMLINK_NOFOLLOW);
        link.is_ok_and(|link| link.st_mode & BOTH_WAYS == BOTH_WAYS)
    }

    fn is_ring(&self, number: &CStr) -> bool {
        // One byte more than a ring's name, so that a longer name is not taken for it.
        let mut target = [MaybeUninit::uninit(); RING.len() + 1];
        let target = readlinkat_raw(&self.directory, number, &mut target);
        target.is_ok_and(|(target, _)| &*target == RING)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use rustix::fs::open;
    use rustix::io::dup2;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::sync::Barrier;

    /// Makes a ring. The machine has to permit that.
    fn ring() -> OwnedFd {
        let mut parameters = [0u64; 16];
        // SAFETY: the kernel fills in the parameters, which are 120 bytes long.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, &raw mut parameters) };
        assert!(fd >= 0, "io_uring: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) }
    }

    fn null(flags: OFlags) -> OwnedFd {
        open("/dev/null", flags, Mode::empty()).unwrap()
    }

    fn this_thread() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
    }

    #[test]
    fn a_ring_is_found_under_the_number_of_any_other_descriptor() {
        let (rings, thread) = (Rings::default(), this_thread());
        let flags = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::PATH];
        let mut others = flags.map(null);
        for other in &mut others {
            assert!(!rings.has_ring(thread));
            // As many descriptors as before, under the same numbers.
            dup2(ring(), other).unwrap();
            assert!(rings.has_ring(thread), "descriptor {}", other.as_raw_fd());
            dup2(null(OFlags::RDONLY), other).unwrap();
        }
        assert!(!rings.has_ring(thread));
    }

    #[test]
    fn a_number_of_a_thread_that_has_ended_is_searched_again() {
        let (rings, thread) = (Rings::default(), this_thread());
        let ended = std::thread::spawn(|| Searched::new(this_thread()).unwrap().directory);
        let directory = ended.join().unwrap();
        // The kernel may not have finished with the thread.
        while statat(&directory, "0", AtFlags::empty()).is_ok() {
            std::thread::yield_now();
        }
        // As if this thread had got the number of that one.
        lock(&rings.searched).push(Searched { thread, directory, both_ways: Vec::new() });
        let _ring = ring();
        assert!(rings.has_ring(thread));
        assert!(rings.has_ring(thread));
        assert_eq!(lock(&rings.searched).len(), 1);
    }

    #[test]
    fn few_directories_are_kept_open() {
        let rings = Rings::default();
        let (searched, end) = (Barrier::new(KEPT + 9), Barrier::new(KEPT + 9));
        std::thread::scope(|scope| {
            for _ in 0..KEPT + 8 {
                scope.spawn(|| {
                    assert!(!rings.has_ring(this_thread()));
                    searched.wait();
                    end.wait();
                });
            }
            searched.wait();
            assert_eq!(lock(&rings.searched).len(), KEPT);
            end.wait();
        });
    }
}
