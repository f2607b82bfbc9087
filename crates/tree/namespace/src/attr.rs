//! Attributes.

use crate::fs::Core;
use crate::layout::{MODE_HALF, Word};
use crate::store::{Change, Storage};
use crate::tables::VInode;
use crate::xattr::{Attributes, CAPABILITY};
use pmem::LINE;
use vfs::acl::{ACL_ACCESS, Acl};
use vfs::rules::clear_privileges;
use vfs::{Attr, Errno, FileKind, Ino, Result, SetAttr, SetTime};

impl<S: Storage> Core<S> {
    /// Implements `FileSystem::getattr`.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let mut attr = Attr::NONE;
        if self.attr_optimistic(ino, &mut attr) {
            return Ok(attr);
        }
        let _lock = self.tables().lock_shared(ino)?;
        Ok(self.attr(ino, self.live(ino)?))
    }

    /// Stores the attributes of an inode into `attr`; returns whether it lives and its lock shows
    /// no change meanwhile.
    #[inline]
    pub(crate) fn attr_optimistic(&self, ino: Ino, attr: &mut Attr) -> bool {
        let Ok(v) = self.tables().vinode(ino) else { return false };
        let Some(ticket) = v.lock.begin_optimistic() else { return false };
        let Ok(v) = self.live(ino) else { return false };
        self.attr_into(ino, v, attr);
        v.lock.end_optimistic(ticket)
    }

    /// Implements `FileSystem::setattr`.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let is_present = || match (set.size, self.live_file(ino)) {
            (Some(size), Ok(v)) => self.check_resize(v, size),
            _ => Ok(()),
        };
        self.change_if(&[ino], is_present, || {
            let v = self.live(ino)?;
            self.check_size(v, set)?;
            if set.size.is_some() {
                self.revoke_capability(v)?;
            }
            let resized = set.size.filter(|s| *s != self.load(v, Word::Size));
            let commit = || self.commit_change(ino, v, &self.plan(v, set)?, resized);
            match commit() {
                Err(Errno::NOSPC) if self.loses_capability(v, set)? => commit()?,
                done => done?,
            }
            if *set != SetAttr::default() {
                self.set_times(v, set);
            }
            Ok(self.attr(ino, v))
        })
    }

    /// Fails if `set` has a size that the inode cannot have: `EFBIG`, `EISDIR` or `EINVAL`.
    fn check_size(&self, v: &VInode, set: &SetAttr) -> Result<()> {
        match (set.size, v.kind()) {
            (None, _) => Ok(()),
            (Some(size), FileKind::File) if size > S::LIMITS.file_size => Err(Errno::FBIG),
            (Some(_), FileKind::File) => Ok(()),
            (Some(_), FileKind::Dir) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Computes the new words of mode and owner.
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
            words.push((Word::Mode, mode & !MODE_HALF | u64::from(new_mode)));
        }
        let new_owner = u64::from(uid) | u64::from(gid) << 32;
        if new_owner != owner {
            words.push((Word::Owner, new_owner));
        }
        Ok(Change { words, attributes })
    }

    /// Removes the capability that a change would remove, after the change found no space; returns
    /// whether there was one. The removal needs no space, and the change is then tried again.
    fn loses_capability(&self, v: &VInode, set: &SetAttr) -> Result<bool> {
        let is_given = set.uid.is_some() || set.gid.is_some();
        Ok(is_given && v.kind() != FileKind::Dir && self.drop_capability(v)?)
    }

    /// Returns the attributes without `security.capability`, if they have it.
    pub(crate) fn without_capability(&self, v: &VInode) -> Result<Option<Attributes>> {
        if self.load(v, Word::Xattr) == 0 {
            return Ok(None);
        }
        let mut list = self.attributes(v)?;
        Ok(list.remove(CAPABILITY).then_some(list))
    }

    /// Stores the requested times; each is a word of its own.
    fn set_times(&self, v: &VInode, set: &SetAttr) {
        let now = self.now();
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
                self.medium().store_u64(self.word_at(v, word), t.0 as u64);
            }
        }
        self.medium().flush(v.at(), LINE);
        let _ = self.medium().fence();
        if matches!(set.mtime, Some(SetTime::At(_))) {
            self.note_set_time(v);
        }
    }

    /// Implements `FileSystem::drop_privileges`.
    pub fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.change(&[ino], || {
            let v = self.live(ino)?;
            if v.kind() == FileKind::Dir {
                return Ok(());
            }
            let mode = self.load(v, Word::Mode);
            let cleared = mode & !MODE_HALF | u64::from(clear_privileges(mode as u32));
            let attributes = self.without_capability(v)?;
            if cleared == mode && attributes.is_none() {
                return Ok(());
            }
            let words = if cleared == mode { vec![] } else { vec![(Word::Mode, cleared)] };
            let mut change = Change { words, attributes };
            match self.commit_change(ino, v, &change, None) {
                Err(Errno::NOSPC) if self.drop_capability(v)? => {
                    change.attributes = None;
                    self.commit_change(ino, v, &change, None)?;
                }
                done => done?,
            }
            self.touch_changed(v);
            let _ = self.medium().fence();
            Ok(())
        })
    }
}
