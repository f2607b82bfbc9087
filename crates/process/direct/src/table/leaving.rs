//! Chunks that are being removed.

use super::Direct;
use crate::chunk::Chunk;
use std::sync::atomic::Ordering::*;

/// Chunks that were taken out of their entries and wait to be unmapped.
#[derive(Default)]
pub(super) struct Leaving {
    first: u32,
    /// How many.
    pub(super) len: usize,
}

impl Leaving {
    /// Takes a chunk out of the table, so that no thread finds it any more, and adds it to the
    /// list.
    pub(super) fn add(&mut self, direct: &Direct, chunk: &Chunk) {
        let entry = chunk.entry.swap(std::ptr::null_mut(), Relaxed);
        // SAFETY: null, or an entry of a leaf; leaves stay.
        if let Some(entry) = unsafe { entry.as_ref() } {
            let address = std::ptr::from_ref(chunk).addr();
            let _ = entry.compare_exchange(address, 0, AcqRel, Relaxed);
        }
        chunk.next.store(self.first, Relaxed);
        self.first = direct.chunks.index_of(chunk).unwrap_or(0);
        self.len += 1;
    }

    /// Unmaps them after direct-E1; `false` if that is impossible.
    pub(super) fn unmap(self, direct: &Direct) -> bool {
        if self.len == 0 {
            return true;
        }
        let is_known = direct.wait_for_others();
        let mut at = self.first;
        while at != 0 {
            let chunk = direct.chunks.at(at);
            let next = chunk.next.load(Relaxed);
            if !is_known {
                // The chunk counts as lent for ever, so it stays mapped.
                chunk.lent.fetch_add(1, AcqRel);
            } else if chunk.lent.load(Acquire) == 0 {
                // A chunk that is lent is unmapped when it is given back.
                direct.end(at);
            }
            at = next;
        }
        is_known
    }
}
