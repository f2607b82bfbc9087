//! Contents of files.

use super::attrs::{drop_capability, is_append_only};
use super::inode::stat;
use super::{DirFs, DirInode, reopen};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{pread, pwrite};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use vfs::{Errno, Fallocate, FileKind, Ino, Result, Seek};

/// The number of bytes copied at a time if the kernel cannot copy.
const CHUNK: usize = 1 << 20;
/// The maximum offset: the kernel's offsets are signed.
const OFFSET_MAX: u64 = i64::MAX as u64;

impl DirFs {
    /// Returns a regular file. `EISDIR` for a directory, `EINVAL` for other kinds.
    fn file(&self, ino: Ino) -> Result<DirInode> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::File => Ok(inode),
            FileKind::Dir => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Reads at an offset. Returns the number of bytes, which is less than `buf` has room for only
    /// at the end of the file.
    pub(super) fn read_at(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.file(ino)?;
        if buf.is_empty() || offset >= OFFSET_MAX {
            return Ok(0);
        }
        let content = self.content(&inode, false)?;
        // dirfs-B2: only few files share this lock.
        let _whole = self.contents.shared(ino);
        read_all(&content, offset, buf)
    }

    /// Writes at an offset, or at the end. Returns the offset.
    pub(super) fn write_at(&self, ino: Ino, offset: Option<u64>, data: &[u8]) -> Result<u64> {
        let inode = self.file(ino)?;
        if let Some(offset) = offset {
            if data.is_empty() {
                return Ok(offset);
            }
            self.limits.end_of(offset, data.len() as u64)?;
        }
        let (content, appends) = match self.content(&inode, true) {
            Err(Errno::PERM) if is_append_only(&stat(inode.fd.as_fd())?) => {
                (Arc::new(reopen(&inode.fd, OFlags::WRONLY | OFlags::APPEND)?), true)
            }
            content => (content?, false),
        };
        let _whole = self.contents.exclusive(ino);
        let size = stat(inode.fd.as_fd())?.stx_size;
        let offset = offset.unwrap_or(size);
        if appends && offset != size {
            return Err(Errno::PERM);
        }
        if !data.is_empty() {
            self.limits.end_of(offset, data.len() as u64)?;
            let _room = self.leave_reserve()?;
            write_all(&content, offset, data).inspect_err(|_| cut_back(&content, size))?;
        }
        Ok(offset)
    }

    /// Implements `FileSystem::fallocate`.
    pub(super) fn allocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let inode = self.inode(ino)?;
        let check = |size| self.limits.check_fallocate((inode.kind, size), mode, offset, len);
        if inode.kind != FileKind::File {
            return check(0).map(drop);
        }
        let keeps = |keep| if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let flags = match mode {
            Fallocate::Allocate { keep_size } => keeps(keep_size),
            Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Fallocate::ZeroRange { keep_size } => FallocateFlags::ZERO_RANGE | keeps(keep_size),
            Fallocate::Collapse => FallocateFlags::COLLAPSE_RANGE,
            Fallocate::Insert => FallocateFlags::INSERT_RANGE,
        };
        let content = self.content(&inode, true)?;
        let _whole = self.contents.exclusive(ino);
        check(stat(inode.fd.as_fd())?.stx_size)?;
        let _room = self.leave_reserve()?;
        rustix::fs::fallocate(&content, flags, offset, len)?;
        drop_capability(&inode.fd)
    }

    /// Implements `FileSystem::seek`.
    pub(super) fn seek_from(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let inode = self.file(ino)?;
        if offset >= OFFSET_MAX {
            return Err(Errno::NXIO);
        }
        let to = match whence {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        let content = self.content(&inode, false)?;
        let _whole = self.contents.shared(ino);
        // No caller uses the position of the descriptor.
        rustix::fs::seek(&content, to)
    }

    /// Copies up to `len` bytes, as far as the source reaches, and returns their number
    /// (`FileSystem::copy_range`). `EINVAL` if ranges of one file overlap.
    pub(super) fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.inode(from.0)?, self.inode(to.0)?);
        self.file(from.0)?;
        self.file(to.0)?;
        let source_content = self.content(&source, false)?;
        let target_content = self.content(&target, true)?;
        let _whole = self.contents.exclusive_two(from.0, to.0);
        let available = stat(source.fd.as_fd())?.stx_size.saturating_sub(from.1);
        let len = len.min(available);
        if len == 0 {
            return Ok(0);
        }
        self.limits.end_of(to.1, len)?;
        if from.0 == to.0 && from.1 < to.1.saturating_add(len) && to.1 < from.1.saturating_add(len)
        {
            return Err(Errno::INVAL);
        }
        let size = stat(target.fd.as_fd())?.stx_size;
        drop_capability(&target.fd)?;
        let _room = self.leave_reserve()?;
        copy_all((&source_content, from.1), (&target_content, to.1), len)
            .inspect_err(|_| cut_back(&target_content, size))?;
        Ok(len)
    }
}

/// Fills `buf` as far as the file reaches. Returns the number of bytes.
fn read_all(content: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match pread(content, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Writes all of `data` at an offset. After an error, a part of it may be written.
fn write_all(content: &OwnedFd, offset: u64, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        match pwrite(content, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Truncates a file to its old size after a call that failed midway made it grow (vfs-C2).
fn cut_back(content: &OwnedFd, size: u64) {
    if rustix::fs::fstat(content).is_ok_and(|stat| stat.st_size as u64 > size) {
        let _ = rustix::fs::ftruncate(content, size);
    }
}

/// Copies `len` bytes from one offset to the other: in the kernel, or through memory if the kernel
/// cannot. `EIO` if the source ends earlier. After an error, a part may be copied.
fn copy_all(from: (&OwnedFd, u64), to: (&OwnedFd, u64), len: u64) -> Result<()> {
    let mut done = 0;
    while done < len {
        let (mut source, mut target) = (from.1 + done, to.1 + done);
        let want = usize::try_from(len - done).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from.0, Some(&mut source), to.0, Some(&mut target), want)
        {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n as u64,
            Err(Errno::INTR) => {}
            // The kernel cannot copy between these file systems, or not at all.
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                let mut buf = vec![0; CHUNK.min(want)];
                match read_all(from.0, source, &mut buf)? {
                    0 => return Err(Errno::IO),
                    n => write_all(to.0, target, &buf[..n]).map(|()| done += n as u64)?,
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
