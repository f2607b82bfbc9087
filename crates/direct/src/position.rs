//! The offset of an open file description (direct-O1, direct-O2).

use std::sync::atomic::Ordering::*;
use threads::OwnU64;

/// A call that moves the offset is being made by the kernel: others wait.
const BUSY: u64 = 1 << 63;
/// The kernel's offset counts, for good.
const SHARED: u64 = 1 << 62;
/// The kernel's offset counts until we ask for it.
const KERNELS: u64 = 1 << 61;

/// Offsets from here on are left to the kernel, which knows how long files may be.
pub const OFFSET_END: u64 = 1 << 43;

#[derive(Default)]
pub struct Position(OwnU64);

/// Whose offset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ours.
    Ours(u64),
    /// The kernel's, but nobody else can move it.
    Kernels,
    /// The kernel's, for good.
    Shared,
}

impl Place {
    fn word(self) -> u64 {
        match self {
            Self::Ours(offset) => offset,
            Self::Kernels => KERNELS,
            Self::Shared => SHARED,
        }
    }

    fn of(word: u64) -> Self {
        match word {
            _ if word & SHARED != 0 => Self::Shared,
            _ if word & KERNELS != 0 => Self::Kernels,
            offset => Self::Ours(offset),
        }
    }
}

impl Position {
    /// Sets the offset of a description that nobody else knows yet.
    pub fn init(&self, place: Place) {
        self.0.store(place.word(), Relaxed);
    }

    /// The offset, once no call of the kernel is moving it.
    #[inline]
    pub fn get(&self) -> Place {
        loop {
            let word = self.0.load(Acquire);
            if word & BUSY == 0 {
                return Place::of(word);
            }
            rustix::thread::sched_yield();
        }
    }

    /// Moves our offset; `false` where it is not at `from`.
    #[inline]
    pub fn advance(&self, from: u64, to: u64) -> bool {
        self.0.exchange(from, to)
    }

    /// Keeps others waiting while the kernel makes a call.
    pub fn lock(&self) -> Locked<'_> {
        loop {
            let word = self.0.load(Acquire);
            if word & BUSY == 0
                && self.0.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
            {
                return Locked { position: self, place: Place::of(word) };
            }
            rustix::thread::sched_yield();
        }
    }
}

/// The right to make a call of the kernel that moves the offset. Where it leaves it is `place`.
pub struct Locked<'p> {
    position: &'p Position,
    pub place: Place,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.position.0.store(self.place.word(), Release);
    }
}
