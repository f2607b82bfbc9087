//! Locks, copies between files, and mappings: calls that need the kernel's description, or two of
//! ours.

#![allow(unsafe_code)]

use crate::content::{FileContents, read_from_engine, sync_if};
use crate::mount::ServedMount;
use crate::noted::NoteReason;
use crate::served::{CallResult, CallStop};
use crate::table::OfdRef;
use crate::{Errno, Served};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{FileKind, Ino};

/// Private mappings up to this many bytes are filled at once, even where the file could be mapped.
const COPY_MAX: usize = 64 << 10;
/// Private mappings up to this many bytes are filled at once if only the kernel could map the file.
const SNAPSHOT_MAX: usize = 16 << 20;
/// Bytes that `sendfile` moves at once, and by which a private mapping is filled.
const CHUNK: usize = 64 << 10;

impl FileContents {
    /// `F_GETLK`, `F_SETLK`, `F_SETLKW` and the `F_OFD_` forms. The kernel locks its own
    /// description, so that the locks hold for other users of the mount, too. A range relative to
    /// the end of the file becomes one relative to its start in `lock`: the kernel may have an
    /// older size.
    pub fn fcntl_lock(&self, fd: i32, cmd: i32, lock: &mut libc::flock) -> Served<()> {
        self.lock_call(fd, cmd, lock).into()
    }

    fn lock_call(&self, fd: i32, cmd: i32, lock: &mut libc::flock) -> CallResult<()> {
        let ofd = self.table().get_open(fd)?;
        self.promotions().promote_ofd(&ofd)?;
        let posix = matches!(cmd, libc::F_SETLK | libc::F_SETLKW);
        if posix && lock.l_type != libc::F_UNLCK as i16 {
            self.promotions().noted.add(ofd.mount_index(), ofd.ino(), NoteReason::Locks);
        }
        let given = (lock.l_whence, lock.l_start);
        if i32::from(lock.l_whence) == libc::SEEK_END {
            let size = ofd.attr()?.size as i64;
            lock.l_start = size.checked_add(lock.l_start).ok_or(Errno::OVERFLOW)?;
            lock.l_whence = libc::SEEK_SET as i16;
        }
        self.task().kernel.lock(fd, cmd, lock)?;
        let tests = matches!(cmd, libc::F_GETLK | libc::F_OFD_GETLK);
        if tests && lock.l_type == libc::F_UNLCK as i16 {
            // Without a conflict, the answer is the question.
            (lock.l_whence, lock.l_start) = given;
        }
        Ok(())
    }

    /// `flock`.
    pub fn flock(&self, fd: i32, operation: i32) -> Served<()> {
        let call = || {
            let ofd = self.table().get_open(fd)?;
            self.promotions().promote_ofd(&ofd)?;
            Ok(self.task().kernel.flock(fd, operation)?)
        };
        CallResult::into(call())
    }

    /// `copy_file_range`. `EXDEV` between a file of ours and any other, as between two file
    /// systems. The program then copies by reading and writing. The kernel copies from a file of a
    /// snapshot.
    pub fn copy_file_range(
        &self,
        from: i32,
        from_offset: Option<&mut i64>,
        to: i32,
        to_offset: Option<&mut i64>,
        len: usize,
        flags: u32,
    ) -> Served<usize> {
        self.copy_call(from, from_offset, to, to_offset, len, flags).into()
    }

    fn copy_call(
        &self,
        from: i32,
        from_offset: Option<&mut i64>,
        to: i32,
        to_offset: Option<&mut i64>,
        len: usize,
        flags: u32,
    ) -> CallResult<usize> {
        let (src, dst) = match (self.table().get(from), self.table().get(to)) {
            (Ok(src), Ok(dst)) if src.mount_index() == dst.mount_index() => (src, dst),
            (Err(CallStop::Errno(errno)), _) | (_, Err(CallStop::Errno(errno))) => {
                return Err(errno.into());
            }
            (Ok(_), Err(CallStop::Kernel)) => return Err(self.other_device(flags, to).into()),
            (Err(CallStop::Kernel), Ok(dst)) if self.is_of_snapshot(from, dst.mount()) => {
                self.promotions().promote(to)?;
                return Err(CallStop::Kernel);
            }
            (_, Ok(_)) => return Err(self.other_device(flags, from).into()),
            (Err(CallStop::Kernel), Err(CallStop::Kernel)) => return Err(CallStop::Kernel),
        };
        if flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let file = |ofd: &OfdRef<'_>| match ofd.kind() {
            FileKind::Dir => Err(Errno::ISDIR),
            FileKind::File => Ok(()),
            _ => Err(Errno::INVAL),
        };
        let appends = dst.oflags() & libc::O_APPEND != 0;
        if src.oflags() & libc::O_PATH != 0 || dst.oflags() & libc::O_PATH != 0 {
            return Err(Errno::BADF.into());
        }
        file(&src)?;
        file(&dst)?;
        if !src.is_readable() || !dst.is_writable() || appends {
            return Err(Errno::BADF.into());
        }
        let offset = |given: &Option<&mut i64>, ofd: &OfdRef<'_>| match given {
            Some(at) => Ok(**at),
            None => Ok::<i64, CallStop>(self.promotions().lock_offset(ofd)?.get()? as i64),
        };
        src.check_unmapped()?;
        dst.check_unmapped()?;
        let (src_at, dst_at) = (offset(&from_offset, &src)?, offset(&to_offset, &dst)?);
        // The kernel first adds without signs.
        let wraps = |at: i64| (at as u64).checked_add(len as u64).is_none();
        if wraps(src_at) || wraps(dst_at) {
            return Err(Errno::OVERFLOW.into());
        }
        if src_at < 0 || dst_at < 0 {
            return Err(Errno::INVAL.into());
        }
        let (src_at, dst_at) = (src_at as u64, dst_at as u64);
        let attr = dst.attr()?;
        let have = src.attr()?.size.saturating_sub(src_at).min(len as u64);
        let same = src.ino() == dst.ino();
        let meet = src_at.abs_diff(dst_at) < have;
        if same && meet {
            return Err(Errno::INVAL.into());
        }
        if have == 0 {
            return Ok(0);
        }
        dst.mount().check_writable()?;
        let have = self.within_limit(dst_at, have)?;
        self.task().drop_privileges(dst.fs(), &attr)?;
        let copied = dst.fs().copy_range((src.ino(), src_at), (dst.ino(), dst_at), have)?;
        // If a mapping began meanwhile, the kernel repeats the call.
        dst.check_unmapped()?;
        sync_if(&dst, dst.writes_durably())?;
        let advance = |given: Option<&mut i64>, ofd: &OfdRef<'_>, at: u64| {
            match given {
                Some(place) => *place = (at + copied) as i64,
                None => self.promotions().lock_offset(ofd)?.set(at + copied)?,
            }
            Ok::<(), CallStop>(())
        };
        advance(from_offset, &src, src_at)?;
        advance(to_offset, &dst, dst_at)?;
        Ok(copied as usize)
    }

    /// `FICLONE` and `FICLONERANGE`: makes `len` bytes of `to` share the blocks of `from`; 0 bytes
    /// are the rest of `from`.
    pub fn clone_range(&self, from: (i32, u64), to: (i32, u64), len: u64) -> Served<()> {
        self.clone_call(from, to, len).into()
    }

    fn clone_call(
        &self,
        (from, src_at): (i32, u64),
        (to, dst_at): (i32, u64),
        len: u64,
    ) -> CallResult<()> {
        let dst = self.table().get_open(to)?;
        let src = match self.table().get_open(from) {
            Ok(src) if src.mount_index() == dst.mount_index() => src,
            Err(CallStop::Errno(errno)) => return Err(errno.into()),
            Ok(_) => return Err(Errno::XDEV.into()),
            Err(CallStop::Kernel) => {
                self.task().kernel.status(from)?;
                return Err(Errno::XDEV.into());
            }
        };
        if src.kind() == FileKind::Dir || dst.kind() == FileKind::Dir {
            return Err(Errno::ISDIR.into());
        }
        if src.kind() != FileKind::File || dst.kind() != FileKind::File {
            return Err(Errno::INVAL.into());
        }
        let appends = dst.oflags() & libc::O_APPEND != 0;
        if !src.is_readable() || !dst.is_writable() || appends {
            return Err(Errno::BADF.into());
        }
        if !dst.fs().limits().clones {
            return Err(Errno::OPNOTSUPP.into());
        }
        let end_of = |at: u64| at.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        if end_of(src_at).is_none() || end_of(dst_at).is_none() {
            return Err(Errno::INVAL.into());
        }
        src.check_unmapped()?;
        dst.check_unmapped()?;
        dst.mount().check_writable()?;
        let (attr, source) = (dst.attr()?, src.attr()?);
        let len_max = if len == 0 { source.size.saturating_sub(src_at) } else { len };
        self.check_size(attr.size, dst_at.saturating_add(len_max))?;
        self.task().drop_privileges(dst.fs(), &attr)?;
        dst.fs().clone_range((src.ino(), src_at), (dst.ino(), dst_at), len)?;
        // If a mapping began meanwhile, the kernel repeats the call, and refuses it.
        dst.check_unmapped()?;
        sync_if(&dst, dst.writes_durably())?;
        Ok(())
    }

    /// Returns whether a descriptor of the kernel's refers to a file of a snapshot of this mount.
    fn is_of_snapshot(&self, fd: i32, mount: &ServedMount) -> bool {
        self.task().kernel.identity(fd).is_ok_and(|(device, ino, _)| {
            device == mount.spec.dev && mounts::is_in_snapshots(Ino(ino))
        })
    }

    /// Returns the error of `copy_file_range` between files that are not of the same pool.
    fn other_device(&self, flags: u32, other: i32) -> Errno {
        if let Ok(ofd) = self.table().get(other) {
            return if flags == 0 && ofd.kind() == FileKind::File {
                Errno::XDEV
            } else {
                Errno::INVAL
            };
        }
        match self.task().kernel.identity(other) {
            _ if other < 0 => Errno::BADF,
            Err(errno) => errno,
            Ok(_) if flags != 0 => Errno::INVAL,
            Ok((.., libc::S_IFREG)) => Errno::XDEV,
            Ok((.., libc::S_IFDIR)) => Errno::ISDIR,
            Ok(_) => Errno::INVAL,
        }
    }

    /// Takes two descriptions of one mount. If only one is ours, or they are of two mounts,
    /// promotes them, as the kernel has to make the call.
    fn pair(&self, a: i32, b: i32) -> CallResult<(OfdRef<'_>, OfdRef<'_>)> {
        if let (Ok(a), Ok(b)) = (self.table().get(a), self.table().get(b))
            && a.mount_index() == b.mount_index()
        {
            return Ok((a, b));
        }
        self.promotions().promote(a)?;
        self.promotions().promote(b)?;
        Err(CallStop::Kernel)
    }

    /// `sendfile`.
    pub fn sendfile(
        &self,
        out: i32,
        from: i32,
        offset: Option<&mut i64>,
        count: usize,
    ) -> Served<usize> {
        self.sendfile_call(out, from, offset, count).into()
    }

    fn sendfile_call(
        &self,
        out: i32,
        from: i32,
        offset: Option<&mut i64>,
        count: usize,
    ) -> CallResult<usize> {
        let (src, dst) = self.pair(from, out)?;
        if !src.is_readable() || !dst.is_writable() {
            return Err(Errno::BADF.into());
        }
        if offset.as_ref().is_some_and(|at| **at < 0) || dst.oflags() & libc::O_APPEND != 0 {
            return Err(Errno::INVAL.into());
        }
        if count == 0 {
            return Ok(0);
        }
        if src.kind() != FileKind::File {
            return Err(Errno::INVAL.into());
        }
        // The two may share their offset, so both are read before and set after.
        let src_at = match &offset {
            Some(at) => u64::try_from(**at).map_err(|_| Errno::INVAL)?,
            None => self.promotions().lock_offset(&src)?.get()?,
        };
        src.check_unmapped()?;
        dst.check_unmapped()?;
        let dst_at = self.promotions().lock_offset(&dst)?.get()?;
        let mut chunk = vec![0; count.min(CHUNK)];
        let mut done = 0;
        while done < count {
            let want = (count - done).min(CHUNK);
            let len = read_from_engine(&src, src_at + done as u64, &mut chunk[..want])?;
            let to = (dst_at + done as u64) as i64;
            match self.write_to_engine(&dst, &chunk[..len], to, false) {
                Ok((written, _)) => {
                    done += written;
                    if written < len || len == 0 {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno.into()),
                Err(_) => break,
            }
        }
        dst.check_unmapped()?;
        self.promotions().lock_offset(&dst)?.set(dst_at + done as u64)?;
        match offset {
            Some(at) => *at += done as i64,
            None => self.promotions().lock_offset(&src)?.set(src_at + done as u64)?,
        }
        Ok(done)
    }

    /// `mmap`. Returns the address of a mapping of the pool's memory, or of a private copy of the
    /// file's present content. Or returns `Kernel`, after `fd` was promoted. Once the kernel maps a
    /// file, it makes every process's calls on it.
    pub fn mmap(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Served<usize> {
        self.mmap_call(addr, len, prot, flags, fd, offset).into()
    }

    fn mmap_call(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> CallResult<usize> {
        let ofd = self.table().get(fd)?;
        let private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
        let page = rustix::param::page_size() as i64;
        let plain = ofd.kind() == FileKind::File
            && ofd.is_readable()
            && offset >= 0
            && offset % page == 0
            && len > 0;
        if plain
            && (!private || len > COPY_MAX)
            && let Some(mapped) = self.promotions().map_directly(
                &ofd,
                (addr, len),
                prot,
                flags,
                offset.cast_unsigned(),
            )
        {
            return Ok(mapped?);
        }
        // The kernel cannot map a file that a process maps in place.
        let is_direct = ofd.mount().attached().events.is_mapped_directly(ofd.ino());
        let copies = plain && private && (len <= SNAPSHOT_MAX || is_direct);
        if !copies || ofd.check_unmapped().is_err() {
            self.promotions().promote_ofd(&ofd)?;
            if plain {
                self.promotions().begin_mapping(ofd.mount_index(), ofd.ino(), fd)?;
            }
            return Err(CallStop::Kernel);
        }
        let executable = prot & libc::PROT_EXEC != 0;
        if executable && ofd.mount().flags() & libc::ST_NOEXEC != 0 {
            return Err(Errno::PERM.into());
        }
        match self.map_snapshot(&ofd, (addr, len), prot, flags, offset.cast_unsigned()) {
            // Without a descriptor or memory, the kernel maps the file, or fails as well.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOSYS | Errno::PERM) if !is_direct => {
                self.promotions().promote_ofd(&ofd)?;
                self.promotions().begin_mapping(ofd.mount_index(), ofd.ino(), fd)?;
                Err(CallStop::Kernel)
            }
            mapped => Ok(mapped?),
        }
    }

    /// Maps a private copy of the file's present content. The copy is a file in memory, so that the
    /// kernel treats the mapping like one of a file: pages that are given back (`MADV_DONTNEED`)
    /// are filled again, and there are none beyond the end.
    fn map_snapshot(
        &self,
        ofd: &OfdRef<'_>,
        (addr, len): (usize, usize),
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> Result<usize, Errno> {
        if len as u64 > self.task().file_size_max.load(Relaxed) {
            // The limit applies to files in memory, too, and would raise a signal.
            return Err(Errno::MFILE);
        }
        let memory = rustix::fs::memfd_create(c"keepstone", MemfdFlags::CLOEXEC)?;
        let mut chunk = vec![0; len.min(CHUNK)];
        let mut done = 0;
        while done < len {
            let room = chunk.len().min(len - done);
            let read = read_from_engine(ofd, offset + done as u64, &mut chunk[..room])?;
            if read == 0 {
                break;
            }
            let mut rest = &chunk[..read];
            while !rest.is_empty() {
                rest = &rest[rustix::io::write(&memory, rest)?..];
            }
            done += read;
        }
        let kind = MapFlags::from_bits_retain(flags as u32);
        let prot = ProtFlags::from_bits_retain(prot as u32);
        // SAFETY: the program answers for the address that it has chosen. The mapping is new or,
        // with `MAP_FIXED`, replaces a range that the program wants replaced.
        let map = || unsafe { rustix::mm::mmap(addr as *mut _, len, prot, kind, &memory, 0) };
        let at = match flags & libc::MAP_FIXED {
            0 => map()?,
            _ => self.promotions().replace_mapping(addr, len, map, Result::is_ok)?,
        };
        Ok(at as usize)
    }
}
