//! Opening, closing and duplicating.
//!
//! - **descriptors-D1** The number is the kernel's: a duplicate of a placeholder opened with `O_PATH`. Lowest
//!   free number, close-on-exec and limits are its business (parked-N1–N4 in `parked`).
//! - **descriptors-D2** An entry of the table is emptied before its number is closed or parked and filled after it
//!   was opened, so that it never refers to somebody else's descriptor.

use crate::creds::{Access, Caps};
use crate::family::{HIDDEN, Handle, ON_KERNEL, OfdInit, PARKED, PROMOTED, UNLINKABLE, described};
use crate::mount::Mount;
use crate::noted::Why;
use crate::parked::NewFd;
use crate::process::{OfdRef, Process, TableLock};
use crate::served::{Call, Stop, checked};
use crate::walk::{Follow, Held, Last, Place, Walked, Want};
use crate::{Errno, Served};
use std::sync::atomic::Ordering::*;
use vfs::rules::{S_ISGID, S_ISUID};
use vfs::{Attr, FileKind, FileSystem, NewKind, NewNode, SetAttr};

/// `__O_TMPFILE` without the `O_DIRECTORY` that goes with it.
const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// What `F_SETFL` changes.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME;
/// What a description remembers besides: access mode, and what `F_GETFL` shows.
const SHOWN: i32 = libc::O_ACCMODE
    | SETTABLE
    | libc::O_SYNC
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_PATH
    | TMPFILE;
/// `O_LARGEFILE` of the kernel, which it adds by itself.
#[cfg(target_arch = "x86_64")]
const LARGEFILE: i32 = 0o100000;
#[cfg(target_arch = "aarch64")]
const LARGEFILE: i32 = 0o400000;

fn wants_read(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
}

fn wants_write(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

/// What opening an existing inode asks for.
fn open_access(flags: i32) -> Access {
    let mut want = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::READ,
        libc::O_WRONLY => Access::WRITE,
        _ => Access::READ | Access::WRITE,
    };
    if flags & libc::O_TRUNC != 0 {
        want |= Access::WRITE;
    }
    want
}

fn new_file(mode: u32) -> NewNode<'static> {
    NewNode { kind: NewKind::File, mode: mode & 0o7777, umask: 0 }
}

/// `EINVAL` for flags that contradict each other.
fn check_open_flags(flags: i32) -> Result<(), Errno> {
    let directory = flags & libc::O_DIRECTORY != 0;
    let tmpfile = flags & TMPFILE != 0;
    let bad = directory && flags & libc::O_CREAT != 0
        || tmpfile && !(directory && flags & libc::O_ACCMODE != libc::O_RDONLY);
    if bad { Err(Errno::INVAL) } else { Ok(()) }
}

impl OfdRef<'_> {
    /// Whether it was opened for reading.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.oflags() & libc::O_PATH == 0 && wants_read(self.oflags())
    }

    /// Whether it was opened for writing.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.oflags() & libc::O_PATH == 0 && wants_write(self.oflags())
    }

    /// Whether what is written has to be durable when the call returns (`O_DSYNC`, of which `O_SYNC` is more).
    #[inline]
    pub fn writes_durably(&self) -> bool {
        self.oflags() & libc::O_DSYNC != 0
    }
}

impl Process {
    /// `open`, `openat`, `creat`. Pipes, sockets and devices are the kernel's.
    pub fn open(&self, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Served<i32> {
        self.open_call(dirfd, path, flags, mode).into()
    }

    fn open_call(&self, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Call<i32> {
        let flags = if flags & libc::O_PATH != 0 {
            flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        } else {
            flags
        };
        let creates = flags & (libc::O_CREAT | TMPFILE) != 0;
        let changes = creates || flags & libc::O_TRUNC != 0;
        let exclusive = libc::O_CREAT | libc::O_EXCL;
        let nofollow = flags & libc::O_NOFOLLOW != 0 || flags & exclusive == exclusive;
        let follow = match (flags & libc::O_CREAT != 0, nofollow) {
            (true, true) => Follow::Never,
            (true, false) => Follow::ToCreate,
            (false, true) => Follow::BeforeSlash,
            (false, false) => Follow::Always,
        };
        let arguments = check_open_flags(flags);
        if changes && !self.family.has_room() {
            return Err(Stop::Kernel);
        }
        let mut attr = Attr::NONE;
        if let (false, Ok(())) = (creates, arguments)
            && let Some(found) = self.lookup_fast(dirfd, path, &mut attr)
        {
            return self.open_found(found?, &attr, flags);
        }
        if let (true, Ok(())) = (flags & libc::O_CREAT != 0, arguments) {
            let create =
                |at: Place<'_, '_>| at.found.is_none().then(|| self.open_new(at, flags, mode));
            match self.at_cached_place(dirfd, path, create) {
                None | Some(Err(Stop::Errno(Errno::EXIST))) => {}
                Some(opened) => return opened,
            }
        }
        loop {
            let walked = self.walk(Want::Hold, dirfd, path, follow, &self.identity().effective);
            let walked = checked(walked, arguments)?;
            // As the kernel: without a free number nothing is created.
            let early = if creates { Some(self.fd_for(&walked.dir, flags)?) } else { None };
            let held = if flags & TMPFILE != 0 {
                self.open_tmpfile(walked, mode)?
            } else if flags & libc::O_CREAT != 0 {
                match self.open_or_create(walked, flags, mode)? {
                    Some(held) => held,
                    None => continue,
                }
            } else {
                let held = walked.existing()?;
                let (mount_index, attr) = (held.mount_index, *held.attr()?);
                held.into_reference()?;
                return self.open_found(mount_index, &attr, flags);
            };
            let (mount_index, attr) = (held.mount_index, *held.attr()?);
            held.into_reference()?;
            return self.open_referred(mount_index, &attr, early, flags);
        }
    }

    /// Creates a file and opens it.
    fn open_new(&self, at: Place<'_, '_>, flags: i32, mode: u32) -> Call<i32> {
        // As the kernel: without a free number nothing is created.
        let number = self.fd_for(at.dir, flags)?;
        let attr = self.create(at.dir, at.name, new_file(mode))?;
        self.open_referred(at.dir.mount_index, &attr, Some(number), flags)
    }

    /// Opens what is there, to which it takes over a reference.
    fn open_found(&self, mount_index: usize, attr: &Attr, flags: i32) -> Call<i32> {
        let mount = self.mount(mount_index);
        let early = || {
            let truncates = flags & libc::O_TRUNC != 0;
            // As the kernel: without a free number nothing is truncated.
            let early = truncates.then(|| self.fd_below((mount_index, mount), flags));
            let early = early.transpose()?;
            self.may_open(mount, attr, flags)?;
            Ok(early)
        };
        let early: Call<_> = early();
        let early = early.inspect_err(|_| mount.attached().fs.forget(attr.ino, 1))?;
        self.open_referred(mount_index, attr, early, flags)
    }

    /// Gives a number a description of an inode, to which it takes over a reference.
    fn open_referred(
        &self,
        mount_index: usize,
        attr: &Attr,
        early: Option<NewFd<'_>>,
        flags: i32,
    ) -> Call<i32> {
        let mount = self.mount(mount_index);
        let give_back = || mount.attached().fs.forget(attr.ino, 1);
        let path_only = flags & libc::O_PATH != 0;
        let tmpfile_exclusive = flags & TMPFILE != 0 && flags & libc::O_EXCL != 0;
        let init = OfdInit {
            mount: mount_index as u32,
            ino: attr.ino,
            generation: attr.generation,
            kind: attr.kind,
            flags: flags & SHOWN | if path_only { 0 } else { LARGEFILE },
            state: if tmpfile_exclusive { UNLINKABLE } else { 0 },
        };
        let ofd = self.describe(&init).map_err(|errno| {
            give_back();
            // What the family has no room for, the kernel has.
            if errno == Errno::NFILE && early.is_none() { Stop::Kernel } else { errno.into() }
        })?;
        let table = self.lock_table();
        let number = match early {
            Some(number) => number,
            None => self.take_fd(&table, (mount_index, mount), flags & libc::O_CLOEXEC != 0)?,
        };
        let fd = number.into_fd();
        let before = self.install(&table, fd, ofd, 0);
        drop((table, before));
        self.promote_new_stream(fd)?;
        Ok(fd)
    }

    /// Promotes what has become standard input, output or error: libc reads and writes there without asking
    /// us. It does so with files only.
    fn promote_stream(&self, fd: i32, ofd: &OfdRef<'_>) -> Result<(), Errno> {
        let is_file = ofd.kind() == FileKind::File && ofd.oflags() & libc::O_PATH == 0;
        if fd <= 2 && is_file { self.promote_ofd(ofd) } else { Ok(()) }
    }

    /// [`promote_stream`](Self::promote_stream) for a number that the program does not know yet: it is closed where
    /// that fails.
    fn promote_new_stream(&self, fd: i32) -> Result<(), Errno> {
        if fd > 2 {
            return Ok(());
        }
        let Ok(ofd) = self.get(fd) else { return Ok(()) };
        self.promote_stream(fd, &ofd).inspect_err(|_| {
            let _ = self.close(fd);
        })
    }

    /// A number for what is opened below a directory.
    fn fd_for(&self, dir: &Held<'_>, flags: i32) -> Call<NewFd<'_>> {
        self.fd_below((dir.mount_index, dir.mount), flags)
    }

    /// A number for what is opened below a mount.
    fn fd_below(&self, mount: (usize, &Mount), flags: i32) -> Call<NewFd<'_>> {
        self.take_fd(&self.lock_table(), mount, flags & libc::O_CLOEXEC != 0)
    }

    /// `may_open`, and `O_TRUNC`.
    fn may_open(&self, mount: &Mount, attr: &Attr, flags: i32) -> Call<()> {
        let directory = attr.kind == FileKind::Dir;
        if flags & libc::O_DIRECTORY != 0 && !directory {
            return Err(Errno::NOTDIR.into());
        }
        if flags & libc::O_PATH != 0 {
            return Ok(());
        }
        let want = open_access(flags);
        match attr.kind {
            FileKind::Symlink => return Err(Errno::LOOP.into()),
            FileKind::Dir if want.contains(Access::WRITE) => return Err(Errno::ISDIR.into()),
            FileKind::Dir | FileKind::File => {}
            FileKind::Fifo | FileKind::Socket | FileKind::Char | FileKind::Block => {
                return Err(Stop::Kernel);
            }
        }
        let creds = &self.identity().effective;
        mount.check(creds, attr, want)?;
        if want.contains(Access::WRITE) {
            mount.check_not_executed(attr.ino)?;
        }
        if flags & libc::O_NOATIME != 0 && !creds.owns(attr) {
            return Err(Errno::PERM.into());
        }
        if flags & libc::O_TRUNC != 0 {
            mount.check_unmapped(attr.ino)?;
            let fs = mount.attached().fs.as_ref();
            self.drop_privileges(fs, attr)?;
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&creds.caller(), attr.ino, &set)?;
            // Where a mapping began meanwhile, the kernel does it once more.
            mount.check_unmapped(attr.ino)?;
        }
        Ok(())
    }

    /// What `O_CREAT` opens; `None` where somebody else was faster and the walk has to start over.
    fn open_or_create<'p>(
        &'p self,
        walked: Walked<'p>,
        flags: i32,
        mode: u32,
    ) -> Call<Option<Held<'p>>> {
        if walked.slash && walked.last == Last::Name {
            return Err(Errno::ISDIR.into());
        }
        walked.place().check_name()?;
        match walked.found {
            Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::EXIST.into()),
            Some(held) if held.kind == FileKind::Dir => Err(Errno::ISDIR.into()),
            Some(held) => {
                self.may_create_over(&walked.dir, &held)?;
                self.may_open(held.mount, held.attr()?, flags)?;
                Ok(Some(held))
            }
            None => match self.create(&walked.dir, &walked.name, new_file(mode)) {
                Ok(attr) => Ok(Some(walked.dir.beside(attr))),
                Err(Stop::Errno(Errno::EXIST)) if flags & libc::O_EXCL == 0 => Ok(None),
                Err(stop) => Err(stop),
            },
        }
    }

    /// `fs.protected_regular`: `O_CREAT` does not open what others put into a sticky directory. A
    /// symbolic link (`O_NOFOLLOW`) is refused as at level 1.
    fn may_create_over(&self, dir: &Held<'_>, found: &Held<'_>) -> Result<(), Errno> {
        if !matches!(found.kind, FileKind::File | FileKind::Symlink) {
            return Ok(());
        }
        let (dir, owner) = (dir.attr()?, found.attr()?.uid);
        let sticky = dir.perm & 0o1000 != 0;
        if !sticky || owner == dir.uid || owner == self.identity().effective.uid {
            return Ok(());
        }
        let level = match found.kind {
            FileKind::Symlink => 1,
            _ => self.protection("protected_regular"),
        };
        let applies = level >= 1 && dir.perm & 0o002 != 0 || level >= 2 && dir.perm & 0o020 != 0;
        if applies { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// Creates a name in a directory that the caller must be allowed to change, and gives him a reference
    /// to what it names. `node.umask` is filled in.
    pub(crate) fn create(&self, dir: &Held<'_>, name: &[u8], node: NewNode<'_>) -> Call<Attr> {
        let creds = &self.identity().effective;
        dir.check_create(creds)?;
        let umask = self.umask.load(Relaxed);
        let mut mode = node.mode;
        if mode & 0o2010 == 0o2010 {
            mode = creds.strip_setgid(dir.attr()?, mode);
        }
        let node = NewNode { mode, umask, ..node };
        Ok(dir.fs().create(&creds.caller(), dir.ino, name, &node)?)
    }

    fn open_tmpfile<'p>(&'p self, walked: Walked<'p>, mode: u32) -> Call<Held<'p>> {
        let dir = walked.existing()?;
        if dir.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        let creds = &self.identity().effective;
        dir.check(creds, Access::WRITE | Access::EXEC)?;
        let mode = creds.strip_setgid(dir.attr()?, mode & 0o7777);
        let umask = self.umask.load(Relaxed);
        Ok(dir.beside(dir.fs().tmpfile(&creds.caller(), dir.ino, mode, umask)?))
    }

    /// `close`.
    pub fn close(&self, fd: i32) -> Served<()> {
        self.close_call(fd).into()
    }

    fn close_call(&self, fd: i32) -> Call<()> {
        let entry = self.entry(fd).ok_or(Stop::Kernel)?;
        match entry.load(Relaxed) {
            0 => return Err(Stop::Kernel),
            HIDDEN | PARKED => return Err(Errno::BADF.into()),
            _ => {}
        }
        let table = self.lock_table();
        self.drop_locks(&table, fd);
        let _ofd = self.uninstall(&table, fd).ok_or(Stop::Kernel)?;
        let closed = self.give_fd(&table, fd);
        drop(table);
        Ok(closed?)
    }

    /// Closing any description of an inode, but those of `O_PATH`, ends this process's POSIX locks on it. To be
    /// called with the table locked, while the entry is still that of what is closed.
    fn drop_locks(&self, table: &TableLock<'_>, fd: i32) {
        if self.noted.is_empty() {
            return;
        }
        let entry = self.entry(fd).map_or(0, |entry| entry.load(Acquire));
        let Some(handle) = described(entry) else { return };
        let ofd = self.family.ofd(handle);
        let (mount, ino) = (ofd.mount(), ofd.ino());
        if ofd.oflags() & libc::O_PATH != 0 || !self.noted.remove(mount, ino, Why::Locks) {
            return;
        }
        let mut ended = entry & ON_KERNEL != 0;
        while let Some(kept) = self.noted.take_kept(mount, ino) {
            self.unhide(kept);
            ended = true;
        }
        if !ended {
            self.end_locks(table, ofd);
        }
    }

    /// `close_range`, with or without `CLOSE_RANGE_CLOEXEC`. Descriptors of our own stay.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Served<()> {
        self.close_range_call(first, last, flags).into()
    }

    fn close_range_call(&self, first: u32, last: u32, flags: u32) -> Call<()> {
        let end = self.fd_end() as u32;
        let known = libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE;
        if first > last || first >= end || flags & !known != 0 {
            return Err(Stop::Kernel);
        }
        if flags & libc::CLOSE_RANGE_UNSHARE != 0 {
            // Above every number: nothing is closed, but descriptors are this thread's own now.
            self.kernel.close_range(u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
        }
        self.unpark();
        let flags = flags & libc::CLOSE_RANGE_CLOEXEC;
        self.forget_fd_records(first as i32..last.min(end - 1) as i32 + 1);
        if flags == 0 {
            for fd in first..=last.min(end - 1) {
                let _ = self.close_call(fd as i32);
            }
        }
        self.close_range_in_kernel(first, last, flags)?;
        if flags == 0 {
            self.fd_freed(first as i32);
        }
        Ok(())
    }

    /// `close_range` of what the kernel has, but for descriptors of our own: all that a process does which shares this
    /// one's table of descriptors, but not its memory.
    pub fn close_range_in_kernel(&self, first: u32, last: u32, flags: u32) -> Result<(), Errno> {
        let end = self.fd_end() as u32;
        let mut from = first;
        for fd in (first..end.min(last.saturating_add(1))).filter(|&fd| self.hides(fd as i32)) {
            if from < fd {
                self.kernel.close_range(from, fd - 1, flags)?;
            }
            from = fd + 1;
        }
        if from <= last {
            self.kernel.close_range(from, last, flags)?;
        }
        Ok(())
    }

    /// Whether a number is that of a descriptor of our own. A process that shares this one's table of descriptors
    /// may ask as long as this one lives; then there are none.
    pub fn hides(&self, fd: i32) -> bool {
        self.entry(fd).is_some_and(|entry| entry.load(Acquire) == HIDDEN)
            && self.family.is_own(self.place())
    }

    /// `dup`.
    pub fn dup(&self, fd: i32) -> Served<i32> {
        self.dup_from(fd, 0, false).into()
    }

    /// `F_DUPFD` and `F_DUPFD_CLOEXEC`.
    fn dup_from(&self, fd: i32, min: i32, cloexec: bool) -> Call<i32> {
        let ofd = self.get(fd)?;
        let table = self.lock_table();
        self.unpark_all(&table);
        let new = if min == 0 {
            self.parked.raise(|| self.kernel.dup(fd, 0, cloexec))?
        } else {
            self.kernel.dup(fd, min, cloexec)?
        };
        if self.entry(new).is_none() {
            let _ = self.close_fd(new);
            drop(table);
            // The number is beyond our table: it is the kernel's.
            self.promote_ofd(&ofd)?;
            return Err(Stop::Kernel);
        }
        self.copy_fd_record(fd, new, cloexec);
        let before = self.install(&table, new, ofd, self.on_kernel(fd));
        drop((table, before));
        self.promote_new_stream(new)?;
        Ok(new)
    }

    /// [`ON_KERNEL`] if a number is a duplicate of the kernel's description. To be asked with the table locked.
    fn on_kernel(&self, fd: i32) -> Handle {
        self.entry(fd).map_or(0, |entry| entry.load(Acquire) & ON_KERNEL)
    }

    /// `dup2`. `old`, `new`, both or neither may be ours.
    pub fn dup2(&self, old: i32, new: i32) -> Served<i32> {
        if old == new {
            return self.get(old).map(|_| new).into();
        }
        self.dup_to(old, new, false).into()
    }

    /// `dup3`.
    pub fn dup3(&self, old: i32, new: i32, flags: i32) -> Served<i32> {
        if old == new || flags & !libc::O_CLOEXEC != 0 {
            return Served::Kernel;
        }
        self.dup_to(old, new, flags & libc::O_CLOEXEC != 0).into()
    }

    fn dup_to(&self, old: i32, new: i32, cloexec: bool) -> Call<i32> {
        if new < 0 {
            return self.get(old).and(Err(Errno::BADF.into()));
        }
        self.unpark();
        if self.entry(new).is_some_and(|entry| entry.load(Acquire) == HIDDEN) {
            self.relocate(new)?;
            // What has moved is there still, unseen.
            let put_over = self.put_over(old, new, cloexec, true);
            return put_over.inspect_err(|_| {
                let _ = self.close_fd(new);
            });
        }
        let is_ours = self.owns(new);
        self.put_over(old, new, cloexec, is_ours)
    }

    /// Makes `new`, which the library knows if it `is_ours`, a duplicate of `old`.
    fn put_over(&self, old: i32, new: i32, cloexec: bool, is_ours: bool) -> Call<i32> {
        let ofd = match self.get(old) {
            Ok(ofd) => ofd,
            Err(Stop::Kernel) if is_ours => {
                let table = self.lock_table();
                self.kernel.dup3(old, new, cloexec)?;
                self.drop_locks(&table, new);
                self.forget_fd_records(new..new + 1);
                let before = self.uninstall(&table, new);
                drop((table, before));
                return Ok(new);
            }
            Err(stop) => return Err(stop),
        };
        if self.entry(new).is_none() {
            self.promote_ofd(&ofd)?;
            return Err(Stop::Kernel);
        }
        self.promote_stream(new, &ofd)?;
        let table = self.lock_table();
        self.kernel.dup3(old, new, cloexec)?;
        self.drop_locks(&table, new);
        self.copy_fd_record(old, new, cloexec);
        let before = self.install(&table, new, ofd, self.on_kernel(old));
        drop((table, before));
        Ok(new)
    }

    /// The program wants the number of a descriptor of our own: that one moves.
    fn relocate(&self, fd: i32) -> Call<()> {
        let _table = self.lock_table();
        let Some(entry) = self.entry(fd).filter(|entry| entry.load(Acquire) == HIDDEN) else {
            return Ok(());
        };
        let moved = self.kernel.dup(fd, fd + 1, true)?;
        let placeholder = self.mounts().find(|(_, mount)| mount.placeholder() == fd);
        let capability = self.mounts().find(|(_, mount)| mount.capability() == Some(Some(fd)));
        if let Some((_, mount)) = placeholder {
            mount.move_placeholder(moved);
        } else if let Some((_, mount)) = capability {
            mount.set_capability(Some(moved));
        } else if !self.noted.move_kept(fd, moved) {
            // Given to `hide` by the front end, which knows it by its number.
            let _ = self.kernel.close(moved);
            return Err(Errno::BADF.into());
        }
        self.mark_hidden(moved);
        entry.store(0, Release);
        Ok(())
    }

    /// `fcntl` without a pointer argument: `F_DUPFD*`, `F_*FD`, `F_*FL`, `F_GETLEASE`…
    pub fn fcntl(&self, fd: i32, cmd: i32, arg: libc::c_long) -> Served<i32> {
        self.fcntl_call(fd, cmd, arg).into()
    }

    fn fcntl_call(&self, fd: i32, cmd: i32, arg: libc::c_long) -> Call<i32> {
        let ofd = self.get(fd)?;
        let path_only = ofd.oflags() & libc::O_PATH != 0;
        match cmd {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let min = i32::try_from(arg).map_err(|_| Errno::INVAL)?;
                drop(ofd);
                self.dup_from(fd, min, cmd == libc::F_DUPFD_CLOEXEC)
            }
            // The kernel keeps this flag on the number (descriptors-D1).
            libc::F_GETFD => Ok(if self.kernel.is_cloexec(fd)? { libc::FD_CLOEXEC } else { 0 }),
            libc::F_SETFD => {
                let cloexec = arg as i32 & libc::FD_CLOEXEC != 0;
                let _table = self.lock_table();
                self.kernel.set_cloexec(fd, cloexec)?;
                self.copy_fd_record(fd, fd, cloexec);
                Ok(0)
            }
            libc::F_GETFL => Ok(ofd.oflags()),
            _ if path_only => Err(Errno::BADF.into()),
            libc::F_SETFL => {
                let asked = arg as i32;
                let had = ofd.oflags();
                if asked & !had & libc::O_NOATIME != 0
                    && !self.identity().effective.owns(&ofd.attr()?)
                {
                    return Err(Errno::PERM.into());
                }
                let flags = had & !SETTABLE | asked & SETTABLE;
                if ofd.is(PROMOTED) {
                    self.adopt(&ofd)?;
                    self.kernel.set_status(fd, flags & !libc::O_NOATIME)?;
                }
                ofd.flags.store(flags as u32, Relaxed);
                Ok(0)
            }
            _ => {
                self.promote_ofd(&ofd)?;
                Err(Stop::Kernel)
            }
        }
    }

    /// Whether the kernel has the description of `fd`, too.
    pub fn is_promoted(&self, fd: i32) -> bool {
        let handle = self.entry(fd).map_or(0, |entry| entry.load(Acquire));
        handle == 0 || described(handle).is_some_and(|ofd| self.family.ofd(ofd).is(PROMOTED))
    }

    /// Takes from a file what an unprivileged change of its content must.
    pub(crate) fn drop_privileges(&self, fs: &dyn FileSystem, attr: &Attr) -> Result<(), Errno> {
        let creds = &self.identity().effective;
        if creds.write_drops_privileges(attr) {
            fs.drop_privileges(attr.ino)?;
        }
        if creds.drops_plain_setgid(attr) {
            let perm = Some(attr.perm & !(S_ISUID | S_ISGID));
            fs.setattr(&creds.caller(), attr.ino, &SetAttr { perm, ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Whether the caller may make device files.
    pub(crate) fn can_make_devices(&self) -> bool {
        self.identity().effective.can(Caps::MKNOD)
    }
}
