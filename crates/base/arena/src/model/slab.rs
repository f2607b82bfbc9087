//! A node belongs to one thread at a time, and no node is lost.

#![allow(unsafe_code)]

use super::{AtomicU32, explore};
use crate::{Arena, Handle, Layout, Link, Shared, Slab};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A node that has only a link.
#[derive(Default)]
struct SlabNode {
    next: AtomicU32,
}
// SAFETY: an atomic, whose default is zero.
unsafe impl Shared for SlabNode {}
impl Link for SlabNode {
    fn link(&self) -> &AtomicU32 {
        &self.next
    }
}

/// A slab, and a cell for each node that only its taker touches.
struct Guarded {
    arena: Arena,
    slab: Slab<SlabNode>,
    cells: Vec<UnsafeCell<()>>,
}

impl Guarded {
    /// The nodes `1..=capacity`, all free: `1` on top of the stack.
    fn new(capacity: usize) -> Arc<Self> {
        let mut layout = Layout::default();
        let slab = Slab::plan(&mut layout, capacity);
        let arena = Arena::anonymous(&layout).unwrap();
        let all: Vec<_> = (0..capacity).map(|_| slab.take(&arena).unwrap()).collect();
        all.iter().rev().for_each(|h| slab.give(&arena, *h));
        let cells = (0..=capacity).map(|_| UnsafeCell::new(())).collect();
        Arc::new(Self { arena, slab, cells })
    }

    fn take(&self) -> Option<Handle> {
        let node = self.slab.take(&self.arena)?;
        self.cells[node.0 as usize].with_mut(|_| ());
        Some(node)
    }

    fn give(&self, node: Handle) {
        self.cells[node.0 as usize].with_mut(|_| ());
        self.slab.give(&self.arena, node);
    }

    /// Returns the number of nodes left; each may be found only once.
    fn count_free(&self) -> usize {
        let mut free: Vec<_> = std::iter::from_fn(|| self.take()).map(|h| h.0).collect();
        free.sort_unstable();
        let count = free.len();
        free.dedup();
        assert_eq!(free.len(), count, "handed out twice");
        count
    }
}

/// One thread takes a node. The other takes two and gives the first back. Then the top of the stack
/// is again the node that the first thread saw, but the node below is another. Without the tag,
/// that node would have two owners.
#[test]
fn the_tag_tells_a_node_that_came_back() {
    explore(|| {
        let g = Guarded::new(3);
        let other = {
            let g = g.clone();
            thread::spawn(move || {
                let first = g.take().unwrap();
                let kept = g.take();
                g.give(first);
                kept.is_some()
            })
        };
        let mut mine = usize::from(g.take().is_some());
        mine += usize::from(g.take().is_some());
        let theirs = usize::from(other.join().unwrap());
        assert_eq!(mine + theirs + g.count_free(), 3, "lost");
    });
}

/// Two threads take from a slab of which part was never used, until the stack is empty and new
/// numbers run out.
#[test]
fn new_nodes_run_out() {
    explore(|| {
        let mut layout = Layout::default();
        let slab = Slab::<SlabNode>::plan(&mut layout, 2);
        let arena = Arc::new(Arena::anonymous(&layout).unwrap());
        let take_two = || {
            let arena = arena.clone();
            move || [slab.take(&arena), slab.take(&arena)]
        };
        let other = thread::spawn(take_two());
        let mine = take_two()();
        let taken = mine.into_iter().chain(other.join().unwrap()).flatten();
        let mut taken: Vec<_> = taken.map(|h| h.0).collect();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert_eq!(slab.take(&arena), None);
    });
}
