//! Who makes the calls.

use super::op::Op;
use super::text::unescape;
use crate::{
    Caller, Errno, Fallocate, FileSystem, Ino, NewKind, NewNode, RenameFlags, SetAttr, SetTime,
    SetXattr, Timestamp,
};
use std::borrow::Cow;
use std::cell::Cell;

/// Handles that an operation can name.
pub const HANDLES: usize = 4;

/// What changes of content take away by a step of their own.
const CAPABILITY: &[u8] = b"security.capability";

/// What each handle holds.
pub type Handles = [Option<Ino>; HANDLES];

/// Runs operations on a file system, holding their handles.
pub struct Driver<'f> {
    fs: &'f dyn FileSystem,
    handles: Handles,
    /// The inode that was made last, with its generation.
    born: Cell<Option<(Ino, u32)>>,
}

fn path_parts(path: &str) -> impl Iterator<Item = Cow<'_, [u8]>> {
    path.split('/').filter(|p| !p.is_empty()).map(unescape)
}

/// Bytes that tell which operation wrote them, and where.
pub fn content(salt: u64, len: u64) -> Vec<u8> {
    let at = |i: u64| (salt.wrapping_mul(37) + i / 8 * 11 + i) as u8 | 1;
    (0..len).map(at).collect()
}

/// The value of a POSIX ACL attribute: owner rwx, user 5 r-x, group r--, mask rwx, other nothing.
fn acl() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1u16, 7u16, none), (2, 5, 5), (4, 4, none), (16, 7, none), (32, 0, none)];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

impl<'f> Driver<'f> {
    /// On `fs`, without handles.
    pub fn new(fs: &'f dyn FileSystem) -> Self {
        Self::with_handles(fs, [None; HANDLES])
    }

    /// On `fs`, with handles that somebody else holds.
    pub fn with_handles(fs: &'f dyn FileSystem, handles: Handles) -> Self {
        Self { fs, handles, born: Cell::new(None) }
    }

    /// The handles.
    pub fn handles(&self) -> Handles {
        self.handles
    }

    /// The inode that the operation before has made, with its generation.
    pub fn take_born(&self) -> Option<(Ino, u32)> {
        self.born.take()
    }

    fn walk(&self, path: &str) -> Result<Ino, Errno> {
        let mut at = self.fs.root();
        for part in path_parts(path) {
            let next = self.fs.lookup(at, &part);
            self.release(at);
            at = next?.ino;
        }
        Ok(at)
    }

    fn release(&self, ino: Ino) {
        self.fs.forget(ino, 1);
    }

    /// Calls `f` with the inode of a place.
    pub fn with<T>(
        &self,
        place: &str,
        f: impl FnOnce(Ino) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if let Some(handle) = place.strip_prefix('%') {
            let handle: usize = handle.parse().map_err(|_| Errno::BADF)?;
            return f(self.handles.get(handle).copied().flatten().ok_or(Errno::BADF)?);
        }
        let ino = self.walk(place)?;
        let result = f(ino);
        self.release(ino);
        result
    }

    /// Calls `f` with directory and name of a path.
    fn at<T>(
        &self,
        path: &str,
        f: impl FnOnce(Ino, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let (dir, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        self.with(dir, |dir| f(dir, &unescape(name)))
    }

    fn make(&self, path: &str, kind: NewKind<'_>, mode: u32) -> Result<(), Errno> {
        let node = NewNode { kind, mode, umask: 0o22 };
        let caller = Caller { uid: 3, gid: 4 };
        let made = self.at(path, |dir, name| self.fs.create(&caller, dir, name, &node))?;
        self.born.set(Some((made.ino, made.generation)));
        self.release(made.ino);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
        self.at(from, |from_dir, from| {
            self.at(to, |to_dir, to| self.fs.rename((from_dir, from), (to_dir, to), flags))
        })
    }

    fn fallocate(&self, place: &str, mode: Fallocate, at: u64, len: u64) -> Result<(), Errno> {
        self.with(place, |ino| self.fs.fallocate(ino, mode, at, len))
    }

    fn set(&self, place: &str, set: SetAttr) -> Result<(), Errno> {
        self.with(place, |ino| self.fs.setattr(&Caller::ROOT, ino, &set).map(drop))
    }

    fn set_xattr(&self, place: &str, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.with(place, |ino| self.fs.setxattr(ino, name, value, SetXattr::Any))
    }

    /// Runs an operation; `salt` makes what it writes its own. `Fill` and `Remount` are the
    /// caller's business.
    pub fn run(&mut self, op: &Op, salt: u64) -> Result<(), Errno> {
        let fs = self.fs;
        let same = SetAttr::default();
        match op {
            Op::Create(p) => self.make(p, NewKind::File, 0o666),
            Op::Mkdir(p) => self.make(p, NewKind::Dir, 0o777),
            Op::Symlink(p, len) => {
                let target = content(salt, u64::from(*len));
                self.make(p, NewKind::Symlink(&target), 0o777)
            }
            Op::Mkfifo(p) => self.make(p, NewKind::Fifo, 0o600),
            Op::Mknod(p, dev) => self.make(p, NewKind::Char(*dev), 0o600),
            Op::Link(p, q) => self.with(p, |ino| {
                let linked = self.at(q, |dir, name| fs.link(ino, dir, name))?;
                self.release(linked.ino);
                Ok(())
            }),
            Op::Unlink(p) => self.at(p, |dir, name| fs.unlink(dir, name)),
            Op::Rmdir(p) => self.at(p, |dir, name| fs.rmdir(dir, name)),
            Op::Rename(p, q) => self.rename(p, q, RenameFlags::empty()),
            Op::RenameNoReplace(p, q) => self.rename(p, q, RenameFlags::NOREPLACE),
            Op::Exchange(p, q) => self.rename(p, q, RenameFlags::EXCHANGE),
            Op::Write(p, at, len) => self.with(p, |ino| fs.write(ino, *at, &content(salt, *len))),
            Op::Append(p, len) => {
                self.with(p, |ino| fs.append(ino, &content(salt, *len)).map(drop))
            }
            Op::Truncate(p, size) => self.set(p, SetAttr { size: Some(*size), ..same }),
            Op::Allocate(p, at, len) => {
                self.fallocate(p, Fallocate::Allocate { keep_size: false }, *at, *len)
            }
            Op::AllocateKeep(p, at, len) => {
                self.fallocate(p, Fallocate::Allocate { keep_size: true }, *at, *len)
            }
            Op::Punch(p, at, len) => self.fallocate(p, Fallocate::PunchHole, *at, *len),
            Op::Zero(p, at, len) => {
                self.fallocate(p, Fallocate::ZeroRange { keep_size: false }, *at, *len)
            }
            Op::ZeroKeep(p, at, len) => {
                self.fallocate(p, Fallocate::ZeroRange { keep_size: true }, *at, *len)
            }
            Op::Collapse(p, at, len) => self.fallocate(p, Fallocate::Collapse, *at, *len),
            Op::Insert(p, at, len) => self.fallocate(p, Fallocate::Insert, *at, *len),
            Op::Copy(p, from, q, to, len) => self.with(p, |src| {
                self.with(q, |dst| fs.copy_range((src, *from), (dst, *to), *len).map(drop))
            }),
            Op::Chmod(p, perm) => self.set(p, SetAttr { perm: Some(perm.0), ..same }),
            Op::Chown(p, uid, gid) => {
                self.set(p, SetAttr { uid: Some(*uid), gid: Some(*gid), ..same })
            }
            Op::SetAll(p, size, perm, uid) => {
                let (size, perm, uid) = (Some(*size), Some(perm.0), Some(*uid));
                self.set(p, SetAttr { size, perm, uid, ..same })
            }
            Op::Utimes(p) => {
                let t = SetTime::At(Timestamp(salt as i64 * 1_000_000_007));
                self.set(p, SetAttr { atime: Some(t), mtime: Some(t), ..same })
            }
            Op::DropPrivileges(p) => self.with(p, |ino| fs.drop_privileges(ino)),
            Op::SetXattr(p, name, len) => {
                self.set_xattr(p, &unescape(name), &content(salt, u64::from(*len)))
            }
            Op::RemoveXattr(p, name) => self.with(p, |ino| fs.removexattr(ino, &unescape(name))),
            Op::SetAcl(p) => self.set_xattr(p, crate::acl::ACL_ACCESS, &acl()),
            Op::SetDefaultAcl(p) => self.set_xattr(p, crate::acl::ACL_DEFAULT, &acl()),
            Op::Open(p, handle) => {
                let ino = self.walk(p)?;
                self.hold(*handle, ino)
            }
            Op::Tmpfile(p, handle) => {
                let made = self.with(p, |dir| fs.tmpfile(&Caller::ROOT, dir, 0o644, 0))?;
                self.born.set(Some((made.ino, made.generation)));
                self.hold(*handle, made.ino)
            }
            Op::Close(handle) => match self.handles.get_mut(*handle).and_then(Option::take) {
                Some(ino) => {
                    self.release(ino);
                    Ok(())
                }
                None => Err(Errno::BADF),
            },
            Op::Read(p) => self.with(p, |ino| fs.read(ino, 0, &mut [0; 64]).map(drop)),
            Op::List(p) => self.with(p, |ino| fs.readdir(ino, 0, &mut |_| true)),
            Op::Fsync(p) => self.with(p, |ino| fs.fsync(ino)),
            Op::Fill(_) | Op::Remount => Err(Errno::OPNOTSUPP),
        }
    }

    /// The inode of a place, held for the caller, if there is one.
    pub fn held(&self, place: &str) -> Option<Ino> {
        self.walk(place).ok()
    }

    /// Whether the file that an operation changes has a capability, which the operation takes away first (vfs-C5).
    pub fn is_capable(&self, op: &Op) -> bool {
        let get = |place| self.with(place, |ino| self.fs.getxattr(ino, CAPABILITY));
        op.content_of().is_some_and(|place| get(place).is_ok())
    }

    /// Does the first step of such an operation alone.
    pub fn revoke(&self, op: &Op) -> Result<(), Errno> {
        let place = op.content_of().ok_or(Errno::INVAL)?;
        self.with(place, |ino| self.fs.removexattr(ino, CAPABILITY))
    }

    fn hold(&mut self, handle: usize, ino: Ino) -> Result<(), Errno> {
        let Some(slot) = self.handles.get_mut(handle) else {
            self.release(ino);
            return Err(Errno::BADF);
        };
        if let Some(old) = slot.replace(ino) {
            self.release(old);
        }
        Ok(())
    }

    /// Gives all handles back.
    pub fn close_all(&mut self) {
        for handle in 0..HANDLES {
            let _ = self.run(&Op::Close(handle), 0);
        }
    }
}
