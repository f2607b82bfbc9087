//! Reading, writing and sizes. (Opening is in `open`; copies, locks and mappings are in
//! `transfer`.)

use crate::names::Names;
use crate::served::{CallResult, CallStop, checked};
use crate::table::OfdRef;
use crate::{Errno, Served};
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Durability, Fallocate, FileKind, Seek, SetAttr};

/// Most bytes that one call moves (`MAX_RW_COUNT` of the kernel).
const RW_MAX: usize = 0x7fff_f000;
/// Vectors up to this many bytes are gathered on the stack.
const GATHER: usize = 4096;

/// The place at which a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// At the description's offset, which moves.
    Position,
    /// At this offset.
    Offset(i64),
}

impl At {
    /// Returns `EINVAL` for a negative offset.
    #[inline(always)]
    fn check(self) -> Result<(), Errno> {
        if matches!(self, Self::Offset(offset) if offset < 0) { Err(Errno::INVAL) } else { Ok(()) }
    }
}

/// Returns `EINVAL` if an offset is negative, or if a range ends beyond the largest offset.
fn check_range(offset: i64, len: usize) -> Result<u64, Errno> {
    let end = i64::try_from(len).ok().and_then(|len| offset.checked_add(len));
    if offset < 0 || end.is_none() { Err(Errno::INVAL) } else { Ok(offset as u64) }
}

/// Open files and their contents: opening, reading, writing, sizes, copies, locks, mappings.
pub struct FileContents {
    names: Names,
}

impl FileContents {
    pub(crate) fn new(names: Names) -> Self {
        Self { names }
    }

    #[inline(always)]
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// `read`.
    #[inline]
    pub fn read(&self, fd: i32, buf: &mut [u8]) -> Served<usize> {
        self.read_by_fd(fd, buf, At::Position).into()
    }

    /// `pread`.
    #[inline]
    pub fn pread(&self, fd: i32, buf: &mut [u8], offset: i64) -> Served<usize> {
        self.read_by_fd(fd, buf, At::Offset(offset)).into()
    }

    /// Reads from what a descriptor refers to, if it was opened for reading.
    #[inline(always)]
    fn read_by_fd(&self, fd: i32, buf: &mut [u8], at: At) -> CallResult<usize> {
        let ofd = self.table().get(fd)?;
        at.check()?;
        if !ofd.is_readable() {
            return Err(Errno::BADF.into());
        }
        self.read_description(&ofd, buf, at)
    }

    /// Reads from a description, at its offset, which moves, or at another. `Kernel` if the kernel
    /// maps the file.
    #[inline(always)]
    fn read_description(&self, ofd: &OfdRef<'_>, buf: &mut [u8], at: At) -> CallResult<usize> {
        ofd.check_unmapped()?;
        match at {
            At::Offset(offset) => Ok(read_range(ofd, buf, offset)?),
            At::Position => self.read_and_advance(ofd, buf),
        }
    }

    /// Reads at the offset of a description, which moves.
    #[inline]
    fn read_and_advance(&self, ofd: &OfdRef<'_>, buf: &mut [u8]) -> CallResult<usize> {
        let at = self.promotions().lock_offset(ofd)?;
        let mut len = buf.len().min(RW_MAX);
        if at.is_promoted() {
            // Reserves only bytes that exist. Otherwise another process could find the offset
            // beyond the end meanwhile.
            let rest = ofd.attr()?.size.saturating_sub(at.get()?);
            len = len.min(usize::try_from(rest).unwrap_or(len));
            if len == 0 {
                return Ok(0);
            }
        }
        Ok(at.advance(len, |start| read_range(ofd, &mut buf[..len], start as i64))?)
    }

    /// `write`.
    #[inline]
    pub fn write(&self, fd: i32, data: &[u8]) -> Served<usize> {
        self.write_by_fd(fd, data, At::Position).into()
    }

    /// `pwrite`. As in Linux, a description with `O_APPEND` appends.
    #[inline]
    pub fn pwrite(&self, fd: i32, data: &[u8], offset: i64) -> Served<usize> {
        self.write_by_fd(fd, data, At::Offset(offset)).into()
    }

    /// Writes to what a descriptor refers to, if it was opened for writing.
    #[inline(always)]
    fn write_by_fd(&self, fd: i32, data: &[u8], at: At) -> CallResult<usize> {
        let ofd = self.table().get(fd)?;
        at.check()?;
        if !ofd.is_writable() {
            return Err(Errno::BADF.into());
        }
        let append = ofd.oflags() & libc::O_APPEND != 0;
        self.write_description(&ofd, data, at, append)
    }

    /// Writes to a description, at its offset, which moves, at another, or at the end. `Kernel` if
    /// the kernel maps the file.
    #[inline]
    fn write_description(
        &self,
        ofd: &OfdRef<'_>,
        data: &[u8],
        at: At,
        append: bool,
    ) -> CallResult<usize> {
        ofd.check_unmapped()?;
        // A mapping that began meanwhile may hold pages from before the write. The kernel then
        // repeats it.
        let write = |start: i64| {
            let (len, _) = self.write_to_engine(ofd, data, start, false)?;
            if ofd.check_unmapped().is_err() { Err(Errno::RESTART) } else { Ok(len) }
        };
        if !append {
            let written = match at {
                At::Offset(at) => write(at),
                At::Position => {
                    let len = data.len().min(RW_MAX);
                    self.promotions().lock_offset(ofd)?.advance(len, |start| write(start as i64))
                }
            };
            return written.map_err(|errno| match errno {
                Errno::RESTART => CallStop::Kernel,
                errno => errno.into(),
            });
        }
        let appended = match at {
            At::Offset(at) => self.write_to_engine(ofd, data, at, true)?.0,
            At::Position => {
                let at = self.promotions().lock_offset(ofd)?;
                let (len, end) = self.write_to_engine(ofd, data, 0, true)?;
                if len > 0 {
                    at.set(end)?;
                }
                len
            }
        };
        self.after_resize(ofd);
        Ok(appended)
    }

    /// `readv`.
    pub fn readv(&self, fd: i32, bufs: &mut [IoSliceMut<'_>]) -> Served<usize> {
        self.read_vector(fd, bufs, At::Position, 0).into()
    }

    /// `preadv` (flags 0) and `preadv2`. An offset of -1 stands for the description's.
    pub fn preadv2(
        &self,
        fd: i32,
        bufs: &mut [IoSliceMut<'_>],
        offset: i64,
        flags: i32,
    ) -> Served<usize> {
        let at = if offset == -1 { At::Position } else { At::Offset(offset) };
        self.read_vector(fd, bufs, at, flags).into()
    }

    /// Reads into several buffers by a single read, if needed into a buffer of its own first.
    fn read_vector(
        &self,
        fd: i32,
        bufs: &mut [IoSliceMut<'_>],
        at: At,
        flags: i32,
    ) -> CallResult<usize> {
        let (ofd, total) = self.vector(fd, at, bufs.iter().map(|buf| buf.len()))?;
        if !ofd.is_readable() {
            return Err(Errno::BADF.into());
        }
        if total == 0 {
            return Ok(0);
        }
        if flags & !HINTS != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        if let [buf] = bufs {
            return self.read_description(&ofd, buf, at);
        }
        // Reserves no more than the file has: programs pass large buffers for small files.
        let room = if total > GATHER { total.min(ofd.attr()?.size as usize) } else { total };
        let mut gathered: SmallVec<[u8; GATHER]> = SmallVec::new();
        gathered.resize(room, 0);
        let len = self.read_description(&ofd, &mut gathered, at)?;
        let mut rest = &gathered[..len];
        for buf in bufs {
            let (now, later) = rest.split_at(buf.len().min(rest.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(len)
    }

    /// Returns the description for a vectored call, and the length of its vector.
    fn vector(
        &self,
        fd: i32,
        at: At,
        lens: impl ExactSizeIterator<Item = usize>,
    ) -> CallResult<(OfdRef<'_>, usize)> {
        let ofd = self.table().get(fd)?;
        match at {
            At::Offset(offset) if offset < 0 => Err(Errno::INVAL.into()),
            _ if ofd.oflags() & libc::O_PATH != 0 => Err(Errno::BADF.into()),
            _ => Ok((ofd, total_len(lens)?)),
        }
    }

    /// `writev`.
    pub fn writev(&self, fd: i32, data: &[IoSlice<'_>]) -> Served<usize> {
        self.write_vector(fd, data, At::Position, 0).into()
    }

    /// `pwritev` (flags 0) and `pwritev2`. An offset of -1 stands for the description's.
    pub fn pwritev2(
        &self,
        fd: i32,
        data: &[IoSlice<'_>],
        offset: i64,
        flags: i32,
    ) -> Served<usize> {
        let at = if offset == -1 { At::Position } else { At::Offset(offset) };
        self.write_vector(fd, data, at, flags).into()
    }

    /// Writes from several buffers by a single write, which is atomic as any other.
    fn write_vector(&self, fd: i32, data: &[IoSlice<'_>], at: At, flags: i32) -> CallResult<usize> {
        let (ofd, total) = self.vector(fd, at, data.iter().map(|part| part.len()))?;
        if !ofd.is_writable() {
            return Err(Errno::BADF.into());
        }
        if total == 0 {
            return Ok(0);
        }
        if flags & !(HINTS | libc::RWF_APPEND | RWF_NOAPPEND) != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        if flags & libc::RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
            return Err(Errno::INVAL.into());
        }
        let mut gathered: SmallVec<[u8; GATHER]> = SmallVec::new();
        let data: &[u8] = match data {
            [one] => one,
            _ => {
                gathered.reserve(total);
                data.iter().for_each(|part| gathered.extend_from_slice(part));
                &gathered
            }
        };
        let append = flags & libc::RWF_APPEND != 0
            || ofd.oflags() & libc::O_APPEND != 0 && flags & RWF_NOAPPEND == 0;
        let written = self.write_description(&ofd, data, at, append)?;
        // If the description asks for durability, the write above has seen to it.
        let asks = flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0;
        sync_if(&ofd, asks && !ofd.writes_durably())?;
        Ok(written)
    }

    /// Stores data in the engine, at an offset or at the end, after checks of size, limits and
    /// privileges. Returns the number of bytes and where they end.
    pub(crate) fn write_to_engine(
        &self,
        ofd: &OfdRef<'_>,
        data: &[u8],
        offset: i64,
        append: bool,
    ) -> Result<(usize, u64), Errno> {
        let offset = check_range(offset, data.len())?;
        if ofd.kind() != FileKind::File {
            return Err(Errno::INVAL);
        }
        if data.is_empty() {
            return Ok((0, offset));
        }
        ofd.mount().check_writable()?;
        let data = &data[..data.len().min(RW_MAX)];
        let (fs, ino) = (ofd.fs(), ofd.ino());
        let limit = self.task().file_size_max.load(Relaxed);
        let creds = &self.task().identity().effective;
        let privileged = creds.can(crate::creds::Caps::FSETID);
        // Most writes need no attributes of the file.
        let attr = if privileged && !(append && limit != u64::MAX) {
            None
        } else {
            Some(fs.getattr(ino)?)
        };
        if let Some(attr) = &attr {
            self.task().drop_privileges(fs, attr)?;
        }
        let start = match &attr {
            Some(attr) if append => attr.size,
            _ => offset,
        };
        let largest = ofd.mount().limits().file_size;
        let room = self.within_limit(start, largest.saturating_sub(start))?;
        if !append && start >= largest {
            return Err(Errno::FBIG);
        }
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let at = if append {
            fs.append(ino, data)?
        } else {
            fs.write(ino, offset, data)?;
            offset
        };
        sync_if(ofd, ofd.writes_durably())?;
        Ok((data.len(), at + data.len() as u64))
    }

    /// Cuts `len` bytes at an offset to the limit on the size of files. Returns `EFBIG` and raises
    /// a signal if none is left.
    pub(crate) fn within_limit(&self, offset: u64, len: u64) -> Result<u64, Errno> {
        let limit = self.task().file_size_max.load(Relaxed);
        if offset >= limit {
            self.task().kernel.raise(libc::SIGXFSZ);
            return Err(Errno::FBIG);
        }
        Ok(len.min(limit - offset))
    }

    /// Returns `EFBIG` and raises a signal if a file may not grow to `size`.
    pub(crate) fn check_size(&self, old: u64, size: u64) -> Result<(), Errno> {
        if size > old && size > self.task().file_size_max.load(Relaxed) {
            self.task().kernel.raise(libc::SIGXFSZ);
            return Err(Errno::FBIG);
        }
        Ok(())
    }

    /// `lseek`.
    pub fn lseek(&self, fd: i32, offset: i64, whence: i32) -> Served<i64> {
        self.lseek_call(fd, offset, whence).into()
    }

    fn lseek_call(&self, fd: i32, offset: i64, whence: i32) -> CallResult<i64> {
        let ofd = self.table().get_open(fd)?;
        // The kernel may have pages, stored to through a mapping, at a hole of the engine's.
        if matches!(whence, libc::SEEK_DATA | libc::SEEK_HOLE) {
            ofd.check_unmapped()?;
        }
        let at = self.promotions().lock_offset(&ofd)?;
        let new = match whence {
            libc::SEEK_SET => Some(offset),
            libc::SEEK_CUR => return Ok(at.step(offset)?),
            libc::SEEK_END => (ofd.attr()?.size as i64).checked_add(offset),
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
                let what = if whence == libc::SEEK_DATA { Seek::Data } else { Seek::Hole };
                if ofd.kind() != FileKind::File {
                    return Err(Errno::INVAL.into());
                }
                Some(ofd.fs().seek(ofd.ino(), offset, what)? as i64)
            }
            _ => None,
        };
        let new = new.filter(|new| *new >= 0).ok_or(Errno::INVAL)?;
        at.set(new as u64)?;
        Ok(new)
    }

    /// `ftruncate`.
    pub fn ftruncate(&self, fd: i32, len: i64) -> Served<()> {
        self.ftruncate_call(fd, len).into()
    }

    fn ftruncate_call(&self, fd: i32, len: i64) -> CallResult<()> {
        let ofd = self.table().get(fd)?;
        let len = u64::try_from(len).map_err(|_| Errno::INVAL)?;
        if ofd.oflags() & libc::O_PATH != 0 {
            return Err(Errno::BADF.into());
        }
        if ofd.kind() != FileKind::File || !ofd.is_writable() {
            return Err(Errno::INVAL.into());
        }
        ofd.check_unmapped()?;
        ofd.mount().check_writable()?;
        self.resize(ofd.fs(), &ofd.attr()?, len)?;
        self.after_resize(&ofd);
        Ok(())
    }

    /// `truncate`.
    pub fn truncate(&self, path: &[u8], len: i64) -> Served<()> {
        self.truncate_call(path, len).into()
    }

    fn truncate_call(&self, path: &[u8], len: i64) -> CallResult<()> {
        let len = u64::try_from(len).map_err(|_| Errno::INVAL);
        let held = checked(self.paths().find(libc::AT_FDCWD, path, 0), len.map(drop))?;
        let len = len?;
        match held.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        held.check(&self.task().identity().effective, crate::creds::AccessMask::WRITE)?;
        held.mount.check_not_executed(held.ino)?;
        held.mount.check_unmapped(held.ino)?;
        self.resize(held.fs(), held.attr()?, len)?;
        // If a mapping began meanwhile, the kernel repeats the call.
        held.mount.check_unmapped(held.ino)
    }

    /// Updates the kernel after a change of the size without it, if a mapping began meanwhile that
    /// has the old size.
    #[inline]
    fn after_resize(&self, ofd: &OfdRef<'_>) {
        if ofd.check_unmapped().is_err() {
            self.tell_size(ofd);
        }
    }

    /// Promotes a descriptor, and makes sure that the kernel has the size of its file: before a
    /// call that only the kernel can make, and that goes by the size.
    pub fn update_kernel_size(&self, fd: i32) {
        if let Ok(ofd) = self.table().get_open(fd) {
            self.tell_size(&ofd);
        }
    }

    #[cold]
    fn tell_size(&self, ofd: &OfdRef<'_>) {
        if let (Ok(()), Ok(attr)) = (self.promotions().promote_ofd(ofd), ofd.attr()) {
            self.task().kernel.update_kernel_size(ofd.fd(), attr.size);
        }
    }

    /// Sets the size of a file, after checking limits and removing privileges. The caller has
    /// checked permission.
    fn resize(&self, fs: &dyn vfs::FileSystem, attr: &vfs::Attr, len: u64) -> Result<(), Errno> {
        self.check_size(attr.size, len)?;
        self.task().drop_privileges(fs, attr)?;
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        fs.setattr(&self.task().identity().effective.caller(), attr.ino, &set).map(drop)
    }

    /// `fallocate`.
    pub fn fallocate(&self, fd: i32, mode: i32, offset: i64, len: i64) -> Served<()> {
        self.fallocate_call(fd, mode, offset, len).into()
    }

    /// `posix_fallocate`; the caller returns the error number instead of setting `errno`.
    pub fn posix_fallocate(&self, fd: i32, offset: i64, len: i64) -> Served<()> {
        self.fallocate(fd, 0, offset, len)
    }

    fn fallocate_call(&self, fd: i32, mode: i32, offset: i64, len: i64) -> CallResult<()> {
        let ofd = self.table().get_open(fd)?;
        if offset < 0 || len <= 0 {
            return Err(Errno::INVAL.into());
        }
        let what = fallocate_mode(mode)?;
        if !ofd.is_writable() {
            return Err(Errno::BADF.into());
        }
        let end = offset.checked_add(len).ok_or(Errno::FBIG)? as u64;
        ofd.check_unmapped()?;
        ofd.mount().check_writable()?;
        let attr = ofd.attr()?;
        match what {
            Fallocate::Allocate { keep_size: false }
            | Fallocate::ZeroRange { keep_size: false } => {
                self.check_size(attr.size, end)?;
            }
            Fallocate::Insert => {
                self.check_size(attr.size, attr.size.saturating_add(len as u64))?
            }
            _ => {}
        }
        self.task().drop_privileges(ofd.fs(), &attr)?;
        ofd.fs().fallocate(ofd.ino(), what, offset as u64, len as u64)?;
        self.after_resize(&ofd);
        sync_if(&ofd, ofd.writes_durably())?;
        Ok(())
    }

    /// `fsync`.
    pub fn fsync(&self, fd: i32) -> Served<()> {
        let call = || {
            let ofd = self.table().get_open(fd)?;
            // The kernel writes back mapped pages.
            ofd.check_unmapped()?;
            Ok(ofd.fs().fsync(ofd.ino())?)
        };
        CallResult::into(call())
    }

    /// `fdatasync`.
    pub fn fdatasync(&self, fd: i32) -> Served<()> {
        self.fsync(fd)
    }

    /// `syncfs`. The kernel repeats it for files that are mapped.
    pub fn syncfs(&self, fd: i32) -> Served<()> {
        let call = || {
            let ofd = self.table().get_open(fd)?;
            ofd.fs().sync()?;
            ofd.check_unmapped()
        };
        CallResult::into(call())
    }

    /// `sync`, for the file systems that are served here.
    pub fn sync(&self) {
        for pool in self.task().mounts().filter_map(|(_, mount)| mount.if_attached()) {
            let _ = pool.fs.sync();
        }
    }

    /// `sync_file_range`.
    pub fn sync_file_range(&self, fd: i32, offset: i64, len: i64, flags: u32) -> Served<()> {
        let call = || {
            let ofd = self.table().get_open(fd)?;
            if offset < 0 || len < 0 || offset.checked_add(len).is_none() || flags & !7 != 0 {
                return Err(Errno::INVAL.into());
            }
            ofd.check_unmapped()?;
            Ok(ofd.fs().fsync(ofd.ino())?)
        };
        CallResult::into(call())
    }

    /// `posix_fadvise`. Only checks its arguments, as there is no cache to advise.
    pub fn posix_fadvise(&self, fd: i32, _offset: i64, len: i64, advice: i32) -> Served<()> {
        let call = || {
            let _ofd = self.table().get_open(fd)?;
            let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
            if len < 0 || !known { Err(Errno::INVAL.into()) } else { Ok(()) }
        };
        CallResult::into(call())
    }

    /// `readahead`.
    pub fn readahead(&self, fd: i32, _offset: i64, _count: usize) -> Served<()> {
        let call = || {
            let ofd = self.table().get(fd)?;
            if !ofd.is_readable() {
                return Err(Errno::BADF.into());
            }
            if ofd.kind() == FileKind::File { Ok(()) } else { Err(Errno::INVAL.into()) }
        };
        CallResult::into(call())
    }
}

/// Flags without effect on a call that waits for no device.
const HINTS: i32 = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT;
/// `RWF_NOAPPEND` of Linux 6.9.
const RWF_NOAPPEND: i32 = 0x20;

/// Makes written data durable, if that `is_asked` for and the engine has not done it (vfs-C6).
#[inline]
pub(crate) fn sync_if(ofd: &OfdRef<'_>, is_asked: bool) -> Result<(), Errno> {
    if is_asked && ofd.fs().durability() != Durability::OnReturn {
        ofd.fs().fsync(ofd.ino())?;
    }
    Ok(())
}

/// Reads at an offset that the call names, after a check of the range.
#[inline]
fn read_range(ofd: &OfdRef<'_>, buf: &mut [u8], offset: i64) -> Result<usize, Errno> {
    let offset = check_range(offset, buf.len())?;
    let len = buf.len().min(RW_MAX);
    read_from_engine(ofd, offset, &mut buf[..len])
}

/// Reads from the engine. The read counts as an access unless the description has `O_NOATIME`.
#[inline]
pub(crate) fn read_from_engine(
    ofd: &OfdRef<'_>,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, Errno> {
    if ofd.oflags() & libc::O_NOATIME != 0 {
        return read_without_atime(ofd, offset, buf);
    }
    ofd.fs().read(ofd.ino(), offset, buf)
}

#[cold]
fn read_without_atime(ofd: &OfdRef<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    vfs::access::unrecorded(|| ofd.fs().read(ofd.ino(), offset, buf))
}

/// Returns the length of a vector, cut to the most that one call moves. `EINVAL` for more than 1024
/// parts, or for a length beyond the largest result.
fn total_len(lens: impl ExactSizeIterator<Item = usize>) -> Result<usize, Errno> {
    if lens.len() > libc::UIO_MAXIOV as usize {
        return Err(Errno::INVAL);
    }
    let mut lens = lens;
    let total = lens
        .try_fold(0usize, |sum, len| sum.checked_add(len).filter(|s| *s <= isize::MAX as usize));
    total.map(|total| total.min(RW_MAX)).ok_or(Errno::INVAL)
}

/// Parses the mode of `fallocate(2)`. `EOPNOTSUPP` for a combination that Linux does not have.
pub fn fallocate_mode(mode: i32) -> Result<Fallocate, Errno> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(Fallocate::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Fallocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Fallocate::ZeroRange { keep_size }),
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Ok(Fallocate::Collapse),
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Ok(Fallocate::Insert),
        _ => Err(Errno::OPNOTSUPP),
    }
}
