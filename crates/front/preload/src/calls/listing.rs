//! Directory streams.
//!
//! The library reads a directory of a pool through a stream of its own. Such a stream begins with a
//! magic number; libc's begins with its descriptor, which is never that number. So each function
//! knows which kind it has. When the descriptor becomes the kernel's, the stream continues with
//! `getdents64`: positions in a directory are the same on both sides.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{AT_FDCWD, DIR, dirent, off_t, size_t, ssize_t};
use posix::{DirItem, Errno};

use super::copying::by_kernel;
use super::descriptors::{close, open_at, openat};
use super::inside;
use crate::serve::{answer, fd_freed, set_errno};
use crate::start::process;
use crate::stats::Class;
use crate::{memory, real};

/// First field of our streams. No descriptor is negative.
const MAGIC: u64 = 0x4b53_4449_ffff_fff0;
/// Bytes that a stream reads at a time, as glibc's do.
const BUFFER_BYTES: usize = 32 << 10;
/// Offset of the name in an entry.
const NAME_OFFSET: usize = std::mem::offset_of!(dirent, d_name);

/// Bytes of the shortest entry: one with a name of one byte.
const ENTRY_BYTES_MIN: usize = (NAME_OFFSET + 2).next_multiple_of(8);

#[repr(C)]
struct Stream {
    magic: u64,
    fd: c_int,
    busy: AtomicBool,
    /// Position of the stream: the one after the last entry returned.
    place: off_t,
    /// The next entry, and the end of those read, in `buffer`.
    next: usize,
    end: usize,
    buffer: Box<Entries>,
}

/// Entries as `getdents64` writes them.
#[repr(C, align(8))]
struct Entries([u8; BUFFER_BYTES]);

/// A stream that is locked for this thread until this is dropped.
struct LockedListing<'a>(&'a mut Stream);

impl Drop for LockedListing<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Returns the stream if the library made it.
unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a mut Stream> {
    let stream = dir.cast::<Stream>();
    // SAFETY: every stream, libc's too, has 8 bytes; with our number in them it is ours, and lives
    // until `closedir`.
    unsafe {
        if dir.is_null() || stream.cast::<u64>().read() != MAGIC {
            return None;
        }
        Some(&mut *stream)
    }
}

impl Stream {
    fn open(fd: c_int) -> *mut DIR {
        let buffer = Box::new(Entries([0; BUFFER_BYTES]));
        let busy = AtomicBool::new(false);
        let stream = Self { magic: MAGIC, fd, busy, place: 0, next: 0, end: 0, buffer };
        Box::into_raw(Box::new(stream)).cast()
    }

    fn lock(&mut self) -> LockedListing<'_> {
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        LockedListing(self)
    }

    /// Discards buffered entries and goes to `place`.
    fn seek(&mut self, place: off_t) {
        (self.next, self.end, self.place) = (0, 0, place);
        // SAFETY: no memory is involved.
        unsafe { super::content::lseek(self.fd, place, libc::SEEK_SET) };
    }

    /// Reads more entries; returns their bytes.
    fn fill(&mut self) -> Result<usize, Errno> {
        self.next = 0;
        self.end = 0;
        self.end = entries(self.fd, &mut self.buffer.0)?;
        Ok(self.end)
    }

    /// Returns the next entry; `None` at the end.
    fn read(&mut self) -> Result<Option<&mut dirent>, Errno> {
        if self.next == self.end && self.fill()? == 0 {
            return Ok(None);
        }
        let entry = self.buffer.0[self.next..].as_mut_ptr().cast::<dirent>();
        // SAFETY: `entries` wrote a whole entry here, aligned to 8 bytes; only its head and its
        // name are read.
        let entry = unsafe { &mut *entry };
        self.next += usize::from(entry.d_reclen);
        self.place = entry.d_off;
        Ok(Some(entry))
    }
}

/// Writes entries to `buf`, in the form of `getdents64`; returns their bytes. `EINVAL` if the first
/// does not fit.
fn entries(fd: c_int, buf: &mut [u8]) -> Result<usize, Errno> {
    if let Some(process) = process().filter(|process| process.table().owns(fd)) {
        let mut len = 0;
        let mut full = false;
        let listed = answer(process, Class::List, &[fd], |process| {
            process.names().getdents(fd, &mut |item| {
                match write_entry(&mut buf[len..], item) {
                    Some(more) => len += more,
                    None => full = true,
                }
                !full
            })
        });
        match listed {
            Some(Ok(_)) if len == 0 && full => return Err(Errno::INVAL),
            Some(Ok(_)) => return Ok(len),
            Some(Err(err)) => return Err(err),
            None => {}
        }
    }
    // SAFETY: the buffer has the length that is passed.
    let taken = unsafe { real::getdents64(fd, buf.as_mut_ptr().cast(), buf.len()) };
    // SAFETY: the thread's own place.
    usize::try_from(taken)
        .map_err(|_| Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
}

/// Writes one entry; returns its length in bytes, `None` if it does not fit.
fn write_entry(buf: &mut [u8], item: &DirItem<'_>) -> Option<usize> {
    let len = (NAME_OFFSET + item.name.len() + 1).next_multiple_of(8);
    let entry = buf.get_mut(..len)?;
    entry[..8].copy_from_slice(&item.ino.to_ne_bytes());
    entry[8..16].copy_from_slice(&item.offset.to_ne_bytes());
    entry[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
    entry[18] = item.kind;
    let (name, rest) = entry[NAME_OFFSET..].split_at_mut(item.name.len());
    name.copy_from_slice(item.name);
    rest.fill(0);
    Some(len)
}

export! {
    fn opendir (path: *const c_char) -> *mut DIR {
        let fd = match process() {
            Some(_) => openat(AT_FDCWD, path, OPEN_FLAGS, 0),
            None => return real::opendir(path),
        };
        match fd {
            -1 => std::ptr::null_mut(),
            fd if process().is_some_and(|process| process.table().owns(fd)) => Stream::open(fd),
            // libc makes its stream of the descriptor that `openat` returned.
            fd => {
                let dir = real::fdopendir(fd);
                if dir.is_null() {
                    real::close(fd);
                }
                dir
            }
        }
    }

    fn fdopendir (fd: c_int) -> *mut DIR {
        if !process().is_some_and(|process| process.table().owns(fd)) {
            return real::fdopendir(fd);
        }
        let mut stat: libc::stat = std::mem::zeroed();
        let flags = super::descriptors::fcntl(fd, libc::F_GETFL, 0);
        if flags == -1 || super::attributes::fstat(fd, &mut stat) == -1 {
            return std::ptr::null_mut();
        }
        let wrong = if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
            Some(Errno::NOTDIR)
        } else if flags & libc::O_PATH != 0 {
            Some(Errno::BADF)
        } else if flags & libc::O_ACCMODE == libc::O_WRONLY {
            Some(Errno::INVAL)
        } else {
            None
        };
        match wrong {
            Some(err) => {
                set_errno(err);
                std::ptr::null_mut()
            }
            None => Stream::open(fd),
        }
    }

    fn closedir (dir: *mut DIR) -> c_int {
        if dir.is_null() {
            return real::closedir(dir);
        }
        let Some(stream) = ours(dir) else {
            let fd = real::dirfd(dir);
            let closed = real::closedir(dir);
            fd_freed(fd);
            return closed;
        };
        let fd = stream.fd;
        stream.magic = 0;
        drop(Box::from_raw(stream));
        close(fd)
    }

    fn readdir | readdir64 (dir: *mut DIR) -> *mut dirent {
        let Some(stream) = ours(dir) else {
            return real::readdir(dir);
        };
        match stream.lock().0.read() {
            Ok(Some(entry)) => entry,
            Ok(None) => std::ptr::null_mut(),
            // A directory that was removed has no more entries.
            Err(Errno::NOENT) => std::ptr::null_mut(),
            Err(err) => {
                set_errno(err);
                std::ptr::null_mut()
            }
        }
    }

    fn readdir_r | readdir64_r (
        dir: *mut DIR, entry: *mut dirent, result: *mut *mut dirent
    ) -> c_int {
        let Some(stream) = ours(dir) else {
            return real::readdir_r(dir, entry, result);
        };
        *result = std::ptr::null_mut();
        match stream.lock().0.read() {
            Ok(Some(found)) => {
                let len = usize::from(found.d_reclen);
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_mut(found).cast::<u8>(),
                    entry.cast(),
                    len,
                );
                *result = entry;
                0
            }
            Ok(None) | Err(Errno::NOENT) => 0,
            Err(err) => err.raw_os_error(),
        }
    }

    fn rewinddir (dir: *mut DIR) -> () {
        match ours(dir) {
            Some(stream) => stream.lock().0.seek(0),
            None => real::rewinddir(dir),
        }
    }

    fn seekdir (dir: *mut DIR, place: c_long) -> () {
        match ours(dir) {
            Some(stream) => stream.lock().0.seek(place),
            None => real::seekdir(dir, place),
        }
    }

    fn telldir (dir: *mut DIR) -> c_long {
        match ours(dir) {
            Some(stream) => stream.lock().0.place,
            None => real::telldir(dir),
        }
    }

    fn dirfd (dir: *mut DIR) -> c_int {
        match ours(dir) {
            Some(stream) => stream.fd,
            None => real::dirfd(dir),
        }
    }

    fn getdents64 (fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        if !process().is_some_and(|process| process.table().owns(fd)) {
            return real::getdents64(fd, buf, len);
        }
        // An entry is written whole or not at all, so alignment does not matter.
        let there = memory::writable(buf, len).unwrap_or_default();
        let listed = entries(fd, there);
        match listed {
            // The accessible part of the buffer has no room for an entry.
            Err(Errno::INVAL) if there.len() < len && len >= ENTRY_BYTES_MIN => {
                set_errno(Errno::FAULT);
                -1
            }
            Ok(len) => len as ssize_t,
            Err(err) => {
                set_errno(err);
                -1
            }
        }
    }

    fn getdirentries | getdirentries64 (
        fd: c_int, buf: *mut c_char, len: size_t, base: *mut off_t
    ) -> ssize_t {
        by_kernel(&[fd], -1, || real::getdirentries(fd, buf, len, base))
    }

    fn scandirat | scandirat64 (
        dirfd: c_int, path: *const c_char, list: *mut c_void, select: *const c_void,
        compare: *const c_void
    ) -> c_int {
        match open_at(dirfd, path, OPEN_FLAGS, 0) {
            Some(-1) => -1,
            Some(fd) => inside::scan(Stream::open(fd), list, select, compare),
            None => by_kernel(&[dirfd], -1, || {
                real::scandirat(dirfd, path, list, select, compare)
            }),
        }
    }

    fn scandir | scandir64 (
        path: *const c_char, list: *mut c_void, select: *const c_void, compare: *const c_void
    ) -> c_int {
        scandirat(AT_FDCWD, path, list, select, compare)
    }
}

/// Flags with which libc opens a directory to read it.
const OPEN_FLAGS: c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC;
