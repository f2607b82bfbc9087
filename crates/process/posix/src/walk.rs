//! Walks of paths: from text to inodes, component by component, by the kernel's rules
//! (`fs/namei.c`).
//!
//! - **walk-W1** A walk that leaves the mount (an absolute link elsewhere, `..` above the root, a
//!   covered inode), or enters its directory of snapshots, ends with `Kernel`, without having
//!   changed anything.

use crate::AttachedPool;
use crate::creds::{AccessMask, Credentials};
use crate::descriptors::Descriptors;
use crate::held::{HeldInode, InodeHold, LastComponent, Walked, Want};
use crate::mount::ServedMount;
use crate::path_cache::{PathCache, PathKey, Steps};
use crate::served::{CallResult, CallStop};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering::*};
use vfs::path::LINKS_MAX;
use vfs::{Errno, FileKind};

/// The start of a walk.
pub(crate) struct Start<'p, 'a> {
    dir: InodeHold<'p>,
    /// The rest of the path.
    rest: &'a [u8],
    /// The key by which to cache the directory when it is found, with the state of the mount.
    key: Option<(PathKey<'a>, usize)>,
}

/// Whether a symbolic link as the last component is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// It is followed.
    Always,
    /// It is followed. A missing name is to be created: `EISDIR` if a slash follows it.
    ToCreate,
    /// It is followed only if a slash follows it.
    BeforeSlash,
    /// It is not followed: the name itself is to be made or removed.
    Never,
}

/// Walks of absolute paths, and of other paths from a given start.
pub struct PathWalk {
    descriptors: Descriptors,
    /// Set when all paths are left to the kernel.
    pub(crate) foreign_namespace: AtomicBool,
    /// Directories that paths have led to.
    pub(crate) path_cache: PathCache,
}

impl PathWalk {
    pub(crate) fn new(descriptors: Descriptors) -> Self {
        let foreign_namespace = AtomicBool::new(false);
        Self { descriptors, foreign_namespace, path_cache: PathCache::default() }
    }

    #[inline(always)]
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Attaches the pool of a mount at its first use. `Kernel` if that failed.
    pub(crate) fn attach<'m>(&self, mount: &'m ServedMount) -> CallResult<&'m AttachedPool> {
        let placeholder = || {
            self.task().check_user_namespace()?;
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
            let fd = self.task().kernel.open(&mount.spec.mountpoint, flags)?;
            self.fd_allocator().hide(fd)
        };
        mount
            .attach(&self.task().mounts.attaching, placeholder, |fd| self.fd_allocator().unhide(fd))
    }

    /// Returns `Kernel` if this user's absolute paths do not lead to the mount, or if it is not
    /// served.
    #[inline]
    pub(crate) fn reach_mount(&self, mount: &ServedMount) -> CallResult<()> {
        self.attach(mount)?;
        mount.check_reached()?;
        // Not by access(2), for which the kernel would ask the server.
        mount.check_reach(self.task().identity(), |path| self.task().kernel.place(path).map(drop))
    }

    /// Walks an absolute path.
    pub(crate) fn walk_absolute(
        &self,
        want: Want,
        path: &[u8],
        follow: Follow,
        creds: &Credentials,
    ) -> CallResult<Walked<'_>> {
        self.walk_from(self.skip(None, path, creds)?, want, path, follow, creds)
    }

    /// Walks the rest of `path` from its start.
    pub(crate) fn walk_from<'p>(
        &'p self,
        start: Start<'p, '_>,
        want: Want,
        path: &[u8],
        follow: Follow,
        creds: &Credentials,
    ) -> CallResult<Walked<'p>> {
        let (mut dir, rest, mut key) = (HeldInode::from(start.dir), start.rest, start.key);
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
                // The name of the mount point belongs to the file system above.
                b"" if follow == Follow::Never => return Err(CallStop::Kernel),
                b"" => {
                    let found = Some(dir.again()?);
                    let name = SmallVec::new();
                    return Ok(Walked { dir, name, last: LastComponent::Dot, slash: false, found });
                }
                b"." => LastComponent::Dot,
                b".." => LastComponent::DotDot,
                _ => LastComponent::Name,
            };
            if last == LastComponent::DotDot {
                key = None;
            } else if let Some((key, state)) = key.take_if(|_| is_last) {
                self.path_cache.keep(
                    &self.task().mounts,
                    &key,
                    (dir.mount_index, state),
                    &steps,
                    dir.ino,
                );
            } else if key.is_some() && last == LastComponent::Name {
                match dir.fs().version(dir.ino) {
                    Some(version) => steps.push((dir.ino, version)),
                    None => key = None,
                }
            }
            dir.check(creds, AccessMask::EXEC)?;
            let found = match last {
                LastComponent::Dot if !is_last => {
                    at += len;
                    continue;
                }
                LastComponent::Dot => Some(dir.again()?),
                LastComponent::DotDot if dir.ino == dir.fs().root() => {
                    return Err(CallStop::Kernel);
                }
                LastComponent::Name if slash && follow == Follow::ToCreate => {
                    return Err(Errno::ISDIR.into());
                }
                // The caller that makes or removes the name returns the error in its turn.
                _ if len > dir.mount.limits().name && is_last && follow == Follow::Never => None,
                _ if len > dir.mount.limits().name => {
                    return Err(dir.refusal(Errno::NAMETOOLONG).into());
                }
                _ => dir.child(name, if is_last { want } else { Want::Hold })?,
            };
            if found.is_none() && ServedMount::is_of_server(dir.ino, name) {
                return Err(CallStop::Kernel);
            }
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
                if links > LINKS_MAX || link.mount.flags() & mounts::ST_NOSYMFOLLOW != 0 {
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

    /// Checks `fs.protected_symlinks`: in a sticky directory that all users may write to, a walk
    /// follows only the user's own links and those of the directory's owner.
    fn may_follow(
        &self,
        dir: &HeldInode<'_>,
        link: &HeldInode<'_>,
        creds: &Credentials,
    ) -> CallResult<()> {
        let owner = link.attr()?.uid;
        if owner == creds.uid {
            return Ok(());
        }
        let dir = dir.attr()?;
        let open_to_all = dir.perm & 0o1002 == 0o1002;
        if open_to_all && dir.uid != owner && self.task().protection("protected_symlinks") != 0 {
            return Err(Errno::ACCESS.into());
        }
        Ok(())
    }

    /// Gives back the directories of the path cache: up to 64, removed or not.
    pub fn forget_paths(&self) {
        self.path_cache.clear(&self.task().mounts);
    }

    /// Finds the start of a walk: the last directory, if that is cached. `from` is the start of a
    /// relative path and the rest of its text; `None` for an absolute path.
    #[inline]
    pub(crate) fn skip<'p, 'a>(
        &'p self,
        from: Option<(InodeHold<'p>, &'a [u8])>,
        path: &'a [u8],
        creds: &Credentials,
    ) -> CallResult<Start<'p, 'a>> {
        if from.is_none() && self.foreign_namespace.load(Relaxed) {
            return Err(CallStop::Kernel);
        }
        let creds = std::ptr::from_ref(creds).addr();
        let at = from.as_ref().map(|(dir, _)| (dir.mount_index, dir.ino));
        let key = PathKey::of(from.as_ref().map_or(path, |(_, rest)| rest), at, creds);
        if let Some((key, name)) = key
            && let Some(used) = self.path_cache.find(&self.task().mounts, &key)
        {
            let dir = InodeHold::kept(self.task(), used);
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

    /// Finds the mount into which an absolute path leads by its text, and the length of that text.
    fn start_of_absolute(&self, path: &[u8]) -> CallResult<(InodeHold<'_>, usize)> {
        if self.foreign_namespace.load(Relaxed) {
            return Err(CallStop::Kernel);
        }
        let mut best: Option<(usize, &ServedMount, &[u8])> = None;
        for (i, mount) in self.task().mounts() {
            if let Some(rest) = mount.strip(path)
                && best.is_none_or(|(_, _, other)| rest.len() <= other.len())
            {
                best = Some((i, mount, rest));
            }
        }
        let (index, mount, rest) = best.ok_or(CallStop::Kernel)?;
        self.reach_mount(mount)?;
        Ok((InodeHold::root(index, mount), path.len() - rest.len()))
    }

    /// Promotes a descriptor of ours that a path names through `/proc`, as the path reaches the
    /// kernel.
    fn promote_proc(&self, path: &[u8]) -> CallResult<()> {
        if let Some((fd, _)) = proc_fd(path).filter(|(fd, _)| self.table().owns(*fd)) {
            self.promotions().promote(fd)?;
        }
        Ok(())
    }
}

/// Parses a path that starts with a descriptor of this process below `/proc` or `/dev/fd`. Returns
/// the descriptor and the rest.
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
