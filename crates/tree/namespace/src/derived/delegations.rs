//! Delegated files of a pool: other processes read and write them without asking the server
//! ([`vfs::Delegations::delegate`]).
//!
//! - delegations-D1: a process that uses a delegation checks its word inside an operation
//!   ([`Arena::enter`]), and leaves when the work is done.
//! - delegations-D2: a process that recalls a delegation clears the word, and then waits until all
//!   processes that were inside have left. Afterwards no process works by the delegation, and none
//!   can begin.
//! - delegations-D3: no number is given out twice while the memory exists. Numbers begin at random,
//!   so a delegation of another pool is practically never valid in this one.

use arena::atomic::AtomicU64;
use arena::{Arena, Layout, Span};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::Ordering::*;
use vfs::{Delegation, Errno, Result};

/// The number of files that can be delegated at the same time.
const DELEGATIONS: usize = 1024;

/// One word for each delegation (0: unused), followed by the count of all delegations so far.
/// Absent if only one process can use the pool.
#[derive(Clone, Copy)]
pub struct Delegations(Option<Span<AtomicU64>>);

impl Delegations {
    /// Plans the words; `processes` is 0 if only one process can use the pool.
    pub fn plan(l: &mut Layout, processes: usize) -> Self {
        Self((processes > 0).then(|| l.table(DELEGATIONS + 1)))
    }

    fn words<'a>(&self, arena: &'a Arena) -> Option<(&'a AtomicU64, &'a [AtomicU64])> {
        arena.table(self.0?).split_last()
    }

    /// Begins a delegation. `ENOSPC` if all words are in use, `EOPNOTSUPP` if there are no other
    /// processes.
    pub fn begin(&self, arena: &Arena) -> Result<Delegation> {
        let (count, words) = self.words(arena).ok_or(Errno::OPNOTSUPP)?;
        // If another thread has set the count, that will do as well.
        let _ = count.compare_exchange(0, random(), Relaxed, Relaxed);
        let before = count.fetch_add(1, Relaxed);
        (0..DELEGATIONS)
            .map(|i| (before as usize + i) % DELEGATIONS)
            .find_map(|place| {
                let number = (before + 1) * DELEGATIONS as u64 + place as u64;
                let taken = words[place].compare_exchange(0, number, AcqRel, Relaxed);
                taken.is_ok().then_some(Delegation(number))
            })
            .ok_or(Errno::NOSPC)
    }

    /// Returns whether a delegation has not been recalled. To be called inside an operation
    /// (delegations-D1).
    #[inline]
    pub fn is_valid(&self, arena: &Arena, delegation: Delegation) -> bool {
        let Some((_, words)) = self.words(arena) else { return false };
        delegation.0 != 0
            && words[delegation.0 as usize % DELEGATIONS].load(Acquire) == delegation.0
    }

    /// Recalls a delegation, or all (delegations-D2). `EAGAIN` if it is not certain that all
    /// processes have left; the delegation is invalid then, too.
    pub fn end(&self, arena: &Arena, delegation: Option<Delegation>) -> Result<()> {
        let Some((_, words)) = self.words(arena) else { return Ok(()) };
        match delegation {
            Some(Delegation(number)) => {
                let word = &words[number as usize % DELEGATIONS];
                let _ = word.compare_exchange(number, 0, AcqRel, Relaxed);
            }
            None => words.iter().for_each(|word| word.store(0, Release)),
        }
        if arena.synchronize() { Ok(()) } else { Err(Errno::AGAIN) }
    }
}

/// Returns a random start, far below the largest number of delegations.
fn random() -> u64 {
    RandomState::new().build_hasher().finish() >> 16 | 1
}
