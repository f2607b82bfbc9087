//! Inodes that need care in this process: those with POSIX locks, and those that are mapped shared.

use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use vfs::Ino;

/// Why an inode is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This process has POSIX locks on it.
    Locks,
    /// It has been mapped shared: all of its descriptors are the kernel's.
    Mapped,
}

type Note = (usize, Ino, Why);

/// A small set, mostly empty; asking an empty one costs a load.
#[derive(Default)]
pub struct Noted {
    count: AtomicU32,
    lock: AtomicU32,
    notes: UnsafeCell<SmallVec<[Note; 8]>>,
}

// SAFETY: `notes` is reached only under `lock`.
unsafe impl Sync for Noted {}

impl Noted {
    fn with<T>(&self, f: impl FnOnce(&mut SmallVec<[Note; 8]>) -> T) -> T {
        while self.lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            rustix::thread::sched_yield();
        }
        // SAFETY: the lock is ours.
        let notes = unsafe { &mut *self.notes.get() };
        let done = f(notes);
        self.count.store(notes.len() as u32, Relaxed);
        self.lock.store(0, Release);
        done
    }

    /// Whether nothing is noted.
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Notes an inode.
    pub fn add(&self, mount: usize, ino: Ino, why: Why) {
        self.with(|notes| {
            if !notes.contains(&(mount, ino, why)) {
                notes.push((mount, ino, why));
            }
        });
    }

    /// Forgets a note; returns whether there was one.
    pub fn remove(&self, mount: usize, ino: Ino, why: Why) -> bool {
        self.count.load(Relaxed) != 0
            && self.with(|notes| {
                let before = notes.len();
                notes.retain(|note| *note != (mount, ino, why));
                notes.len() != before
            })
    }

    fn has(&self, note: Note) -> bool {
        self.count.load(Relaxed) != 0 && self.with(|notes| notes.contains(&note))
    }

    /// Whether this process has POSIX locks on the inode.
    pub fn has_locks(&self, mount: usize, ino: Ino) -> bool {
        self.has((mount, ino, Why::Locks))
    }

    /// Whether the inode has been mapped shared.
    pub fn is_mapped(&self, mount: usize, ino: Ino) -> bool {
        self.has((mount, ino, Why::Mapped))
    }

    /// In a forked child: POSIX locks are not inherited, and another thread may have held the lock.
    pub fn after_fork(&self) {
        self.lock.store(0, Release);
        self.with(|notes| notes.retain(|(_, _, why)| *why != Why::Locks));
    }
}
