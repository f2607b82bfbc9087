//! Functions of libc that make calls on names internally, where the library cannot intercept them
//! (preload-P2). They are implemented here, by the exported functions.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use libc::{AT_FDCWD, DIR, dirent, size_t};
use posix::Errno;

use super::attributes::{faccessat, lstat, stat};
use super::listing::{closedir, opendir, readdir};
use super::names::{getcwd, readlink};
use crate::serve::set_errno;
use crate::start::process;
use crate::{memory, real};

/// Size of a path at most, in bytes, with the zero at its end.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Symbolic links that a path may follow.
const LINKS_MAX: usize = 40;

fn errno() -> Errno {
    // SAFETY: the thread's own place.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// A path as libc's `realpath` makes it, component by component.
struct Resolved(Vec<u8>);

impl Resolved {
    fn up(&mut self) {
        let parent = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.0.truncate(parent.max(1));
    }

    fn down(&mut self, name: &[u8]) -> Result<(), Errno> {
        if self.0 != b"/" {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(name);
        if self.0.len() >= PATH_BYTES { Err(Errno::NAMETOOLONG) } else { Ok(()) }
    }

    /// Returns the target if the path is a symbolic link, else `None`.
    fn link(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        let mut target = vec![0; PATH_BYTES];
        self.0.push(0);
        // SAFETY: a string, and a buffer of the length that is passed.
        let len =
            unsafe { readlink(self.0.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
        self.0.pop();
        match usize::try_from(len) {
            Ok(len) => {
                target.truncate(len);
                Ok(Some(target))
            }
            Err(_) if errno() == Errno::INVAL => Ok(None),
            Err(_) => Err(errno()),
        }
    }

    fn check_directory(&mut self) -> Result<(), Errno> {
        let len = self.0.len();
        self.0.extend_from_slice(b"/\0");
        let path = self.0.as_ptr().cast();
        // SAFETY: a string.
        let found = unsafe { faccessat(AT_FDCWD, path, libc::F_OK, libc::AT_EACCESS) };
        self.0.truncate(len);
        if found == 0 { Ok(()) } else { Err(errno()) }
    }
}

/// Whether only a directory can have what follows a name, and no later name would check that.
fn wants_directory(rest: &[u8]) -> bool {
    if rest.first() != Some(&b'/') {
        return false;
    }
    let mut names = rest.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.next().is_none_or(|name| name == b"..")
}

/// Resolves links, `.` and `..`. On an error, `resolved` has the part that was resolved.
fn resolve(path: &[u8], resolved: &mut Resolved) -> Result<(), Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let mut rest = path.to_vec();
    let mut links = 0;
    loop {
        let start = rest.iter().take_while(|byte| **byte == b'/').count();
        let len = rest[start..].iter().position(|byte| *byte == b'/').unwrap_or(rest.len() - start);
        let tail = rest.split_off(start + len);
        let name = &rest[start..];
        match name {
            b"" => return Ok(()),
            b"." => {}
            b".." => resolved.up(),
            name => {
                resolved.down(name)?;
                if let Some(mut target) = resolved.link()? {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    if target.first() == Some(&b'/') {
                        resolved.0.truncate(1);
                    } else {
                        resolved.up();
                    }
                    target.extend_from_slice(&tail);
                    rest = target;
                    continue;
                }
                if wants_directory(&tail) {
                    resolved.check_directory()?;
                }
            }
        }
        rest = tail;
    }
}

/// Joins a path to `start`, an absolute path without links, by text alone.
fn join(start: &[u8], path: &[u8]) -> Resolved {
    let mut joined = Resolved(start.to_vec());
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => joined.up(),
            // A name that is too long leads nowhere.
            name => drop(joined.down(name)),
        }
    }
    joined
}

/// Answers `realpath` if the path leads into a pool by its text, or starts in a working directory
/// there. `None`: libc does it.
fn real_path(path: *const c_char) -> Option<(Vec<u8>, Result<(), Errno>)> {
    let process = process()?;
    let path = memory::string(path).ok()?;
    let mut start = vec![b'/'];
    if path.first() != Some(&b'/') {
        let mut cwd = vec![0_u8; PATH_BYTES];
        // SAFETY: a buffer of the length that is passed.
        let found = unsafe { getcwd(cwd.as_mut_ptr().cast(), cwd.len()) };
        if found.is_null() {
            return None;
        }
        start = CStr::from_bytes_until_nul(&cwd).ok()?.to_bytes().to_vec();
    }
    if !process.contents().leads_to_pool(&start)
        && !process.contents().leads_to_pool(&join(&start, path).0)
    {
        return None;
    }
    let mut resolved = Resolved(start);
    let result = resolve(path, &mut resolved);
    Some((resolved.0, result))
}

/// Copies a path to `to`, or to newly allocated memory if that is null.
fn give_path(path: &[u8], to: *mut c_char) -> *mut c_char {
    // SAFETY: `to` has room for any path, or memory is allocated.
    unsafe {
        let to = if to.is_null() { libc::malloc(path.len() + 1).cast() } else { to };
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(path.as_ptr().cast(), to, path.len());
            to.add(path.len()).write(0);
        }
        to
    }
}

/// The operations on directories that `glob` takes from its caller.
#[repr(C)]
pub struct Glob {
    paths_len: size_t,
    paths: *mut *mut c_char,
    reserved: size_t,
    flags: c_int,
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

const _: () = assert!(size_of::<Glob>() == size_of::<libc::glob_t>());

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

type Select = unsafe extern "C-unwind" fn(*const dirent) -> c_int;
type Compare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// Returns the entries of a directory that `select` takes, each in memory of its own.
///
/// # Safety
/// A stream, and a function or nothing.
unsafe fn select_entries(dir: *mut DIR, select: Option<Select>) -> Result<Vec<*mut dirent>, Errno> {
    let mut found: Vec<*mut dirent> = Vec::new();
    loop {
        // SAFETY: the caller's; entries are as long as their `d_reclen`; `errno` is the thread's
        // own.
        unsafe {
            *libc::__errno_location() = 0;
            let entry = readdir(dir);
            let copy: *mut dirent = match entry {
                entry if entry.is_null() => null_mut(),
                entry if select.is_some_and(|select| select(entry) == 0) => continue,
                entry => libc::malloc((*entry).d_reclen.into()).cast(),
            };
            if copy.is_null() {
                let errno = match *libc::__errno_location() {
                    0 => return Ok(found),
                    errno => Errno::from_raw_os_error(errno),
                };
                found.into_iter().for_each(|entry| libc::free(entry.cast()));
                return Err(errno);
            }
            let bytes = (*entry).d_reclen.into();
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), bytes);
            found.push(copy);
        }
    }
}

/// Answers `scandirat` for a directory that is served. libc's `free` releases the list.
///
/// # Safety
/// As libc's.
pub(super) unsafe fn scan(
    dir: *mut DIR,
    list: *mut c_void,
    select: *const c_void,
    compare: *const c_void,
) -> c_int {
    // SAFETY: the caller's: null, or functions of these types.
    unsafe {
        let select = std::mem::transmute::<*const c_void, Option<Select>>(select);
        let compare = std::mem::transmute::<*const c_void, Option<Compare>>(compare);
        let before = *libc::__errno_location();
        let entries = select_entries(dir, select);
        closedir(dir);
        let failed = match entries {
            Ok(entries) => {
                let bytes = size_of_val(&*entries);
                let array = libc::malloc(bytes.max(1)).cast::<*mut dirent>();
                if !array.is_null() {
                    std::ptr::copy_nonoverlapping(entries.as_ptr(), array, entries.len());
                    if compare.is_some() {
                        libc::qsort(array.cast(), entries.len(), size_of::<*mut dirent>(), compare);
                    }
                    list.cast::<*mut *mut dirent>().write(array);
                    *libc::__errno_location() = before;
                    return entries.len() as c_int;
                }
                entries.into_iter().for_each(|entry| libc::free(entry.cast()));
                Errno::NOMEM
            }
            Err(errno) => errno,
        };
        set_errno(failed);
    }
    -1
}

export! {
    fn realpath (path: *const c_char, to: *mut c_char) -> *mut c_char {
        match real_path(path) {
            Some((path, Ok(()))) => give_path(&path, to),
            Some((so_far, Err(err))) => {
                // As libc does: returns how far the path leads if a name is missing or cannot be
                // reached.
                let is_told = matches!(err, Errno::NOENT | Errno::ACCESS) && *path != 0;
                if is_told && !to.is_null() {
                    give_path(&so_far[..so_far.len().min(PATH_BYTES - 1)], to);
                }
                set_errno(err);
                null_mut()
            }
            None => real::realpath(path, to),
        }
    }

    fn __realpath_chk (path: *const c_char, to: *mut c_char, room: size_t) -> *mut c_char {
        if room < PATH_BYTES {
            return real::__realpath_chk(path, to, room);
        }
        realpath(path, to)
    }

    fn canonicalize_file_name (path: *const c_char) -> *mut c_char {
        realpath(path, null_mut())
    }

    fn glob | glob64 (
        pattern: *const c_char, flags: c_int, failed: *const c_void, to: *mut Glob
    ) -> c_int {
        if process().is_none() || flags & GLOB_ALTDIRFUNC != 0 || to.is_null() {
            return real::glob(pattern, flags, failed, to.cast());
        }
        // The fields are the caller's, which may have set them for another call.
        let theirs = ((*to).closedir, (*to).readdir, (*to).opendir, (*to).lstat, (*to).stat);
        (*to).closedir = closedir as *const c_void;
        (*to).readdir = readdir as *const c_void;
        (*to).opendir = opendir as *const c_void;
        (*to).lstat = lstat as *const c_void;
        (*to).stat = stat as *const c_void;
        let result = real::glob(pattern, flags | GLOB_ALTDIRFUNC, failed, to.cast());
        ((*to).closedir, (*to).readdir, (*to).opendir, (*to).lstat, (*to).stat) = theirs;
        (*to).flags &= !GLOB_ALTDIRFUNC;
        result
    }
}
