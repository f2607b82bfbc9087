//! Calls that make, remove and rename names. The order of checks is that of `fs/namei.c`.

use crate::attributes::check_flags;
use crate::creds::{AccessMask, Caps};
use crate::family::UNLINKABLE;
use crate::held::{HeldInode, LastComponent, ParentAndName};
use crate::lookup::Paths;
use crate::served::{CallResult, CallStop, checked};
use crate::walk::proc_fd;
use crate::{Errno, Served};
use vfs::{Attr, FileKind, NewKind, NewNode, RenameFlags};

/// The most steps upward from a directory; a search for the root then gives up.
const STEPS_MAX: u32 = 65_000;

impl ParentAndName<'_, '_> {
    /// Checks whether a name can be made here (`filename_create`). `EEXIST` if it exists; `ENOENT`
    /// if a slash follows the name of an inode that will not be a directory.
    fn check_vacant(&self, directory: bool) -> Result<(), Errno> {
        self.check_name()?;
        if self.last != LastComponent::Name || self.found.is_some() {
            return Err(Errno::EXIST);
        }
        if self.slash && !directory {
            return Err(Errno::NOENT);
        }
        self.dir.check_writable()
    }
}

/// Names and attributes: calls on what paths lead to.
pub struct Names {
    paths: Paths,
}

impl Names {
    pub(crate) fn new(paths: Paths) -> Self {
        Self { paths }
    }

    #[inline(always)]
    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Creates a name in a directory, after a check of permissions. Returns attributes of the new
    /// inode, to which the caller gets a reference. Fills in `node.umask`.
    pub(crate) fn create(
        &self,
        dir: &HeldInode<'_>,
        name: &[u8],
        node: NewNode<'_>,
    ) -> CallResult<Attr> {
        let creds = &self.task().identity().effective;
        dir.check_create(creds)?;
        let umask = self.task().current_umask();
        let mut mode = node.mode;
        if mode & 0o2010 == 0o2010 {
            mode = creds.strip_setgid(dir.attr()?, mode);
        }
        let node = NewNode { mode, umask, ..node };
        Ok(dir.fs().create(&creds.caller(), dir.ino, name, &node)?)
    }

    /// Runs `act` with the place of a name that can be made. `arguments` is the error of the call's
    /// other arguments, if any.
    fn at_vacancy(
        &self,
        dirfd: i32,
        path: &[u8],
        (directory, arguments): (bool, Result<(), Errno>),
        act: impl FnOnce(ParentAndName<'_, '_>) -> CallResult<()>,
    ) -> CallResult<()> {
        self.paths().at_parent(dirfd, path, |at| {
            let at = checked(at, arguments)?;
            at.check_vacant(directory)?;
            act(at)
        })
    }

    fn make(&self, at: ParentAndName<'_, '_>, node: NewNode<'_>) -> CallResult<()> {
        let made = self.create(at.dir, at.name, node)?;
        at.dir.fs().forget(made.ino, 1);
        Ok(())
    }

    /// `mkdir`, `mkdirat`.
    pub fn mkdir(&self, dirfd: i32, path: &[u8], mode: u32) -> Served<()> {
        let node = NewNode { kind: NewKind::Dir, mode: mode & 0o1777, umask: 0 };
        let call = |at: ParentAndName<'_, '_>| self.make(at, node);
        self.at_vacancy(dirfd, path, (true, Ok(())), call).into()
    }

    /// `mknod`, `mknodat`, `mkfifo`.
    pub fn mknod(&self, dirfd: i32, path: &[u8], mode: u32, dev: u64) -> Served<()> {
        self.mknod_call(dirfd, path, mode, dev).into()
    }

    fn mknod_call(&self, dirfd: i32, path: &[u8], mode: u32, dev: u64) -> CallResult<()> {
        let number = dev as u32;
        let kind = match FileKind::from_mode(mode) {
            None if mode & libc::S_IFMT == 0 => Ok(NewKind::File),
            Some(FileKind::File) => Ok(NewKind::File),
            Some(FileKind::Fifo) => Ok(NewKind::Fifo),
            Some(FileKind::Socket) => Ok(NewKind::Socket),
            Some(FileKind::Char) => Ok(NewKind::Char(number)),
            Some(FileKind::Block) => Ok(NewKind::Block(number)),
            Some(FileKind::Dir) => Err(Errno::PERM),
            Some(FileKind::Symlink) | None => Err(Errno::INVAL),
        };
        self.at_vacancy(dirfd, path, (false, kind.map(drop)), |at| {
            let kind = kind?;
            let device = match kind {
                NewKind::Block(_) => true,
                // The white-out of overlay file systems belongs to no device.
                NewKind::Char(number) => number != 0,
                _ => false,
            };
            if device && !self.task().identity().effective.can(Caps::MKNOD) {
                at.dir.check_create(&self.task().identity().effective)?;
                return Err(at.dir.refusal(Errno::PERM).into());
            }
            let node = NewNode { kind, mode: mode & 0o7777, umask: 0 };
            self.make(at, node)
        })
    }

    /// `symlink`, `symlinkat`.
    pub fn symlink(&self, target: &[u8], dirfd: i32, path: &[u8]) -> Served<()> {
        let arguments = match target.len() {
            0 => Err(Errno::NOENT),
            len if len > vfs::Limits::MAX.symlink => Err(Errno::NAMETOOLONG),
            _ => Ok(()),
        };
        let node = NewNode { kind: NewKind::Symlink(target), mode: 0o777, umask: 0 };
        let call = |at: ParentAndName<'_, '_>| self.make(at, node);
        self.at_vacancy(dirfd, path, (false, arguments), call).into()
    }

    /// `readlink`, `readlinkat`. Writes the target, cut to the length of `buf`. Returns the number
    /// of bytes.
    pub fn readlink(&self, dirfd: i32, path: &[u8], buf: &mut [u8]) -> Served<usize> {
        let mut call = || {
            let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
            let room = if buf.is_empty() { Err(Errno::INVAL) } else { Ok(()) };
            let held = checked(self.paths().find(dirfd, path, flags), room)?;
            if held.kind != FileKind::Symlink {
                let what = if path.is_empty() { Errno::NOENT } else { Errno::INVAL };
                return Err(what.into());
            }
            let target = held.fs().readlink(held.ino)?;
            let len = target.len().min(buf.len());
            buf[..len].copy_from_slice(&target[..len]);
            Ok(len)
        };
        CallResult::into(call())
    }

    /// `link` (flags 0), `linkat`.
    pub fn link(
        &self,
        from_dirfd: i32,
        from: &[u8],
        to_dirfd: i32,
        to: &[u8],
        flags: i32,
    ) -> Served<()> {
        self.link_call(from_dirfd, from, to_dirfd, to, flags).into()
    }

    fn link_call(
        &self,
        from_dirfd: i32,
        from: &[u8],
        to_dirfd: i32,
        to: &[u8],
        flags: i32,
    ) -> CallResult<()> {
        // By a descriptor, the kernel checks which user has opened it.
        let is_by_fd = from_dirfd != libc::AT_FDCWD && from.first() != Some(&b'/');
        let may_be_anothers = self.task().identities.have_changed()
            && !self.task().identity().effective.can(Caps::DAC_READ_SEARCH);
        if flags & libc::AT_EMPTY_PATH != 0 && is_by_fd && may_be_anothers {
            return Err(CallStop::Kernel);
        }
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let by_fd = if from.is_empty() {
            Some(from_dirfd).filter(|fd| flags & libc::AT_EMPTY_PATH != 0 && *fd >= 0)
        } else {
            // A path below `/proc` names a file of `O_TMPFILE` (open(2)).
            proc_fd(from).filter(|(_, rest)| follow && rest.is_empty()).map(|(fd, _)| fd)
        };
        let (source, is_unlinkable) = match by_fd {
            Some(fd) => {
                let ofd = self.table().get(fd)?;
                let is_unlinkable = ofd.is(UNLINKABLE);
                (Ok(HeldInode::description(self.task(), ofd)), is_unlinkable)
            }
            None => {
                let nofollow = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                (self.paths().find(from_dirfd, from, nofollow | flags & libc::AT_EMPTY_PATH), false)
            }
        };
        let known = libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH;
        let source = checked(source, check_flags(flags, known))?;
        self.at_vacancy(to_dirfd, to, (false, Ok(())), |at| {
            if at.dir.mount_index != source.mount_index {
                return Err(at.dir.refusal(Errno::XDEV).into());
            }
            self.may_link(&source).map_err(|errno| at.dir.refusal(errno))?;
            at.dir.check_create(&self.task().identity().effective)?;
            if source.kind == FileKind::Dir {
                return Err(at.dir.refusal(Errno::PERM).into());
            }
            if is_unlinkable {
                return Err(Errno::NOENT.into());
            }
            let linked = at.dir.fs().link(source.ino, at.dir.ino, at.name)?;
            at.dir.fs().forget(linked.ino, 1);
            Ok(())
        })
    }

    /// Checks `fs.protected_hardlinks`: a user may link its own inodes, and harmless files that it
    /// may read and write.
    fn may_link(&self, source: &HeldInode<'_>) -> Result<(), Errno> {
        let creds = &self.task().identity().effective;
        let attr = source.attr()?;
        if creds.owns(attr) || self.task().protection("protected_hardlinks") == 0 {
            return Ok(());
        }
        let harmless = attr.kind == FileKind::File
            && attr.perm & 0o4000 == 0
            && attr.perm & 0o2010 != 0o2010
            && creds.check(source.fs(), attr, AccessMask::READ | AccessMask::WRITE).is_ok();
        if harmless { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Checks whether the caller may take a name out of `dir` (`may_delete`).
    fn may_delete(&self, dir: &HeldInode<'_>, victim: &Attr) -> Result<(), Errno> {
        let creds = &self.task().identity().effective;
        dir.check(creds, AccessMask::WRITE | AccessMask::EXEC)?;
        if creds.can(Caps::FOWNER) { Ok(()) } else { creds.check_sticky(dir.attr()?, victim) }
    }

    /// `unlink`, `rmdir` (`AT_REMOVEDIR`), `unlinkat`.
    pub fn unlink(&self, dirfd: i32, path: &[u8], flags: i32) -> Served<()> {
        let arguments = check_flags(flags, libc::AT_REMOVEDIR);
        self.paths()
            .at_parent(dirfd, path, |at| self.unlink_at(checked(at, arguments)?, flags))
            .into()
    }

    /// Removes a name, in the order of checks of the kernel. With `AT_REMOVEDIR`, removes a
    /// directory.
    fn unlink_at(&self, at: ParentAndName<'_, '_>, flags: i32) -> CallResult<()> {
        let ParentAndName { dir, name, last, slash, found } = at;
        let directory = flags & libc::AT_REMOVEDIR != 0;
        match last {
            LastComponent::Name => {}
            _ if !directory => return Err(Errno::ISDIR.into()),
            LastComponent::Dot => return Err(Errno::INVAL.into()),
            LastComponent::DotDot => return Err(Errno::NOTEMPTY.into()),
        }
        dir.check_writable()?;
        at.check_name()?;
        let found = found.ok_or(Errno::NOENT)?;
        if slash && !directory {
            let is_dir = found.kind == FileKind::Dir;
            return Err(if is_dir { Errno::ISDIR } else { Errno::NOTDIR }.into());
        }
        self.may_delete(dir, found.attr()?)?;
        match (directory, found.kind == FileKind::Dir) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            _ => {}
        }
        let fs = dir.fs();
        let remove = if directory { fs.rmdir(dir.ino, name) } else { fs.unlink(dir.ino, name) };
        Ok(remove?)
    }

    /// `rename`, `renameat`, `renameat2`.
    pub fn rename(
        &self,
        from_dirfd: i32,
        from: &[u8],
        to_dirfd: i32,
        to: &[u8],
        flags: u32,
    ) -> Served<()> {
        self.paths()
            .at_parent(from_dirfd, from, |from| {
                self.paths().at_parent(to_dirfd, to, |to| self.rename_at(from, to, flags))
            })
            .into()
    }

    /// Renames, in the order of checks of the kernel. `EXDEV` between mounts.
    fn rename_at(
        &self,
        from: CallResult<ParentAndName<'_, '_>>,
        to: CallResult<ParentAndName<'_, '_>>,
        flags: u32,
    ) -> CallResult<()> {
        if matches!(from, Err(CallStop::Kernel)) || matches!(to, Err(CallStop::Kernel)) {
            return Err(CallStop::Kernel);
        }
        let leaves_whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let flags = RenameFlags::from_bits(flags & !libc::RENAME_WHITEOUT).ok_or(Errno::INVAL)?;
        let swaps = flags.contains(RenameFlags::EXCHANGE);
        if swaps && (leaves_whiteout || flags != RenameFlags::EXCHANGE) {
            return Err(Errno::INVAL.into());
        }
        let (from, to) = (from?, to?);
        if from.dir.mount_index != to.dir.mount_index {
            return Err(Errno::XDEV.into());
        }
        if from.last != LastComponent::Name {
            return Err(Errno::BUSY.into());
        }
        if to.last != LastComponent::Name {
            let exists = flags == RenameFlags::NOREPLACE;
            return Err(if exists { Errno::EXIST } else { Errno::BUSY }.into());
        }
        from.dir.check_writable()?;
        from.check_name()?;
        let source = from.found.ok_or(Errno::NOENT)?;
        to.check_name()?;
        self.rename_found(from, source, to, flags, leaves_whiteout).map_err(|stop| match stop {
            // The kernel has looked up the new name before, which fails in a removed directory.
            CallStop::Errno(errno) if to.found.is_none() => to.dir.refusal(errno).into(),
            stop => stop,
        })
    }

    /// Renames an inode that was found.
    fn rename_found(
        &self,
        from: ParentAndName<'_, '_>,
        source: &HeldInode<'_>,
        to: ParentAndName<'_, '_>,
        flags: RenameFlags,
        leaves_whiteout: bool,
    ) -> CallResult<()> {
        let exchange = flags == RenameFlags::EXCHANGE;
        match to.found {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EXIST.into()),
            None if exchange => return Err(Errno::NOENT.into()),
            Some(target) if exchange && to.slash && target.kind != FileKind::Dir => {
                return Err(Errno::NOTDIR.into());
            }
            _ => {}
        }
        if source.kind != FileKind::Dir && (from.slash || !exchange && to.slash) {
            return Err(Errno::NOTDIR.into());
        }
        let target = to.found;
        let crosses = from.dir.ino != to.dir.ino;
        if crosses {
            self.check_not_above(source, to.dir, Errno::INVAL)?;
            if let Some(target) = target {
                let what = if exchange { Errno::INVAL } else { Errno::NOTEMPTY };
                self.check_not_above(target, from.dir, what)?;
            }
        }
        if target.is_some_and(|target| target.ino == source.ino) {
            return Ok(());
        }
        let creds = &self.task().identity().effective;
        self.may_delete(from.dir, source.attr()?)?;
        match target {
            None => to.dir.check_create(creds)?,
            Some(target) => {
                self.may_delete(to.dir, target.attr()?)?;
                match (source.kind == FileKind::Dir, target.kind == FileKind::Dir) {
                    _ if exchange => {}
                    (true, false) => return Err(Errno::NOTDIR.into()),
                    (false, true) => return Err(Errno::ISDIR.into()),
                    _ => {}
                }
            }
        }
        // A directory that moves gets another `..`, so it changes, too.
        let moved = [Some(source), target.filter(|_| exchange)];
        for dir in moved.into_iter().flatten().filter(|m| crosses && m.kind == FileKind::Dir) {
            dir.check(creds, AccessMask::WRITE)?;
        }
        let (from_name, to_name) = ((from.dir.ino, from.name), (to.dir.ino, to.name));
        let fs = from.dir.fs();
        match leaves_whiteout {
            true => fs.rename_whiteout(&creds.caller(), from_name, to_name, flags)?,
            false => fs.rename(from_name, to_name, flags)?,
        }
        Ok(())
    }

    /// Fails with `what` if `inode` is `dir` or above it. The engine checks that again; here it
    /// comes before permissions, as in the kernel.
    fn check_not_above(
        &self,
        inode: &HeldInode<'_>,
        dir: &HeldInode<'_>,
        what: Errno,
    ) -> Result<(), Errno> {
        if inode.kind != FileKind::Dir {
            return Ok(());
        }
        let fs = dir.fs();
        let mut at = dir.ino;
        let mut steps = 0;
        while at != fs.root() && steps < STEPS_MAX {
            if at == inode.ino {
                return Err(what);
            }
            let parent = fs.peek(at, b"..")?.ino;
            at = parent;
            steps += 1;
        }
        Ok(())
    }
}
