//! The implementations of [`crate::derived::SharedPool`] and [`pool::Processes`]: one pool, several
//! processes.

use crate::derived::{Held, SharedPool, State};
use crate::files::Files;
use crate::fs::Core;
use crate::mounted::{Pool, place};
use crate::scan::ScanOptions;
use crate::store::Storage;
use crate::tables::VInode;
use arena::{Census, Look, Paused};
use pmem::{Medium, Region};
use pool::{Error, Processes};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::*;
use vfs::{Ino, Result};

impl<S: Storage> SharedPool for Core<S> {
    type Inode = VInode;

    #[inline]
    fn state(&self) -> &State<VInode> {
        self.tables()
    }

    #[inline]
    fn is_lost(&self) -> bool {
        self.medium().0.is_lost()
    }

    fn reap_if_unused(&self, ino: Ino, v: &VInode) -> Result<()> {
        if ino == vfs::ROOT || self.is_read_only() || !v.has_no_name() {
            return Ok(());
        }
        self.own_inodes(&[ino])?;
        let _lock = self.tables().lock_exclusive(&[ino])?;
        if v.is_live() && v.refs.load(Acquire) == 0 && v.has_no_name() {
            self.reap(ino, v);
        }
        Ok(())
    }

    fn note_stores(&self, ino: Ino, v: &VInode) -> Result<()> {
        let _lock = self.tables().lock_exclusive(&[ino])?;
        if v.is_live() {
            self.note_unknown_stores(v);
        }
        Ok(())
    }

    fn all_unmapped(&self, ino: Ino, v: &VInode) -> Result<()> {
        if self.check_writable().is_err() {
            return Ok(());
        }
        let _lock = self.tables().lock_exclusive(&[ino])?;
        if v.is_live() && !v.mappings.are_direct() {
            self.give_back_preallocated(v)
        } else {
            Ok(())
        }
    }

    fn clear_deferred(&self) {
        Storage::clear_deferred(&self.0);
    }

    fn defer_used(&self) {
        self.tables().defer_used();
    }

    fn make_space(&self) -> Result<bool> {
        Ok(self.provision_demand()? || Storage::make_space(&self.0)?)
    }

    /// Derives the state by the scan of a mount (scan-S6).
    fn derive(&self, held: &BTreeMap<Ino, Held>, census: &Census) -> Option<String> {
        self.tables().clear();
        let scan = self.scan(&ScanOptions { threads: 1, held }, &|_| {});
        self.tables().recover_pins(census);
        self.recover_thin();
        let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
        let damage = scan.into_problems().first().map(ToString::to_string);
        if damage.is_none() {
            self.clear_stale(&stale);
        }
        damage
    }
}

impl<F: Files<Storage: Storage<Medium = Region>>> Processes for Pool<F> {
    fn reap_processes(&self) -> Result<usize> {
        self.files.reap_processes(Look::Thorough)
    }

    fn follow_owner(&self) -> io::Result<()> {
        match place::<F>(self.files.medium().0) {
            Ok(place) => self.files.tables().arena.follow_owner(&place),
            Err(Error::Shared(err)) => Err(err),
            Err(err) => Err(io::Error::other(err)),
        }
    }

    fn pause(&self) -> Option<Paused<'_>> {
        self.files.tables().arena.pause()
    }

    fn begin_fork(&self) {
        self.files.tables().arena.begin_fork();
    }

    fn inherit(&self, ino: Ino) -> Result<()> {
        // The parent's reference keeps the inode live.
        self.files.hold_if(ino, |_| true).map(drop)
    }

    fn end_fork(&self) {
        self.files.tables().arena.end_fork();
    }
}
