//! Branches ([`namespace`] has their invariants): what they need of snapshots and contents.
//!
//! - branches-X1: a snapshot has the inodes of the pool's tree only. So it holds nothing of a
//!   branch, and a discarded branch gives all of its space back.
//! - branches-X2: a commit compares the pool with a snapshot by value, not by times: two changes
//!   can have the same time. Contents are compared by their roots: as long as a snapshot shares a
//!   tree, the tree does not change (parents-P3).

use crate::blocks::Txn;
use crate::crawler::{Node, Trees};
use crate::extent::FileExtent as _;
use crate::fs::Files;
use crate::layout::*;
use crate::snapshots::{TableEntry, kind_of};
use crate::store::Store;
use namespace::{Chain, POOL_BRANCHES, Storage as _};
use pmem::{Fenced, Medium, Pm};
use pool::BranchInfo;
use std::collections::HashMap;
use vfs::{Errno, FileKind, Ino, Result};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Most bytes of the directory of branches that a list reads: a damaged one can have any size.
const LISTED_MAX: u64 = 1 << 20;

/// Returns the branches of a pool. Other processes may change them meanwhile; damaged ones are left
/// out.
pub fn list<M: Medium>(medium: &Pm<M>, pool_bytes: u64) -> Vec<BranchInfo> {
    let Some(dir) = namespace::branches_dir(medium) else { return Vec::new() };
    let trees = Trees { medium: Pm(&medium.0), bytes: pool_bytes, marks: 0 };
    trees.branches_in(dir).unwrap_or_default()
}

impl<M: Medium> Trees<M> {
    /// Reads an inode of the pool's present state.
    fn read_inode(&self, ino: Ino) -> Result<InodeRecord> {
        let size = self.medium.load_u64(INODE_SIZE);
        let at = ino.0 * INODE;
        if at >= size {
            return Err(Errno::UCLEAN);
        }
        let root = self.check_root(self.medium.load_u64(INODE_ROOT))?;
        let block = self.find_block(root, at)?.ok_or(Errno::UCLEAN)?;
        let mut record = InodeRecord::new_zeroed();
        self.medium.read(block.at(at % BLOCK), record.as_mut_bytes());
        Ok(record)
    }

    /// Reads the entries of the directory of branches.
    fn branches_in(&self, dir: Ino) -> Result<Vec<BranchInfo>> {
        let dir = self.read_inode(dir)?;
        let size = dir.size.get().min(LISTED_MAX);
        let mut found = Vec::new();
        self.visit(Node::top(self.check_root(dir.root.get())?), &(0..size), &mut |block, _| {
            let mut data = [0; BLOCK as usize];
            self.medium.read(block.at(0), &mut data);
            for entry in Chain::new(&data).flatten() {
                let Some(life) = entry.life else { continue };
                let at = (entry.off + namespace::layout::DIRENT_HEADER) as usize;
                let name = data.get(at..at + entry.word.name_len).unwrap_or_default();
                let name = str::from_utf8(name).ok().and_then(pool::split_branch);
                if let (Some((name, is_finished)), Ok(root)) = (name, self.read_inode(life.ino)) {
                    let created_ns = root.btime.get();
                    found.push(BranchInfo { name: name.to_owned(), created_ns, is_finished });
                }
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// Returns whether two trees of this size have the same bytes.
    fn is_same_content(&self, a: u64, b: u64, bytes: u64) -> Result<bool> {
        if a == b {
            return Ok(true);
        }
        let (a, b) = (self.check_root(a)?, self.check_root(b)?);
        let (mut one, mut other) = ([0; BLOCK as usize], [0; BLOCK as usize]);
        for at in (0..bytes).step_by(BLOCK as usize) {
            let len = (bytes - at).min(BLOCK) as usize;
            for (root, data) in [(a, &mut one), (b, &mut other)] {
                match self.find_block(root, at)? {
                    Some(block) => self.medium.read(block.at(0), &mut data[..len]),
                    None => data[..len].fill(0),
                }
            }
            if one[..len] != other[..len] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<M: Medium> Store<M> {
    /// Returns whether an inode of the pool and one of a snapshot are the same, except for the time
    /// of access (branches-X2).
    fn is_same_inode(&self, now: &InodeRecord, then: &InodeRecord) -> Result<bool> {
        let fields = |record: &InodeRecord| {
            let id = (record.mode.get(), record.generation.get(), record.rdev.get());
            let owner = (record.uid.get(), record.gid.get());
            (id, owner, record.size.get(), record.mtime.get(), record.ctime.get())
        };
        let is_free = |record: &InodeRecord| record.mode.get() == 0;
        if is_free(now) || is_free(then) {
            return Ok(is_free(now) == is_free(then));
        }
        if fields(now) != fields(then) {
            return Ok(false);
        }
        let is_same = match kind_of(now)? {
            // An in-place change of an entry leaves the root.
            Some(FileKind::Dir) => {
                self.is_same_content(now.root.get(), then.root.get(), now.size.get())?
            }
            Some(FileKind::File | FileKind::Symlink) => now.root == then.root,
            _ => true,
        };
        if !is_same || now.xattr.get() == 0 || then.xattr.get() == 0 {
            return Ok(is_same && now.xattr.get() == then.xattr.get());
        }
        Ok(self.load_attributes(now.xattr.get())? == self.load_attributes(then.xattr.get())?)
    }
}

impl<M: Medium> Files<M> {
    /// Fails if the pool can have no branches.
    fn check_branches(&self) -> Result<()> {
        if self.is_backed() || self.snapshot.get().is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// Implements [`namespace::Files::branches_dir`].
    pub fn branches_dir_of(&self, creates: bool) -> Result<Option<Ino>> {
        self.check_branches()?;
        match self.branches_dir() {
            None if creates => {
                self.check_writable()?;
                self.begin_snapshots();
                self.make_branches_dir().map(Some)
            }
            dir => Ok(dir),
        }
    }

    /// Returns whether the pool's tree is as a snapshot has it (branches-X2).
    fn is_as_in(&self, entry: &TableEntry) -> Result<bool> {
        let tree = self.inodes_of_tree()?;
        for number in 0..self.v.inode_slots().max(entry.inodes()) {
            let now = self.present_inode(number, tree.as_ref())?;
            if !self.is_same_inode(&now, &self.inode_of(entry, number)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Implements [`namespace::Files::commit_branch`].
    pub fn commit_branch(&self, name: &str, base: Option<&str>) -> Result<()> {
        self.check_branches()?;
        let (_, is_finished) = pool::split_branch(name).ok_or(Errno::INVAL)?;
        self.settle();
        match base {
            Some(_) if !is_finished => return Err(Errno::INVAL),
            Some(base) if !self.is_as_in(&self.find_snapshot(base)?)? => return Err(Errno::AGAIN),
            _ => {}
        }
        self.replace_tree(name)
    }

    /// Implements [`namespace::Files::clone_from_snapshot`].
    pub fn clone_from_snapshot(&self, name: &str, from: Ino, to: Ino) -> Result<()> {
        self.check_branches()?;
        // The snapshot stays meanwhile. Locks of inodes come after this one.
        let _lock = self.v.snapshots.hold(&self.v, 0)?;
        self.change(&[to], || {
            let d = self.live_file(to)?;
            let record = self.inode_of(&self.find_snapshot(name)?, from.0)?;
            if kind_of(&record)? != Some(FileKind::File) {
                return Err(Errno::STALE);
            }
            self.revoke_capability(d)?;
            let (root, size) = (self.check_root(record.root.get())?, record.size.get());
            let old = self.root(d)?;
            let words = self.hold_record(to)?;
            self.transact(0, 0, |txn: &mut Txn<'_>| {
                self.touch_modified(d);
                if let Some(block) = root.block() {
                    txn.share(block, root.height())?;
                }
                self.drop_subtree(txn, Node::top(old))?;
                txn.gain(self.count_blocks(Node::top(root), &mut HashMap::new())? as i64);
                // extent-U2.
                d.cut_extent(&(0..u64::MAX));
                let delta = txn.delta();
                self.commit_held(&words, d, &[(Word::Root, root.word()), (Word::Size, size)]);
                self.gain(d, delta);
                Ok(())
            })
        })
    }

    /// Removes the directory of branches, which is empty: before another inode file takes the place
    /// of the pool's, in which another inode has its number.
    pub fn end_branches(&self) -> Result<()> {
        if self.has_branches()? {
            return Err(Errno::NOTEMPTY);
        }
        if self.branches_dir().is_some() {
            let ready = Fenced::not_needed("it is empty");
            let _ = self.medium.publish(POOL_BRANCHES, 0, ready);
        }
        Ok(())
    }
}
