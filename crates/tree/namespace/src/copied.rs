//! Trees that are prepared as a whole, and get their name last.
//!
//! - copied-T1: an inode of a tree that is being prepared does not live yet
//!   ([`VInode::prepare`]), and no directory that does live leads to it. So no other thread finds
//!   it, and its records and entries need no order before the name of the tree is committed.
//! - copied-T2: the fence of that commit is the first one that the tree needs: all of it is stored
//!   by the thread that commits, past the caches.
//! - copied-T3: the inodes live before the lock of the directory with the name is given back.
//!
//! | operation | prepared, invisible | commit |
//! |---|---|---|
//! | name a tree | inodes, blocks of entries | the entry of its topmost directory |

use crate::dir::Chain;
use crate::fs::Core;
use crate::index::Found;
use crate::layout::*;
use crate::store::Storage;
use crate::tables::{EntryPos, VInode};
use arena::Handle;
use pmem::PmOff;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Entry, Errno, Ino, Result};

impl<S: Storage> Core<S> {
    /// Adds a block of entries, which lies at `at`, to the derived state of a directory that is
    /// being prepared, and indexes its names. `EUCLEAN` if a name is not allowed, or appears twice.
    pub fn index_dir_block(
        &self,
        dir: Ino,
        v: &VInode,
        at: PmOff,
        data: &[u8; BLOCK as usize],
    ) -> Result<()> {
        let handle = self.tables().add_dir_block(v, at)?;
        let free = &self.tables().dir_block(handle).free;
        for entry in Chain::new(data) {
            let entry = entry.map_err(|_| Errno::UCLEAN)?;
            let Some(life) = entry.life else {
                free.set(entry.run(), true);
                continue;
            };
            let name = entry.name_in(data);
            let is_sound =
                S::LIMITS.check_name(name).is_ok() && self.find_name(dir, name).is_none();
            if !is_sound {
                return Err(Errno::UCLEAN);
            }
            let pos = EntryPos::new(handle, entry.off);
            self.index_name(dir, name, Found { ino: life.ino, pos })?;
            v.add_entries(1);
        }
        self.set_run(v, handle, free.best())
    }

    /// Takes the names of a prepared directory out of the index, as far as they are there. Its
    /// blocks are as [`index_dir_block`](Self::index_dir_block) got them.
    pub fn unindex_dir(&self, dir: Ino, v: &VInode) {
        if v.dir.load(Relaxed) == 0 {
            return;
        }
        let Ok(state) = self.tables().dir_state(v) else { return };
        let mut next = state.blocks.load(Relaxed);
        while let Some(block) = Handle::from_link(next) {
            let db = self.tables().dir_block(block);
            let data = self.load_dir_block(db.at());
            for entry in Chain::new(&data).flatten().filter(|entry| entry.life.is_some()) {
                self.unindex_name(dir, entry.name_in(&data), EntryPos::new(block, entry.off));
            }
            next = db.sibling.load(Relaxed);
        }
    }

    /// Gives the topmost directory of a prepared tree its name, which makes the tree visible.
    /// `begin_lives` lets its inodes live (copied-T3). Adds a reference to the directory.
    pub fn name_tree(
        &self,
        (dir, name): (Ino, &[u8]),
        top: Life,
        begin_lives: impl FnOnce(),
    ) -> Result<Entry> {
        self.change(&[dir], || {
            let d = self.live_dir(dir)?;
            S::LIMITS.check_name(name)?;
            if self.find_name(dir, name).is_some() {
                return Err(Errno::EXIST);
            }
            self.open_dir(dir)?;
            let v = self.tables().vinode(top.ino)?;
            let slot = self.make_slot((dir, d), name, (top.ino, v))?;
            self.touch_modified(d);
            // The fence of copied-T2.
            self.commit_slot(&slot, top, false);
            self.update_index_after_add(d, &slot)?;
            v.parent.store(dir.0 as u32, Relaxed);
            d.add_links(1);
            begin_lives();
            Ok(self.attr(top.ino, v))
        })
    }
}
