//! Handles that are too long for an identity: those of NFS, and of overlays over some file systems.
//!
//! An identity contains the number of such a handle: a hash of 128 bits, the same in each process
//! and on each machine. A table leads from numbers to handles.
//!
//! - long_handles-L1: the table is only a hint. If it has no handle of a number, the whole tree is
//!   searched for it, which enters the handles of all names on the way. So the first search after
//!   a start is the only one, as long as the tree has fewer inodes than the table.
//! - A node has its handle itself, so it does not depend on the table.

use super::lock;
use crate::sys::Handle;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use std::collections::HashMap;
use std::hash::Hasher as _;
use std::sync::{Arc, Mutex};

/// The number of a handle.
pub type HandleNumber = [u8; 16];

/// Most handles in the table. Beyond that, it starts again without any.
const HANDLES_MAX: usize = 1 << 20;

/// Returns the number of a handle of this kind with these bytes: SipHash-2-4 with 128 bits and the
/// key 0, over the kind (4 bytes, little-endian) and the bytes.
pub fn number_of(kind: i32, bytes: &[u8]) -> HandleNumber {
    let mut hasher = SipHasher24::new();
    hasher.write(&kind.to_le_bytes());
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

/// Handles by their numbers.
#[derive(Default)]
pub struct LongHandles(Mutex<HashMap<HandleNumber, Arc<Handle>>>);

impl LongHandles {
    /// Enters a handle.
    pub fn note(&self, handle: Handle) -> Arc<Handle> {
        let number = number_of(handle.kind, &handle.bytes);
        let mut handles = lock(&self.0);
        if handles.len() >= HANDLES_MAX && !handles.contains_key(&number) {
            handles.clear();
        }
        handles.entry(number).or_insert_with(|| Arc::new(handle)).clone()
    }

    /// Returns the handle with a number, if it is known.
    pub fn get(&self, number: &HandleNumber) -> Option<Arc<Handle>> {
        lock(&self.0).get(number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pools contain these numbers.
    #[test]
    fn the_number_of_a_handle_stays() {
        let bytes: Vec<u8> = (0..40).collect();
        let number = number_of(1, &bytes);
        assert_eq!(number, NUMBER, "{number:#x?}");
        assert_ne!(number_of(2, &bytes), number);
        assert_ne!(number_of(1, &bytes[..39]), number);
    }

    const NUMBER: HandleNumber = [
        0xd0, 0xcc, 0x7b, 0x87, 0x7a, 0x1f, 0x22, 0xcf, 0x15, 0xca, 0x8a, 0x0f, 0x69, 0xd8, 0x7f,
        0xc9,
    ];
}
