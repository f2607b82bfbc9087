//! System calls that `rustix` lacks or offers only as unsafe functions: file handles, and
//! per-thread state.

#![allow(unsafe_code)]

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CStr;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use vfs::{Errno, Result};

/// The maximum length of a handle, in bytes (`MAX_HANDLE_SZ`).
pub const HANDLE_MAX: usize = 128;

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
struct RawHandle {
    len: libc::c_uint,
    kind: libc::c_int,
    bytes: [u8; HANDLE_MAX],
}

/// A file handle: its kind and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The file system's code for the format of the bytes.
    pub kind: i32,
    /// The bytes, at most [`HANDLE_MAX`].
    pub bytes: Vec<u8>,
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Handle {
    /// Returns the handle of `name` in `dir`, or of `dir` itself if the name is empty. A symbolic
    /// link is not followed. `EOPNOTSUPP` if the file system has no handles.
    pub fn of(dir: BorrowedFd<'_>, name: &CStr) -> Result<Self> {
        let mut raw = RawHandle { len: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
        let mut mount = 0;
        let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
        // SAFETY: The name ends in NUL; `raw` has the layout of `file_handle` and `len` bytes of
        // room for the handle.
        let result = unsafe {
            let to = std::ptr::from_mut(&mut raw).cast();
            libc::name_to_handle_at(dir.as_raw_fd(), name.as_ptr(), to, &mut mount, flags)
        };
        match result {
            0 => {
                let bytes = raw.bytes.get(..raw.len as usize).ok_or(Errno::OPNOTSUPP)?;
                Ok(Self { kind: raw.kind, bytes: bytes.to_vec() })
            }
            // The file system has handles longer than the limit.
            _ => Err(match last_error() {
                Errno::OVERFLOW => Errno::OPNOTSUPP,
                errno => errno,
            }),
        }
    }

    /// Opens the handle with `O_PATH` on the file system of `mount`, which is open for reading.
    /// `ESTALE` if the inode no longer exists.
    pub fn open(&self, mount: BorrowedFd<'_>) -> Result<OwnedFd> {
        let mut raw = RawHandle { len: 0, kind: self.kind, bytes: [0; HANDLE_MAX] };
        raw.bytes.get_mut(..self.bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(&self.bytes);
        raw.len = self.bytes.len() as u32;
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `raw` has the layout of `file_handle`, and at least `len` bytes of the handle.
        let fd = unsafe {
            let from = std::ptr::from_mut(&mut raw).cast();
            libc::open_by_handle_at(mount.as_raw_fd(), from, flags)
        };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: The kernel has just made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Gives this thread its own umask (and working directory). One call is enough.
pub fn unshare_umask() -> Result<()> {
    // SAFETY: No descriptor and no memory is unshared; nothing here relies on a common working
    // directory.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

/// Sets the group and the user as which this thread uses file systems; other threads keep theirs.
/// `EINVAL` if these are not valid IDs here.
pub fn set_fs_ids(uid: u32, gid: u32) -> Result<()> {
    // SAFETY: These change IDs of this thread only, and touch no memory.
    let (got_gid, got_uid) = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        // These calls return the previous IDs; -1 changes nothing.
        (libc::setfsgid(u32::MAX), libc::setfsuid(u32::MAX))
    };
    if (got_uid as u32, got_gid as u32) == (uid, gid) { Ok(()) } else { Err(Errno::INVAL) }
}
