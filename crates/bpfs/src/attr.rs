//! Attributes and space.

use crate::blocks::KEEP;
use crate::fs::Core;
use crate::layout::*;
use crate::store::Stop;
use crate::volatile::{Locks, VInode};
use crate::xattr::{Attributes, CAPABILITY};
use pmem::{LINE, Medium};
use std::sync::atomic::Ordering::Relaxed;
use vfs::acl::{ACL_ACCESS, Acl};
use vfs::rules::clear_privileges;
use vfs::{Attr, Errno, FILE_SIZE_MAX, FileKind, Ino, Result, SetAttr, SetTime, StatFs};

/// What a change of attributes does to the words of an inode.
struct Change {
    words: Vec<(Word, u64)>,
    attributes: Option<Attributes>,
}

impl<M: Medium> Core<M> {
    /// `FileSystem::getattr`.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let mut attr = Attr::NONE;
        if self.attr_optimistic(ino, &mut attr) {
            return Ok(attr);
        }
        let _lock = self.v.lock_shared(ino)?;
        Ok(self.attr(ino, self.live(ino)?))
    }

    /// The attributes of an inode, and whether it lives and nobody changed them meanwhile.
    #[inline]
    pub fn attr_optimistic(&self, ino: Ino, attr: &mut Attr) -> bool {
        let Ok(v) = self.v.vinode(ino) else { return false };
        let Some(ticket) = v.lock.begin_optimistic() else { return false };
        let Ok(v) = self.live(ino) else { return false };
        self.attr_into(ino, v, attr);
        v.lock.end_optimistic(ticket)
    }

    /// `FileSystem::setattr`.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change(&[ino], 1, |locks| {
            let v = self.live(ino)?;
            self.check_size(v, set)?;
            if set.size.is_some() {
                self.revoke_capability(v)?;
            }
            let change = self.plan(v, set)?;
            let resized = set.size.filter(|s| *s != self.load(v, Word::Size));
            self.apply(locks, ino, v, &change, resized)?;
            if *set != SetAttr::default() {
                self.set_times(v, set);
            }
            Ok(self.attr(ino, v))
        })
    }

    fn check_size(&self, v: &VInode, set: &SetAttr) -> Result<()> {
        match (set.size, v.kind()) {
            (None, _) => Ok(()),
            (Some(size), FileKind::File) if size > FILE_SIZE_MAX => Err(Errno::FBIG),
            (Some(_), FileKind::File) => Ok(()),
            (Some(_), FileKind::Dir) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// The words that mode and owner become.
    fn plan(&self, v: &VInode, set: &SetAttr) -> Result<Change> {
        let (mode, owner) = (self.load(v, Word::Mode), self.load(v, Word::Owner));
        let mut new_mode = mode as u32;
        let (mut uid, mut gid) = (owner as u32, (owner >> 32) as u32);
        let mut attributes = None;
        if set.perm.is_some() && v.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        if set.uid.is_some() || set.gid.is_some() {
            uid = set.uid.unwrap_or(uid);
            gid = set.gid.unwrap_or(gid);
            if v.kind() != FileKind::Dir {
                new_mode = clear_privileges(new_mode);
                attributes = self.without_capability(v)?;
            }
        }
        if let Some(perm) = set.perm {
            new_mode = new_mode & !0o7777 | perm & 0o7777;
            let mut list = attributes.take().map_or_else(|| self.attributes(v), Ok)?;
            if let Some(mut acl) = list.get(ACL_ACCESS).map(Acl::parse).transpose()? {
                acl.chmod(perm);
                list.set(ACL_ACCESS, acl.to_bytes());
            }
            attributes = Some(list).filter(|l| self.attributes(v).is_ok_and(|old| old != *l));
        }
        let mut words = Vec::new();
        if new_mode != mode as u32 {
            words.push((Word::Mode, mode & !0xffff_ffff | u64::from(new_mode)));
        }
        let new_owner = u64::from(uid) | u64::from(gid) << 32;
        if new_owner != owner {
            words.push((Word::Owner, new_owner));
        }
        Ok(Change { words, attributes })
    }

    /// The attributes without `security.capability`, if they have it.
    pub fn without_capability(&self, v: &VInode) -> Result<Option<Attributes>> {
        if self.load(v, Word::Xattr) == 0 {
            return Ok(None);
        }
        let mut list = self.attributes(v)?;
        Ok(list.remove(CAPABILITY).then_some(list))
    }

    fn apply(
        &self,
        locks: &Locks<'_>,
        ino: Ino,
        v: &VInode,
        change: &Change,
        size: Option<u64>,
    ) -> std::result::Result<(), Stop> {
        let mut words = change.words.clone();
        if let Some(size) = size {
            words.push((Word::Size, size));
        }
        let several = words.len() + usize::from(change.attributes.is_some()) > 1;
        if several && !locks.has_global() {
            return Err(Stop::Wide);
        }
        let old_size = self.load(v, Word::Size);
        if let Some(size) = size {
            // What the file grows by must read as zeros; invisible until the size is committed.
            let (root, root_off) = (self.root(v)?, self.word_off(v, Word::Root));
            if size > old_size {
                self.zero_tail(root, old_size, size)?;
                let room = u64::from(height_for(size).saturating_sub(root.height()));
                self.v.transact(room, KEEP, |txn| {
                    self.grow(txn, root_off, root, size);
                    v.add_blocks(txn.delta());
                    Ok::<(), Errno>(())
                })?;
            }
            self.touch_modified(v);
        }
        if let Some(list) = &change.attributes {
            self.commit_attributes(locks, ino, v, list, &words)?;
        } else if !words.is_empty() {
            let keep = if several { self.inode_commit_blocks(1) } else { 0 };
            self.v.transact(keep, 0, |txn| {
                let all: Vec<_> = words.iter().map(|(w, value)| (ino, *w, *value)).collect();
                self.commit_inodes(txn, locks, &all)
            })?;
        }
        if size.is_some_and(|s| s < old_size) {
            self.prune(v, size.unwrap_or(old_size))?;
        }
        Ok(())
    }

    /// Stores the times asked for; each is a word of its own.
    fn set_times(&self, v: &VInode, set: &SetAttr) {
        let now = (self.clock)();
        let at = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        let mtime = set.mtime.map(at).or(set.size.map(|_| now));
        let times = [
            (Word::Atime, set.atime.map(at)),
            (Word::Mtime, mtime),
            (Word::Ctime, Some(set.ctime.unwrap_or(now))),
        ];
        for (word, time) in times {
            if let Some(t) = time {
                self.medium.store_u64(self.word_off(v, word), t.0 as u64);
            }
        }
        self.medium.flush(v.pm_off.load(Relaxed), LINE);
        let _ = self.medium.fence();
    }

    /// `FileSystem::drop_privileges`.
    pub fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.change(&[ino], 1, |locks| {
            let v = self.live(ino)?;
            if v.kind() == FileKind::Dir {
                return Ok(());
            }
            let mode = self.load(v, Word::Mode);
            let cleared = mode & !0xffff_ffff | u64::from(clear_privileges(mode as u32));
            let attributes = self.without_capability(v)?;
            if cleared == mode && attributes.is_none() {
                return Ok(());
            }
            let words = if cleared == mode { vec![] } else { vec![(Word::Mode, cleared)] };
            self.apply(locks, ino, v, &Change { words, attributes }, None)?;
            self.touch_changed(v);
            let _ = self.medium.fence();
            Ok(())
        })
    }

    /// `FileSystem::statfs`.
    pub fn statfs(&self) -> StatFs {
        let (inodes, free) = self.v.inode_counts();
        let blocks_free = self.v.free_blocks().saturating_sub(KEEP);
        let slots_free = self.v.inode_slots().saturating_sub(inodes - free);
        let inodes_free = free.min(blocks_free * INODES_PER_BLOCK + slots_free);
        StatFs {
            block_size: BLOCK as u32,
            blocks: self.bytes / BLOCK,
            blocks_free,
            // So that the difference is what exists.
            inodes: inodes - free + inodes_free,
            inodes_free,
        }
    }
}
