//! Files that get their names when they are complete: a process that is killed before leaves
//! nothing.

use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Returns the directory of a file.
pub fn parent_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file without a name, for [`give_name`], in the directory of `path`.
///
/// # Errors
/// Those of the system. Not all file systems have such files.
pub fn make_beside(path: &Path) -> Result<OwnedFd, Errno> {
    // The name is given by way of it.
    rustix::fs::access("/proc/self/fd", Access::EXISTS)?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::open(parent_of(path), flags, Mode::from_raw_mode(0o600))
}

/// Gives a file its name.
///
/// # Errors
/// `EEXIST` if another file has that name; those of the system.
pub fn give_name(file: impl AsFd, path: &Path) -> Result<(), Errno> {
    let own = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)
}
