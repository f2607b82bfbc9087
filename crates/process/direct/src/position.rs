//! The offset of an open file description (direct-O1, direct-O2).

use os::threads::OwnU64;
use std::sync::atomic::Ordering::*;

/// The kernel is making a call that moves the offset: others wait.
const BUSY: u64 = 1 << 63;
/// The kernel's offset is valid, for good.
const SHARED: u64 = 1 << 62;
/// The kernel's offset is valid until the library asks for it.
const KERNEL: u64 = 1 << 61;

/// Offsets from here on are left to the kernel, which knows how long files may be.
pub const OFFSET_END: u64 = 1 << 43;

#[derive(Default)]
pub struct Position(OwnU64);

/// The owner of the valid offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetOwner {
    /// The library has it.
    Ours(u64),
    /// The kernel has it, but only this process can move it.
    Kernel,
    /// The kernel has it, for good.
    Shared,
}

impl OffsetOwner {
    fn word(self) -> u64 {
        match self {
            Self::Ours(offset) => offset,
            Self::Kernel => KERNEL,
            Self::Shared => SHARED,
        }
    }

    fn of(word: u64) -> Self {
        match word {
            _ if word & SHARED != 0 => Self::Shared,
            _ if word & KERNEL != 0 => Self::Kernel,
            offset => Self::Ours(offset),
        }
    }
}

impl Position {
    /// Sets the offset of a description that no other thread knows yet.
    pub fn init(&self, owner: OffsetOwner) {
        self.0.store(owner.word(), Relaxed);
    }

    /// Returns the offset, once no call of the kernel is moving it.
    #[inline]
    pub fn get(&self) -> OffsetOwner {
        loop {
            let word = self.0.load(Acquire);
            if word & BUSY == 0 {
                return OffsetOwner::of(word);
            }
            rustix::thread::sched_yield();
        }
    }

    /// Moves the library's offset; `false` if it is not at `from`.
    #[inline]
    pub fn advance(&self, from: u64, to: u64) -> bool {
        self.0.exchange(from, to)
    }

    /// Makes others wait while the kernel makes a call.
    pub fn lock(&self) -> Locked<'_> {
        loop {
            let word = self.0.load(Acquire);
            if word & BUSY == 0
                && self.0.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
            {
                return Locked { position: self, owner: OffsetOwner::of(word) };
            }
            rustix::thread::sched_yield();
        }
    }
}

/// The right to make a call of the kernel that moves the offset. Dropping it sets the owner to
/// `owner`.
pub struct Locked<'p> {
    position: &'p Position,
    pub owner: OffsetOwner,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.position.0.store(self.owner.word(), Release);
    }
}
