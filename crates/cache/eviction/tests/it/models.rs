//! Tests the policies on random calls against the simplest code that does the same.

use std::collections::VecDeque;
use std::sync::Arc;

use eviction::{Marks, Policy, PolicyKind};
use proptest::collection::vec;
use proptest::prelude::*;

/// An object of a model: key, weight, hits.
type Object = (u64, u64, u8);

/// A model of a policy, in vectors, with the oldest objects first.
trait Model {
    fn insert(&mut self, key: u64, weight: u64);
    fn remove(&mut self, key: u64);
    fn hit(&mut self, key: u64);
    fn entered(&mut self, _key: u64) {}
    fn victim(&mut self, skip: &[u64]) -> Option<u64>;
    fn keys(&self) -> Vec<u64>;
}

fn find(queue: &VecDeque<Object>, key: u64) -> Option<usize> {
    queue.iter().position(|object| object.0 == key)
}

#[derive(Default)]
struct BlendedModel(VecDeque<Object>);

impl Model for BlendedModel {
    fn insert(&mut self, key: u64, weight: u64) {
        if find(&self.0, key).is_none() {
            self.0.push_back((key, weight, 0));
        }
    }

    fn remove(&mut self, key: u64) {
        self.0.retain(|object| object.0 != key);
    }

    fn hit(&mut self, _key: u64) {}

    fn entered(&mut self, key: u64) {
        if let Some(at) = find(&self.0, key) {
            let object = self.0.remove(at).unwrap();
            self.0.push_back(object);
        }
    }

    fn victim(&mut self, skip: &[u64]) -> Option<u64> {
        for _ in 0..self.0.len() {
            if !skip.contains(&self.0[0].0) {
                return Some(self.0[0].0);
            }
            self.0.rotate_left(1);
        }
        None
    }

    fn keys(&self) -> Vec<u64> {
        self.0.iter().map(|object| object.0).collect()
    }
}

/// A model of SIEVE. The hand is a position; at the end it moves to the first object.
#[derive(Default)]
struct SieveModel {
    queue: VecDeque<Object>,
    hand: usize,
}

impl Model for SieveModel {
    fn insert(&mut self, key: u64, weight: u64) {
        if find(&self.queue, key).is_none() {
            // A hand behind the last object moves to the first one, not to the new one.
            self.hand = if self.hand == self.queue.len() { 0 } else { self.hand };
            self.queue.push_back((key, weight, 0));
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(at) = find(&self.queue, key) {
            self.queue.remove(at);
            self.hand -= usize::from(at < self.hand);
        }
        self.hand = if self.hand == self.queue.len() { 0 } else { self.hand };
    }

    fn hit(&mut self, key: u64) {
        if let Some(at) = find(&self.queue, key) {
            self.queue[at].2 = 1;
        }
    }

    fn victim(&mut self, skip: &[u64]) -> Option<u64> {
        for _ in 0..2 * self.queue.len() {
            let object = &mut self.queue[self.hand];
            if object.2 == 0 && !skip.contains(&object.0) {
                return Some(object.0);
            }
            object.2 = 0;
            self.hand = (self.hand + 1) % self.queue.len();
        }
        None
    }

    fn keys(&self) -> Vec<u64> {
        self.queue.iter().map(|object| object.0).collect()
    }
}

#[derive(Default)]
struct S3FifoModel {
    small: VecDeque<Object>,
    main: VecDeque<Object>,
    ghosts: VecDeque<u64>,
    /// The keys that were returned as victims, and neither moved nor skipped since.
    named: Vec<u64>,
}

fn weight(queue: &VecDeque<Object>) -> u64 {
    queue.iter().map(|object| object.1).sum()
}

impl Model for S3FifoModel {
    fn insert(&mut self, key: u64, weight: u64) {
        for queue in [&mut self.small, &mut self.main] {
            if let Some(at) = find(queue, key) {
                queue[at].1 = weight;
                return;
            }
        }
        let is_ghost = self.ghosts.contains(&key);
        self.ghosts.retain(|ghost| *ghost != key);
        let queue = if is_ghost { &mut self.main } else { &mut self.small };
        queue.push_back((key, weight, 0));
    }

    fn remove(&mut self, key: u64) {
        self.ghosts.retain(|ghost| *ghost != key);
        if find(&self.small, key).is_some() && self.named.contains(&key) {
            self.ghosts.push_back(key);
        }
        self.named.retain(|named| *named != key);
        self.small.retain(|object| object.0 != key);
        self.main.retain(|object| object.0 != key);
        while self.ghosts.len() * 10 > self.keys().len() * 9 {
            self.ghosts.pop_front();
        }
    }

    fn hit(&mut self, key: u64) {
        for object in self.small.iter_mut().chain(&mut self.main).filter(|object| object.0 == key) {
            object.2 = (object.2 + 1).min(3);
        }
    }

    fn victim(&mut self, skip: &[u64]) -> Option<u64> {
        let total = weight(&self.small) + weight(&self.main);
        let (mut skipped_small, mut skipped_main) = (VecDeque::new(), VecDeque::new());
        let mut found = None;
        while found.is_none() && !(self.small.is_empty() && self.main.is_empty()) {
            let is_small_full = weight(&self.small) * 10 >= total;
            if !self.small.is_empty() && (self.main.is_empty() || is_small_full) {
                let object = self.small.pop_front().unwrap();
                if object.2 > 1 {
                    self.main.push_back((object.0, object.1, 0));
                    self.named.retain(|named| *named != object.0);
                } else if skip.contains(&object.0) {
                    skipped_small.push_back(object);
                } else {
                    found = Some(object.0);
                    self.small.push_front(object);
                }
            } else {
                let object = self.main.pop_front().unwrap();
                if object.2 > 0 {
                    self.main.push_back((object.0, object.1, object.2 - 1));
                    self.named.retain(|named| *named != object.0);
                } else if skip.contains(&object.0) {
                    skipped_main.push_back(object);
                } else {
                    found = Some(object.0);
                    self.main.push_front(object);
                }
            }
        }
        for (key, ..) in skipped_small.iter().chain(&skipped_main) {
            self.named.retain(|named| named != key);
        }
        self.small.append(&mut skipped_small);
        self.main.append(&mut skipped_main);
        self.named.extend(found);
        found
    }

    fn keys(&self) -> Vec<u64> {
        self.small.iter().chain(&self.main).map(|object| object.0).collect()
    }
}

fn model(kind: PolicyKind) -> Box<dyn Model> {
    match kind {
        PolicyKind::Blended => Box::<BlendedModel>::default(),
        PolicyKind::Sieve => Box::<SieveModel>::default(),
        PolicyKind::S3Fifo => Box::<S3FifoModel>::default(),
    }
}

/// A call to a policy.
#[derive(Debug, Clone)]
enum Call {
    Insert(u64, u64),
    Remove(u64),
    Hit(u64),
    Entered(u64),
    /// Asks for a victim with these keys skipped; the flag selects whether it is then removed.
    Victim(Vec<u64>, bool),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let key = 0..24u64;
    let call = prop_oneof![
        4 => (key.clone(), 0..9u64).prop_map(|(key, weight)| Call::Insert(key, weight)),
        1 => key.clone().prop_map(Call::Remove),
        6 => key.clone().prop_map(Call::Hit),
        1 => key.clone().prop_map(Call::Entered),
        4 => (vec(key, 0..16), proptest::bool::weighted(0.8))
            .prop_map(|(skip, remove)| Call::Victim(skip, remove)),
    ];
    vec(call, 0..300)
}

/// Checks that a policy and its model give the same answers to all calls, and finally evict their
/// objects in the same order.
fn compare(kind: PolicyKind, calls: Vec<Call>) -> Result<(), TestCaseError> {
    let (mut policy, marks) = kind.policy();
    let mut model = model(kind);
    for call in calls {
        match call {
            Call::Insert(key, weight) => {
                let slot = policy.insert(key, weight);
                prop_assert_eq!(policy.slot(key), Some(slot));
                model.insert(key, weight);
            }
            Call::Remove(key) => {
                policy.remove(key);
                model.remove(key);
            }
            Call::Hit(key) => {
                policy.slot(key).into_iter().for_each(|slot| marks.touch(slot));
                model.hit(key);
            }
            Call::Entered(key) => {
                policy.entered(key);
                model.entered(key);
            }
            Call::Victim(skip, remove) => {
                let victim = ask(&mut *policy, &skip)?;
                prop_assert_eq!(victim, model.victim(&skip));
                if let Some(key) = victim.filter(|_| remove) {
                    policy.remove(key);
                    model.remove(key);
                }
            }
        }
        same_objects(&*policy, &*model)?;
    }
    while let Some(key) = model.victim(&[]) {
        prop_assert_eq!(policy.victim(&mut |_| false), Some(key));
        policy.remove(key);
        model.remove(key);
    }
    prop_assert!(policy.is_empty());
    prop_assert_eq!(policy.victim(&mut |_| false), None);
    Ok(())
}

/// Asks for a victim. The policy must ask about each key at most once, and only about keys that it
/// has.
fn ask(policy: &mut dyn Policy, skip: &[u64]) -> Result<Option<u64>, TestCaseError> {
    let mut asked = Vec::new();
    let victim = policy.victim(&mut |key| {
        asked.push(key);
        skip.contains(&key)
    });
    let times = asked.len();
    asked.sort();
    asked.dedup();
    prop_assert_eq!(times, asked.len(), "asked twice");
    match victim {
        Some(key) => prop_assert!(!skip.contains(&key) && asked.contains(&key)),
        None => prop_assert_eq!(times, policy.len(), "all were looked at"),
    }
    Ok(victim)
}

fn same_objects(policy: &dyn Policy, model: &dyn Model) -> Result<(), TestCaseError> {
    let mut expected = model.keys();
    expected.sort();
    let present: Vec<_> = (0..24).filter(|key| policy.slot(*key).is_some()).collect();
    prop_assert_eq!(&present, &expected);
    prop_assert_eq!(policy.len(), expected.len());
    let mut slots: Vec<_> = present.iter().map(|key| policy.slot(*key)).collect();
    slots.sort();
    slots.dedup();
    prop_assert_eq!(slots.len(), present.len(), "a slot of its own for each");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blended_is_its_model(calls in calls()) {
        compare(PolicyKind::Blended, calls)?;
    }

    #[test]
    fn sieve_is_its_model(calls in calls()) {
        compare(PolicyKind::Sieve, calls)?;
    }

    #[test]
    fn s3fifo_is_its_model(calls in calls()) {
        compare(PolicyKind::S3Fifo, calls)?;
    }
}

fn keys_evicted(policy: &mut dyn Policy, number: usize) -> Vec<u64> {
    let mut keys = Vec::new();
    for _ in 0..number {
        let key = policy.victim(&mut |_| false).expect("objects are left");
        policy.remove(key);
        keys.push(key);
    }
    keys
}

fn filled(kind: PolicyKind, keys: std::ops::Range<u64>) -> (Box<dyn Policy>, Arc<Marks>) {
    let (mut policy, marks) = kind.policy();
    for key in keys {
        policy.insert(key, 1);
    }
    (policy, marks)
}

/// A small version of Figure 1 of the paper on SIEVE: the hand continues where it was, over objects
/// that were added meanwhile.
#[test]
fn sieve_keeps_its_hand_when_the_object_there_goes() {
    let (mut policy, marks) = filled(PolicyKind::Sieve, 0..6);
    for key in [0, 2] {
        marks.touch(policy.slot(key).unwrap());
    }
    assert_eq!(policy.victim(&mut |_| false), Some(1));
    policy.remove(1);
    policy.insert(6, 1);
    // The hand has passed 2 and stands at 3, which is deleted.
    assert_eq!(policy.victim(&mut |_| false), Some(3));
    policy.remove(3);
    policy.remove(4);
    assert_eq!(keys_evicted(&mut *policy, 4), [5, 6, 0, 2]);
}

#[test]
fn s3fifo_brings_ghosts_back_to_the_main_queue() {
    let (mut policy, _) = filled(PolicyKind::S3Fifo, 0..10);
    assert_eq!(keys_evicted(&mut *policy, 2), [0, 1]);
    policy.insert(0, 1);
    for key in 10..19 {
        policy.insert(key, 1);
    }
    // The small queue is above a tenth, so 0 outlives all objects of it except the last.
    assert_eq!(keys_evicted(&mut *policy, 16), (2..18).collect::<Vec<_>>());
    // A deleted object leaves no ghost.
    policy.remove(18);
    policy.insert(18, 1);
    assert_eq!(keys_evicted(&mut *policy, 2), [18, 0]);
}

#[test]
fn s3fifo_heeds_weights() {
    let (mut policy, marks) = filled(PolicyKind::S3Fifo, 0..2);
    for _ in 0..2 {
        marks.touch(policy.slot(0).unwrap());
    }
    // 0 moves to the main queue, and 1 is the victim.
    assert_eq!(policy.victim(&mut |_| false), Some(1));
    // Now the small queue is below a tenth and has to be spared.
    policy.insert(0, 10);
    assert_eq!(policy.victim(&mut |_| false), Some(0));
    policy.insert(1, 2);
    assert_eq!(policy.victim(&mut |_| false), Some(1));
}

/// Searches end even if hits never stop.
#[test]
fn searches_end_while_everything_is_hit() {
    for kind in PolicyKind::ALL {
        let (mut policy, marks) = filled(kind, 0..50);
        let slots: Vec<_> = (0..50).map(|key| policy.slot(key).unwrap()).collect();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    slots.iter().for_each(|slot| marks.touch(*slot));
                }
            });
            for _ in 0..2000 {
                assert_eq!(policy.victim(&mut |_| true), None, "{kind}");
                assert!(policy.victim(&mut |_| false).is_some(), "{kind}");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

#[test]
fn kinds_have_names() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let refused = "lru".parse::<PolicyKind>().unwrap_err().to_string();
    assert_eq!(refused, "`lru` is no replacement policy: there are blended, sieve, s3fifo");
}
