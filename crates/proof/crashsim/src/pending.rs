//! Words that are stored but not durable, and the stores that made them, by the rules of x86
//! (persist-P3 to persist-P5 of [`crate::persist`]).

use crate::image::WordNo;
use crate::trace::{Action, Event, SiteId};
use std::collections::BTreeMap;

/// The last store to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub thread: u8,
    /// The operation of the store.
    pub op: u32,
    pub site: SiteId,
    /// Whether it went through the cache.
    pub cached: bool,
    /// Threads whose next fence makes it durable, one bit each.
    draining: u64,
}

/// The words that are not durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending(BTreeMap<WordNo, Writer>);

impl Pending {
    /// Applies the next step, made in operation `op`.
    pub fn apply(&mut self, e: &Event, op: u32) {
        let me = 1u64 << (e.thread % 64);
        match e.action {
            Action::Store { kind, addr, len, .. } => {
                let cached = !kind.is_past_cache();
                let draining = if cached { 0 } else { me };
                let (thread, site) = (e.thread, e.site);
                let writer = Writer { thread, op, site, cached, draining };
                self.0.extend((addr / 8..(addr + len).div_ceil(8)).map(|word| (word, writer)));
            }
            Action::Flush { addr, len } if len > 0 => {
                let words = addr / 64 * 8..(addr + len).div_ceil(64) * 8;
                for (_, w) in self.0.range_mut(words).filter(|(_, w)| w.cached) {
                    w.draining |= me;
                }
            }
            Action::Fence => self.0.retain(|_, w| w.draining & me == 0),
            Action::Drain => self.0.retain(|_, w| w.cached || w.draining & me == 0),
            _ => {}
        }
    }

    /// Returns the pending words that a range of bytes touches.
    pub fn within(&self, addr: u32, len: u32) -> impl Iterator<Item = (WordNo, &Writer)> {
        let words = addr / 8..(addr + len).div_ceil(8);
        self.0.range(words).map(|(word, writer)| (*word, writer))
    }

    /// Returns the last store to a word that is not durable.
    pub fn writer(&self, word: WordNo) -> Option<&Writer> {
        self.0.get(&word)
    }
}
