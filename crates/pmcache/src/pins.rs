//! How much of the pool is pinned, and for whom.
//!
//! - **pins-P1** Pins hold no more than [`Options::pin_max`](crate::Options::pin_max) bytes, and those of one user other than
//!   root no more than [`Options::pin_user_max`](crate::Options::pin_user_max): so writes find room. A pin counts for the
//!   owner of its file.
//! - **pins-P2** A pinned file keeps as much as it had when it was pinned. Blocks that it has grown by since are evicted, if
//!   nothing else can be.
//!
//! The owner of a pinned file's shadow is the user whom it counts for, so that a restart knows it.

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
    /// `ENOSPC` beyond what all have together, `EDQUOT` beyond what the user has.
    fn set(&self, shadow: Ino, uid: u32, blocks: u64, most: (u64, u64)) -> Result<()> {
        let mut pins = lock(&self.0);
        let others = pins.iter().filter(|(pinned, _)| **pinned != shadow);
        let (mut all, mut own) = (blocks, blocks);
        for (_, pin) in others {
            all += pin.blocks;
            own += if pin.uid == uid { pin.blocks } else { 0 };
        }
        if all > most.0 {
            return Err(Errno::NOSPC);
        }
        if uid != 0 && own > most.1 {
            return Err(Errno::DQUOT);
        }
        pins.insert(shadow, Pin { uid, blocks });
        Ok(())
    }

    /// A shadow is not pinned any more.
    pub fn remove(&self, shadow: Ino) {
        lock(&self.0).remove(&shadow);
    }

    /// Blocks of a shadow that are not evicted.
    pub fn blocks(&self, shadow: Ino) -> u64 {
        lock(&self.0).get(&shadow).map_or(0, |pin| pin.blocks)
    }

    /// Bytes that are not evicted.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).values().map(|pin| pin.blocks * BLOCK).sum()
    }

    pub fn shadows(&self) -> Vec<Ino> {
        lock(&self.0).keys().copied().collect()
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Counts a pin of a shadow with this size for a user (pins-P1).
    pub(crate) fn count_pin(&self, shadow: Ino, uid: u32, size: u64) -> Result<()> {
        let most = (self.options.pin_max / BLOCK, self.options.pin_user_max / BLOCK);
        self.resident.pins.set(shadow, uid, size.div_ceil(BLOCK).max(1), most)
    }

    /// Counts a shadow from before this cache was attached, if it is pinned. A pin beyond what there may be holds nothing.
    pub(crate) fn count_old_pin(&self, shadow: Ino) {
        let record = self.pool.getxattr(shadow, record::RECORD);
        let record = record.and_then(|bytes| Record::from_bytes(&bytes));
        if record.is_ok_and(|record| record.state.contains(Flags::PINNED))
            && let Ok(attr) = self.pool.getattr(shadow)
        {
            let _ = self.count_pin(shadow, attr.uid, attr.size);
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
