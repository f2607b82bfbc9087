//! Lookup of paths: by one look if the directory is known, else by a walk.

use crate::creds::{AccessMask, Caps, Credentials};
use crate::cwd::WorkingDir;
use crate::held::{HeldInode, InodeHold, LastComponent, ParentAndName, Walked, Want};
use crate::mount::ServedMount;
use crate::path_cache::PathKey;
use crate::served::{CallResult, CallStop};
use crate::table::OfdRef;
use crate::walk::{Follow, Start};
use os::threads::OwnU32;
use std::sync::atomic::Ordering::Relaxed;
use vfs::rules::has_any;
use vfs::{Attr, Errno, FileKind, FileSystem, Ino};

/// The directory of a path's last name, kept alive by the path cache or the working directory. It
/// takes no reference.
#[derive(Clone, Copy)]
struct CachedParent<'p> {
    mount: &'p ServedMount,
    mount_index: usize,
    ino: Ino,
}

impl<'p> CachedParent<'p> {
    /// Returns the result of a look for a name that the directory does not have; `None` if the
    /// caller has to walk.
    #[inline]
    fn without<T>(&self, name: &[u8]) -> Option<Result<T, Errno>> {
        (!ServedMount::is_of_server(self.ino, name)).then_some(Err(Errno::NOENT))
    }

    #[inline]
    fn fs(&self) -> &'p dyn FileSystem {
        self.mount.attached().fs.as_ref()
    }
}

/// Lookup of all paths: absolute ones, and those relative to an open directory or the working
/// directory.
pub struct Paths {
    working_dir: WorkingDir,
}

impl Paths {
    pub(crate) fn new(working_dir: WorkingDir) -> Self {
        Self { working_dir }
    }

    #[inline(always)]
    pub(crate) fn working_dir(&self) -> &WorkingDir {
        &self.working_dir
    }

    /// Finds the inode that a path names. `flags`: `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
    pub(crate) fn find(&self, dirfd: i32, path: &[u8], flags: i32) -> CallResult<HeldInode<'_>> {
        self.find_for(Want::Hold, dirfd, path, flags)
    }

    /// As [`find`](Self::find), for a caller that holds the inode or only looks at it.
    #[inline]
    pub(crate) fn find_for(
        &self,
        want: Want,
        dirfd: i32,
        path: &[u8],
        flags: i32,
    ) -> CallResult<HeldInode<'_>> {
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            let ofd = match dirfd {
                libc::AT_FDCWD => self.working_dir().cwd()?,
                fd => self.table().get(fd)?,
            };
            return Ok(HeldInode::description(self.task(), ofd));
        }
        let nofollow = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
        let follow = if nofollow { Follow::BeforeSlash } else { Follow::Always };
        Ok(self.walk(want, dirfd, path, follow, &self.task().identity().effective)?.existing()?)
    }

    /// Runs `look` with the directory of a path's last name, if that is cached or given and the
    /// caller may search it. Returns `None` in any other case: the caller then has to walk.
    #[inline(always)]
    fn in_cached_parent<'p, R>(
        &'p self,
        dirfd: i32,
        path: &[u8],
        look: impl FnOnce(CachedParent<'p>, &[u8]) -> Option<R>,
    ) -> Option<R> {
        let creds = &self.task().identity().effective;
        let is_absolute = path.first() == Some(&b'/');
        if (is_absolute || dirfd == libc::AT_FDCWD)
            && self.path_walk().foreign_namespace.load(Relaxed)
        {
            return None;
        }
        // In pieces: a structure would be stored and loaded in different sizes, which stalls.
        let _held;
        let (start, rest) = if is_absolute {
            (None, path)
        } else {
            match self.borrow_at(dirfd) {
                Ok((ofd, mount_index, ino, kind)) => {
                    _held = ofd;
                    (Some((mount_index, ino, kind)), path)
                }
                Err(CallStop::Kernel) if dirfd == libc::AT_FDCWD => {
                    let (index, mount, rest) = self.working_dir().mount_by_prefix(path).ok()?;
                    (Some((index, mount.attached().fs.root(), FileKind::Dir)), rest)
                }
                Err(_) => return None,
            }
        };
        let used;
        let ((mount_index, ino), name) = if is_absolute || has_any(rest, [b'/']) {
            let start = start.map(|(mount_index, ino, _)| (mount_index, ino));
            let (key, name) = PathKey::of(rest, start, std::ptr::from_ref(creds).addr())?;
            used = self.path_walk().path_cache.find(&self.task().mounts, &key)?;
            (used.dir(), name)
        } else {
            let (mount_index, ino, _) = start.filter(|(.., kind)| *kind == FileKind::Dir)?;
            let is_name = !matches!(rest, b"" | b"." | b"..");
            ((mount_index, ino), is_name.then_some(rest)?)
        };
        let dir = CachedParent { mount: self.task().mount(mount_index), mount_index, ino };
        let may_search = || {
            let attr = dir.fs().getattr(dir.ino)?;
            creds.check(dir.fs(), &attr, AccessMask::EXEC)
        };
        let usual = creds.can(Caps::DAC_OVERRIDE) || may_search().is_ok();
        if usual { look(dir, name) } else { None }
    }

    /// Stores the attributes of the inode that a path names in `attr`, if one look suffices. See
    /// [`in_cached_parent`](Self::in_cached_parent).
    #[inline(always)]
    pub(crate) fn peek_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        attr: &mut Attr,
    ) -> Option<Result<&ServedMount, Errno>> {
        self.in_cached_parent(dirfd, path, |dir, name| {
            match dir.fs().peek_into(dir.ino, name, attr) {
                Err(Errno::NOENT) => return dir.without(name),
                found => found.ok()?,
            };
            dir.mount.check_covered(attr.ino).ok()?;
            (attr.kind != FileKind::Symlink).then_some(Ok(dir.mount))
        })
    }

    /// As [`peek_fast`](Self::peek_fast), but takes a reference to the inode for the caller.
    /// Returns the index of its mount.
    #[inline(always)]
    pub(crate) fn lookup_fast(
        &self,
        dirfd: i32,
        path: &[u8],
        attr: &mut Attr,
    ) -> Option<Result<usize, Errno>> {
        self.in_cached_parent(dirfd, path, |dir, name| {
            match dir.fs().lookup_into(dir.ino, name, attr) {
                Err(Errno::NOENT) => return dir.without(name),
                found => found.ok()?,
            };
            let usual = attr.kind != FileKind::Symlink && dir.mount.check_covered(attr.ino).is_ok();
            if !usual {
                dir.fs().forget(attr.ino, 1);
            }
            usual.then_some(Ok(dir.mount_index))
        })
    }

    /// Runs `act` with the place of a name that is to be made or removed, if one look finds it. See
    /// [`in_cached_parent`](Self::in_cached_parent). `act` also returns `None` if the caller has to
    /// walk, having done nothing.
    #[inline(always)]
    pub(crate) fn at_cached_parent<R>(
        &self,
        dirfd: i32,
        path: &[u8],
        act: impl FnOnce(ParentAndName<'_, '_>) -> Option<CallResult<R>>,
    ) -> Option<CallResult<R>> {
        let mut attr = Attr::NONE;
        self.in_cached_parent(dirfd, path, |parent, name| {
            if name.len() > parent.mount.limits().name {
                return None;
            }
            let is_there = match parent.fs().peek_into(parent.ino, name, &mut attr) {
                Err(Errno::NOENT) if ServedMount::is_of_server(parent.ino, name) => return None,
                Err(Errno::NOENT) => false,
                found => found.map(|()| true).ok()?,
            };
            let (mount, mount_index, ino) = (parent.mount, parent.mount_index, parent.ino);
            // held-H1: `parent` holds the directory meanwhile.
            let dir = HeldInode::from(InodeHold::held_elsewhere(mount_index, mount, ino));
            let mut found = None;
            if is_there {
                mount.check_covered(attr.ino).ok()?;
                found = Some(dir.seen(attr));
            }
            act(ParentAndName {
                dir: &dir,
                name,
                last: LastComponent::Name,
                slash: false,
                found: found.as_ref(),
            })
        })
    }

    /// Runs `act` with the place of a name that is to be made or removed, or with the reason why
    /// there is no such directory.
    #[inline(always)]
    pub(crate) fn at_parent<R>(
        &self,
        dirfd: i32,
        path: &[u8],
        act: impl FnOnce(CallResult<ParentAndName<'_, '_>>) -> CallResult<R>,
    ) -> CallResult<R> {
        let mut act = Some(act);
        let done = self.at_cached_parent(dirfd, path, |at| act.take().map(|act| act(Ok(at))));
        match (done, act) {
            (Some(done), _) => done,
            (None, Some(act)) => {
                let creds = &self.task().identity().effective;
                let walked = self.walk(Want::Look, dirfd, path, Follow::Never, creds);
                act(walked.as_ref().map(Walked::parent_and_name).map_err(|stop| *stop))
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
    ) -> CallResult<Walked<'_>> {
        let start = self.start_or_skip(dirfd, path, creds)?;
        self.path_walk().walk_from(start, want, path, follow, creds)
    }

    /// Finds the start of a walk: the last directory, if that is cached.
    #[inline]
    fn start_or_skip<'a>(
        &self,
        dirfd: i32,
        path: &'a [u8],
        creds: &Credentials,
    ) -> CallResult<Start<'_, 'a>> {
        let is_absolute = path.first() == Some(&b'/');
        let from = if is_absolute { None } else { Some(self.start_of_relative(dirfd, path)?) };
        self.path_walk().skip(from, path, creds)
    }

    /// Finds the start of a relative path, and the rest of the path. That is all of the path,
    /// unless it leads into a mount from a directory outside.
    #[inline]
    fn start_of_relative<'a>(
        &self,
        dirfd: i32,
        path: &'a [u8],
    ) -> CallResult<(InodeHold<'_>, &'a [u8])> {
        if dirfd == libc::AT_FDCWD && self.path_walk().foreign_namespace.load(Relaxed) {
            return Err(CallStop::Kernel);
        }
        match self.description_at(dirfd) {
            Err(CallStop::Kernel) if dirfd == libc::AT_FDCWD => {
                let (index, mount, rest) = self.working_dir().mount_by_prefix(path)?;
                Ok((InodeHold::root(index, mount), rest))
            }
            Err(CallStop::Kernel) => {
                let (index, mount, rest) = self.working_dir().mount_below(dirfd, path)?;
                Ok((InodeHold::root(index, mount), rest))
            }
            ofd => Ok((InodeHold::description(self.task(), ofd?), path)),
        }
    }

    /// The description from which a relative path starts, if it starts in a pool.
    #[inline]
    fn description_at(&self, dirfd: i32) -> CallResult<OfdRef<'_>> {
        let ofd = self.table().get_entry(self.entry_at(dirfd)?)?;
        ofd.mount().catch_up();
        Ok(ofd)
    }

    /// Returns the table entry of `dirfd`, or that of the working directory.
    #[inline]
    fn entry_at(&self, dirfd: i32) -> CallResult<&OwnU32> {
        match dirfd {
            libc::AT_FDCWD => Ok(self.working_dir().cwd_entry()),
            fd => self.table().entry(fd).ok_or(CallStop::Kernel),
        }
    }

    /// As [`description_at`](Self::description_at), for a call that does not close anything: mount,
    /// inode and kind of the start, and the hold on it if one was needed.
    #[inline(always)]
    fn borrow_at(&self, dirfd: i32) -> CallResult<(Option<OfdRef<'_>>, usize, Ino, FileKind)> {
        if let Some(ofd) = self.table().borrow_entry(self.entry_at(dirfd)?) {
            self.task().mount(ofd.mount()).catch_up();
            return Ok((None, ofd.mount(), ofd.ino(), ofd.kind()));
        }
        let ofd = self.description_at(dirfd)?;
        let (mount_index, ino, kind) = (ofd.mount_index(), ofd.ino(), ofd.kind());
        Ok((Some(ofd), mount_index, ino, kind))
    }
}
