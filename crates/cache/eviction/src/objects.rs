//! The objects of a policy: nodes of 20 bytes in doubly linked lists, found by key.
//!
//! Nodes lie in one vector and link each other by number, which is also their slot. The index is a
//! table of such numbers with linear probing, which compares the keys in the nodes. Both grow by a
//! fraction of their size, not to the double, so that little space is unused. Neither shrinks.

use std::sync::Arc;

use crate::{MarkSlot, Marks};

/// The number that stands for no node.
pub const NONE: u32 = u32::MAX;
/// The maximum weight; larger weights are reduced to it.
const WEIGHT_MAX: u32 = (1 << 29) - 1;
/// The positions of the tag and the flag, above the weight.
const TAG_SHIFT: u32 = 29;
const FLAG: u32 = 1 << 31;

/// A node. It is packed, as the alignment of the key would make it 24 bytes.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
struct ObjectNode {
    key: u64,
    prev: u32,
    /// The next node; for an unused node, the next unused one.
    next: u32,
    /// Weight (29 bits), tag (2), flag (1).
    state: u32,
}

const _: () = assert!(size_of::<ObjectNode>() == 20);

/// A list of objects, oldest first.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// The oldest object.
    pub front: u32,
    back: u32,
    /// The number of objects.
    pub len: usize,
    /// The sum of their weights.
    pub weight: u64,
}

impl List {
    /// An empty list.
    pub const EMPTY: List = List { front: NONE, back: NONE, len: 0, weight: 0 };
}

/// All objects of a policy.
pub struct Objects {
    nodes: Vec<ObjectNode>,
    /// The first unused node.
    free: u32,
    /// Numbers of nodes, or [`NONE`].
    index: Vec<u32>,
    len: usize,
    marks: Arc<Marks>,
}

impl Objects {
    pub fn new(marks: Arc<Marks>) -> Self {
        Objects { nodes: Vec::new(), free: NONE, index: vec![NONE; 16], len: 0, marks }
    }

    /// Returns the number of objects, including ghosts.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of memory, including the marks.
    pub fn bytes_of_memory(&self) -> usize {
        self.nodes.capacity() * size_of::<ObjectNode>()
            + self.index.capacity() * size_of::<u32>()
            + self.marks.bytes_of_memory()
    }

    /// Returns the object of a key.
    pub fn find(&self, key: u64) -> Option<u32> {
        let found = self.index[self.place_of(key)];
        (found != NONE).then_some(found)
    }

    /// Adds an object with a new key. It is in no list yet, has no hits, and tag 0.
    pub fn add(&mut self, key: u64, weight: u64) -> u32 {
        if (self.len + 1) * 4 > self.index.len() * 3 {
            self.grow_index();
        }
        let node = ObjectNode { key, prev: NONE, next: NONE, state: cut(weight) };
        let i = self.take_node(node);
        let place = self.place_of(key);
        debug_assert_eq!(self.index[place], NONE, "the key is new");
        self.index[place] = i;
        self.len += 1;
        self.marks.provide(MarkSlot::new(i));
        self.marks.set(MarkSlot::new(i), 0);
        i
    }

    /// Removes an object that is in no list. [`add`](Self::add) uses its number again.
    pub fn delete(&mut self, i: u32) {
        let place = self.place_of(self.key(i));
        debug_assert_eq!(self.index[place], i);
        self.close_gap(place);
        self.nodes[i as usize].next = self.free;
        self.free = i;
        self.len -= 1;
    }

    pub fn key(&self, i: u32) -> u64 {
        self.nodes[i as usize].key
    }

    pub fn weight(&self, i: u32) -> u64 {
        u64::from(self.nodes[i as usize].state & WEIGHT_MAX)
    }

    /// Changes the weight of an object that is in `list`.
    pub fn set_weight(&mut self, list: &mut List, i: u32, weight: u64) {
        list.weight -= self.weight(i);
        let state = &mut self.nodes[i as usize].state;
        *state = *state & !WEIGHT_MAX | cut(weight);
        list.weight += self.weight(i);
    }

    /// Returns the tag: two bits for the policy's use.
    pub fn tag(&self, i: u32) -> u32 {
        self.nodes[i as usize].state >> TAG_SHIFT & 3
    }

    pub fn set_tag(&mut self, i: u32, tag: u32) {
        let state = &mut self.nodes[i as usize].state;
        *state = *state & !(3 << TAG_SHIFT) | tag << TAG_SHIFT;
    }

    /// Returns the flag: one more bit for the policy's use.
    pub fn flag(&self, i: u32) -> bool {
        self.nodes[i as usize].state & FLAG != 0
    }

    pub fn set_flag(&mut self, i: u32, flag: bool) {
        let state = &mut self.nodes[i as usize].state;
        *state = *state & !FLAG | if flag { FLAG } else { 0 };
    }

    /// Returns the hits on an object since they were last cleared.
    pub fn hits(&self, i: u32) -> u8 {
        self.marks.get(MarkSlot::new(i))
    }

    pub fn set_hits(&self, i: u32, hits: u8) {
        self.marks.set(MarkSlot::new(i), hits);
    }

    /// Returns the next younger object of the same list; [`NONE`] for the youngest.
    pub fn next(&self, i: u32) -> u32 {
        self.nodes[i as usize].next
    }

    /// Appends an object that is in no list to `list`.
    pub fn push_back(&mut self, list: &mut List, i: u32) {
        let back = list.back;
        let node = &mut self.nodes[i as usize];
        (node.prev, node.next) = (back, NONE);
        match back {
            NONE => list.front = i,
            _ => self.nodes[back as usize].next = i,
        }
        list.back = i;
        list.len += 1;
        list.weight += self.weight(i);
    }

    /// Removes an object from `list`.
    pub fn unlink(&mut self, list: &mut List, i: u32) {
        let ObjectNode { prev, next, .. } = self.nodes[i as usize];
        match prev {
            NONE => list.front = next,
            _ => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => list.back = prev,
            _ => self.nodes[next as usize].prev = prev,
        }
        list.len -= 1;
        list.weight -= self.weight(i);
    }

    /// Appends all objects of `from` to `list`, in their order.
    pub fn append(&mut self, list: &mut List, from: List) {
        if from.len == 0 {
            return;
        }
        match list.back {
            NONE => list.front = from.front,
            back => {
                self.nodes[back as usize].next = from.front;
                self.nodes[from.front as usize].prev = back;
            }
        }
        list.back = from.back;
        list.len += from.len;
        list.weight += from.weight;
    }

    /// Stores a new node in a free place, or in a new one. Returns its number.
    fn take_node(&mut self, node: ObjectNode) -> u32 {
        if self.free != NONE {
            let i = self.free;
            self.free = self.nodes[i as usize].next;
            self.nodes[i as usize] = node;
            return i;
        }
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact(self.nodes.len() / 8 + 64);
        }
        let i = u32::try_from(self.nodes.len()).ok().filter(|i| *i != NONE);
        self.nodes.push(node);
        i.expect("fewer than 2^32 - 1 objects")
    }

    /// Returns the place in the index where the search for a key begins.
    fn home(&self, key: u64) -> usize {
        ((u128::from(mix(key)) * self.index.len() as u128) >> 64) as usize
    }

    /// Returns the place of a key in the index, or the place where it would be. The search ends, as
    /// a quarter of the index is empty.
    fn place_of(&self, key: u64) -> usize {
        let mut place = self.home(key);
        while self.index[place] != NONE && self.key(self.index[place]) != key {
            place = self.after(place);
        }
        place
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.index.len() { 0 } else { place + 1 }
    }

    /// Empties a place of the index, and moves those entries behind it that a search would not find
    /// any more.
    fn close_gap(&mut self, mut gap: usize) {
        let len = self.index.len();
        let distance = |from: usize, to: usize| (to + len - from) % len;
        let mut place = self.after(gap);
        while self.index[place] != NONE {
            let home = self.home(self.key(self.index[place]));
            if distance(home, place) >= distance(gap, place) {
                self.index[gap] = self.index[place];
                gap = place;
            }
            place = self.after(place);
        }
        self.index[gap] = NONE;
    }

    /// Grows the index by a quarter, and enters all objects again.
    fn grow_index(&mut self) {
        let larger = vec![NONE; self.index.len() + self.index.len() / 4 + 8];
        let smaller = std::mem::replace(&mut self.index, larger);
        for i in smaller.into_iter().filter(|i| *i != NONE) {
            let place = self.place_of(self.key(i));
            self.index[place] = i;
        }
    }
}

fn cut(weight: u64) -> u32 {
    u32::try_from(weight).unwrap_or(u32::MAX).min(WEIGHT_MAX)
}

/// Hashes a key, as keys are often consecutive numbers (the last steps of MurmurHash3).
pub fn mix(mut key: u64) -> u64 {
    key = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    key = (key ^ key >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Adds and deletes keys of a small range, in a pseudo-random order.
    #[test]
    fn the_index_is_a_map() {
        let mut objects = Objects::new(Arc::new(Marks::new(1)));
        let mut model = HashMap::new();
        for step in 0..50_000u64 {
            let key = mix(step) % 600;
            match model.remove(&key) {
                Some(i) => {
                    assert_eq!(objects.find(key), Some(i));
                    objects.delete(i);
                    assert_eq!(objects.find(key), None);
                }
                None => {
                    assert_eq!(objects.find(key), None);
                    model.insert(key, objects.add(key, step));
                }
            }
            assert_eq!(objects.len(), model.len());
        }
        for (key, i) in model {
            assert_eq!((objects.find(key), objects.key(i)), (Some(i), key));
        }
    }

    #[test]
    fn weights_are_cut_and_leave_tag_and_flag_alone() {
        let mut objects = Objects::new(Arc::new(Marks::new(1)));
        let mut list = List::EMPTY;
        let i = objects.add(1, u64::MAX);
        objects.push_back(&mut list, i);
        objects.set_tag(i, 2);
        objects.set_flag(i, true);
        assert_eq!(list.weight, u64::from(WEIGHT_MAX));
        objects.set_weight(&mut list, i, 7);
        assert_eq!((list.weight, objects.tag(i), objects.flag(i)), (7, 2, true));
        objects.set_tag(i, 1);
        objects.set_flag(i, false);
        assert_eq!((objects.weight(i), objects.tag(i), objects.flag(i)), (7, 1, false));
    }

    #[test]
    fn lists_are_queues() {
        let mut objects = Objects::new(Arc::new(Marks::new(1)));
        let (mut list, mut other) = (List::EMPTY, List::EMPTY);
        let nodes: Vec<_> = (0..6).map(|key| objects.add(key, 1)).collect();
        nodes[..3].iter().for_each(|i| objects.push_back(&mut list, *i));
        nodes[3..].iter().for_each(|i| objects.push_back(&mut other, *i));
        objects.append(&mut list, other);
        objects.append(&mut list, List::EMPTY);
        for i in [1, 5, 0] {
            objects.unlink(&mut list, nodes[i]);
        }
        objects.push_back(&mut list, nodes[0]);
        let mut keys = Vec::new();
        let mut i = list.front;
        while i != NONE {
            keys.push(objects.key(i));
            i = objects.next(i);
        }
        assert_eq!((keys, list.len, list.weight), (vec![2, 3, 4, 0], 4, 4));
    }
}
