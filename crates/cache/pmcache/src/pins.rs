//! Accounting of pinned space in the pool, for all users and for each.
//!
//! - **pins-P1** Pins hold at most [`Options::pin_max`](crate::CacheOptions::pin_max) bytes, and
//!   those of one user other than root at most
//!   [`Options::pin_user_max`](crate::CacheOptions::pin_user_max), so that writes find room. A pin
//!   counts for the owner of its file.
//! - **pins-P2** A pinned file keeps as many blocks as it had when it was pinned. Blocks by which
//!   it has grown since are evicted if nothing else can be.
//!
//! The owner of a pinned file's shadow is the user for whom the pin counts, so that it is known
//! after a restart.

use crate::record::{self, Flags, Record};
use crate::{BLOCK, Cache, lock};
use backing::Backing;
use std::collections::HashMap;
use std::sync::Mutex;
use vfs::{Errno, FileSystem, Ino, Result};

/// The pins, by shadow.
#[derive(Default)]
pub struct Pins(Mutex<HashMap<Ino, Pin>>);

struct Pin {
    uid: u32,
    blocks: u64,
}

impl Pins {
    /// Counts a pin of `blocks` blocks for a user, in place of an earlier pin of the shadow.
    ///
    /// # Errors
    /// `ENOSPC` beyond the limit of all users together, `EDQUOT` beyond that of the user.
    fn set(&self, shadow: Ino, uid: u32, blocks: u64, most: (u64, u64)) -> Result<()> {
        let mut pins = lock(&self.0);
        let (all, own) = left(&pins, shadow, uid, most);
        if blocks > own {
            return Err(Errno::DQUOT);
        }
        if blocks > all {
            return Err(Errno::NOSPC);
        }
        pins.insert(shadow, Pin { uid, blocks });
        Ok(())
    }

    /// Counts a pin from an earlier attachment, reduced to the current limits.
    fn set_old(&self, shadow: Ino, uid: u32, blocks: u64, most: (u64, u64)) {
        let mut pins = lock(&self.0);
        let (all, own) = left(&pins, shadow, uid, most);
        let blocks = blocks.min(all).min(own);
        if blocks > 0 {
            pins.insert(shadow, Pin { uid, blocks });
        }
    }

    /// Removes the pin of a shadow.
    pub fn remove(&self, shadow: Ino) {
        lock(&self.0).remove(&shadow);
    }

    /// Returns the number of blocks of a shadow that are pinned.
    pub fn blocks(&self, shadow: Ino) -> u64 {
        lock(&self.0).get(&shadow).map_or(0, |pin| pin.blocks)
    }

    /// Returns the number of pinned bytes.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).values().map(|pin| pin.blocks * BLOCK).sum()
    }

    pub fn shadows(&self) -> Vec<Ino> {
        lock(&self.0).keys().copied().collect()
    }
}

/// Returns the number of blocks that a pin of this shadow may have, by the limit of all users and
/// by that of its user.
fn left(pins: &HashMap<Ino, Pin>, shadow: Ino, uid: u32, most: (u64, u64)) -> (u64, u64) {
    let (mut all, mut own) = most;
    for (_, pin) in pins.iter().filter(|(pinned, _)| **pinned != shadow) {
        all = all.saturating_sub(pin.blocks);
        own = own.saturating_sub(if pin.uid == uid { pin.blocks } else { 0 });
    }
    (all, if uid == 0 { u64::MAX } else { own })
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Counts a pin of a shadow with this size for a user (pins-P1).
    pub(crate) fn count_pin(&self, shadow: Ino, uid: u32, size: u64) -> Result<()> {
        self.resident.pins.set(shadow, uid, size.div_ceil(BLOCK).max(1), self.most_pinned())
    }

    /// Returns the number of blocks that pins may hold, in all and of one user.
    fn most_pinned(&self) -> (u64, u64) {
        (self.options.pin_max / BLOCK, self.options.pin_user_max / BLOCK)
    }

    /// Counts the pin of a shadow from an earlier attachment. A file that has grown since is pinned
    /// up to the limits.
    pub(crate) fn count_old_pin(&self, shadow: Ino) {
        let record = self.pool.getxattr(shadow, record::RECORD);
        let record = record.and_then(|bytes| Record::from_bytes(&bytes));
        if record.is_ok_and(|record| record.state.contains(Flags::PINNED))
            && let Ok(attr) = self.pool.getattr(shadow)
        {
            let blocks = attr.size.div_ceil(BLOCK).max(1);
            self.resident.pins.set_old(shadow, attr.uid, blocks, self.most_pinned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_shares_of_what_all_have() {
        let pins = Pins::default();
        let most = (10, 4);
        assert_eq!(pins.set(Ino(2), 1, 4, most), Ok(()));
        assert_eq!(pins.set(Ino(3), 1, 1, most), Err(Errno::DQUOT));
        assert_eq!(pins.set(Ino(2), 1, 3, most), Ok(()), "in place of the first");
        assert_eq!(pins.set(Ino(4), 0, 6, most), Ok(()), "root has no share of its own");
        assert_eq!(pins.set(Ino(5), 2, 2, most), Err(Errno::NOSPC));
        pins.remove(Ino(2));
        assert_eq!(pins.set(Ino(5), 2, 4, most), Ok(()));
        assert_eq!((pins.blocks(Ino(5)), pins.blocks(Ino(2)), pins.bytes()), (4, 0, 10 * BLOCK));
    }
}
