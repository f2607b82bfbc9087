//! Pinned files of a pool that holds the tree: their content stays in the pool.
//!
//! The pool has a bit for each pinned inode ([`Backed::set_pinned`]), so a pin outlives the server.
//! How much of the file it covers is derived: when the file is pinned, and by each attach.
//!
//! - pinned-F1: all pins cover at most [`EvictOptions::pin_max`](crate::EvictOptions::pin_max)
//!   bytes, and those of one user other than root at most
//!   [`EvictOptions::pin_user_max`](crate::EvictOptions::pin_user_max), so that other files find
//!   room. A pin counts for the owner of its file.
//! - pinned-F2: a pin covers the size that the file had when it was pinned, or when the pool was
//!   attached, as far as pinned-F1 permits. Content behind that is evicted as that of other files.
//! - pinned-F3: content of a pinned file that becomes absent is loaded again: when others have
//!   changed the file, when a load was interrupted, or after an invalidation
//!   ([`Loading::load_pinned`]).
//! - pinned-F4: a pin belongs to one life of an inode number, by the generation.

use crate::loading::Loading;
use crate::{BLOCK, lock};
use backing::Backing;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use vfs::{Attr, Backed, Errno, FileKind, Ino, Result};

/// The pins, by inode.
#[derive(Default)]
pub(crate) struct PinnedFiles {
    pins: Mutex<BTreeMap<Ino, FilePin>>,
    /// Those whose content may be absent (pinned-F3).
    absent: Mutex<BTreeSet<Ino>>,
}

/// A pin.
#[derive(Clone, Copy)]
struct FilePin {
    generation: u32,
    /// The user for whom it counts.
    uid: u32,
    /// The blocks that it covers, from the beginning of the file.
    blocks: u64,
}

/// The number of blocks that one more pin may cover, by the limits of all users and of one.
fn room(
    pins: &BTreeMap<Ino, FilePin>,
    (ino, uid): (Ino, u32),
    (all, own): (u64, u64),
) -> (u64, u64) {
    let others = || pins.iter().filter(|(pinned, _)| **pinned != ino);
    let of_all: u64 = others().map(|(_, pin)| pin.blocks).sum();
    let of_user: u64 = others().filter(|(_, pin)| pin.uid == uid).map(|(_, pin)| pin.blocks).sum();
    let own = if uid == 0 { u64::MAX } else { own.saturating_sub(of_user) };
    (all.saturating_sub(of_all), own)
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Pins a file, and loads it. After an error of the load, the file stays pinned.
    ///
    /// # Errors
    /// `EINVAL` unless it is a regular file; `ENOSPC` beyond the limit of all users together, and
    /// `EDQUOT` beyond that of its owner (pinned-F1).
    pub(crate) fn pin(&self, ino: Ino) -> Result<()> {
        let attr = self.pool().getattr(ino)?;
        if attr.kind != FileKind::File {
            return Err(Errno::INVAL);
        }
        self.remove_dead_pins();
        let before = {
            let mut pins = lock(&self.pinned().pins);
            let pin = pin_of(&attr);
            let (all, own) = room(&pins, (ino, attr.uid), self.pin_limits());
            if pin.blocks > own {
                return Err(Errno::DQUOT);
            }
            if pin.blocks > all {
                return Err(Errno::NOSPC);
            }
            pins.insert(ino, pin)
        };
        if let Err(e) = self.pool().set_pinned(ino, true) {
            let mut pins = lock(&self.pinned().pins);
            match before {
                Some(pin) => pins.insert(ino, pin),
                None => pins.remove(&ino),
            };
            return Err(e);
        }
        // An eviction that has begun does not know the pin.
        self.end_eviction();
        self.warm(ino, attr.size)
    }

    /// Ends the pin of a file, if it has one.
    pub(crate) fn unpin(&self, ino: Ino) -> Result<()> {
        self.pool().set_pinned(ino, false)?;
        lock(&self.pinned().pins).remove(&ino);
        self.note_clean(ino);
        Ok(())
    }

    /// Notes the files that are pinned when the pool is attached (pinned-F2).
    pub(crate) fn find_pins(&self, found: &[Ino]) -> Result<()> {
        for ino in found {
            let attr = self.pool().getattr(*ino)?;
            let mut pins = lock(&self.pinned().pins);
            let (all, own) = room(&pins, (*ino, attr.uid), self.pin_limits());
            let pin = pin_of(&attr);
            pins.insert(*ino, FilePin { blocks: pin.blocks.min(all).min(own), ..pin });
            drop(pins);
            self.must_load(*ino);
        }
        Ok(())
    }

    /// Notes that content of a pinned file may be absent.
    pub(crate) fn must_load(&self, ino: Ino) {
        lock(&self.pinned().absent).insert(ino);
    }

    /// Loads the pinned files whose content may be absent (pinned-F3). Long-lived processes call
    /// this periodically. An error is logged; a call that reads the file loads it, too.
    pub fn load_pinned(&self) {
        let absent = std::mem::take(&mut *lock(&self.pinned().absent));
        for ino in absent {
            let Ok(attr) = self.pool().getattr(ino) else { continue };
            let bytes = self.pinned_bytes(ino, attr.generation).min(attr.size);
            match self.warm(ino, bytes) {
                Ok(()) | Err(Errno::STALE) => {}
                Err(error) => tracing::warn!(ino = ino.0, %error, "cannot load a pinned file"),
            }
        }
    }

    /// Returns the bytes from the beginning of a file that eviction has to leave.
    pub(crate) fn pinned_bytes(&self, ino: Ino, generation: u32) -> u64 {
        let pins = lock(&self.pinned().pins);
        let pin = pins.get(&ino).filter(|pin| pin.generation == generation);
        pin.map_or(0, |pin| pin.blocks * BLOCK)
    }

    /// Returns the bytes that all pins cover.
    pub(crate) fn all_pinned_bytes(&self) -> u64 {
        self.remove_dead_pins();
        lock(&self.pinned().pins).values().map(|pin| pin.blocks * BLOCK).sum()
    }

    /// pinned-F4.
    fn remove_dead_pins(&self) {
        let is_alive = |ino: Ino, pin: &FilePin| {
            self.pool().getattr(ino).is_ok_and(|attr| attr.generation == pin.generation)
        };
        let known = lock(&self.pinned().pins).clone();
        for (ino, pin) in known {
            if !is_alive(ino, &pin) {
                let mut pins = lock(&self.pinned().pins);
                if pins.get(&ino).is_some_and(|now| now.generation == pin.generation) {
                    pins.remove(&ino);
                }
            }
        }
    }

    /// Returns the numbers of blocks that all pins, and those of one user, may cover.
    fn pin_limits(&self) -> (u64, u64) {
        let options = self.evict_options();
        (options.pin_max / BLOCK, options.pin_user_max / BLOCK)
    }
}

fn pin_of(attr: &Attr) -> FilePin {
    let blocks = attr.size.div_ceil(BLOCK).max(1);
    FilePin { generation: attr.generation, uid: attr.uid, blocks }
}
