//! Tokens: a thread announces work that another thread may take over, once.
//!
//! - token-T1: one thread at a time announces by a token. It withdraws the previous announcement,
//!   then stores the words, and the state last. States of two announcements differ.
//! - token-T2: a taker reads state and words, and then marks the state by one compare-exchange. If
//!   that succeeds, the announcement still stood, the words read belong to it, and no other process
//!   takes it.

use crate::Shared;
use crate::sync::AtomicU64;
use std::sync::atomic::Ordering::*;

/// Words of an announcement, besides its state.
pub const TOKEN_WORDS: usize = 4;

/// Bit of the state that marks the announcement as taken.
const TAKEN: u64 = 1;

/// Room for one announcement.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Token {
    /// 0: no announcement.
    state: AtomicU64,
    words: [AtomicU64; TOKEN_WORDS],
}

// SAFETY: 1: atomics; 2: zero is "none"; 3: no pointers, no `Drop`.
#[allow(unsafe_code)]
unsafe impl Shared for Token {}

impl Token {
    /// Announces (token-T1). `state` is even, not 0, and was never announced before.
    pub fn announce(&self, state: u64, words: &[u64; TOKEN_WORDS]) {
        debug_assert!(state != 0 && state & TAKEN == 0, "{state:x}");
        self.state.store(0, Release);
        // Each is a release store, so that a taker that has read one of them finds the previous
        // state gone.
        self.words.iter().zip(words).for_each(|(to, word)| to.store(*word, Release));
        self.state.store(state, SeqCst);
    }

    /// Takes the announcement if `accepts` returns true for its state and words. Returns its state;
    /// `None` without an announcement, or if it was taken or replaced meanwhile (token-T2). Then
    /// `accepts` may have seen words of two announcements.
    pub fn take(&self, accepts: impl FnOnce(u64, &[u64; TOKEN_WORDS]) -> bool) -> Option<u64> {
        let state = self.state.load(Acquire);
        if state == 0 || state & TAKEN != 0 {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Acquire));
        if !accepts(state, &words) {
            return None;
        }
        self.state.compare_exchange(state, state | TAKEN, SeqCst, Relaxed).ok()
    }

    /// Withdraws the announcement with this state, and no other. Returns whether it had been taken.
    pub fn end(&self, state: u64) -> bool {
        let is_it = |found: u64| (found & !TAKEN == state).then_some(0);
        self.state.fetch_update(AcqRel, Acquire, is_it).is_ok_and(|found| found & TAKEN != 0)
    }

    /// Withdraws any announcement, of a process that is dead.
    pub fn clear(&self) {
        self.state.store(0, Release);
    }

    /// Returns the current state without the mark, and whether it was taken. `None` if there is no
    /// announcement.
    pub fn state(&self) -> Option<(u64, bool)> {
        let state = self.state.load(SeqCst);
        (state != 0).then_some((state & !TAKEN, state & TAKEN != 0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_taken_once_and_as_it_is() {
        let token = Token::default();
        assert_eq!(token.take(|_, _| true), None, "nothing was announced");
        token.announce(2, &[1, 2, 3, 4]);
        assert_eq!(token.take(|_, words| words[0] == 2), None, "it is another");
        assert_eq!(token.state(), Some((2, false)));
        assert_eq!(token.take(|state, words| (state, words) == (2, &[1, 2, 3, 4])), Some(2));
        assert_eq!(token.take(|_, _| true), None, "it was taken");
        assert_eq!(token.state(), Some((2, true)));
        assert!(!token.end(4), "another one's");
        assert!(token.end(2) && !token.end(2));
        assert_eq!(token.state(), None);
    }

    #[test]
    fn what_was_replaced_or_taken_back_cannot_be_taken() {
        let token = Token::default();
        for change in [|token: &Token| token.announce(4, &[9; 4]), |token: &Token| token.clear()] {
            token.announce(2, &[1; 4]);
            let taken = token.take(|_, _| {
                change(&token);
                true
            });
            assert_eq!(taken, None);
            assert!(!token.end(2));
        }
    }
}
