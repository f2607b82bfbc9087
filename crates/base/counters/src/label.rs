//! Texts in memory that processes share. Each is written once, by the first process that needs it.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::*};

const FREE: u32 = 0;
/// A process writes it.
const BEING_MADE: u32 = 1;
/// It is complete; its number is added to this value.
const READY: u32 = 2;

/// A text of at most `MAX` bytes, with a number.
#[repr(C)]
pub(crate) struct Label<const MAX: usize> {
    state: AtomicU32,
    len: AtomicU16,
    bytes: [AtomicU8; MAX],
}

impl<const MAX: usize> Label<MAX> {
    /// Whether this label has this text and number. A free label gets them. The result is false for
    /// a label that another process is just writing, though it may get the same text. So readers
    /// must add up the counts of equal labels.
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

    /// Returns the text and its number, if they are complete.
    pub fn read(&self) -> Option<(Vec<u8>, u8)> {
        let number = u8::try_from(self.state.load(Acquire).checked_sub(READY)?).ok()?;
        let len = usize::from(self.len.load(Relaxed)).min(MAX);
        Some((self.bytes[..len].iter().map(|byte| byte.load(Relaxed)).collect(), number))
    }
}
