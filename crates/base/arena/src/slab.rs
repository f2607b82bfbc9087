//! An allocator of nodes of a fixed size, identified by number.

use crate::sync::{AtomicU64, fence};
use crate::{Arena, Layout, Link, Shared, Span};
use std::sync::atomic::Ordering::*;

/// The number of a node; never 0, which means "none" in links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u32);

impl Handle {
    /// Converts a link word.
    pub fn from_link(word: u32) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }
}

/// A pool of `T`; free nodes are chained through their own [`Link::link`].
pub struct Slab<T> {
    nodes: Span<T>,
    /// `[0]`: top of the free stack as `tag << 32 | handle` (the tag defeats ABA); `[1]`: the
    /// number of nodes that were ever used.
    head: Span<AtomicU64>,
}

impl<T> Clone for Slab<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Slab<T> {}

impl<T: Shared + Link> Slab<T> {
    /// Plans room for `capacity` nodes.
    pub fn plan(layout: &mut Layout, capacity: usize) -> Self {
        Self { nodes: layout.table(capacity + 1), head: layout.table(2) }
    }

    /// Returns the largest possible number of nodes.
    pub fn capacity(&self) -> usize {
        self.nodes.len
    }

    /// Returns the node with this number.
    #[inline]
    pub fn get<'a>(&self, arena: &'a Arena, handle: Handle) -> &'a T {
        &arena.table(self.nodes)[handle.0 as usize]
    }

    /// Takes a node, whose content is unspecified. `None` if all are taken.
    pub fn take(&self, arena: &Arena) -> Option<Handle> {
        let head = arena.table(self.head);
        let mut top = head[0].load(Acquire);
        while let Some(node) = Handle::from_link(top as u32) {
            let next = u64::from(self.get(arena, node).link().load(Relaxed));
            let tagged = (top >> 32).wrapping_add(1) << 32 | next;
            match head[0].compare_exchange_weak(top, tagged, AcqRel, Acquire) {
                Ok(_) => {
                    // A thread that sees a store to the node from here on also sees that the node
                    // was free (hash-H2).
                    fence(Release);
                    return Some(node);
                }
                Err(now) => top = now,
            }
        }
        let used = head[1].fetch_add(1, Relaxed) + 1;
        if used as usize >= arena.table(self.nodes).len() {
            head[1].fetch_sub(1, Relaxed);
            return None;
        }
        Some(Handle(used as u32))
    }

    /// Gives a node back. No thread may use it any more.
    pub fn give(&self, arena: &Arena, node: Handle) {
        let head = &arena.table(self.head)[0];
        let mut top = head.load(Acquire);
        loop {
            self.get(arena, node).link().store(top as u32, Relaxed);
            let tagged = (top >> 32).wrapping_add(1) << 32 | u64::from(node.0);
            match head.compare_exchange_weak(top, tagged, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}
