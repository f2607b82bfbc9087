//! Opening: `open`, `openat`, `creat`.

use crate::content::FileContents;
use crate::creds::AccessMask;
use crate::descriptors::SETTABLE;
use crate::family::{CREATED, OfdInit, UNLINKABLE};
use crate::held::{HeldInode, LastComponent, ParentAndName, Walked, Want};
use crate::mount::ServedMount;
use crate::parked::NewFd;
use crate::served::{CallResult, CallStop, checked};
use crate::walk::Follow;
use crate::{Errno, Served};
use vfs::{Attr, FileKind, NewKind, NewNode, SetAttr};

/// `__O_TMPFILE` without the `O_DIRECTORY` that goes with it.
const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// Flags that a description keeps: access mode, and those that `F_GETFL` shows.
const SHOWN: i32 = libc::O_ACCMODE
    | SETTABLE
    | libc::O_SYNC
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_PATH
    | TMPFILE;
/// Flags that are taken from a description of the kernel's, with the one that it adds by itself.
pub(crate) const SHOWN_BY_KERNEL: i32 = SHOWN | LARGEFILE;
/// `O_LARGEFILE` of the kernel.
const LARGEFILE: i32 = 0o100000;

/// The access that opening an existing inode asks for.
fn open_access(flags: i32) -> AccessMask {
    let mut want = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => AccessMask::READ,
        libc::O_WRONLY => AccessMask::WRITE,
        _ => AccessMask::READ | AccessMask::WRITE,
    };
    if flags & libc::O_TRUNC != 0 {
        want |= AccessMask::WRITE;
    }
    want
}

fn new_file(mode: u32) -> NewNode<'static> {
    NewNode { kind: NewKind::File, mode: mode & 0o7777, umask: 0 }
}

/// Returns `EINVAL` for flags that contradict each other.
fn check_open_flags(flags: i32) -> Result<(), Errno> {
    let directory = flags & libc::O_DIRECTORY != 0;
    let tmpfile = flags & TMPFILE != 0;
    let bad = directory && flags & libc::O_CREAT != 0
        || tmpfile && !(directory && flags & libc::O_ACCMODE != libc::O_RDONLY);
    if bad { Err(Errno::INVAL) } else { Ok(()) }
}

impl FileContents {
    /// `open`, `openat`, `creat`. Pipes, sockets and devices are the kernel's.
    pub fn open(&self, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> Served<i32> {
        self.open_call(dirfd, path, flags, mode).into()
    }

    fn open_call(&self, dirfd: i32, path: &[u8], flags: i32, mode: u32) -> CallResult<i32> {
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
        if changes && !self.table().family.has_room() {
            return Err(CallStop::Kernel);
        }
        let mut attr = Attr::NONE;
        if let (false, Ok(())) = (creates, arguments)
            && let Some(found) = self.paths().lookup_fast(dirfd, path, &mut attr)
        {
            return self.open_found(found?, &attr, flags);
        }
        if let (true, Ok(())) = (flags & libc::O_CREAT != 0, arguments) {
            let create = |at: ParentAndName<'_, '_>| {
                at.found.is_none().then(|| self.open_new(at, flags, mode))
            };
            match self.paths().at_cached_parent(dirfd, path, create) {
                None | Some(Err(CallStop::Errno(Errno::EXIST))) => {}
                Some(opened) => return opened,
            }
        }
        loop {
            let walked = self.paths().walk(
                Want::Hold,
                dirfd,
                path,
                follow,
                &self.task().identity().effective,
            );
            let walked = checked(walked, arguments)?;
            // As in the kernel: without a free descriptor no file is created.
            let early = if creates { Some(self.fd_for(&walked.dir, flags)?) } else { None };
            let (held, state) = if flags & TMPFILE != 0 {
                let state = if flags & libc::O_EXCL != 0 { UNLINKABLE } else { 0 };
                (self.open_tmpfile(walked, mode)?, state)
            } else if flags & libc::O_CREAT != 0 {
                match self.open_or_create(walked, flags, mode)? {
                    Some(opened) => opened,
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
            return self.open_referred(mount_index, &attr, early, (flags, state));
        }
    }

    /// Creates a file and opens it.
    fn open_new(&self, at: ParentAndName<'_, '_>, flags: i32, mode: u32) -> CallResult<i32> {
        // As in the kernel: without a free descriptor no file is created.
        let new_fd = self.fd_for(at.dir, flags)?;
        let attr = self.names().create(at.dir, at.name, new_file(mode))?;
        self.open_referred(at.dir.mount_index, &attr, Some(new_fd), (flags, CREATED))
    }

    /// Opens an existing inode, and takes over the caller's reference to it.
    fn open_found(&self, mount_index: usize, attr: &Attr, flags: i32) -> CallResult<i32> {
        let mount = self.task().mount(mount_index);
        let early = || {
            let truncates = flags & libc::O_TRUNC != 0;
            // As in the kernel: without a free descriptor no file is truncated.
            let early = truncates.then(|| self.fd_below((mount_index, mount), flags));
            let early = early.transpose()?;
            self.may_open(mount, attr, flags)?;
            Ok(early)
        };
        let early: CallResult<_> = early();
        let early = early.inspect_err(|_| mount.attached().fs.forget(attr.ino, 1))?;
        self.open_referred(mount_index, attr, early, (flags, 0))
    }

    /// Makes a description of an inode, with these flags and further bits of its state, and gives
    /// it a descriptor. Takes over the caller's reference to the inode.
    fn open_referred(
        &self,
        mount_index: usize,
        attr: &Attr,
        early: Option<NewFd<'_>>,
        (flags, state): (i32, u32),
    ) -> CallResult<i32> {
        let mount = self.task().mount(mount_index);
        let give_back = || mount.attached().fs.forget(attr.ino, 1);
        let path_only = flags & libc::O_PATH != 0;
        let init = OfdInit {
            mount: mount_index as u32,
            ino: attr.ino,
            generation: attr.generation,
            kind: attr.kind,
            flags: flags & SHOWN | if path_only { 0 } else { LARGEFILE },
            state,
        };
        let ofd = self.table().describe(&init).map_err(|errno| {
            give_back();
            // If the family has no room for a description, the kernel may have.
            if errno == Errno::NFILE && early.is_none() { CallStop::Kernel } else { errno.into() }
        })?;
        let table = self.table().lock_table();
        let new_fd = match early {
            Some(new_fd) => new_fd,
            None => self.fd_allocator().take_fd(
                &table,
                (mount_index, mount),
                flags & libc::O_CLOEXEC != 0,
            )?,
        };
        let fd = new_fd.into_fd();
        let before = self.table().install(&table, fd, ofd, 0);
        drop((table, before));
        self.descriptors().promote_new_stream(fd)?;
        Ok(fd)
    }

    /// Takes a descriptor for a file that is opened in a directory.
    fn fd_for(&self, dir: &HeldInode<'_>, flags: i32) -> CallResult<NewFd<'_>> {
        self.fd_below((dir.mount_index, dir.mount), flags)
    }

    /// Takes a descriptor for a file that is opened below a mount.
    fn fd_below(&self, mount: (usize, &ServedMount), flags: i32) -> CallResult<NewFd<'_>> {
        self.fd_allocator().take_fd(&self.table().lock_table(), mount, flags & libc::O_CLOEXEC != 0)
    }

    /// Checks permission to open an inode (`may_open`), and truncates it if `O_TRUNC` asks for
    /// that.
    fn may_open(&self, mount: &ServedMount, attr: &Attr, flags: i32) -> CallResult<()> {
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
            FileKind::Dir if want.contains(AccessMask::WRITE) => return Err(Errno::ISDIR.into()),
            FileKind::Dir | FileKind::File => {}
            FileKind::Fifo | FileKind::Socket | FileKind::Char | FileKind::Block => {
                return Err(CallStop::Kernel);
            }
        }
        let creds = &self.task().identity().effective;
        mount.check(creds, attr, want)?;
        if want.contains(AccessMask::WRITE) {
            mount.check_not_executed(attr.ino)?;
        }
        if flags & libc::O_NOATIME != 0 && !creds.owns(attr) {
            return Err(Errno::PERM.into());
        }
        if flags & libc::O_TRUNC != 0 {
            mount.check_unmapped(attr.ino)?;
            let fs = mount.attached().fs.as_ref();
            self.task().drop_privileges(fs, attr)?;
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&creds.caller(), attr.ino, &set)?;
            // If a mapping began meanwhile, the kernel repeats the call.
            mount.check_unmapped(attr.ino)?;
        }
        Ok(())
    }

    /// Opens the inode for `O_CREAT`, or creates it and adds [`CREATED`]. `None` if another process
    /// has created it meanwhile, and the walk has to start over.
    fn open_or_create<'p>(
        &'p self,
        walked: Walked<'p>,
        flags: i32,
        mode: u32,
    ) -> CallResult<Option<(HeldInode<'p>, u32)>> {
        if walked.slash && walked.last == LastComponent::Name {
            return Err(Errno::ISDIR.into());
        }
        walked.parent_and_name().check_name()?;
        match walked.found {
            Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::EXIST.into()),
            Some(held) if held.kind == FileKind::Dir => Err(Errno::ISDIR.into()),
            Some(held) => {
                self.may_create_over(&walked.dir, &held)?;
                self.may_open(held.mount, held.attr()?, flags)?;
                Ok(Some((held, 0)))
            }
            None => match self.names().create(&walked.dir, &walked.name, new_file(mode)) {
                Ok(attr) => Ok(Some((walked.dir.beside(attr), CREATED))),
                Err(CallStop::Errno(Errno::EXIST)) if flags & libc::O_EXCL == 0 => Ok(None),
                Err(stop) => Err(stop),
            },
        }
    }

    /// Checks `fs.protected_regular`: `O_CREAT` does not open another user's file in a sticky
    /// directory. A symbolic link (`O_NOFOLLOW`) is refused as at level 1.
    fn may_create_over(&self, dir: &HeldInode<'_>, found: &HeldInode<'_>) -> Result<(), Errno> {
        if !matches!(found.kind, FileKind::File | FileKind::Symlink) {
            return Ok(());
        }
        let (dir, owner) = (dir.attr()?, found.attr()?.uid);
        let sticky = dir.perm & 0o1000 != 0;
        if !sticky || owner == dir.uid || owner == self.task().identity().effective.uid {
            return Ok(());
        }
        let level = match found.kind {
            FileKind::Symlink => 1,
            _ => self.task().protection("protected_regular"),
        };
        let applies = level >= 1 && dir.perm & 0o002 != 0 || level >= 2 && dir.perm & 0o020 != 0;
        if applies { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// Creates a file without a name in a directory (`O_TMPFILE`), after checking permission.
    fn open_tmpfile<'p>(&'p self, walked: Walked<'p>, mode: u32) -> CallResult<HeldInode<'p>> {
        let dir = walked.existing()?;
        if dir.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        let creds = &self.task().identity().effective;
        dir.check(creds, AccessMask::WRITE | AccessMask::EXEC)?;
        let mode = creds.strip_setgid(dir.attr()?, mode & 0o7777);
        let umask = self.task().current_umask();
        Ok(dir.beside(dir.fs().tmpfile(&creds.caller(), dir.ino, mode, umask)?))
    }
}
