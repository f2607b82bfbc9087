//! A bounded cache of open descriptors. The least recently used one is closed first.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The key of a descriptor: the serial number of its node (`nodes`), and whether it is open for
/// writing.
pub type Key = (u64, bool);

/// A bounded cache of descriptors. A caller may use a descriptor after the cache has dropped it.
pub struct Descriptors {
    state: Mutex<DescriptorsState>,
    max: usize,
}

#[derive(Default)]
struct DescriptorsState {
    /// The descriptors, each with the time of its last use.
    open: HashMap<Key, (Arc<OwnedFd>, u64)>,
    /// The keys by the times of their last uses.
    by_use: BTreeMap<u64, Key>,
    /// Counts uses.
    now: u64,
}

impl Descriptors {
    /// Makes a cache of at most `max` descriptors, and at least one.
    pub fn new(max: usize) -> Self {
        Self { state: Mutex::default(), max: max.max(1) }
    }

    /// Returns a descriptor if it is still open, and counts this as a use.
    pub fn get(&self, key: Key) -> Option<Arc<OwnedFd>> {
        let mut state = self.state();
        state.now += 1;
        let now = state.now;
        let (fd, used) = state.open.get_mut(&key)?;
        let (fd, before) = (fd.clone(), std::mem::replace(used, now));
        state.by_use.remove(&before);
        state.by_use.insert(now, key);
        Some(fd)
    }

    /// Adds `fd`. A descriptor that it displaces is closed here unless it is in use.
    pub fn put(&self, key: Key, fd: Arc<OwnedFd>) {
        let mut closed = Vec::new();
        let mut state = self.state();
        state.now += 1;
        let now = state.now;
        closed.extend(state.remove(key));
        state.open.insert(key, (fd, now));
        state.by_use.insert(now, key);
        while state.open.len() > self.max {
            let Some((_, &oldest)) = state.by_use.first_key_value() else { break };
            closed.extend(state.remove(oldest));
        }
        // Closing may take long on some file systems.
        drop(state);
    }

    /// Drops the descriptors of a node.
    pub fn drop_node(&self, serial: u64) {
        let mut state = self.state();
        let closed = [state.remove((serial, false)), state.remove((serial, true))];
        drop(state);
        drop(closed);
    }

    fn state(&self) -> MutexGuard<'_, DescriptorsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DescriptorsState {
    fn remove(&mut self, key: Key) -> Option<Arc<OwnedFd>> {
        let (fd, used) = self.open.remove(&key)?;
        self.by_use.remove(&used);
        Some(fd)
    }
}
