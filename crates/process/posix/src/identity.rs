//! The identity of the calling thread, as the kernel has it.
//!
//! The kernel keeps credentials for each thread. As long as all threads of a process have the same,
//! one word names them, and a call loads that word. From the first change by a single thread on
//! (`setfsuid`, any change by number), each thread reads its own from the kernel, once after each
//! change, and keeps it in a cell of its own.
//!
//! - **identity-U1** The word names an identity only if all threads have it. It leaves [`DIFFER`]
//!   only in a process of one thread, and [`SHARED`] never.
//! - **identity-U2** A change is noted after the kernel has made it, by stores that a signal
//!   handler may make at any moment. A reader notes what it has read only if no change was noted
//!   since it began.
//! - **identity-U3** An identity keeps its address, because caches of permissions use the address
//!   as a key.

#![allow(unsafe_code)]

use crate::Errno;
use crate::creds::ThreadIdentity;
use crate::known::Values;
use os::thread_cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

/// Bits of the word that are 0 in an address.
const TAG: usize = 3;
/// All threads have the same identity, which no thread has read yet. The bits above the tag are the
/// number of the change.
const UNREAD: usize = 1;
/// Threads may have different identities.
const DIFFER: usize = 2;
/// As [`DIFFER`], and tasks may share the cells of a thread, so that these keep no identity.
const SHARED: usize = 3;

/// Number of the last change by all threads, in any process layer of this program.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// An identity that a thread has read: number of the last change by all threads, number of its own
/// changes, address.
type Own = (u64, u64, usize);

thread_cell! {
    /// The calling thread's identity, as it was last read.
    fn own -> Own, "keepstone_identity", 32
}
thread_cell! {
    /// The number of changes that the calling thread has made for itself.
    fn own_changes -> u64, "keepstone_identity_changes", 16
}

/// The identities of the threads of a process.
pub(crate) struct Identities {
    word: AtomicUsize,
    /// The change by all threads that is in force.
    change: AtomicU64,
    /// Whether there may be threads that libc does not count.
    has_uncounted: AtomicBool,
    values: Values<ThreadIdentity>,
}

impl Identities {
    /// Reads the identity of the calling thread, which all threads have.
    pub fn new() -> Result<Self, Errno> {
        let values = Values::default();
        let first = std::ptr::from_ref(values.keep(ThreadIdentity::read()?)).addr();
        Ok(Self {
            word: AtomicUsize::new(first),
            change: AtomicU64::new(CHANGES.fetch_add(1, Relaxed) + 1),
            has_uncounted: AtomicBool::new(false),
            values,
        })
    }

    /// The identity of the calling thread.
    #[inline]
    pub fn current(&self) -> &ThreadIdentity {
        let word = self.word.load(Acquire);
        if word & TAG == 0 { self.at(word) } else { self.read() }
    }

    fn at(&self, address: usize) -> &ThreadIdentity {
        // SAFETY: the address of a value that stays as long as `self`.
        unsafe { &*std::ptr::with_exposed_provenance(address) }
    }

    /// Whether threads may have different identities.
    #[inline]
    pub fn differ(&self) -> bool {
        matches!(self.word.load(Acquire) & TAG, DIFFER | SHARED)
    }

    /// Whether another identity has been seen since the start.
    pub fn have_changed(&self) -> bool {
        self.current();
        self.values.are_several()
    }

    /// Returns the identity of the calling thread, read again after a change.
    #[inline(never)]
    fn read(&self) -> &ThreadIdentity {
        loop {
            let word = self.word.load(Acquire);
            if word & TAG == 0 {
                return self.at(word);
            }
            let noted = (self.change.load(Acquire), own_changes().get());
            let (change, changes, address) = own().get();
            if word == DIFFER && (change, changes) == noted {
                return self.at(address);
            }
            // A thread whose identity cannot be read gets no permissions here.
            let identity = self
                .values
                .keep(ThreadIdentity::read().unwrap_or_else(|_| ThreadIdentity::nobody()));
            let address = std::ptr::from_ref(identity).expose_provenance();
            // identity-U1
            let is_common = word & TAG == UNREAD || word == DIFFER && self.is_only_thread();
            if is_common {
                if self.word.compare_exchange(word, address, AcqRel, Acquire).is_err() {
                    continue;
                }
                return identity;
            }
            if word == DIFFER {
                own().set((noted.0, noted.1, address));
            }
            // identity-U2
            if (self.change.load(Acquire), own_changes().get()) == noted {
                return identity;
            }
        }
    }

    fn is_only_thread(&self) -> bool {
        os::threads::is_only_one() && !self.has_uncounted.load(Relaxed)
    }

    /// Notes that all threads have made the same change, as by libc's `setuid`.
    pub fn changed(&self) {
        let number = CHANGES.fetch_add(1, Relaxed) + 1;
        self.change.store(number, Release);
        let unread = (number as usize) << 2 | UNREAD;
        let next = |word: usize| (word & TAG <= UNREAD).then_some(unread);
        let _ = self.word.fetch_update(AcqRel, Acquire, next);
    }

    /// Notes that the calling thread has changed its identity.
    pub fn thread_changed(&self) {
        if self.is_only_thread() {
            return self.changed();
        }
        own_changes().set(own_changes().get() + 1);
        let _ =
            self.word.fetch_update(AcqRel, Acquire, |word| (word & TAG < DIFFER).then_some(DIFFER));
    }

    /// Notes that there may be threads that libc does not count, or tasks that share this thread's
    /// cells.
    pub fn add_uncounted(&self, shares_cells: bool) {
        self.has_uncounted.store(true, Relaxed);
        let to = if shares_cells { SHARED } else { DIFFER };
        let _ = self.word.fetch_update(AcqRel, Acquire, |word| (word & TAG < to).then_some(to));
    }

    /// Forgets differences in a forked child, which has one thread.
    pub fn after_fork(&self) {
        self.has_uncounted.store(false, Relaxed);
        if self.differ() {
            self.word.store(UNREAD, Relaxed);
            self.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn become_user(uid: u32) {
        // SAFETY: a number; only this thread changes.
        unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    }

    #[test]
    fn a_thread_that_changes_itself_changes_no_other() {
        let identities = Identities::new().unwrap();
        let own = || identities.current().effective.uid;
        let before = own();
        std::thread::scope(|scope| {
            let changed = scope.spawn(|| {
                become_user(12_345);
                identities.thread_changed();
                let first = std::ptr::from_ref(identities.current());
                assert_eq!(own(), 12_345);
                become_user(before);
                identities.thread_changed();
                assert_eq!(own(), before);
                become_user(12_345);
                identities.thread_changed();
                // identity-U3
                assert_eq!(std::ptr::from_ref(identities.current()), first);
                own()
            });
            assert_eq!(changed.join().unwrap(), 12_345, "this needs root");
        });
        assert_eq!(own(), before);
        assert!(identities.differ());
    }

    #[test]
    fn all_threads_read_again_after_a_change_by_all() {
        let identities = Identities::new().unwrap();
        identities.changed();
        let first = std::ptr::from_ref(identities.current());
        assert!(!identities.differ(), "one word names it again");
        identities.add_uncounted(false);
        assert!(identities.differ());
        identities.changed();
        assert!(identities.differ(), "a change by libc makes no threads the same");
        assert_eq!(std::ptr::from_ref(identities.current()), first);
        identities.add_uncounted(true);
        assert_eq!(std::ptr::from_ref(identities.current()), first);
    }
}
