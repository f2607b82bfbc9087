//! Searches find every entry of the index; a bucket has one owner, and is taken over if the owner
//! is dead.

#![allow(unsafe_code)]

use super::{die, explore};
use crate::session::model::World;
use crate::sync::AtomicU32;
use crate::{Arena, HashEntry, HashIndex, Layout, Shared};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

#[derive(Default)]
struct Key(AtomicU32);

// SAFETY: an atomic; zero is an empty entry.
unsafe impl Shared for Key {}

impl HashEntry for Key {
    fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
    fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

/// An index of one bucket, so that all keys meet: one of them in the bucket, the others in
/// additional ones.
#[derive(Clone, Copy)]
struct Tables(HashIndex<Key>);

impl Tables {
    fn plan(layout: &mut Layout) -> Self {
        Self(HashIndex::plan(layout, 1, 3))
    }

    fn insert(&self, arena: &Arena, key: u32) {
        assert!(self.0.insert(arena, 0, |k| k.0.store(key, Relaxed)));
    }

    fn has(&self, arena: &Arena, key: u32) -> bool {
        self.0.find(arena, 0, |k| (k.0.load(Relaxed) == key).then_some(())).is_some()
    }

    fn remove(&self, arena: &Arena, key: u32) -> bool {
        self.0.remove(arena, 0, |k| k.0.load(Relaxed) == key)
    }
}

/// Two threads insert and remove keys in the same chain; a key that stays is always found.
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
                t.insert(&arena, 2);
                assert!(t.remove(&arena, 2));
            })
        };
        t.insert(&arena, 3);
        assert!(t.has(&arena, 1) && t.has(&arena, 3));
        other.join().unwrap();
        assert!(t.has(&arena, 1) && !t.has(&arena, 2) && t.has(&arena, 3));
    });
}

/// Of two threads that remove the same key, one succeeds.
#[test]
fn an_entry_is_removed_once() {
    explore(|| {
        let mut layout = Layout::default();
        let t = Tables::plan(&mut layout);
        let arena = Arc::new(Arena::anonymous(&layout).unwrap());
        t.insert(&arena, 1);
        let other = {
            let arena = arena.clone();
            thread::spawn(move || t.remove(&arena, 1))
        };
        let mine = t.remove(&arena, 1);
        assert!(mine != other.join().unwrap());
    });
}

/// Kills the calling thread's process while it owns the bucket.
fn die_inside(t: Tables, arena: &Arena) {
    std::mem::forget(t.0.lock(arena, 0));
    die();
}

/// A process dies as owner of the bucket while another one uses it.
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

/// Two threads find a bucket whose owner is dead: they take it over one after the other.
#[test]
fn a_dead_owners_bucket_has_one_owner() {
    explore(|| {
        let mut layout = Layout::shared();
        let t = Tables::plan(&mut layout);
        let world = World::new(&layout);
        world.process(1, |arena| die_inside(t, arena));
        let inserting = world.clone();
        let other = thread::spawn(move || inserting.process(2, |arena| t.insert(arena, 2)));
        world.process(3, |arena| {
            t.insert(arena, 3);
            assert!(t.has(arena, 3));
        });
        other.join().unwrap();
        world.process(3, |arena| assert!(t.has(arena, 2) && t.has(arena, 3)));
    });
}
