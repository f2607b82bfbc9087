//! Paths: from text to inodes, component by component, by the kernel's rules (`fs/namei.c`).
//!
//! - **W1** What a walk gives is held: the inode lives while the [`Held`] does. Only where the caller
//!   wants to know what is there and no more ([`Want::Look`]) the last inode is not, and what is known
//!   of it is what was seen.
//! - **W2** A walk that leaves the mount (an absolute link elsewhere, `..` above the root, a covered
//!   inode) ends with `Kernel`, and nothing has changed.

use crate::creds::{Access, Caps, Credentials};
use crate::dirs::{Steps, Used, Way};
use crate::mount::Mount;
use crate::process::{OfdRef, Process};
use crate::served::{Call, Stop};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Attr, Errno, FileKind, FileSystem, Ino, NAME_MAX};

/// Symbolic links that one walk follows.
const LINKS_MAX: u32 = 40;

/// What keeps an inode alive.
enum By<'p> {
    /// The root needs nothing.
    Root,
    /// One reference, given back on drop.
    Reference,
    /// Nothing does: it was looked at.
    Nothing,
    /// The place where it is kept, in use.
    Kept(#[allow(dead_code)] Used<'p>),
    /// A description in use, which is only kept.
    Description(#[allow(dead_code)] OfdRef<'p>),
}

/// An inode that a call works with (W1).
pub(crate) struct Held<'p> {
    by: By<'p>,
    pub mount: &'p Mount,
    pub mount_index: usize,
    pub ino: Ino,
    pub kind: FileKind,
    attr: OnceCell<Attr>,
}

impl<'p> Held<'p> {
    fn root(mount_index: usize, mount: &'p Mount) -> Self {
        let ino = mount.attached().fs.root();
        let attr = OnceCell::new();
        Self { by: By::Root, mount, mount_index, ino, kind: FileKind::Dir, attr }
    }

    fn reference(mount_index: usize, mount: &'p Mount, attr: Attr) -> Self {
        let (ino, kind) = (attr.ino, attr.kind);
        Self { by: By::Reference, mount, mount_index, ino, kind, attr: OnceCell::from(attr) }
    }

    /// What a look has seen.
    fn seen(mount_index: usize, mount: &'p Mount, attr: Attr) -> Self {
        let (ino, kind) = (attr.ino, attr.kind);
        Self { by: By::Nothing, mount, mount_index, ino, kind, attr: OnceCell::from(attr) }
    }

    /// A directory that was walked to before.
    fn kept(mount_index: usize, mount: &'p Mount, ino: Ino, used: Used<'p>) -> Self {
        let (kind, attr) = (FileKind::Dir, OnceCell::new());
        Self { by: By::Kept(used), mount, mount_index, ino, kind, attr }
    }

    /// The inode of a description.
    pub fn description(process: &'p Process, ofd: OfdRef<'p>) -> Self {
        let (ino, kind, mount_index) = (ofd.ino(), ofd.kind(), ofd.mount_index());
        let mount = process.mount(mount_index);
        let attr = OnceCell::new();
        Self { by: By::Description(ofd), mount, mount_index, ino, kind, attr }
    }

    /// What a call that creates returned, on the mount of `self`.
    pub fn beside(&self, attr: Attr) -> Held<'p> {
        Self::reference(self.mount_index, self.mount, attr)
    }

    /// What a name in this directory leads to, if it is there. A symbolic link is held in any case:
    /// it may have to be followed.
    fn child(&self, name: &[u8], want: Want) -> Result<Option<Held<'p>>, Errno> {
        let found = match want {
            Want::Look => self.fs().peek(self.ino, name),
            Want::Hold => self.fs().lookup(self.ino, name),
        };
        match found {
            Ok(attr) if want == Want::Look && attr.kind != FileKind::Symlink => {
                Ok(Some(Self::seen(self.mount_index, self.mount, attr)))
            }
            Ok(_) if want == Want::Look => self.child(name, Want::Hold),
            Ok(attr) => Ok(Some(self.beside(attr))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &'p dyn FileSystem {
        self.mount.attached().fs.as_ref()
    }

    /// The attributes, as they were when this call first saw them.
    pub fn attr(&self) -> Result<&Attr, Errno> {
        match self.attr.get() {
            Some(attr) => Ok(attr),
            None => {
                let attr = self.fs().getattr(self.ino)?;
                Ok(self.attr.get_or_init(|| attr))
            }
        }
    }

    /// Checks permission, and for changes whether the mount takes any.
    pub fn check(&self, creds: &Credentials, want: Access) -> Result<(), Errno> {
        let changes = want.contains(Access::WRITE)
            && matches!(self.kind, FileKind::File | FileKind::Dir | FileKind::Symlink);
        if changes {
            self.check_writable()?;
        }
        if self.kind == FileKind::Dir && creds.can(Caps::DAC_OVERRIDE) {
            return Ok(());
        }
        creds.check(self.fs(), self.attr()?, want)
    }

    /// Checks whether names may be made in a directory: `ENOENT` where it is removed (`may_create`).
    pub fn check_create(&self, creds: &Credentials) -> Result<(), Errno> {
        match self.check(creds, Access::WRITE | Access::EXEC) {
            Err(Errno::ACCESS) if self.attr()?.nlink == 0 => Err(Errno::NOENT),
            checked => checked,
        }
    }

    /// `EROFS` where the mount takes no changes.
    pub fn check_writable(&self) -> Result<(), Errno> {
        self.mount.check_writable()
    }

    /// Another hold of the same inode.
    fn again(&self) -> Result<Self, Errno> {
        let attr = self.fs().lookup(self.ino, b".")?;
        Ok(Self::reference(self.mount_index, self.mount, attr))
    }

    /// Turns the hold into an engine reference that somebody else gives back.
    pub fn into_reference(self) -> Result<(), Errno> {
        debug_assert!(!matches!(self.by, By::Nothing), "W1");
        if let By::Description(_) | By::Kept(_) = self.by {
            self.fs().lookup(self.ino, b".")?;
        }
        if let By::Reference = self.by {
            std::mem::forget(self);
        }
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let By::Reference = self.by {
            self.fs().forget(self.ino, 1);
        }
    }
}

/// What kind of component a path ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// A name.
    Name,
    /// `.`, or nothing: the mount point itself.
    Dot,
    /// `..`
    DotDot,
}

/// Where a path leads.
pub(crate) struct Walked<'p> {
    /// The directory that the last component is in.
    pub dir: Held<'p>,
    /// The last component.
    pub name: SmallVec<[u8; 64]>,
    /// What it is.
    pub last: Last,
    /// Slashes follow it.
    pub slash: bool,
    /// What it names.
    pub found: Option<Held<'p>>,
}

impl<'p> Walked<'p> {
    /// `ENAMETOOLONG` for a name that is to be made or removed ([`Follow::Never`]).
    pub fn check_name(&self) -> Result<(), Errno> {
        if self.name.len() > NAME_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// What the path names: `ENOENT`; `ENOTDIR` where a slash follows something else than a
    /// directory.
    #[inline]
    pub fn existing(self) -> Result<Held<'p>, Errno> {
        let found = self.found.ok_or(Errno::NOENT)?;
        if self.slash && found.kind != FileKind::Dir { Err(Errno::NOTDIR) } else { Ok(found) }
    }
}

/// Where a walk starts.
struct Start<'p, 'a> {
    dir: Held<'p>,
    /// What remains of the path.
    rest: &'a [u8],
    /// The way to keep when it has been gone, with the terms of the mount.
    way: Option<(Way<'a>, usize)>,
}

/// Whether the last component is followed where it is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Yes.
    Always,
    /// Yes, and it is to be created where it is missing: `EISDIR` where a slash follows it.
    ToCreate,
    /// Only where a slash follows it.
    BeforeSlash,
    /// No: the path says where a name is to be made or removed.
    Never,
}

/// What a caller wants with what a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Work with it.
    Hold,
    /// See what it is.
    Look,
}

impl Process {
    /// Sees what a path names, as [`find`](Self::find).
    #[inline]
    pub(crate) fn look(&self, dirfd: i32, path: &[u8], flags: i32) -> Call<Held<'_>> {
        self.find_for(Want::Look, dirfd, path, flags)
    }

    /// Finds what a path names. `flags`: `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
    pub(crate) fn find(&self, dirfd: i32, path: &[u8], flags: i32) -> Call<Held<'_>> {
        self.find_for(Want::Hold, dirfd, path, flags)
    }

    #[inline]
    fn find_for(&self, want: Want, dirfd: i32, path: &[u8], flags: i32) -> Call<Held<'_>> {
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            let ofd = match dirfd {
                libc::AT_FDCWD => self.get_entry(&self.segment().cwd)?,
                fd => self.get(fd)?,
            };
            return Ok(Held::description(self, ofd));
        }
        let nofollow = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
        let follow = if nofollow { Follow::BeforeSlash } else { Follow::Always };
        Ok(self.walk(want, dirfd, path, follow, &self.identity().effective)?.existing()?)
    }

    /// The directory that a path's last name is in, where it is known or given. Else, and where anything
    /// is not as usual, it has to be walked to.
    #[inline(always)]
    fn near<'a>(&self, dirfd: i32, path: &'a [u8]) -> Option<(Held<'_>, &'a [u8])> {
        let creds = &self.identity().effective;
        let Start { dir, rest: name, way } = self.start_or_skip(dirfd, path, creds).ok()?;
        let is_name = !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/');
        let usual = way.is_none() && is_name && dir.kind == FileKind::Dir;
        (usual && dir.check(creds, Access::EXEC).is_ok()).then_some((dir, name))
    }

    /// Sees what a path names by one look, if that tells: see [`near`](Self::near).
    #[inline]
    pub(crate) fn glance(&self, dirfd: i32, path: &[u8]) -> Option<Result<(&Mount, Attr), Errno>> {
        let (dir, name) = self.near(dirfd, path)?;
        let attr = match dir.fs().peek(dir.ino, name) {
            Err(Errno::NOENT) => return Some(Err(Errno::NOENT)),
            found => found.ok()?,
        };
        dir.mount.check_covered(attr.ino).ok()?;
        (attr.kind != FileKind::Symlink).then_some(Ok((dir.mount, attr)))
    }

    /// As [`glance`](Self::glance), to work with it.
    #[inline]
    pub(crate) fn grasp(&self, dirfd: i32, path: &[u8]) -> Option<Result<Held<'_>, Errno>> {
        let (dir, name) = self.near(dirfd, path)?;
        let held = match dir.fs().lookup(dir.ino, name) {
            Err(Errno::NOENT) => return Some(Err(Errno::NOENT)),
            found => dir.beside(found.ok()?),
        };
        dir.mount.check_covered(held.ino).ok()?;
        (held.kind != FileKind::Symlink).then_some(Ok(held))
    }

    /// Walks to where a name is to be made or removed.
    pub(crate) fn place_of(&self, dirfd: i32, path: &[u8]) -> Call<Walked<'_>> {
        self.walk(Want::Look, dirfd, path, Follow::Never, &self.identity().effective)
    }

    /// Walks a path.
    pub(crate) fn walk(
        &self,
        want: Want,
        dirfd: i32,
        path: &[u8],
        follow: Follow,
        creds: &Credentials,
    ) -> Call<Walked<'_>> {
        let start = self.start_or_skip(dirfd, path, creds)?;
        let (mut dir, rest, mut way) = (start.dir, start.rest, start.way);
        let mut steps = Steps::new();
        if path.len() >= libc::PATH_MAX as usize {
            return Err(Errno::NAMETOOLONG.into());
        }
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut rest = Cow::Borrowed(rest);
        let mut at = 0;
        let mut links = 0;
        loop {
            at += rest[at..].iter().take_while(|&&b| b == b'/').count();
            let len = rest[at..].iter().position(|&b| b == b'/').unwrap_or(rest.len() - at);
            let (name, tail) = (&rest[at..at + len], &rest[at + len..]);
            let is_last = tail.iter().all(|&b| b == b'/');
            let slash = is_last && !tail.is_empty();
            if dir.kind != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            let last = match name {
                // A name that is made or removed there is one of the file system above.
                b"" if follow == Follow::Never => return Err(Stop::Kernel),
                b"" => {
                    let found = Some(dir.again()?);
                    let name = SmallVec::new();
                    return Ok(Walked { dir, name, last: Last::Dot, slash: false, found });
                }
                b"." => Last::Dot,
                b".." => Last::DotDot,
                _ => Last::Name,
            };
            if last == Last::DotDot {
                way = None;
            } else if let Some((way, terms)) = way.take_if(|_| is_last) {
                self.dirs.keep(self, &way, (dir.mount_index, terms), &steps, dir.ino);
            } else if way.is_some() && last == Last::Name {
                match dir.fs().version(dir.ino) {
                    Some(version) => steps.push((dir.ino, version)),
                    None => way = None,
                }
            }
            dir.check(creds, Access::EXEC)?;
            let found = match last {
                Last::Dot if !is_last => {
                    at += len;
                    continue;
                }
                Last::Dot => Some(dir.again()?),
                Last::DotDot if dir.ino == dir.fs().root() => return Err(Stop::Kernel),
                Last::Name if slash && follow == Follow::ToCreate => {
                    return Err(Errno::ISDIR.into());
                }
                // Whoever makes or removes the name says so in its turn.
                _ if len > NAME_MAX && is_last && follow == Follow::Never => None,
                _ if len > NAME_MAX => {
                    let removed = dir.attr()?.nlink == 0;
                    return Err(if removed { Errno::NOENT } else { Errno::NAMETOOLONG }.into());
                }
                _ => dir.child(name, if is_last { want } else { Want::Hold })?,
            };
            let link = found.as_ref().filter(|found| {
                let wanted = match follow {
                    Follow::Always | Follow::ToCreate => true,
                    Follow::BeforeSlash => slash,
                    Follow::Never => false,
                };
                found.kind == FileKind::Symlink && (!is_last || wanted)
            });
            if let Some(link) = link {
                way = None;
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                self.may_follow(&dir, link, creds)?;
                let mut target = link.fs().readlink(link.ino)?;
                target.extend_from_slice(tail);
                if target.first() == Some(&b'/') {
                    let (root, skip) = self.start_of_absolute(&target)?;
                    dir = root;
                    at = skip;
                } else {
                    at = 0;
                }
                rest = Cow::Owned(target);
                continue;
            }
            if let Some(found) = found.as_ref() {
                found.mount.check_covered(found.ino)?;
            }
            if is_last {
                let name = SmallVec::from_slice(name);
                return Ok(Walked { dir, name, last, slash, found });
            }
            dir = found.ok_or(Errno::NOENT)?;
            at += len;
        }
    }

    /// `fs.protected_symlinks`: in a sticky directory that everybody may write to, only one's own
    /// links and those of the directory's owner.
    fn may_follow(&self, dir: &Held<'_>, link: &Held<'_>, creds: &Credentials) -> Call<()> {
        let owner = link.attr()?.uid;
        if owner == creds.uid {
            return Ok(());
        }
        let dir = dir.attr()?;
        let open_to_all = dir.perm & 0o1002 == 0o1002;
        if open_to_all && dir.uid != owner && self.protection("protected_symlinks") != 0 {
            return Err(Errno::ACCESS.into());
        }
        Ok(())
    }

    /// Gives back the directories that paths have led to, which are held so that later paths need not
    /// be walked again: up to 64 of them, removed or not.
    pub fn forget_ways(&self) {
        self.dirs.clear(self);
    }

    /// Where a walk starts: at the last directory, if the way there is known.
    #[inline]
    fn start_or_skip<'a>(
        &self,
        dirfd: i32,
        path: &'a [u8],
        creds: &Credentials,
    ) -> Call<Start<'_, 'a>> {
        let is_absolute = path.first() == Some(&b'/');
        let creds = std::ptr::from_ref(creds).addr();
        let mut from = None;
        if !is_absolute {
            from = Some(self.start_of(dirfd, path)?);
        } else if self.foreign_namespace.load(Relaxed) {
            return Err(Stop::Kernel);
        }
        let at = from.as_ref().map(|(dir, _)| (dir.mount_index, dir.ino));
        let way = Way::of(path, at, creds);
        if let Some((way, name)) = way
            && let Some((mount_index, mount, ino, used)) = self.dirs.find(self, &way)
        {
            let dir = Held::kept(mount_index, mount, ino, used);
            return Ok(Start { dir, rest: name, way: None });
        }
        let (dir, rest) = match from {
            Some(from) => from,
            None => self.start_of(dirfd, path)?,
        };
        let terms = dir.mount.terms();
        Ok(Start { dir, rest, way: way.map(|(way, _)| (way, terms)) })
    }

    /// Where a walk starts without that, and what of the path remains.
    fn start_of<'a>(&self, dirfd: i32, path: &'a [u8]) -> Call<(Held<'_>, &'a [u8])> {
        if path.first() == Some(&b'/') {
            self.hand_over_proc(path)?;
            let (root, skip) = self.start_of_absolute(path)?;
            return Ok((root, &path[skip..]));
        }
        let ofd = match dirfd {
            libc::AT_FDCWD => self.get_entry(&self.segment().cwd)?,
            fd => self.get(fd)?,
        };
        if self.foreign_namespace.load(Relaxed) && dirfd == libc::AT_FDCWD {
            return Err(Stop::Kernel);
        }
        ofd.mount().catch_up();
        Ok((Held::description(self, ofd), path))
    }

    /// The mount that an absolute path leads into by its text, and how much of it that is.
    fn start_of_absolute(&self, path: &[u8]) -> Call<(Held<'_>, usize)> {
        if self.foreign_namespace.load(Relaxed) {
            return Err(Stop::Kernel);
        }
        let mut best: Option<(usize, &Mount, &[u8])> = None;
        for (i, mount) in self.mounts() {
            if let Some(rest) = mount.strip(path)
                && best.is_none_or(|(_, _, other)| rest.len() <= other.len())
            {
                best = Some((i, mount, rest));
            }
        }
        let (index, mount, rest) = best.ok_or(Stop::Kernel)?;
        self.attach(mount)?;
        mount.check_reached()?;
        mount.check_reach(|path| self.kernel.reach(path))?;
        Ok((Held::root(index, mount), path.len() - rest.len()))
    }

    /// A path that names a descriptor of ours through `/proc` reaches the kernel, so the descriptor
    /// must be the kernel's.
    fn hand_over_proc(&self, path: &[u8]) -> Call<()> {
        if let Some(fd) = proc_fd(path).filter(|fd| self.owns(*fd)) {
            self.materialise(fd)?;
        }
        Ok(())
    }
}

/// The descriptor that a path below `/proc/self/fd` or `/dev/fd` starts with.
pub(crate) fn proc_fd(path: &[u8]) -> Option<i32> {
    let dirs: [&[u8]; 3] = [b"/proc/self/fd/", b"/dev/fd/", b"/proc/thread-self/fd/"];
    let rest = dirs.iter().find_map(|dir| path.strip_prefix(*dir))?;
    let digits = rest.split(|&b| b == b'/').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
