//! The files in use.

use crate::lock;
use crate::node::CacheNode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use vfs::Ino;

/// The files in use, by their numbers.
#[derive(Default)]
pub struct NodeTable {
    files: Mutex<HashMap<Ino, HeldNode>>,
}

struct HeldNode {
    node: Arc<CacheNode>,
    /// The number of references of front ends.
    refs: u64,
    /// The number of references to the backing file that the table has kept after front ends gave
    /// theirs back.
    kept: u64,
}

impl NodeTable {
    /// Counts a reference of a front end to a file.
    pub fn hold(&self, ino: Ino) {
        let mut files = lock(&self.files);
        files.entry(ino).or_insert_with(|| HeldNode::new(ino)).refs += 1;
    }

    /// Returns a file, and adds it to the table if it was not in use.
    pub fn get(&self, ino: Ino) -> Arc<CacheNode> {
        let mut files = lock(&self.files);
        files.entry(ino).or_insert_with(|| HeldNode::new(ino)).node.clone()
    }

    /// Returns a file if it is in use.
    pub fn find(&self, ino: Ino) -> Option<Arc<CacheNode>> {
        lock(&self.files).get(&ino).map(|held| held.node.clone())
    }

    /// Takes over a reference to a backing file until the file is [removed](Self::remove) from the
    /// table.
    pub fn keep(&self, ino: Ino) -> Arc<CacheNode> {
        let mut files = lock(&self.files);
        let held = files.entry(ino).or_insert_with(|| HeldNode::new(ino));
        held.kept += 1;
        held.node.clone()
    }

    /// Gives back references of a front end. Returns the file if no references of front ends are
    /// left; the caller then removes it or keeps a reference to its backing file.
    pub fn forget(&self, ino: Ino, refs: u64) -> Option<Arc<CacheNode>> {
        let mut files = lock(&self.files);
        let held = files.get_mut(&ino)?;
        held.refs = held.refs.saturating_sub(refs);
        (held.refs == 0).then(|| held.node.clone())
    }

    /// Removes a file that no front end holds. Returns the number of references to its backing file
    /// that were kept. Call it with the file's state locked.
    pub fn remove(&self, ino: Ino) -> Option<u64> {
        let mut files = lock(&self.files);
        if files.get(&ino)?.refs > 0 {
            return None;
        }
        files.remove(&ino).map(|held| held.kept)
    }
}

impl HeldNode {
    fn new(ino: Ino) -> Self {
        Self { node: Arc::new(CacheNode::new(ino)), refs: 0, kept: 0 }
    }
}
