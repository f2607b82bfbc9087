//! Files that were removed while the cache had data of them that was not written back.
//!
//! A power failure may undo a removal that is not synced in the backing store; then the file must
//! have the data written to it. So that data is discarded only when the removal is durable.

use crate::node::{CacheNode, Cnode};
use crate::record::Flags;
use crate::{BLOCK, Cache, lock};
use backing::Backing;
use vfs::{Errno, FileSystem, Result, Timestamp};

/// Removed files that a power failure may bring back.
#[derive(Default)]
pub struct Removed {
    /// Their names in the pool.
    names: Vec<Vec<u8>>,
    /// The time of the first removal.
    since: Timestamp,
    /// The number of bytes kept for them.
    bytes: u64,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Keeps the data of a removed file with a bitmap, which no process uses any more, until its
    /// removal is durable.
    pub(crate) fn keep_removed(&self, node: &CacheNode, cnode: &mut Cnode) -> Result<()> {
        let bytes = cnode.dirty_bytes();
        self.resident.remove(cnode.shadow);
        self.backlog.remove(node.ino);
        self.backing.unguard(node.ino);
        self.backlog.shrink(bytes);
        if let Some(dirty) = cnode.dirty.take() {
            self.pool.forget(dirty.bitmap, 1);
        }
        self.note_removed(cnode.name.clone(), bytes);
        let orphan = cnode.record.state | Flags::ORPHAN;
        self.set_state(cnode, orphan)
    }

    /// Does the same for a file that is not in use. If it has a bitmap, it was not found when the
    /// pool was attached.
    pub(crate) fn remove_unused(&self, name: Vec<u8>) -> Result<()> {
        if !self.has_bitmap(&name)? {
            return self.unlink_both(&name);
        }
        let found = {
            let _shadows = lock(&self.shadows);
            self.find(&name)?
        };
        let Some(mut cnode) = found else { return self.unlink_both(&name) };
        let bytes = cnode.dirty_bytes();
        let orphan = cnode.record.state | Flags::ORPHAN;
        let marked = self.clear_birth(&mut cnode).and_then(|()| self.set_state(&mut cnode, orphan));
        self.release(&cnode);
        marked?;
        lock(&self.lost).retain(|lost| lost.name != name);
        self.note_removed(name, bytes);
        Ok(())
    }

    /// Notes that this shadow is to be discarded when everything is durable in the backing store.
    pub(crate) fn note_removed(&self, name: Vec<u8>, bytes: u64) {
        let mut removed = lock(&self.removed);
        if removed.names.is_empty() {
            removed.since = (self.options.clock)();
        }
        removed.names.push(name);
        removed.bytes += bytes.max(BLOCK);
    }

    pub(crate) fn has_removed(&self) -> bool {
        !lock(&self.removed).names.is_empty()
    }

    /// Makes removals durable that have waited for long, or that keep many bytes.
    pub(crate) fn discard_removed_due(&self) -> Result<()> {
        let is_due = {
            let removed = lock(&self.removed);
            let age = (self.options.clock)().0.saturating_sub(removed.since.0);
            let is_much = removed.bytes > self.options.high;
            !removed.names.is_empty() && (is_much || age >= self.options.max_age_ns)
        };
        if is_due { self.sync() } else { Ok(()) }
    }

    /// Makes everything in the backing store durable, including removals, and discards the data of
    /// removed files.
    pub(crate) fn discard_removed(&self) -> Result<()> {
        let removed = std::mem::take(&mut *lock(&self.removed));
        let synced = self.sync_below();
        let mut rest = removed.names.as_slice();
        let result = synced.and_then(|()| {
            while let [name, more @ ..] = rest {
                self.unlink_both(name)?;
                rest = more;
            }
            Ok(())
        });
        if !rest.is_empty() {
            let mut now = lock(&self.removed);
            now.names.extend_from_slice(rest);
            now.bytes += removed.bytes;
        }
        result
    }

    /// Removes a shadow that is not in use, and its bitmap. The bitmap goes first: a shadow without
    /// one has no data that the backing file lacks.
    pub(crate) fn unlink_both(&self, name: &[u8]) -> Result<()> {
        let _shadows = lock(&self.shadows);
        for dir in [self.dirty, self.nodes] {
            match self.pool.peek(dir, name) {
                Ok(found) => {
                    self.resident.remove(found.ino);
                    self.pool.unlink(dir, name)?;
                }
                Err(Errno::NOENT) => {}
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }
}
