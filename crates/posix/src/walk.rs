//! Paths: from text to inodes, component by component, by the kernel's rules (`fs/namei.c`).
//!
//! - **walk-W1** What a walk gives is held: the inode lives while the [`Held`] does. Only where the caller
//!   wants to know what is there and no more ([`Want::Look`]) the last inode is not, and what is known
//!   of it is what was seen.
//! - **walk-W2** A walk that leaves the mount (an absolute link elsewhere, `..` above the root, a covered
//!   inode) ends with `Kernel`, and nothing has changed.

use crate::creds::{Access, Caps, Credentials};
use crate::mount::Mount;
use crate::path_cache::{PathKey, Steps, Used};
use crate::process::{OfdRef, Process};
use crate::served::{Call, Stop};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::atomic::Ordering::Relaxed;
use threads::OwnU32;
use vfs::path::LINKS_MAX;
use vfs::rules::has_any;
use vfs::{Attr, Errno, FileKind, FileSystem, Ino};

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

/// An inode that a call works with (walk-W1).
pub(crate) struct Inode<'p> {
    by: By<'p>,
    pub mount: &'p Mount,
    pub mount_index: usize,
    pub ino: Ino,
    pub kind: FileKind,
}

impl<'p> Inode<'p> {
    fn root(mount_index: usize, mount: &'p Mount) -> Self {
        let ino = mount.attached().fs.root();
        Self { by: By::Root, mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// A directory that was walked to before.
    fn kept(process: &'p Process, used: Used<'p>) -> Self {
        let (mount_index, ino) = used.dir();
        let mount = process.mount(mount_index);
        Self { by: By::Kept(used), mount, mount_index, ino, kind: FileKind::Dir }
    }

    /// The inode of a description.
    fn description(process: &'p Process, ofd: OfdRef<'p>) -> Self {
        let (ino, kind, mount_index) = (ofd.ino(), ofd.kind(), ofd.mount_index());
        let mount = process.mount(mount_index);
        Self { by: By::Description(ofd), mount, mount_index, ino, kind }
    }

    fn beside(&self, by: By<'p>, attr: &Attr) -> Self {
        let (mount, mount_index) = (self.mount, self.mount_index);
        Self { by, mount, mount_index, ino: attr.ino, kind: attr.kind }
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &'p dyn FileSystem {
        self.mount.attached().fs.as_ref()
    }
}

impl Drop for Inode<'_> {
    #[inline]
    fn drop(&mut self) {
        if let By::Reference = self.by {
            self.fs().forget(self.ino, 1);
        }
    }
}

/// An inode with what a call has seen of its attributes.
pub(crate) struct Held<'p> {
    inode: Inode<'p>,
    attr: OnceCell<Attr>,
}

impl<'p> std::ops::Deref for Held<'p> {
    type Target = Inode<'p>;
    #[inline]
    fn deref(&self) -> &Inode<'p> {
        &self.inode
    }
}

impl<'p> From<Inode<'p>> for Held<'p> {
    fn from(inode: Inode<'p>) -> Self {
        Self { inode, attr: OnceCell::new() }
    }
}

impl<'p> Held<'p> {
    /// The inode of a description.
    pub fn description(process: &'p Process, ofd: OfdRef<'p>) -> Self {
        Inode::description(process, ofd).into()
    }

    /// What a call that creates returned, on the mount of `self`.
    pub fn beside(&self, attr: Attr) -> Held<'p> {
        Self { inode: self.inode.beside(By::Reference, &attr), attr: OnceCell::from(attr) }
    }

    /// What was looked at on the mount of `self`.
    fn seen(&self, attr: Attr) -> Held<'p> {
        Self { inode: self.inode.beside(By::Nothing, &attr), attr: OnceCell::from(attr) }
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

    /// What a name in this directory leads to, if it is there. A symbolic link is held in any case:
    /// it may have to be followed.
    fn child(&self, name: &[u8], want: Want) -> Result<Option<Held<'p>>, Errno> {
        let found = match want {
            Want::Look => self.fs().peek(self.ino, name),
            Want::Hold => self.fs().lookup(self.ino, name),
        };
        match found {
            Ok(attr) if want == Want::Look && attr.kind != FileKind::Symlink => {
                Ok(Some(self.seen(attr)))
            }
            Ok(_) if want == Want::Look => self.child(name, Want::Hold),
            Ok(attr) => Ok(Some(self.beside(attr))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
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
        self.mount.check_change(self.kind, want)?;
        if self.kind == FileKind::Dir && creds.can(Caps::DAC_OVERRIDE) {
            return Ok(());
        }
        creds.check(self.fs(), self.attr()?, want)
    }

    /// Checks whether names may be made in a directory: `ENOENT` where it is removed (`may_create`).
    pub fn check_create(&self, creds: &Credentials) -> Result<(), Errno> {
        self.check(creds, Access::WRITE | Access::EXEC).map_err(|errno| match errno {
            Errno::ACCESS => self.refusal(errno),
            _ => errno,
        })
    }

    /// The error of a name in this directory that is refused with `errno`: the kernel looks first
    /// whether the directory is removed.
    pub fn refusal(&self, errno: Errno) -> Errno {
        match self.attr() {
            Ok(attr) if attr.nlink == 0 => Errno::NOENT,
            _ => errno,
        }
    }

    /// `EROFS` where the mount takes no changes.
    pub fn check_writable(&self) -> Result<(), Errno> {
        self.mount.check_writable()
    }

    /// Another hold of the same inode.
    fn again(&self) -> Result<Self, Errno> {
        Ok(self.beside(self.fs().lookup(self.ino, b".")?))
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

/// Where a name is to be made or removed ([`Follow::Never`]); as [`Walked`].
#[derive(Clone, Copy)]
pub(crate) struct Place<'w, 'p> {
    pub dir: &'w Held<'p>,
    pub name: &'w [u8],
    pub last: Last,
    pub slash: bool,
    pub found: Option<&'w Held<'p>>,
}

impl Place<'_, '_> {
    /// `ENAMETOOLONG`
    pub fn check_name(&self) -> Result<(), Errno> {
        if self.name.len() > self.dir.mount.limits().name {
            Err(self.dir.refusal(Errno::NAMETOOLONG))
        } else {
            Ok(())
        }
    }
}

impl<'p> Walked<'p> {
    /// As a place.
    pub fn place(&self) -> Place<'_, 'p> {
        let (last, slash) = (self.last, self.slash);
        Place { dir: &self.dir, name: &self.name, last, slash, found: self.found.as_ref() }
    }

    /// What the path names: `ENOENT`; `ENOTDIR` where a slash follows something else than a
    /// directory.
    #[inline]
    pub fn existing(self) -> Result<Held<'p>, Errno> {
        let found = self.found.ok_or(Errno::NOENT)?;
        if self.slash && found.kind != FileKind::Dir { Err(Errno::NOTDIR) } else { Ok(found) }
    }
}

/// A directory that somebody else holds.
#[derive(Clone, Copy)]
struct Near<'p> {
    mount: &'p Mount,
    mount_index: usize,
    ino: Ino,
}

impl<'p> Near<'p> {
    #[inline]
    fn fs(&self) -> &'p dyn FileSystem {
        self.mount.attached().fs.as_ref()
    }
}

/// Where a walk starts.
struct Start<'p, 'a> {
    dir: Inode<'p>,
    /// What remains of the path.
    rest: &'a [u8],
    /// The key to cache the directory by when it is found, with the state of the mount.
    key: Option<(PathKey<'a>, usize)>,
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
    /// Finds what a path names. `flags`: `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
    pub(crate) fn find(&self, dirfd: i32, path: &[u8], flags: i32) -> Call<Held<'_>> {
        self.find_for(Want::Hold, dirfd, path, flags)
    }

    /// As [`find`](Self::find), to hold what is found or to look at it.
    #[inline]
    pub(crate) fn find_for(
        &self,
        want: Want,
        dirfd: i32,
        path: &[u8],
        flags: i32,
    ) -> Call<Held<'_>> {
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            let ofd = match dirfd {
                libc::AT_FDCWD => self.cwd()?,
                fd => self.get(fd)?,
            };
            return Ok(Held::description(self, ofd));
        }
        let nofollow = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
        let follow = if nofollow { Follow::BeforeSlash } else { Follow::Always };
        Ok(self.walk(want, dirfd, path, follow, &self.identity().effective)?.existing()?)
    }

    /// What `look` sees in the directory that a path's last name is in, where that is known or given and
    /// may be searched. Else, and where anything is not as usual, it has to be walked to.
    #[inline(always)]
    fn in_cached_parent<'p, R>(
        &'p self,
        dirfd: i32,
        path: &[u8],
        look: impl FnOnce(Near<'p>, &[u8]) -> Option<R>,
    ) -> Option<R> {
        let creds = &self.identity().effective;
        let is_absolute = path.first() == Some(&b'/');
        if (is_absolute || dirfd == libc::AT_FDCWD) && self.foreign_namespace.load(Relaxed) {
            return None;
        }
        // In pieces: a structure would be written and read again in other sizes, which takes long.
        let _held;
        let (start, rest) = if is_absolute {
            (None, path)
        } else {
            match self.borrow_at(dirfd) {
                Ok((ofd, mount_index, ino, kind)) => {
                    _held = ofd;
                    (Some((mount_index, ino, kind)), path)
                }
                Err(Stop::Kernel) if dirfd == libc::AT_FDCWD => {
                    let (index, mount, rest) = self.mount_by_prefix(path).ok()?;
                    (Some((index, mount.attached().fs.root(), FileKind::Dir)), rest)
                }
                Err(_) => return None,
            }
        };
        let used;
        let ((mount_index, ino), name) = if has_any(rest, [b'/']) {
            let start = start.map(|(mount_index, ino, _)| (mount_index, ino));
            let (key, name) = PathKey::of(rest, start, std::ptr::from_ref(creds).addr())?;
            used = self.path_cache.find(self, &key)?;
            (used.dir(), name)
        } else {
            let (mount_index, ino, _) = start.filter(|(.., kind)| *kind == FileKind::Dir)?;
            let is_name = !matches!(rest, b"" | b"." | b"..");
            ((mount_index, ino), is_name.then_some(rest)?)
        };
        let dir = Near { mount: self.mount(mount_index), mount_index, ino };
        let may_search = || {
            let attr = dir.fs().getattr(dir.ino)?;
            creds.check(dir.fs(), &attr, Access::EXEC)
        };
        let usual = creds.can(Caps::DAC_OVERRIDE) || may_search().is_ok();
        if usual { look(dir, name) } else { None }
    }

    /// Sees what a path names by one look, if that tells: see [`in_cached_parent`](Self::in_cached_parent). Its
    /// attributes are in `attr` then.
    #[inline(always)]
    pub(crate) fn peek_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        attr: &mut Attr,
    ) -> Option<Result<&Mount, Errno>> {
        self.in_cached_parent(dirfd, path, |dir, name| {
            match dir.fs().peek_into(dir.ino, name, attr) {
                Err(Errno::NOENT) => return Some(Err(Errno::NOENT)),
                found => found.ok()?,
            };
            dir.mount.check_covered(attr.ino).ok()?;
            (attr.kind != FileKind::Symlink).then_some(Ok(dir.mount))
        })
    }

    /// As [`peek_fast`](Self::peek_fast), to work with it: the caller gets a reference to the inode, on the mount
    /// with this index.
    #[inline(always)]
    pub(crate) fn lookup_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        attr: &mut Attr,
    ) -> Option<Result<usize, Errno>> {
        self.in_cached_parent(dirfd, path, |dir, name| {
            match dir.fs().lookup_into(dir.ino, name, attr) {
                Err(Errno::NOENT) => return Some(Err(Errno::NOENT)),
                found => found.ok()?,
            };
            let usual = attr.kind != FileKind::Symlink && dir.mount.check_covered(attr.ino).is_ok();
            if !usual {
                dir.fs().forget(attr.ino, 1);
            }
            usual.then_some(Ok(dir.mount_index))
        })
    }

    /// Acts where a name is to be made or removed, if one look tells where that is: see
    /// [`in_cached_parent`](Self::in_cached_parent). So may `act`, which has done nothing then.
    #[inline(always)]
    pub(crate) fn at_cached_place<R>(
        &self,
        dirfd: i32,
        path: &[u8],
        act: impl FnOnce(Place<'_, '_>) -> Option<Call<R>>,
    ) -> Option<Call<R>> {
        let mut attr = Attr::NONE;
        self.in_cached_parent(dirfd, path, |parent, name| {
            if name.len() > parent.mount.limits().name {
                return None;
            }
            let is_there = match parent.fs().peek_into(parent.ino, name, &mut attr) {
                Err(Errno::NOENT) => false,
                found => found.map(|()| true).ok()?,
            };
            let (mount, mount_index, ino) = (parent.mount, parent.mount_index, parent.ino);
            // walk-W1: `parent` holds it meanwhile.
            let by = By::Nothing;
            let dir = Held::from(Inode { by, mount, mount_index, ino, kind: FileKind::Dir });
            let mut found = None;
            if is_there {
                mount.check_covered(attr.ino).ok()?;
                found = Some(dir.seen(attr));
            }
            act(Place { dir: &dir, name, last: Last::Name, slash: false, found: found.as_ref() })
        })
    }

    /// Acts where a name is to be made or removed, or on the reason why there is no such place.
    #[inline(always)]
    pub(crate) fn at_place<R>(
        &self,
        dirfd: i32,
        path: &[u8],
        act: impl FnOnce(Call<Place<'_, '_>>) -> Call<R>,
    ) -> Call<R> {
        let mut act = Some(act);
        let done = self.at_cached_place(dirfd, path, |place| act.take().map(|act| act(Ok(place))));
        match (done, act) {
            (Some(done), _) => done,
            (None, Some(act)) => {
                let creds = &self.identity().effective;
                let walked = self.walk(Want::Look, dirfd, path, Follow::Never, creds);
                act(walked.as_ref().map(Walked::place).map_err(|stop| *stop))
            }
            (None, None) => unreachable!("what was done has a result"),
        }
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
        let (mut dir, rest, mut key) = (Held::from(start.dir), start.rest, start.key);
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
                key = None;
            } else if let Some((key, state)) = key.take_if(|_| is_last) {
                self.path_cache.keep(self, &key, (dir.mount_index, state), &steps, dir.ino);
            } else if key.is_some() && last == Last::Name {
                match dir.fs().version(dir.ino) {
                    Some(version) => steps.push((dir.ino, version)),
                    None => key = None,
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
                _ if len > dir.mount.limits().name && is_last && follow == Follow::Never => None,
                _ if len > dir.mount.limits().name => {
                    return Err(dir.refusal(Errno::NAMETOOLONG).into());
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
                key = None;
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                self.may_follow(&dir, link, creds)?;
                let mut target = link.fs().readlink(link.ino)?;
                target.extend_from_slice(tail);
                if target.first() == Some(&b'/') {
                    let (root, skip) = self.start_of_absolute(&target)?;
                    dir = root.into();
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
    pub fn forget_paths(&self) {
        self.path_cache.clear(self);
    }

    /// Where a walk starts: at the last directory, if that is cached.
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
            from = Some(self.start_of_relative(dirfd, path)?);
        } else if self.foreign_namespace.load(Relaxed) {
            return Err(Stop::Kernel);
        }
        let at = from.as_ref().map(|(dir, _)| (dir.mount_index, dir.ino));
        let key = PathKey::of(from.as_ref().map_or(path, |(_, rest)| rest), at, creds);
        if let Some((key, name)) = key
            && let Some(used) = self.path_cache.find(self, &key)
        {
            let dir = Inode::kept(self, used);
            return Ok(Start { dir, rest: name, key: None });
        }
        let (dir, rest) = match from {
            Some(from) => from,
            None => {
                self.promote_proc(path)?;
                let (root, skip) = self.start_of_absolute(path)?;
                (root, &path[skip..])
            }
        };
        let state = dir.mount.state_id();
        Ok(Start { dir, rest, key: key.map(|(key, _)| (key, state)) })
    }

    /// Where a relative path starts, and what of it remains: all of it, unless it leads into a mount from a
    /// working directory outside.
    #[inline]
    fn start_of_relative<'a>(&self, dirfd: i32, path: &'a [u8]) -> Call<(Inode<'_>, &'a [u8])> {
        if dirfd == libc::AT_FDCWD && self.foreign_namespace.load(Relaxed) {
            return Err(Stop::Kernel);
        }
        match self.description_at(dirfd) {
            Err(Stop::Kernel) if dirfd == libc::AT_FDCWD => {
                let (index, mount, rest) = self.mount_by_prefix(path)?;
                Ok((Inode::root(index, mount), rest))
            }
            ofd => Ok((Inode::description(self, ofd?), path)),
        }
    }

    /// What a relative path starts from, where that is in a pool.
    #[inline]
    fn description_at(&self, dirfd: i32) -> Call<OfdRef<'_>> {
        let ofd = self.get_entry(self.entry_at(dirfd)?)?;
        ofd.mount().catch_up();
        Ok(ofd)
    }

    #[inline]
    fn entry_at(&self, dirfd: i32) -> Call<&OwnU32> {
        match dirfd {
            libc::AT_FDCWD => Ok(self.cwd_entry()),
            fd => self.entry(fd).ok_or(Stop::Kernel),
        }
    }

    /// As [`description_at`](Self::description_at), for the time of a call that does not close anything:
    /// mount, inode and kind, and what is held of it, if anything.
    #[inline(always)]
    fn borrow_at(&self, dirfd: i32) -> Call<(Option<OfdRef<'_>>, usize, Ino, FileKind)> {
        if let Some(ofd) = self.borrow_entry(self.entry_at(dirfd)?) {
            self.mount(ofd.mount()).catch_up();
            return Ok((None, ofd.mount(), ofd.ino(), ofd.kind()));
        }
        let ofd = self.description_at(dirfd)?;
        let (mount_index, ino, kind) = (ofd.mount_index(), ofd.ino(), ofd.kind());
        Ok((Some(ofd), mount_index, ino, kind))
    }

    /// The mount that an absolute path leads into by its text, and how much of it that is.
    fn start_of_absolute(&self, path: &[u8]) -> Call<(Inode<'_>, usize)> {
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
        self.reach_mount(mount)?;
        Ok((Inode::root(index, mount), path.len() - rest.len()))
    }

    /// `Kernel` where this user's absolute paths do not lead to the mount, or it is not served.
    #[inline]
    pub(crate) fn reach_mount(&self, mount: &Mount) -> Call<()> {
        self.attach(mount)?;
        mount.check_reached()?;
        mount.check_reach(|path| self.kernel.reach(path))
    }

    /// A path that names a descriptor of ours through `/proc` reaches the kernel, so the descriptor is promoted.
    fn promote_proc(&self, path: &[u8]) -> Call<()> {
        if let Some((fd, _)) = proc_fd(path).filter(|(fd, _)| self.owns(*fd)) {
            self.promote(fd)?;
        }
        Ok(())
    }
}

/// The descriptor of this process that a path below `/proc` or `/dev/fd` starts with, and what follows it.
pub fn proc_fd(path: &[u8]) -> Option<(i32, &[u8])> {
    fn number(digits: &[u8]) -> Option<i32> {
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
    let rest = if let Some(rest) = path.strip_prefix(b"/dev/fd/") {
        rest
    } else {
        let rest = path.strip_prefix(b"/proc/")?;
        let (who, rest) = rest.split_at(rest.iter().position(|&b| b == b'/')?);
        let own = || rustix::process::getpid().as_raw_pid();
        let is_own = matches!(who, b"self" | b"thread-self") || number(who) == Some(own());
        rest.strip_prefix(b"/fd/").filter(|_| is_own)?
    };
    let digits = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
    Some((number(&rest[..digits])?, &rest[digits..]))
}
