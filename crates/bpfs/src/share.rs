//! One pool, several processes: what [`derived::SharedPool`] wants of the engine, and where processes meet.

use crate::fs::Core;
use crate::lifecycle;
use crate::scan::ScanOptions;
use crate::volatile::VInode;
use arena::Census;
use derived::{Held, SharedPool, State};
use pmem::{Medium, Region};
use pool::{Error, Place};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;
use vfs::{Ino, Result};

/// Version of the derived state: whoever has another one cannot share it. No other engine has the same.
pub const STATE_FORMAT: u64 = 14 << 1;

/// Where those meet who use the pool in `region`: a copy of its file is another pool.
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] where it lies in no file.
pub fn place(region: &Region) -> std::result::Result<Place, Error> {
    pool::place(region, lifecycle::info(region)?.uuid, STATE_FORMAT)
}

impl<M: Medium> SharedPool for Core<M> {
    type Inode = VInode;

    #[inline]
    fn state(&self) -> &State<VInode> {
        &self.v
    }

    #[inline]
    fn is_lost(&self) -> bool {
        self.medium.is_lost()
    }

    fn reap_if_unused(&self, ino: Ino, v: &VInode) -> Result<()> {
        if ino == vfs::ROOT || self.read_only.load(Relaxed) || !v.has_no_name() {
            return Ok(());
        }
        let _lock = self.v.lock_exclusive(&[ino])?;
        if v.is_live() && v.refs.load(Acquire) == 0 && v.has_no_name() {
            self.reap(ino, v);
        }
        Ok(())
    }

    fn clear_deferred(&self) {
        self.v.clear_deferred();
    }

    /// By the scan that mounts (scan-S6).
    fn derive(&self, held: &BTreeMap<Ino, Held>, census: &Census) -> Option<String> {
        self.v.clear();
        let scan = self.scan(&ScanOptions { threads: 1, held }, &|_| {});
        self.v.pins().recover(&self.v.arena, census, &self.v.blocks);
        self.v.count_free_blocks();
        let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
        let damage = scan.into_problems().first().map(ToString::to_string);
        if damage.is_none() {
            self.clear_stale(&stale);
        }
        damage
    }
}
