//! Exclusion, wake-ups, optimistic reads, giving up.

#![allow(unsafe_code)]

use super::{AtomicU32, explore, set_impatient};
use crate::LockMode::{Exclusive, Shared};
use crate::RwLock;
use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// A lock and the data that it guards: loom reports unordered accesses.
#[derive(Default)]
struct Guarded {
    lock: RwLock,
    value: UnsafeCell<u32>,
}

impl Guarded {
    fn add(&self) {
        self.lock.lock(Exclusive);
        self.add_locked();
    }

    fn add_locked(&self) {
        // SAFETY: held exclusively, as loom checks.
        self.value.with_mut(|v| unsafe { *v += 1 });
        self.lock.unlock(Exclusive);
    }

    fn read(&self) -> u32 {
        self.lock.lock(Shared);
        // SAFETY: held shared, as loom checks.
        let value = self.value.with(|v| unsafe { *v });
        self.lock.unlock(Shared);
        value
    }
}

fn spawn<T: 'static>(
    g: &Arc<Guarded>,
    body: impl FnOnce(&Guarded) -> T + Send + 'static,
) -> JoinHandle<T> {
    let g = g.clone();
    thread::spawn(move || body(&g))
}

/// A lost wake-up would be a deadlock (arena-M1).
#[test]
fn writers_exclude_each_other() {
    explore(|| {
        let g = Arc::new(Guarded::default());
        let others = [spawn(&g, Guarded::add), spawn(&g, Guarded::add)];
        g.add();
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(g.read(), 3);
    });
}

#[test]
fn readers_exclude_writers() {
    explore(|| {
        let g = Arc::new(Guarded::default());
        let writer = spawn(&g, Guarded::add);
        let reader = spawn(&g, Guarded::read);
        assert!(g.read() <= 1);
        assert!(reader.join().unwrap() <= 1);
        writer.join().unwrap();
        assert_eq!(g.read(), 1);
    });
}

/// Each reader keeps the lock until it has seen the other one have it.
#[test]
fn readers_are_in_together() {
    explore(|| {
        let lock = Arc::new(RwLock::default());
        let inside = Arc::new(AtomicU32::new(0));
        let reader = || {
            let (lock, inside) = (lock.clone(), inside.clone());
            move || {
                lock.lock(Shared);
                inside.fetch_add(1, AcqRel);
                while inside.load(Acquire) < 2 {
                    thread::yield_now();
                }
                lock.unlock(Shared);
            }
        };
        let other = thread::spawn(reader());
        reader()();
        other.join().unwrap();
        assert!(lock.try_lock(Exclusive));
    });
}

/// Data is stored and read as it is in an arena: by relaxed accesses to atomics.
#[test]
fn what_validates_is_not_torn() {
    #[derive(Default)]
    struct Pair(RwLock, [AtomicU32; 2]);
    impl Pair {
        fn store(&self, value: u32) {
            self.0.lock(Exclusive);
            self.1.iter().for_each(|word| word.store(value, Relaxed));
            self.0.unlock(Exclusive);
        }
    }
    explore(|| {
        let pair = Arc::new(Pair::default());
        let writer = {
            let pair = pair.clone();
            thread::spawn(move || {
                pair.store(1);
                pair.store(2);
            })
        };
        if let Some(ticket) = pair.0.begin_optimistic() {
            let seen = [pair.1[0].load(Relaxed), pair.1[1].load(Relaxed)];
            if pair.0.end_optimistic(ticket) {
                assert_eq!(seen[0], seen[1]);
            }
        }
        writer.join().unwrap();
        let ticket = pair.0.begin_optimistic().expect("nobody holds it");
        assert!(pair.0.end_optimistic(ticket));
    });
}

/// One thread gives up at once. The other two get the lock, and so can any thread afterwards.
#[test]
fn giving_up_leaves_the_lock_usable() {
    explore(|| {
        let g = Arc::new(Guarded::default());
        let writer = spawn(&g, Guarded::add);
        let impatient = spawn(&g, |g| {
            set_impatient();
            let taken = g.lock.lock_while(Exclusive, || false);
            if taken {
                g.add_locked();
            }
            u32::from(taken)
        });
        g.read();
        writer.join().unwrap();
        let added = 1 + impatient.join().unwrap();
        g.add();
        assert_eq!(g.read(), added + 1);
    });
}
