//! Running operations on a file system.

use super::op::{AclOf, Data, How, Keep, New, Op, Pos};
use super::text::unescape;
use crate::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, Tag};
use crate::{
    Attr, Caller, Errno, Fallocate, FileKind, FileSystem, Ino, NewKind, NewNode, RenameFlags, Seek,
    SetAttr, SetTime, SetXattr, Timestamp,
};
use std::borrow::Cow;
use std::cell::Cell;

/// Handles that an operation can name.
pub const HANDLES: usize = 6;

/// The attribute that a change of content removes by a step of its own.
const CAPABILITY: &[u8] = b"security.capability";

/// The inode that each handle holds.
pub type Handles = [Option<Ino>; HANDLES];

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// Success without a result.
    Nothing,
    /// Attributes.
    Attr(Attr),
    /// A number of bytes, or an offset.
    Number(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Names, those of entries with their kinds, in the order of the listing.
    Names(Vec<(Vec<u8>, Option<FileKind>)>),
}

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A handle is empty, or a name leads out of the root.
    Skipped,
    /// Resolving the place failed.
    Lost(Errno),
    /// The call failed.
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl From<Stop> for Errno {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Skipped => Self::BADF,
            Stop::Lost(errno) | Stop::Failed(errno) => errno,
        }
    }
}

/// Runs operations on a file system, holding their handles.
pub struct Driver<'f> {
    fs: &'f dyn FileSystem,
    root: Ino,
    /// No name leads out of the root, because the directory lies among others.
    is_confined: bool,
    handles: Handles,
    /// The inode that was made last, with its generation.
    born: Cell<Option<(Ino, u32)>>,
}

/// Returns bytes that identify the operation that wrote them, and their offset.
pub fn content(salt: u64, len: u64) -> Vec<u8> {
    let at = |i: u64| (salt.wrapping_mul(37) + i / 8 * 11 + i) as u8 | 1;
    (0..len).map(at).collect()
}

/// Returns bytes of which no two words are equal, unless all are zeros.
fn filled(fill: u32, len: u64) -> Vec<u8> {
    if fill == 0 {
        return vec![0; len as usize];
    }
    let word = |i: u64| {
        let hash = (u64::from(fill) << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash ^ hash >> 29).to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(word).take(len as usize).collect()
}

/// Returns the bytes that an operation with this number writes.
fn bytes(data: &Data, salt: u64, len: u64) -> Vec<u8> {
    data.fill.map_or_else(|| content(salt, len), |fill| filled(fill, len))
}

/// Returns the value of a POSIX ACL attribute.
fn acl(of: &AclOf) -> Vec<u8> {
    let perms = of.perms.map_or(0o75470, |perms| perms.0);
    let tags = [Tag::UserObj, Tag::User(5), Tag::GroupObj, Tag::Mask, Tag::Other];
    let entries = tags.into_iter().zip([12, 9, 6, 3, 0]);
    let entries = entries.map(|(tag, shift)| AclEntry { tag, perm: (perms >> shift & 7) as u16 });
    let is_plain = of.plain == Some(true);
    let kept = entries.filter(|e| !is_plain || !matches!(e.tag, Tag::User(_) | Tag::Mask));
    Acl::new(kept).to_bytes()
}

/// Wraps the result of a call that returns nothing.
fn nothing((): ()) -> Given {
    Given::Nothing
}

impl<'f> Driver<'f> {
    /// Creates a driver on `fs` without handles.
    pub fn new(fs: &'f dyn FileSystem) -> Self {
        Self::with_handles(fs, [None; HANDLES])
    }

    /// Creates a driver on `fs` with handles that the caller holds.
    pub fn with_handles(fs: &'f dyn FileSystem, handles: Handles) -> Self {
        Self { fs, root: fs.root(), is_confined: false, handles, born: Cell::new(None) }
    }

    /// Creates a driver in a directory of `fs`, out of which no name leads, with handles that the
    /// caller holds.
    pub fn confined(fs: &'f dyn FileSystem, root: Ino, handles: Handles) -> Self {
        Self { root, is_confined: true, ..Self::with_handles(fs, handles) }
    }

    /// Returns the handles.
    pub fn handles(&self) -> Handles {
        self.handles
    }

    /// Takes the inode that the last operation made, with its generation.
    pub fn take_born(&self) -> Option<(Ino, u32)> {
        self.born.take()
    }

    /// Returns the bytes of a name. A word that ends with `\max` is as long as names can be, padded
    /// with its last byte; with `\over` it is longer by one.
    fn name<'n>(&self, word: &'n str) -> Cow<'n, [u8]> {
        let max = self.fs.limits().name;
        let (stem, len) = match (word.strip_suffix(r"\max"), word.strip_suffix(r"\over")) {
            (Some(stem), _) => (stem, max),
            (_, Some(stem)) => (stem, max + 1),
            _ => return unescape(word),
        };
        let mut name = unescape(stem).into_owned();
        let last = name.last().copied().unwrap_or(b'_');
        name.resize(len, last);
        Cow::Owned(name)
    }

    fn check_inside(&self, dir: Ino, name: &[u8]) -> Result<(), Stop> {
        let leads_out = self.is_confined && dir == self.root && name == b"..";
        if leads_out { Err(Stop::Skipped) } else { Ok(()) }
    }

    /// Resolves a path, and returns whether that added a reference.
    fn walk(&self, path: &str) -> Result<(Ino, bool), Stop> {
        let (mut at, mut is_counted) = (self.root, false);
        for word in path.split('/').filter(|word| !word.is_empty()) {
            let name = self.name(word);
            let next = self
                .check_inside(at, &name)
                .and_then(|()| self.fs.lookup(at, &name).map_err(Stop::Lost));
            if is_counted {
                self.release(at);
            }
            (at, is_counted) = (next?.ino, true);
        }
        Ok((at, is_counted))
    }

    fn release(&self, ino: Ino) {
        self.fs.forget(ino, 1);
    }

    /// Calls `f` with two places in files.
    fn between(
        &self,
        (from, from_at): (&str, Pos),
        (to, to_at): (&str, Pos),
        f: impl FnOnce((Ino, u64), (Ino, u64)) -> Result<Given, Stop>,
    ) -> Result<Given, Stop> {
        self.on(from, |src| {
            self.on(to, |dst| f((src, self.offset(src, from_at)?), (dst, self.offset(dst, to_at)?)))
        })
    }

    /// Calls `f` with the inode at a place.
    fn on<T>(&self, place: &str, f: impl FnOnce(Ino) -> Result<T, Stop>) -> Result<T, Stop> {
        if let Some(handle) = place.strip_prefix('%') {
            let handle: usize = handle.parse().map_err(|_| Stop::Skipped)?;
            return f(self.handles.get(handle).copied().flatten().ok_or(Stop::Skipped)?);
        }
        let (ino, is_counted) = self.walk(place)?;
        let result = f(ino);
        if is_counted {
            self.release(ino);
        }
        result
    }

    /// Calls `f` with the inode of a place.
    ///
    /// # Errors
    /// That of `f`, or of resolving the place; `EBADF` if a handle is empty.
    pub fn with<T>(
        &self,
        place: &str,
        f: impl FnOnce(Ino) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        Ok(self.on(place, |ino| Ok(f(ino)?))?)
    }

    /// Calls `f` with directory and name of a path.
    fn at<T>(&self, path: &str, f: impl FnOnce(Ino, &[u8]) -> Result<T, Stop>) -> Result<T, Stop> {
        let (dir, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        self.on(dir, |dir| {
            let name = self.name(name);
            self.check_inside(dir, &name)?;
            f(dir, &name)
        })
    }

    /// Returns the offset in bytes that a position means in this inode.
    fn offset(&self, ino: Ino, pos: Pos) -> Result<u64, Stop> {
        match pos {
            Pos::At(offset) => Ok(offset),
            Pos::Limit(distance) => Ok(self.fs.limits().file_size.saturating_add_signed(distance)),
            Pos::End(distance) => match self.fs.getattr(ino)? {
                Attr { kind: FileKind::File, size, .. } => Ok(size.saturating_add_signed(distance)),
                _ => Ok(distance.unsigned_abs()),
            },
        }
    }

    /// Returns the inode and the byte that a place and a position mean, if they mean any; adds no
    /// reference.
    pub fn locate(&self, place: &str, pos: Pos) -> Option<(Ino, u64)> {
        self.on(place, |ino| Ok((ino, self.offset(ino, pos)?))).ok()
    }

    /// Creates an inode at a path, with the options of the line, and keeps or gives back its
    /// reference.
    fn make(
        &mut self,
        path: &str,
        kind: NewKind<'_>,
        mode: u32,
        new: &New,
        keep: &Keep,
    ) -> Result<Given, Stop> {
        let mode = new.mode.map_or(mode, |mode| mode.0);
        let node = NewNode { kind, mode, umask: new.umask.map_or(0o22, |umask| umask.0) };
        let caller = new.by.map_or(Caller { uid: 3, gid: 4 }, Caller::from);
        let made = self.at(path, |dir, name| Ok(self.fs.create(&caller, dir, name, &node)?))?;
        self.born.set(Some((made.ino, made.generation)));
        self.keep(made, keep)
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<Given, Stop> {
        self.at(from, |from_dir, from| {
            self.at(to, |to_dir, to| {
                Ok(nothing(self.fs.rename((from_dir, from), (to_dir, to), flags)?))
            })
        })
    }

    fn fallocate(&self, place: &str, mode: Fallocate, at: Pos, len: u64) -> Result<Given, Stop> {
        self.on(place, |ino| {
            Ok(nothing(self.fs.fallocate(ino, mode, self.offset(ino, at)?, len)?))
        })
    }

    fn seek(&self, place: &str, at: Pos, whence: Seek) -> Result<Given, Stop> {
        self.on(place, |ino| Ok(Given::Number(self.fs.seek(ino, self.offset(ino, at)?, whence)?)))
    }

    fn set(&self, place: &str, set: &SetAttr) -> Result<Given, Stop> {
        self.on(place, |ino| Ok(Given::Attr(self.fs.setattr(&Caller::ROOT, ino, set)?)))
    }

    fn set_xattr(&self, place: &str, name: &[u8], value: &[u8], how: &How) -> Result<Given, Stop> {
        let how = how.how.map_or(SetXattr::Any, SetXattr::from);
        self.on(place, |ino| Ok(nothing(self.fs.setxattr(ino, name, value, how)?)))
    }

    /// Runs an operation; `salt` makes its written bytes distinct. The caller handles `Fill` and
    /// `Remount`.
    ///
    /// # Errors
    /// Those of the call; for a place as [`with`](Self::with).
    pub fn run(&mut self, op: &Op, salt: u64) -> Result<(), Errno> {
        Ok(self.call(op, salt).map(drop)?)
    }

    /// Runs an operation as [`run`](Self::run) does; returns its result.
    ///
    /// # Errors
    /// The reason why it was not done.
    pub fn call(&mut self, op: &Op, salt: u64) -> Result<Given, Stop> {
        let fs = self.fs;
        let same = SetAttr::default();
        match op {
            Op::Lookup(p, keep) => {
                let found = self.at(p, |dir, name| self.look(dir, name))?;
                self.keep(found, keep)
            }
            Op::Getattr(p) => self.on(p, |ino| Ok(Given::Attr(fs.getattr(ino)?))),
            Op::Setattr(p, attrs) => self.set(p, &attrs.set()),
            Op::Create(p, new, keep) => self.make(p, NewKind::File, 0o666, new, keep),
            Op::Mkdir(p, new, keep) => self.make(p, NewKind::Dir, 0o777, new, keep),
            Op::Symlink(p, len, new, keep) => {
                let target = content(salt, u64::from(*len));
                self.make(p, NewKind::Symlink(&target), 0o777, new, keep)
            }
            Op::Mkfifo(p, new, keep) => self.make(p, NewKind::Fifo, 0o600, new, keep),
            Op::Mksocket(p, new, keep) => self.make(p, NewKind::Socket, 0o600, new, keep),
            Op::Mknod(p, dev, new, keep) => self.make(p, NewKind::Char(*dev), 0o600, new, keep),
            Op::MknodBlock(p, dev, new, keep) => {
                self.make(p, NewKind::Block(*dev), 0o600, new, keep)
            }
            Op::Readlink(p) => self.on(p, |ino| Ok(Given::Bytes(fs.readlink(ino)?))),
            Op::Link(p, q) => self.on(p, |ino| {
                let linked = self.at(q, |dir, name| Ok(fs.link(ino, dir, name)?))?;
                self.release(linked.ino);
                Ok(Given::Attr(linked))
            }),
            Op::Unlink(p) => self.at(p, |dir, name| Ok(nothing(fs.unlink(dir, name)?))),
            Op::Rmdir(p) => self.at(p, |dir, name| Ok(nothing(fs.rmdir(dir, name)?))),
            Op::Rename(p, q) => self.rename(p, q, RenameFlags::empty()),
            Op::RenameNoReplace(p, q) => self.rename(p, q, RenameFlags::NOREPLACE),
            Op::Exchange(p, q) => self.rename(p, q, RenameFlags::EXCHANGE),
            Op::RenameWhiteout(p, q, new) => {
                let caller = new.by.map_or(Caller { uid: 3, gid: 4 }, Caller::from);
                self.at(p, |from, p| {
                    self.at(q, |to, q| {
                        let none = RenameFlags::empty();
                        Ok(nothing(fs.rename_whiteout(&caller, (from, p), (to, q), none)?))
                    })
                })
            }
            Op::RenameFlags(p, q, flags) => {
                self.rename(p, q, RenameFlags::from_bits_retain(*flags))
            }
            Op::Write(p, at, len, data) => self.on(p, |ino| {
                let at = self.offset(ino, *at)?;
                Ok(nothing(fs.write(ino, at, &bytes(data, salt, *len))?))
            }),
            Op::Append(p, len, data) => {
                self.on(p, |ino| Ok(Given::Number(fs.append(ino, &bytes(data, salt, *len))?)))
            }
            Op::Truncate(p, size) => self.on(p, |ino| {
                let size = Some(self.offset(ino, *size)?);
                Ok(Given::Attr(fs.setattr(&Caller::ROOT, ino, &SetAttr { size, ..same })?))
            }),
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
            Op::SeekData(p, at) => self.seek(p, *at, Seek::Data),
            Op::SeekHole(p, at) => self.seek(p, *at, Seek::Hole),
            Op::Copy(p, from, q, to, len) => self.between((p, *from), (q, *to), |from, to| {
                Ok(Given::Number(fs.copy_range(from, to, *len)?))
            }),
            Op::Clone(p, from, q, to, len) => self.between((p, *from), (q, *to), |from, to| {
                fs.clone_range(from, to, *len)?;
                Ok(Given::Nothing)
            }),
            Op::Chmod(p, perm) => self.set(p, &SetAttr { perm: Some(perm.0), ..same }),
            Op::Chown(p, uid, gid) => {
                self.set(p, &SetAttr { uid: Some(*uid), gid: Some(*gid), ..same })
            }
            Op::SetAll(p, size, perm, uid) => {
                let (size, perm, uid) = (Some(*size), Some(perm.0), Some(*uid));
                self.set(p, &SetAttr { size, perm, uid, ..same })
            }
            Op::Utimes(p) => {
                let t = SetTime::At(Timestamp(salt as i64 * 1_000_000_007));
                self.set(p, &SetAttr { atime: Some(t), mtime: Some(t), ..same })
            }
            Op::DropPrivileges(p) => self.on(p, |ino| Ok(nothing(fs.drop_privileges(ino)?))),
            Op::Getxattr(p, name) => {
                self.on(p, |ino| Ok(Given::Bytes(fs.getxattr(ino, &unescape(name))?)))
            }
            Op::SetXattr(p, name, len, data, how) => {
                self.set_xattr(p, &unescape(name), &bytes(data, salt, u64::from(*len)), how)
            }
            Op::Listxattr(p) => self.on(p, |ino| {
                let names = fs.listxattr(ino)?;
                Ok(Given::Names(names.into_iter().map(|name| (name, None)).collect()))
            }),
            Op::RemoveXattr(p, name) => {
                self.on(p, |ino| Ok(nothing(fs.removexattr(ino, &unescape(name))?)))
            }
            Op::SetAcl(p, of, how) => self.set_xattr(p, ACL_ACCESS, &acl(of), how),
            Op::SetDefaultAcl(p, of, how) => self.set_xattr(p, ACL_DEFAULT, &acl(of), how),
            Op::Open(p, handle) => {
                let (ino, _) = self.walk(p)?;
                self.hold(*handle, ino).map(nothing)
            }
            Op::Tmpfile(p, handle, new) => {
                let caller = new.by.map_or(Caller::ROOT, Caller::from);
                let mode = new.mode.map_or(0o644, |mode| mode.0);
                let umask = new.umask.map_or(0, |umask| umask.0);
                let made = self.on(p, |dir| Ok(fs.tmpfile(&caller, dir, mode, umask)?))?;
                self.born.set(Some((made.ino, made.generation)));
                self.hold(*handle, made.ino)?;
                Ok(Given::Attr(made))
            }
            Op::Close(handle) => {
                let held = self.handles.get_mut(*handle).and_then(Option::take);
                self.release(held.ok_or(Stop::Skipped)?);
                Ok(Given::Nothing)
            }
            Op::Read(p, part) => self.on(p, |ino| {
                let at = self.offset(ino, part.at.unwrap_or(Pos::At(0)))?;
                let mut buf = vec![0xee; part.len.unwrap_or(64) as usize];
                let got = fs.read(ino, at, &mut buf)?;
                buf.truncate(got);
                Ok(Given::Bytes(buf))
            }),
            Op::List(p, batch) => self.on(p, |ino| self.list(ino, batch.batch)),
            Op::Fsync(p) => self.on(p, |ino| Ok(nothing(fs.fsync(ino)?))),
            Op::Sync => Ok(nothing(fs.sync()?)),
            Op::Statfs => {
                let stat = fs.statfs();
                assert!(stat.blocks_free <= stat.blocks, "{stat:?}");
                assert!(stat.inodes_free <= stat.inodes, "{stat:?}");
                Ok(Given::Nothing)
            }
            Op::Fill(_) | Op::Remount => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Looks a name up, with and without a reference.
    fn look(&self, dir: Ino, name: &[u8]) -> Result<Attr, Stop> {
        let found = self.fs.lookup(dir, name);
        let mut peeked = self.fs.peek(dir, name);
        if let (Ok(attr), Ok(found)) = (&mut peeked, &found) {
            attr.btime = found.btime;
        }
        assert_eq!(peeked, found, "a look without a reference sees something else");
        Ok(found?)
    }

    /// Lists a directory, by calls that each return up to `batch` entries.
    fn list(&self, ino: Ino, batch: Option<u32>) -> Result<Given, Stop> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let mut left = batch.unwrap_or(u32::MAX);
            self.fs.readdir(ino, cookie, &mut |entry| {
                names.push((entry.name.to_vec(), Some(entry.kind)));
                cookie = entry.cookie;
                left = left.saturating_sub(1);
                left > 0
            })?;
            if batch.is_none_or(|batch| left == batch) {
                return Ok(Given::Names(names));
            }
        }
    }

    /// Returns the inode of a place, if it exists, with a reference for the caller.
    pub fn held(&self, place: &str) -> Option<Ino> {
        self.walk(place).ok().map(|(ino, _)| ino)
    }

    /// Returns whether an operation changes a file with a capability, and so removes that first
    /// (vfs-C5).
    pub fn is_capable(&self, op: &Op) -> bool {
        let get = |place| self.with(place, |ino| self.fs.getxattr(ino, CAPABILITY));
        op.content_of().is_some_and(|place| get(place).is_ok())
    }

    /// Removes the capability of the file that `op` would change, and does not execute `op`.
    ///
    /// # Errors
    /// As [`FileSystem::removexattr`].
    pub fn revoke(&self, op: &Op) -> Result<(), Errno> {
        let place = op.content_of().ok_or(Errno::INVAL)?;
        self.with(place, |ino| self.fs.removexattr(ino, CAPABILITY))
    }

    /// Puts the reference that came with `attr` into a handle, or gives it back.
    fn keep(&mut self, attr: Attr, keep: &Keep) -> Result<Given, Stop> {
        match keep.keep {
            Some(handle) => self.hold(handle, attr.ino)?,
            None => self.release(attr.ino),
        }
        Ok(Given::Attr(attr))
    }

    /// Puts a reference to an inode into a handle, and gives back the previous one. Skips the
    /// operation if there is no such handle.
    fn hold(&mut self, handle: usize, ino: Ino) -> Result<(), Stop> {
        let Some(slot) = self.handles.get_mut(handle) else {
            self.release(ino);
            return Err(Stop::Skipped);
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
