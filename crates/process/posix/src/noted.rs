//! Inodes that need care in this process: those with POSIX locks, and those that the kernel maps.

#![allow(unsafe_code)]

use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use vfs::Ino;

/// The reason why an inode is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteReason {
    /// This process has POSIX locks on it.
    Locks,
    /// The kernel has mapped it into this process.
    Mapped,
    /// The hidden descriptor of the inode that stays open while there are locks (promote-M5 in
    /// `promote`).
    Kept(i32),
}

/// A noted inode: index of its mount, its number, and the reason.
pub type Note = (usize, Ino, NoteReason);

/// A small set of notes, mostly empty. A look at an empty one costs one load.
#[derive(Default)]
pub struct Noted {
    count: AtomicU32,
    lock: AtomicU32,
    notes: UnsafeCell<SmallVec<[Note; 8]>>,
}

// SAFETY: `notes` is reached only under `lock`.
unsafe impl Sync for Noted {}

impl Noted {
    /// Runs `f` on the notes, with the lock.
    fn with<T>(&self, f: impl FnOnce(&mut SmallVec<[Note; 8]>) -> T) -> T {
        while self.lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            rustix::thread::sched_yield();
        }
        // SAFETY: this thread has the lock.
        let notes = unsafe { &mut *self.notes.get() };
        let done = f(notes);
        self.count.store(notes.len() as u32, Relaxed);
        self.lock.store(0, Release);
        done
    }

    /// Whether there are no notes.
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Notes an inode; returns whether it was not noted yet.
    pub fn add(&self, mount: usize, ino: Ino, why: NoteReason) -> bool {
        self.with(|notes| {
            let is_new = !notes.contains(&(mount, ino, why));
            if is_new {
                notes.push((mount, ino, why));
            }
            is_new
        })
    }

    /// Forgets a note; returns whether there was one.
    pub fn remove(&self, mount: usize, ino: Ino, why: NoteReason) -> bool {
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
        self.has((mount, ino, NoteReason::Locks))
    }

    /// The inodes that are mapped, with their mounts.
    pub fn mapped(&self) -> SmallVec<[(usize, Ino); 8]> {
        let all = |notes: &mut SmallVec<[Note; 8]>| {
            let mapped = notes.iter().filter(|note| note.2 == NoteReason::Mapped);
            mapped.map(|(mount, ino, _)| (*mount, *ino)).collect()
        };
        if self.is_empty() { SmallVec::new() } else { self.with(all) }
    }

    /// Removes the note of a descriptor that is kept for an inode, and returns the descriptor.
    pub fn take_kept(&self, mount: usize, ino: Ino) -> Option<i32> {
        if self.is_empty() {
            return None;
        }
        self.with(|notes| {
            let kept = |note: &Note| match note {
                (m, i, NoteReason::Kept(fd)) if (*m, *i) == (mount, ino) => Some(*fd),
                _ => None,
            };
            let (at, fd) = notes.iter().enumerate().find_map(|(at, n)| Some((at, kept(n)?)))?;
            notes.swap_remove(at);
            Some(fd)
        })
    }

    /// Notes that a kept descriptor has another number now. Returns whether `from` was such a
    /// descriptor.
    pub fn move_kept(&self, from: i32, to: i32) -> bool {
        self.with(|notes| {
            let kept = notes.iter_mut().find(|note| note.2 == NoteReason::Kept(from));
            kept.map(|note| note.2 = NoteReason::Kept(to)).is_some()
        })
    }

    /// Drops the notes that a forked child does not inherit, and returns all notes of the parent.
    /// Mappings stay noted; POSIX locks are not inherited. Ignores the lock, which another thread
    /// of the parent may have held.
    pub fn after_fork(&self) -> SmallVec<[Note; 8]> {
        self.lock.store(0, Release);
        self.with(|notes| {
            let before = notes.clone();
            notes.retain(|(_, _, why)| *why == NoteReason::Mapped);
            before
        })
    }
}
