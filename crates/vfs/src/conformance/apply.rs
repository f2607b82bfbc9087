//! Making a call, and what it gave in terms that two implementations share.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::op::{EntryName, Make, Name, Op, Pos, SLOTS, Target, Who};
use crate::{
    Attr, Caller, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, RenameFlags, SetTime,
    Timestamp,
};

/// The inodes that a sequence holds open, and the directory that it takes for the root.
#[derive(Clone, Debug)]
pub struct Handles {
    root: Ino,
    slots: [Option<Ino>; SLOTS as usize],
}

impl Handles {
    /// None held; paths start at `root`.
    pub fn new(root: Ino) -> Self {
        Self { root, slots: [None; SLOTS as usize] }
    }

    /// What the slots hold.
    pub fn slots(&self) -> &[Option<Ino>] {
        &self.slots
    }

    /// Gives back every reference.
    pub fn release(&mut self, fs: &dyn FileSystem) {
        for ino in self.slots.iter_mut().filter_map(Option::take) {
            fs.forget(ino, 1);
        }
    }
}

/// What a call gave, without what implementations may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The slot to be used was empty, or a name leads out of the root of the sequence.
    Skipped,
    /// The way to the target failed.
    Lost(Errno),
    /// The call failed.
    Failed(Errno),
    /// The call gave nothing more.
    Done,
    /// Attributes.
    Attr(AttrView),
    /// A number of bytes, or an offset.
    Number(u64),
    /// Bytes: how many, and a digest.
    Bytes(usize, u64),
    /// Names with kinds, sorted.
    Names(Vec<(Vec<u8>, Option<FileKind>)>),
}

impl From<Errno> for Outcome {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl Outcome {
    fn bytes(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self::Bytes(bytes.len(), hasher.finish())
    }
}

/// The attributes that two implementations must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrView {
    /// Kind, permission bits, links, owner, group, device number.
    pub head: (FileKind, u32, u32, u32, u32, u32),
    /// In bytes; `None` for directories.
    pub size: Option<u64>,
    /// The root, and the slots, that are this inode.
    pub same_as: Vec<String>,
    /// Times, where the call set them to given values.
    pub times: [Option<Timestamp>; 3],
}

/// Makes the call `op`.
pub fn apply(fs: &dyn FileSystem, handles: &mut Handles, op: &Op) -> Outcome {
    let mut call = Call { fs, handles, taken: Vec::new() };
    let outcome = call.run(op).unwrap_or_else(|outcome| outcome);
    for ino in call.taken {
        fs.forget(ino, 1);
    }
    outcome
}

/// The inode and the byte that `target` and `pos` mean, if they mean any; holds no reference.
pub(super) fn locate(
    fs: &dyn FileSystem,
    handles: &mut Handles,
    target: &Target,
    pos: Pos,
) -> Option<(Ino, u64)> {
    let mut call = Call { fs, handles, taken: Vec::new() };
    let ino = call.find(target).ok();
    let found = ino.and_then(|ino| Some((ino, call.place(ino, pos).ok()?)));
    for ino in call.taken {
        fs.forget(ino, 1);
    }
    found
}

struct Call<'a> {
    fs: &'a dyn FileSystem,
    handles: &'a mut Handles,
    /// References to give back.
    taken: Vec<Ino>,
}

type Step<T> = Result<T, Outcome>;

impl Call<'_> {
    fn find(&mut self, target: &Target) -> Step<Ino> {
        let path = match target {
            Target::Slot(slot) => {
                return self.handles.slots[usize::from(*slot)].ok_or(Outcome::Skipped);
            }
            Target::Path(path) => path,
        };
        let mut at = self.handles.root;
        for &name in path {
            self.check_inside(at, name)?;
            at = self.fs.lookup(at, &name.bytes(self.fs.limits())).map_err(Outcome::Lost)?.ino;
            self.taken.push(at);
        }
        Ok(at)
    }

    fn entry(&mut self, place: &EntryName) -> Step<(Ino, Vec<u8>)> {
        let dir = self.find(&place.dir)?;
        self.check_inside(dir, place.name)?;
        Ok((dir, place.name.bytes(self.fs.limits())))
    }

    fn check_inside(&self, dir: Ino, name: Name) -> Step<()> {
        let leads_out = dir == self.handles.root && name.is_dotdot();
        if leads_out { Err(Outcome::Skipped) } else { Ok(()) }
    }

    fn place(&self, ino: Ino, pos: Pos) -> Step<u64> {
        match pos {
            Pos::At(offset) => Ok(offset),
            Pos::Limit(distance) => Ok(self.fs.limits().file_size.saturating_add_signed(distance)),
            Pos::End(distance) => match self.fs.getattr(ino)? {
                Attr { kind: FileKind::File, size, .. } => Ok(size.saturating_add_signed(distance)),
                _ => Ok(distance.unsigned_abs()),
            },
        }
    }

    /// Takes over the reference that came with `attr`.
    fn keep(&mut self, attr: &Attr, slot: Option<u8>) {
        let old = match slot {
            Some(slot) => self.handles.slots[usize::from(slot)].replace(attr.ino),
            None => Some(attr.ino),
        };
        self.taken.extend(old);
    }

    fn view(&self, attr: &Attr) -> Outcome {
        let Attr { ino, kind, perm, nlink, uid, gid, rdev, size, .. } = *attr;
        let root = (ino == self.handles.root).then(|| "root".to_string());
        let slots = (0..).zip(self.handles.slots).filter(|(_, held)| *held == Some(ino));
        let slots = slots.map(|(slot, _): (u8, _)| format!("slot {slot}"));
        Outcome::Attr(AttrView {
            head: (kind, perm, nlink, uid, gid, rdev),
            size: (kind != FileKind::Dir).then_some(size),
            same_as: root.into_iter().chain(slots).collect(),
            times: [None; 3],
        })
    }

    fn run(&mut self, op: &Op) -> Step<Outcome> {
        let fs = self.fs;
        let done = |()| Outcome::Done;
        Ok(match op {
            Op::Lookup { at, keep } => {
                let (dir, name) = self.entry(at)?;
                let found = fs.lookup(dir, &name);
                let mut peeked = fs.peek(dir, &name);
                if let (Ok(attr), Ok(found)) = (&mut peeked, &found) {
                    attr.btime = found.btime;
                }
                assert_eq!(peeked, found, "a look without a reference sees something else");
                let attr = found?;
                self.keep(&attr, *keep);
                self.view(&attr)
            }
            Op::Forget { slot } => {
                let held = self.handles.slots[usize::from(*slot)].take();
                self.taken.push(held.ok_or(Outcome::Skipped)?);
                Outcome::Done
            }
            Op::Getattr { of } => {
                let attr = fs.getattr(self.find(of)?)?;
                self.view(&attr)
            }
            Op::Setattr { of, set } => {
                let attr = fs.setattr(&Caller::ROOT, self.find(of)?, set)?;
                let given = |set: Option<SetTime>, got| match set {
                    Some(SetTime::At(_)) => Some(got),
                    Some(SetTime::Now) | None => None,
                };
                let mut view = self.view(&attr);
                if let Outcome::Attr(view) = &mut view {
                    let ctime = set.ctime.map(|_| attr.ctime);
                    view.times =
                        [given(set.atime, attr.atime), given(set.mtime, attr.mtime), ctime];
                }
                view
            }
            Op::Truncate { of, size } => {
                let ino = self.find(of)?;
                let size = Some(self.place(ino, *size)?);
                let set = crate::SetAttr { size, ..Default::default() };
                let attr = fs.setattr(&Caller::ROOT, ino, &set)?;
                self.view(&attr)
            }
            Op::Create { who, at, make, mode, umask, keep } => {
                let (dir, name) = self.entry(at)?;
                let target =
                    vec![b't'; if let Make::Symlink(len) = make { *len } else { 0 }.into()];
                let node = NewNode { kind: new_kind(*make, &target), mode: *mode, umask: *umask };
                let attr = fs.create(&caller(*who), dir, &name, &node)?;
                self.keep(&attr, *keep);
                self.view(&attr)
            }
            Op::Tmpfile { who, dir, mode, umask, keep } => {
                let attr = fs.tmpfile(&caller(*who), self.find(dir)?, *mode, *umask)?;
                self.keep(&attr, Some(*keep));
                self.view(&attr)
            }
            Op::Readlink { of } => Outcome::bytes(&fs.readlink(self.find(of)?)?),
            Op::Unlink { at } => {
                let (dir, name) = self.entry(at)?;
                fs.unlink(dir, &name).map(done)?
            }
            Op::Rmdir { at } => {
                let (dir, name) = self.entry(at)?;
                fs.rmdir(dir, &name).map(done)?
            }
            Op::Link { of, at } => {
                let ino = self.find(of)?;
                let (dir, name) = self.entry(at)?;
                let attr = fs.link(ino, dir, &name)?;
                self.keep(&attr, None);
                self.view(&attr)
            }
            Op::Rename { from, to, flags } => {
                let (from, from_name) = self.entry(from)?;
                let (to, to_name) = self.entry(to)?;
                let flags = RenameFlags::from_bits_retain(*flags);
                fs.rename((from, &from_name), (to, &to_name), flags).map(done)?
            }
            Op::Readdir { of, batch } => self.readdir(of, *batch)?,
            Op::Read { of, offset, len } => {
                let ino = self.find(of)?;
                let mut buf = vec![0xee; *len as usize];
                let got = fs.read(ino, self.place(ino, *offset)?, &mut buf)?;
                Outcome::bytes(&buf[..got])
            }
            Op::Write { of, offset, data } => {
                let ino = self.find(of)?;
                fs.write(ino, self.place(ino, *offset)?, &data.bytes()).map(done)?
            }
            Op::Append { of, data } => {
                fs.append(self.find(of)?, &data.bytes()).map(Outcome::Number)?
            }
            Op::DropPrivileges { of } => fs.drop_privileges(self.find(of)?).map(done)?,
            Op::Fallocate { of, mode, offset, len } => {
                let ino = self.find(of)?;
                fs.fallocate(ino, *mode, self.place(ino, *offset)?, *len).map(done)?
            }
            Op::Seek { of, offset, whence } => {
                let ino = self.find(of)?;
                fs.seek(ino, self.place(ino, *offset)?, *whence).map(Outcome::Number)?
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.find(from)?, self.find(to)?);
                let from_offset = self.place(from, *from_offset)?;
                let to_offset = self.place(to, *to_offset)?;
                let copied = fs.copy_range((from, from_offset), (to, to_offset), *len)?;
                Outcome::Number(copied)
            }
            Op::Fsync { of } => fs.fsync(self.find(of)?).map(done)?,
            Op::Getxattr { of, name } => {
                Outcome::bytes(&fs.getxattr(self.find(of)?, &name.bytes())?)
            }
            Op::Setxattr { of, name, value, mode } => {
                fs.setxattr(self.find(of)?, &name.bytes(), &value.bytes(), *mode).map(done)?
            }
            Op::Listxattr { of } => {
                let names = fs.listxattr(self.find(of)?)?;
                let mut names: Vec<_> = names.into_iter().map(|name| (name, None)).collect();
                names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                Outcome::Names(names)
            }
            Op::Removexattr { of, name } => {
                fs.removexattr(self.find(of)?, &name.bytes()).map(done)?
            }
            Op::Statfs => {
                let stat = fs.statfs();
                assert!(stat.blocks_free <= stat.blocks, "{stat:?}");
                assert!(stat.inodes_free <= stat.inodes, "{stat:?}");
                Outcome::Done
            }
        })
    }

    fn readdir(&mut self, of: &Target, batch: u8) -> Step<Outcome> {
        let ino = self.find(of)?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let mut left = batch;
            self.fs.readdir(ino, cookie, &mut |entry| {
                names.push((entry.name.to_vec(), Some(entry.kind)));
                cookie = entry.cookie;
                left -= 1;
                left > 0
            })?;
            if left == batch {
                break;
            }
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Outcome::Names(names))
    }
}

fn caller(who: Who) -> Caller {
    match who {
        Who::Root => Caller::ROOT,
        Who::User => Caller { uid: 1000, gid: 100 },
    }
}

fn new_kind(make: Make, target: &[u8]) -> NewKind<'_> {
    match make {
        Make::File => NewKind::File,
        Make::Dir => NewKind::Dir,
        Make::Symlink(_) => NewKind::Symlink(target),
        Make::Fifo => NewKind::Fifo,
        Make::Socket => NewKind::Socket,
        Make::Char(rdev) => NewKind::Char(rdev),
        Make::Block(rdev) => NewKind::Block(rdev),
    }
}
