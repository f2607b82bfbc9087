//! Texts in memory that processes share: each is written once, by whoever comes first.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::*};

const FREE: u32 = 0;
/// Somebody writes it.
const BEING_MADE: u32 = 1;
/// It is there; the number that belongs to it is added.
const READY: u32 = 2;

/// A text of at most `MAX` bytes, and a number that belongs to it.
#[repr(C)]
pub(crate) struct Label<const MAX: usize> {
    state: AtomicU32,
    len: AtomicU16,
    bytes: [AtomicU8; MAX],
}

impl<const MAX: usize> Label<MAX> {
    /// Whether this is the label of a text, or was free and becomes it. One that somebody else writes is not, though it
    /// may become the same: who reads adds up what has the same label.
    pub fn is_or_becomes(&self, text: &[u8], number: u8) -> bool {
        let ready = READY + u32::from(number);
        let is_free = || self.state.load(Relaxed) == FREE;
        let take = || self.state.compare_exchange(FREE, BEING_MADE, Relaxed, Relaxed).is_ok();
        if is_free() && take() {
            self.len.store(text.len() as u16, Relaxed);
            text.iter().zip(&self.bytes).for_each(|(byte, to)| to.store(*byte, Relaxed));
            self.state.store(ready, Release);
            return true;
        }
        self.state.load(Acquire) == ready && self.has(text)
    }

    fn has(&self, text: &[u8]) -> bool {
        usize::from(self.len.load(Relaxed)) == text.len()
            && text.iter().zip(&self.bytes).all(|(byte, there)| there.load(Relaxed) == *byte)
    }

    /// The text and its number, if they are there.
    pub fn read(&self) -> Option<(Vec<u8>, u8)> {
        let number = u8::try_from(self.state.load(Acquire).checked_sub(READY)?).ok()?;
        let len = usize::from(self.len.load(Relaxed)).min(MAX);
        Some((self.bytes[..len].iter().map(|byte| byte.load(Relaxed)).collect(), number))
    }
}
