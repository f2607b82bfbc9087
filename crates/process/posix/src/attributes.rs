//! Attributes: `stat`, modes, owners, times, and the properties of a file system (`statfs`).

#![allow(unsafe_code)]

use crate::creds::{AccessMask, Caps};
use crate::held::{HeldInode, Want};
use crate::mount::ServedMount;
use crate::names::Names;
use crate::served::{CallResult, CallStop, checked};
use crate::walk::Follow;
use crate::{Errno, Served};
use vfs::rules::{S_ISGID, S_ISUID, clear_privileges};
use vfs::{Attr, FileKind, SetAttr, SetTime, StatFs, Timestamp};

/// Preferred size of reads and writes, in bytes, as the mount reports it.
const BLKSIZE: i64 = 4096;
/// `FUSE_SUPER_MAGIC`.
const FUSE_MAGIC: i64 = 0x6573_5546;
/// The ID that tells `chown` to leave an ID as it is.
const SAME: u32 = u32::MAX;

/// A value in the program's memory, which need not be aligned: the kernel does not require that
/// either.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed)]
pub struct Unaligned<T>(pub T);

/// Returns where an answer is to be stored, or the error if it cannot be stored.
pub trait To<'s, T: 's>: FnOnce() -> Result<&'s mut Unaligned<T>, Errno> {}
impl<'s, T: 's, F: FnOnce() -> Result<&'s mut Unaligned<T>, Errno>> To<'s, T> for F {}

/// A `struct stat` as the mount would fill it.
#[inline]
fn stat_of(mount: &ServedMount, attr: &Attr) -> libc::stat {
    // SAFETY: a stat is plain numbers, for which zeroes are valid.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let times = [attr.atime, attr.mtime, attr.ctime].map(Timestamp::parts);
    st.st_dev = mount.spec.dev;
    st.st_ino = attr.ino.0;
    st.st_mode = attr.kind.mode_bits() | attr.perm;
    st.st_nlink = attr.nlink as _;
    st.st_uid = attr.uid;
    st.st_gid = attr.gid;
    st.st_rdev = u64::from(attr.rdev);
    st.st_size = attr.size as i64;
    st.st_blksize = BLKSIZE as _;
    st.st_blocks = attr.blocks as i64;
    [st.st_atime, st.st_mtime, st.st_ctime] = times.map(|t| t.0);
    [st.st_atime_nsec, st.st_mtime_nsec, st.st_ctime_nsec] = times.map(|t| i64::from(t.1));
    st
}

/// Makes a `statx` of attributes; with the time of birth if `has_btime`.
fn statx_of(mount: &ServedMount, attr: &Attr, has_btime: bool) -> libc::statx {
    // SAFETY: a statx is plain numbers, for which zeroes are valid.
    let mut st: libc::statx = unsafe { std::mem::zeroed() };
    let time = |t: Timestamp, to: &mut libc::statx_timestamp| {
        (to.tv_sec, to.tv_nsec) = t.parts();
    };
    st.stx_mask = libc::STATX_BASIC_STATS;
    st.stx_blksize = BLKSIZE as u32;
    st.stx_nlink = attr.nlink;
    st.stx_uid = attr.uid;
    st.stx_gid = attr.gid;
    st.stx_mode = (attr.kind.mode_bits() | attr.perm) as u16;
    st.stx_ino = attr.ino.0;
    st.stx_size = attr.size;
    st.stx_blocks = attr.blocks;
    time(attr.atime, &mut st.stx_atime);
    time(attr.mtime, &mut st.stx_mtime);
    time(attr.ctime, &mut st.stx_ctime);
    if has_btime {
        st.stx_mask |= libc::STATX_BTIME;
        time(attr.btime, &mut st.stx_btime);
    }
    let rdev = u64::from(attr.rdev);
    (st.stx_rdev_major, st.stx_rdev_minor) = (libc::major(rdev), libc::minor(rdev));
    st.stx_dev_major = libc::major(mount.spec.dev);
    st.stx_dev_minor = libc::minor(mount.spec.dev);
    st
}

/// Makes a `statfs` as the kernel has it for the mount.
fn statfs_of(mount: &ServedMount, s: &StatFs) -> libc::statfs {
    // SAFETY: a statfs64 is plain numbers, for which zeroes are valid.
    let mut st: libc::statfs64 = unsafe { std::mem::zeroed() };
    st.f_type = FUSE_MAGIC as _;
    st.f_bsize = i64::from(s.block_size) as _;
    st.f_frsize = i64::from(s.block_size) as _;
    st.f_blocks = s.blocks;
    st.f_bfree = s.blocks_free;
    st.f_bavail = s.blocks_available;
    st.f_files = s.inodes;
    st.f_ffree = s.inodes_free;
    st.f_namelen = mount.limits().name as _;
    // `ST_VALID`: the kernel marks the flags as meaningful.
    st.f_flags = (mount.flags() | 0x20) as _;
    // SAFETY: the two are one structure with 64-bit longs; libc names the flags only in this one.
    unsafe { std::mem::transmute::<libc::statfs64, libc::statfs>(st) }
}

/// Makes a `statvfs` as libc has it for the mount.
fn statvfs_of(mount: &ServedMount, s: &StatFs) -> libc::statvfs {
    // SAFETY: a statvfs is plain numbers, for which zeroes are valid.
    let mut st: libc::statvfs = unsafe { std::mem::zeroed() };
    st.f_bsize = u64::from(s.block_size);
    st.f_frsize = u64::from(s.block_size);
    st.f_blocks = s.blocks;
    st.f_bfree = s.blocks_free;
    st.f_bavail = s.blocks_available;
    st.f_files = s.inodes;
    st.f_ffree = s.inodes_free;
    st.f_favail = s.inodes_free;
    st.f_flag = mount.flags();
    st.f_namemax = mount.limits().name as u64;
    st
}

/// Parses the times of `utimensat(2)`: access and modification. `EINVAL` for nanoseconds that are
/// none.
pub fn times_to_set(times: Option<[libc::timespec; 2]>) -> Result<[Option<SetTime>; 2], Errno> {
    let set_time = |t: libc::timespec| match t.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanos @ 0..=999_999_999 => {
            Ok(Some(SetTime::At(Timestamp::from_parts(t.tv_sec, nanos as u32))))
        }
        _ => Err(Errno::INVAL),
    };
    match times {
        None => Ok([Some(SetTime::Now); 2]),
        Some([a, m]) => Ok([set_time(a)?, set_time(m)?]),
    }
}

/// Returns `EINVAL` if `flags` has a flag of an `*at` call that is not in `known`.
pub(crate) fn check_flags(flags: i32, known: i32) -> Result<(), Errno> {
    if flags & !known != 0 { Err(Errno::INVAL) } else { Ok(()) }
}

/// Whether both times are to stay. Linux then checks nothing else.
fn changes_nothing(times: &Option<[libc::timespec; 2]>) -> bool {
    times.is_some_and(|t| t.iter().all(|t| t.tv_nsec == libc::UTIME_OMIT))
}

impl Names {
    /// `fstat`.
    #[inline]
    pub fn fstat(&self, fd: i32) -> Served<libc::stat> {
        let call = || {
            let ofd = self.table().get(fd)?;
            Ok(stat_of(ofd.mount(), &ofd.attr()?))
        };
        CallResult::into(call())
    }

    /// `stat` (flags 0), `lstat` (`AT_SYMLINK_NOFOLLOW`), `fstatat`. Calls `to` only if there is an
    /// answer.
    #[inline]
    pub fn stat<'s>(
        &self,
        dirfd: i32,
        path: &[u8],
        flags: i32,
        to: impl To<'s, libc::stat>,
    ) -> Served<()> {
        let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT;
        self.show((dirfd, path, flags), check_flags(flags, known), Want::Look, to, stat_of).into()
    }

    /// Stores the attributes of the inode that a path names. The time of creation is only there if
    /// `want` is to hold the inode.
    #[inline]
    fn show<'s, T: 's>(
        &self,
        (dirfd, path, flags): (i32, &[u8], i32),
        arguments: Result<(), Errno>,
        want: Want,
        to: impl To<'s, T>,
        describe: impl FnOnce(&ServedMount, &Attr) -> T,
    ) -> CallResult<()> {
        let mut attr = Attr::NONE;
        if want == Want::Look
            && arguments.is_ok()
            && let Some(mount) = self.paths().peek_fast(dirfd, path, &mut attr)
        {
            let mount = mount?;
            *to()? = Unaligned(describe(mount, &attr));
            return Ok(());
        }
        let held = checked(self.paths().find_for(want, dirfd, path, flags), arguments)?;
        let attr = held.attr()?;
        *to()? = Unaligned(describe(held.mount, attr));
        Ok(())
    }

    /// `statx`. Reports every attribute it has, whatever `mask` asks for; the time of creation only
    /// if `mask` asks for it.
    pub fn statx<'s>(
        &self,
        dirfd: i32,
        path: &[u8],
        flags: i32,
        mask: u32,
        to: impl To<'s, libc::statx>,
    ) -> Served<()> {
        let known = libc::AT_SYMLINK_NOFOLLOW
            | libc::AT_EMPTY_PATH
            | libc::AT_NO_AUTOMOUNT
            | libc::AT_STATX_SYNC_TYPE;
        let sync = flags & libc::AT_STATX_SYNC_TYPE;
        let contradicts = mask & 0x8000_0000 != 0 || sync == libc::AT_STATX_SYNC_TYPE;
        let arguments = if contradicts { Err(Errno::INVAL) } else { check_flags(flags, known) };
        let wants_btime = mask & libc::STATX_BTIME != 0;
        let want = if wants_btime { Want::Hold } else { Want::Look };
        let describe = |mount: &_, attr: &_| statx_of(mount, attr, wants_btime);
        self.show((dirfd, path, flags), arguments, want, to, describe).into()
    }

    /// `statfs`.
    pub fn statfs(&self, path: &[u8]) -> Served<libc::statfs> {
        let held = self.paths().find(libc::AT_FDCWD, path, 0);
        CallResult::into(held.map(|held| statfs_of(held.mount, &held.fs().statfs())))
    }

    /// `fstatfs`.
    pub fn fstatfs(&self, fd: i32) -> Served<libc::statfs> {
        CallResult::into(self.table().get(fd).map(|ofd| statfs_of(ofd.mount(), &ofd.fs().statfs())))
    }

    /// `statvfs`.
    pub fn statvfs(&self, path: &[u8]) -> Served<libc::statvfs> {
        let held = self.paths().find(libc::AT_FDCWD, path, 0);
        CallResult::into(held.map(|held| statvfs_of(held.mount, &held.fs().statfs())))
    }

    /// `fstatvfs`.
    pub fn fstatvfs(&self, fd: i32) -> Served<libc::statvfs> {
        CallResult::into(
            self.table().get(fd).map(|ofd| statvfs_of(ofd.mount(), &ofd.fs().statfs())),
        )
    }

    /// `access` (flags 0: real IDs), `faccessat`, `faccessat2`, `eaccess` (`AT_EACCESS`).
    pub fn access(&self, dirfd: i32, path: &[u8], mode: i32, flags: i32) -> Served<()> {
        self.access_call(dirfd, path, mode, flags).into()
    }

    fn access_call(&self, dirfd: i32, path: &[u8], mode: i32, flags: i32) -> CallResult<()> {
        let identity = self.task().identity();
        let creds = match flags & libc::AT_EACCESS {
            0 => &identity.real,
            _ => &identity.effective,
        };
        let known = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
        let found = if path.is_empty() {
            self.paths().find(dirfd, path, flags)
        } else {
            let nofollow = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
            let follow = if nofollow { Follow::BeforeSlash } else { Follow::Always };
            self.paths()
                .walk(Want::Hold, dirfd, path, follow, creds)
                .and_then(|walked| Ok(walked.existing()?))
        };
        let bits = u32::try_from(mode).ok().and_then(AccessMask::from_bits);
        let want =
            bits.ok_or(Errno::INVAL).and_then(|bits| check_flags(flags, known).map(|()| bits));
        let held = checked(found, want.map(drop))?;
        let want = want?;
        let program = want.contains(AccessMask::EXEC) && held.kind == FileKind::File;
        if program && held.mount.flags() & libc::ST_NOEXEC != 0 {
            return Err(Errno::ACCESS.into());
        }
        creds.check(held.fs(), held.attr()?, want)?;
        Ok(held.mount.check_change(held.kind, want)?)
    }

    /// `chmod`, `fchmodat`.
    pub fn chmod(&self, dirfd: i32, path: &[u8], mode: u32, flags: i32) -> Served<()> {
        let call = || {
            let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
            let held = checked(self.paths().find(dirfd, path, flags), check_flags(flags, known))?;
            self.set_mode(&held, mode)
        };
        CallResult::into(call())
    }

    /// `fchmod`.
    pub fn fchmod(&self, fd: i32, mode: u32) -> Served<()> {
        let call = || {
            let held = HeldInode::description(self.task(), self.table().get_open(fd)?);
            self.set_mode(&held, mode)
        };
        CallResult::into(call())
    }

    /// Sets the mode after checking permission, as `chmod`.
    fn set_mode(&self, held: &HeldInode<'_>, mode: u32) -> CallResult<()> {
        held.check_writable()?;
        let creds = &self.task().identity().effective;
        let attr = held.attr()?;
        if !creds.owns(attr) {
            return Err(Errno::PERM.into());
        }
        let keeps_setgid = creds.in_group(attr.gid) || creds.can(Caps::FSETID);
        let mode = if keeps_setgid { mode } else { mode & !S_ISGID };
        let set = SetAttr { perm: Some(mode & 0o7777), ..SetAttr::default() };
        held.fs().setattr(&creds.caller(), held.ino, &set)?;
        Ok(())
    }

    /// `chown`, `lchown` (`AT_SYMLINK_NOFOLLOW`), `fchownat`. `u32::MAX` leaves an ID as it is.
    pub fn chown(&self, dirfd: i32, path: &[u8], uid: u32, gid: u32, flags: i32) -> Served<()> {
        let call = || {
            let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
            let held = checked(self.paths().find(dirfd, path, flags), check_flags(flags, known))?;
            self.set_owner(&held, uid, gid)
        };
        CallResult::into(call())
    }

    /// `fchown`.
    pub fn fchown(&self, fd: i32, uid: u32, gid: u32) -> Served<()> {
        let call = || {
            let held = HeldInode::description(self.task(), self.table().get_open(fd)?);
            self.set_owner(&held, uid, gid)
        };
        CallResult::into(call())
    }

    /// Sets owner and group after checking permission, as `chown`; [`SAME`] leaves one as it is.
    /// Removes set-user-ID, set-group-ID and capability.
    fn set_owner(&self, held: &HeldInode<'_>, uid: u32, gid: u32) -> CallResult<()> {
        held.check_writable()?;
        let creds = &self.task().identity().effective;
        let attr = held.attr()?;
        if uid != SAME && !(creds.uid == attr.uid && uid == attr.uid) && !creds.can(Caps::CHOWN) {
            return Err(Errno::PERM.into());
        }
        let own_group = creds.uid == attr.uid && (creds.in_group(gid) || gid == attr.gid);
        if gid != SAME && !own_group && !creds.can(Caps::CHOWN) {
            return Err(Errno::PERM.into());
        }
        // A change to the same owner takes privileges, too. That is a change of mode.
        let outsider = creds.drops_plain_setgid(attr);
        let takes =
            held.kind != FileKind::Dir && (clear_privileges(attr.perm) != attr.perm || outsider);
        if takes && !creds.owns(attr) {
            return Err(Errno::PERM.into());
        }
        let perm = outsider.then_some(attr.perm & !(S_ISUID | S_ISGID));
        if uid == SAME && gid == SAME {
            held.fs().drop_privileges(held.ino)?;
            if perm.is_none() {
                return Ok(());
            }
        }
        let some = |id: u32| (id != SAME).then_some(id);
        let set = SetAttr { perm, uid: some(uid), gid: some(gid), ..SetAttr::default() };
        held.fs().setattr(&creds.caller(), held.ino, &set)?;
        Ok(())
    }

    /// `utimensat`, `utimes`, `utime`: access time, then modification time; `None` for a null
    /// pointer (now).
    pub fn utimens(
        &self,
        dirfd: i32,
        path: &[u8],
        times: Option<[libc::timespec; 2]>,
        flags: i32,
    ) -> Served<()> {
        let call = || {
            let found = self.paths().find(dirfd, path, flags);
            if changes_nothing(&times) {
                return found.map(drop).or_else(|stop| match stop {
                    CallStop::Errno(_) => Ok(()),
                    CallStop::Kernel => Err(CallStop::Kernel),
                });
            }
            let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
            let held = checked(found, check_flags(flags, known))?;
            self.set_times(&held, times)
        };
        CallResult::into(call())
    }

    /// `futimens`.
    pub fn futimens(&self, fd: i32, times: Option<[libc::timespec; 2]>) -> Served<()> {
        let call = || {
            let ofd = self.table().get(fd)?;
            if changes_nothing(&times) {
                return Ok(());
            }
            if ofd.oflags() & libc::O_PATH != 0 {
                return Err(Errno::BADF.into());
            }
            self.set_times(&HeldInode::description(self.task(), ofd), times)
        };
        CallResult::into(call())
    }

    /// Sets times after checking permission, as `utimensat`. The call is the kernel's if the file
    /// may be mapped there and its modification time changes.
    fn set_times(
        &self,
        held: &HeldInode<'_>,
        times: Option<[libc::timespec; 2]>,
    ) -> CallResult<()> {
        let [atime, mtime] = times_to_set(times)?;
        if mtime.is_some() {
            // The kernel still has to write back what the program stored through mappings. That
            // write changes times again.
            held.mount.check_unmapped(held.ino)?;
        }
        held.check_writable()?;
        let creds = &self.task().identity().effective;
        let attr = held.attr()?;
        if !creds.owns(attr) {
            if times.is_some_and(|t| t.iter().any(|t| t.tv_nsec != libc::UTIME_NOW)) {
                return Err(Errno::PERM.into());
            }
            creds.check(held.fs(), attr, AccessMask::WRITE)?;
        }
        let set = SetAttr { atime, mtime, ..SetAttr::default() };
        held.fs().setattr(&creds.caller(), held.ino, &set)?;
        Ok(())
    }
}
