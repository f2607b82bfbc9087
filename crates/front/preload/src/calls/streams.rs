//! Streams of libc: opening them, giving them a descriptor ([`crate::streams`]), and files with
//! names that libc makes up.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{NonNull, null_mut};

use libc::{AT_FDCWD, FILE};
use posix::Errno;

use super::descriptors::{dup2, fcntl, open_at};
use super::names::mkdir;
use super::{close, lseek};
use crate::serve::{before_fd, fd_freed, leave_streams_to_kernel, leave_to_kernel, set_errno};
use crate::start::process;
use crate::stats::Class;
use crate::{cancel, direct, guard, memory, real, stats, streams};

/// The mode of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamMode {
    flags: c_int,
    /// The mode for libc, without the letters that only matter when a file is opened.
    name: &'static CStr,
}

impl StreamMode {
    /// Parses a mode. `None`: libc has to handle it, because it is wrong or names a character set.
    fn new(mode: &[u8]) -> Option<Self> {
        let (first, rest) = mode.split_first()?;
        if rest.contains(&b',') {
            return None;
        }
        // glibc reads the first seven letters.
        let rest = &rest[..rest.len().min(6)];
        let both = rest.contains(&b'+');
        let (access, name) = match (first, both) {
            (b'r', false) => (libc::O_RDONLY, c"r"),
            (b'r', true) => (libc::O_RDWR, c"r+"),
            (b'w', false) => (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, c"w"),
            (b'w', true) => (libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC, c"w+"),
            (b'a', false) => (libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, c"a"),
            (b'a', true) => (libc::O_RDWR | libc::O_CREAT | libc::O_APPEND, c"a+"),
            _ => return None,
        };
        // With `c`, transfers are not cancellation points; the stream keeps that.
        if rest.contains(&b'c') {
            return None;
        }
        let flag = |letter, flag| if rest.contains(&letter) { flag } else { 0 };
        Some(Self { flags: access | flag(b'e', libc::O_CLOEXEC) | flag(b'x', libc::O_EXCL), name })
    }

    /// Parses the program's string.
    fn read(mode: *const c_char) -> Option<Self> {
        Self::new(memory::string(mode).ok()?)
    }

    /// Makes a stream on a descriptor of ours that was just opened; closes that if it fails.
    fn make(self, fd: c_int) -> *mut FILE {
        // SAFETY: a descriptor and strings.
        unsafe {
            if self.name == c"a" {
                lseek(fd, 0, libc::SEEK_END);
            }
            if let Some(stream) = streams::make(fd, self.name) {
                return stream.as_ptr();
            }
            let failed = match leave_to_kernel(fd) {
                Ok(()) => match real::fdopen(fd, self.name.as_ptr()) {
                    stream if !stream.is_null() => return stream,
                    _ => *libc::__errno_location(),
                },
                Err(err) => err.raw_os_error(),
            };
            close(fd);
            *libc::__errno_location() = failed;
        }
        null_mut()
    }
}

/// Opens a stream in user space.
fn open_stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    let mode = StreamMode::read(mode)?;
    let fd = open_at(AT_FDCWD, path, mode.flags, 0o666)?;
    Some(if fd < 0 { null_mut() } else { mode.make(fd) })
}

/// Makes a stream on a descriptor that is served here.
///
/// `EINVAL`: the descriptor does not allow what the mode asks for.
fn stream_on(fd: c_int, mode: *const c_char) -> Option<*mut FILE> {
    let process = process()?;
    if !process.table().owns(fd) || guard::is_inside() {
        return None;
    }
    let mode = StreamMode::read(mode)?;
    // SAFETY: a descriptor.
    let had = unsafe { fcntl(fd, libc::F_GETFL, 0) };
    if had < 0 {
        return Some(null_mut());
    }
    let is_allowed = match had & libc::O_ACCMODE {
        libc::O_RDWR => true,
        one => one == mode.flags & libc::O_ACCMODE,
    };
    if !is_allowed {
        set_errno(Errno::INVAL);
        return Some(null_mut());
    }
    let stream = streams::make(fd, mode.name)?.as_ptr();
    // SAFETY: a descriptor.
    unsafe {
        if mode.flags & !had & libc::O_APPEND != 0 {
            fcntl(fd, libc::F_SETFL, (had | libc::O_APPEND).into());
        }
        if mode.name == c"a" {
            lseek(fd, 0, libc::SEEK_END);
        }
    }
    Some(stream)
}

/// Notes that libc has opened a stream.
fn opened(stream: *mut FILE, mode: *const c_char) -> *mut FILE {
    if let Some(opened) = NonNull::new(stream) {
        // SAFETY: a stream.
        let fd = stats::opened_by_kernel(unsafe { libc::fileno(stream) });
        if let Some(mode) = StreamMode::read(mode) {
            direct::stream_opened(fd, mode.flags, || streams::is_seen(opened));
        }
    }
    stream
}

/// Makes a stream's descriptor the kernel's for good, as libc is going to close it internally;
/// returns it.
fn leave_stream_to_kernel(stream: *mut FILE) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY: the program passes a stream.
    let fd = unsafe { libc::fileno(stream) };
    // If that fails, calls on it are answered as before.
    let _ = leave_to_kernel(fd);
    fd
}

export! {
    fn fopen | fopen64 | _IO_fopen (path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode).unwrap_or_else(|| {
            before_fd();
            opened(real::fopen(path, mode), mode)
        })
    }

    fn fdopen | _IO_fdopen (fd: c_int, mode: *const c_char) -> *mut FILE {
        stream_on(fd, mode).unwrap_or_else(|| match leave_to_kernel(fd) {
            Ok(()) => real::fdopen(fd, mode),
            Err(err) => {
                set_errno(err);
                null_mut()
            }
        })
    }

    fn freopen | freopen64 (
        path: *const c_char, mode: *const c_char, stream: *mut FILE
    ) -> *mut FILE {
        // Opens the file first. libc's stream then opens `/dev/null`, and the file's descriptor
        // replaces that one's.
        let opened = (!path.is_null() && streams::are_served())
            .then(|| StreamMode::read(mode))
            .flatten()
            .and_then(|mode| Some((mode, open_at(AT_FDCWD, path, mode.flags, 0o666)?)))
            .filter(|(_, fd)| *fd >= 0);
        before_fd();
        leave_stream_to_kernel(stream);
        let Some((mode, fd)) = opened else {
            let reopened = real::freopen(path, mode, stream);
            fd_freed(0);
            return reopened;
        };
        let reopened = real::freopen(c"/dev/null".as_ptr(), mode.name.as_ptr(), stream);
        fd_freed(0);
        if !reopened.is_null() {
            let reopened_fd = libc::fileno(reopened);
            dup2(fd, reopened_fd);
            if mode.flags & libc::O_CLOEXEC != 0 {
                fcntl(reopened_fd, libc::F_SETFD, libc::FD_CLOEXEC.into());
            }
            if mode.name == c"a" {
                lseek(reopened_fd, 0, libc::SEEK_END);
            }
        }
        cancel::not_here(|| close(fd));
        reopened
    }

    fn fclose | _IO_fclose (stream: *mut FILE) -> c_int {
        if streams::have_ours() && streams::served(stream, Class::Close).is_some() {
            return real::fclose(stream);
        }
        let fd = leave_stream_to_kernel(stream);
        stats::unmark(fd, fd);
        let closed = real::fclose(stream);
        fd_freed(fd);
        closed
    }

    fn pclose (stream: *mut FILE) -> c_int {
        let closed = real::pclose(stream);
        fd_freed(0);
        closed
    }

    fn fcloseall () -> c_int {
        leave_streams_to_kernel();
        let closed = real::fcloseall();
        fd_freed(0);
        closed
    }

    fn tmpfile | tmpfile64 () -> *mut FILE {
        let flags = libc::O_RDWR | libc::O_EXCL | libc::O_TMPFILE;
        match open_at(AT_FDCWD, c"/tmp".as_ptr(), flags, 0o600) {
            Some(fd) if fd >= 0 => StreamMode { flags, name: c"w+" }.make(fd),
            _ => {
                before_fd();
                real::tmpfile()
            }
        }
    }

    fn mkstemp | mkstemp64 (template: *mut c_char) -> c_int {
        temporary(template, 0, 0).unwrap_or_else(|| {
            before_fd();
            stats::opened_by_kernel(real::mkstemp(template))
        })
    }

    fn mkostemp | mkostemp64 (template: *mut c_char, flags: c_int) -> c_int {
        temporary(template, 0, flags).unwrap_or_else(|| {
            before_fd();
            stats::opened_by_kernel(real::mkostemp(template, flags))
        })
    }

    fn mkstemps | mkstemps64 (template: *mut c_char, suffix: c_int) -> c_int {
        temporary(template, suffix, 0).unwrap_or_else(|| {
            before_fd();
            stats::opened_by_kernel(real::mkstemps(template, suffix))
        })
    }

    fn mkostemps | mkostemps64 (template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        temporary(template, suffix, flags).unwrap_or_else(|| {
            before_fd();
            stats::opened_by_kernel(real::mkostemps(template, suffix, flags))
        })
    }
}

export! {
    fn mkdtemp (template: *mut c_char) -> *mut c_char {
        match named(template, 0, || Some(mkdir(template, 0o700))) {
            Some(0) => template,
            Some(_) => null_mut(),
            None => real::mkdtemp(template),
        }
    }
}

/// Letters of the names of temporary files.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Letters at the end of such a name.
const X: usize = 6;
/// Attempts to find a free name.
const TRIES: usize = 62 * 62 * 62;

/// Opens a new file whose name ends with six random letters and `suffix` bytes of the template.
/// `None`: libc has to make or refuse it.
fn temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> Option<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    named(template, suffix, || open_at(AT_FDCWD, template, flags, 0o600))
}

/// Calls `make` with random names in `template` until it does not fail with `EEXIST`; returns its
/// result. `None`: libc has to do it.
fn named(template: *mut c_char, suffix: c_int, make: impl Fn() -> Option<c_int>) -> Option<c_int> {
    process()?;
    let len = memory::string(template).ok()?.len();
    let at = len.checked_sub(usize::try_from(suffix).ok()?)?.checked_sub(X)?;
    // SAFETY: within the program's string, which it lets us change; no other thread changes it now.
    let letters = unsafe { std::slice::from_raw_parts_mut(template.add(at).cast::<u8>(), X) };
    if letters != [b'X'; X] {
        return None;
    }
    for _ in 0..TRIES {
        let mut random = 0_u64;
        let bytes = size_of_val(&random);
        // After a name that is taken, another is tried, so poor random numbers suffice.
        // SAFETY: the size of the variable.
        unsafe { libc::getrandom((&raw mut random).cast(), bytes, libc::GRND_NONBLOCK) };
        for letter in letters.iter_mut() {
            *letter = LETTERS[(random % 62) as usize];
            random /= 62;
        }
        let opened = make();
        let exists = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
        match opened {
            Some(fd) if fd < 0 && exists() => {}
            None => {
                letters.fill(b'X');
                return None;
            }
            opened => return opened,
        }
    }
    Some(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_libc() {
        let flags = |mode: &str| StreamMode::new(mode.as_bytes()).map(|mode| mode.flags);
        assert_eq!(flags("rb"), Some(libc::O_RDONLY));
        assert_eq!(flags("rb+"), Some(libc::O_RDWR));
        let created = libc::O_RDWR | libc::O_CREAT;
        assert_eq!(flags("w+bxe"), Some(created | libc::O_TRUNC | libc::O_EXCL | libc::O_CLOEXEC));
        assert_eq!(flags("a+"), Some(created | libc::O_APPEND));
        for theirs in ["", "b", "+r", "r,ccs=UTF-8", "rc"] {
            assert_eq!(flags(theirs), None, "{theirs}");
        }
    }
}
