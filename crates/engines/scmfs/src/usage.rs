//! The pool's record of its last use ([`crate::layout::usage`]).
//!
//! - usage-U1: the word is `CLOSED` only when everything in the pool is durable, and it is durably
//!   replaced before the pool changes again. So a mount that finds `CLOSED` need not treat contents
//!   as dirty. (After a power failure, all of the pool is durable, whatever the word is. Contents
//!   can be in caches only if processes were killed, and those had begun to use the pool.)
//! - usage-U2: the word is `UNORDERED`, durably, before the first store whose order is not kept,
//!   and until all stores were written back. A mount that finds `UNORDERED` knows that a power
//!   failure may have left any mixture.
//!
//! Pools of version 1 have no such word: their contents are treated as dirty, and order is always
//! kept.

use crate::layout::*;
use crate::store::Store;
use namespace::{Scan, Storage};
use pmem::{Medium, Pm, PmOff};
use pool::{Consistency, Error, MountOptions, Problem};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Errno, Result};

/// Returns whether the pool of this superblock has a version that records its usage.
pub fn is_said(medium: &Pm<impl Medium>) -> bool {
    FORMAT.has_usage(namespace::version(medium))
}

/// The problem of a pool in which a power failure may have left any mixture, and the effect of a
/// repair.
const UNORDERED: (&str, &str) = (
    "it was used with consistency=none and not unmounted, so a power failure may have left any mixture of old and new",
    "believe what is found to be sound",
);

impl<M: Medium> Store<M> {
    /// As [`namespace::Files::begin_use`].
    pub fn begin_use(&self, o: &MountOptions, is_joined: bool) -> std::result::Result<(), Error> {
        let is_unordered = self.v.settings.consistency == Consistency::None;
        if is_joined {
            return if is_unordered { self.stop_ordering() } else { Ok(()) };
        }
        if o.read_only {
            return Ok(());
        }
        let unusable = |why: &str| Err(Error::Unusable(why.to_owned()));
        match (self.says_usage, self.medium.load_u64(POOL_USAGE)) {
            (true, usage::UNORDERED) => return Err(Error::Damaged(vec![unordered_problem()])),
            (false, _) if is_unordered => {
                return unusable(
                    "consistency=none needs a pool of version 2: make one, and copy its files",
                );
            }
            _ => {}
        }
        // Checks that the medium can do without order, before the pool records that it does.
        if is_unordered {
            self.stop_ordering()?;
            self.medium.0.set_ordered(true);
        }
        Ok(())
    }

    /// Makes the medium keep no order of stores; [`Error::Unusable`] if it always does.
    fn stop_ordering(&self) -> std::result::Result<(), Error> {
        match self.medium.0.set_ordered(false) {
            true => Ok(()),
            false => Err(Error::Unusable("this kind of memory always keeps its order".to_owned())),
        }
    }

    /// Begins to use the pool, as the first step of a scan; records whether contents are durable.
    /// In the scan of a recovery, it finds the word that this use has stored.
    pub fn scan_usage(&self, scan: &Scan) {
        let said = if self.says_usage { self.medium.load_u64(POOL_USAGE) } else { usage::IN_USE };
        self.is_all_durable.store(said == usage::CLOSED, Relaxed);
        let is_unordered = self.v.settings.consistency == Consistency::None;
        let object = || "the superblock".to_owned();
        match said {
            usage::IN_USE | usage::CLOSED => {}
            usage::UNORDERED if is_unordered => return,
            usage::UNORDERED => {
                let (what, remedy) = UNORDERED;
                return scan.problem(object, what.into(), Some(((POOL_USAGE, 0), remedy)));
            }
            other => {
                let what =
                    format!("what it says of the use of the pool, {other:#x}, means nothing");
                let fix = Some(((POOL_USAGE, usage::IN_USE), "take it for one in use"));
                return scan.problem(object, what, fix);
            }
        }
        if self.is_read_only() {
            return;
        }
        let says = if is_unordered { usage::UNORDERED } else { usage::IN_USE };
        if said != says {
            self.say_usage(says);
        }
        if is_unordered {
            // From here on stores have no order (usage-U2).
            self.medium.0.set_ordered(false);
        }
    }

    /// Ends the use of a pool that no other process uses, and whose contents were written back.
    pub fn end_use(&self) -> Result<()> {
        if self.v.settings.consistency == Consistency::None {
            self.medium.0.set_ordered(true);
            self.flush_all();
        }
        if self.medium.0.health().is_err() {
            return Err(Errno::IO);
        }
        if self.says_usage {
            self.say_usage(usage::CLOSED);
        }
        Ok(())
    }

    /// Stores another word, durably, when all flushed bytes are durable (usage-U1).
    fn say_usage(&self, says: u64) {
        let ready = self.medium.fence();
        let _ = self.medium.publish(POOL_USAGE, says, ready);
    }

    /// Writes back all used blocks.
    fn flush_all(&self) {
        let used =
            |block: &u64| self.v.blocks.get(&self.v.arena, *block) && self.v.has_space(*block);
        for block in (0..self.v.blocks.len()).filter(used) {
            self.medium.flush(PmOff::new(block * BLOCK), BLOCK);
        }
    }
}

/// Returns the problem to report to a mount of such a pool.
fn unordered_problem() -> Problem {
    let (what, remedy) = UNORDERED;
    Problem {
        object: "the superblock".into(),
        what: what.into(),
        remedy: Some(remedy.into()),
        repaired: false,
        fix: Some((POOL_USAGE.get(), usage::IN_USE)),
    }
}
