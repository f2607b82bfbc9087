//! Files of a pool that are delegated: other processes read and write them without asking who serves them
//! ([`vfs::FileSystem::delegate`]).
//!
//! - delegations-D1: who uses a delegation looks at its word inside ([`Arena::enter`]), and comes out when the work is done.
//! - delegations-D2: who recalls it clears the word, and then waits until all who were inside have come out. Afterwards nobody
//!   is at work by it, and nobody begins.
//! - delegations-D3: no number is given out twice as long as the memory exists; and who has one of another pool has none of this
//!   one by chance, as they begin at random.

use arena::atomic::AtomicU64;
use arena::{Arena, Layout, Span};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::Ordering::*;
use vfs::{Delegation, Errno, Result};

/// So many files can be delegated at the same time.
const DELEGATIONS: usize = 1024;

/// A word for each, 0 where there is none, and last how many there were; where there may be several processes.
#[derive(Clone, Copy)]
pub struct Delegations(Option<Span<AtomicU64>>);

impl Delegations {
    /// Plans them; `processes` is 0 where there is but one.
    pub fn plan(l: &mut Layout, processes: usize) -> Self {
        Self((processes > 0).then(|| l.table(DELEGATIONS + 1)))
    }

    fn words<'a>(&self, arena: &'a Arena) -> Option<(&'a AtomicU64, &'a [AtomicU64])> {
        arena.table(self.0?).split_last()
    }

    /// A new one; `ENOSPC` where there are as many as there can be, `EOPNOTSUPP` where there is nobody to delegate to.
    pub fn begin(&self, arena: &Arena) -> Result<Delegation> {
        let (count, words) = self.words(arena).ok_or(Errno::OPNOTSUPP)?;
        // Another thread's will do as well.
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

    /// Whether it has not been recalled. To be asked inside (delegations-D1).
    #[inline]
    pub fn is_valid(&self, arena: &Arena, delegation: Delegation) -> bool {
        let Some((_, words)) = self.words(arena) else { return false };
        delegation.0 != 0
            && words[delegation.0 as usize % DELEGATIONS].load(Acquire) == delegation.0
    }

    /// Recalls it, or all (delegations-D2). `EAGAIN` where one cannot be sure of all who are at work; nothing is valid then,
    /// either.
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

/// Below the largest number of delegations by far.
fn random() -> u64 {
    RandomState::new().build_hasher().finish() >> 16 | 1
}
