//! What is in the index is found; a bucket is one thread's, and a dead owner's is taken over.

use super::slab::Node;
use super::{die, explore};
use crate::session::model::World;
use crate::{Arena, Handle, HashIndex, Layout, Slab};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// An index of one bucket, so that all keys meet.
#[derive(Clone, Copy)]
struct Tables {
    slab: Slab<Node>,
    index: HashIndex,
}

impl Tables {
    fn plan(layout: &mut Layout) -> Self {
        Self { slab: Slab::plan(layout, 3), index: HashIndex::plan(layout, 1) }
    }

    fn insert(&self, arena: &Arena, key: u32) -> Handle {
        let node = self.slab.take(arena).unwrap();
        self.slab.get(arena, node).key.store(key, Relaxed);
        self.index.insert(arena, &self.slab, 0, node);
        node
    }

    fn has(&self, arena: &Arena, key: u32) -> bool {
        let is = |n: &Node| (n.key.load(Relaxed) == key).then_some(());
        self.index.find(arena, &self.slab, 0, is).is_some()
    }

    fn remove(&self, arena: &Arena, key: u32) -> Option<Handle> {
        self.index.remove(arena, &self.slab, 0, |n| n.key.load(Relaxed) == key)
    }
}

/// Two threads put in and take out in the same chain; a key that stays is always found.
#[test]
fn what_is_in_is_found() {
    explore(|| {
        let mut layout = Layout::default();
        let t = Tables::plan(&mut layout);
        let arena = Arc::new(Arena::anonymous(&layout).unwrap());
        t.insert(&arena, 1);
        let other = {
            let arena = arena.clone();
            thread::spawn(move || {
                let node = t.insert(&arena, 2);
                assert_eq!(t.remove(&arena, 2), Some(node));
                t.slab.give(&arena, node);
            })
        };
        t.insert(&arena, 3);
        assert!(t.has(&arena, 1) && t.has(&arena, 3));
        other.join().unwrap();
        assert!(t.has(&arena, 1) && !t.has(&arena, 2) && t.has(&arena, 3));
    });
}

/// Of two that remove the same key one gets it.
#[test]
fn a_node_is_removed_once() {
    explore(|| {
        let mut layout = Layout::default();
        let t = Tables::plan(&mut layout);
        let arena = Arc::new(Arena::anonymous(&layout).unwrap());
        let node = t.insert(&arena, 1);
        let other = {
            let arena = arena.clone();
            thread::spawn(move || t.remove(&arena, 1))
        };
        let mine = t.remove(&arena, 1);
        let mut got = [mine, other.join().unwrap()];
        got.sort_by_key(Option::is_some);
        assert_eq!(got, [None, Some(node)]);
    });
}

/// The calling thread's process dies in the bucket.
fn die_inside(t: Tables, arena: &Arena) {
    std::mem::forget(t.index.lock(arena, 0));
    die();
}

/// A process dies in the bucket while another one comes.
#[test]
fn a_bucket_whose_owner_dies_is_taken_over() {
    explore(|| {
        let mut layout = Layout::shared();
        let t = Tables::plan(&mut layout);
        let world = World::new(&layout);
        let dying = world.clone();
        let dead = thread::spawn(move || dying.process(1, |arena| die_inside(t, arena)));
        world.process(2, |arena| {
            t.insert(arena, 2);
            assert!(t.has(arena, 2));
        });
        dead.join().unwrap();
        world.process(3, |arena| assert!(t.has(arena, 2)));
    });
}

/// Two find a bucket whose owner is dead: they take it over one after the other.
#[test]
fn a_dead_owners_bucket_has_one_owner() {
    explore(|| {
        let mut layout = Layout::shared();
        let t = Tables::plan(&mut layout);
        let world = World::new(&layout);
        world.process(1, |arena| die_inside(t, arena));
        let inserting = world.clone();
        let other = thread::spawn(move || {
            inserting.process(2, |arena| {
                t.insert(arena, 2);
            })
        });
        world.process(3, |arena| {
            t.insert(arena, 3);
            assert!(t.has(arena, 3));
        });
        other.join().unwrap();
        world.process(3, |arena| assert!(t.has(arena, 2) && t.has(arena, 3)));
    });
}
