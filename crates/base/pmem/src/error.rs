//! Errors of opening and creating regions: each names the object, the cause and a remedy.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The reason why a region could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{}: cannot {action}: {source}{}", path.display(), remedy(path, source))]
    Io {
        /// The region.
        path: PathBuf,
        /// The action that failed, as an infinitive.
        action: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Another process has the region open.
    #[error("{}: in use by another process; unmount the pool or stop that process, then try again", .0.display())]
    InUse(PathBuf),
    /// The file system has too little free space.
    #[error("{}: {cause}; choose a smaller size, or free space", path.display())]
    NoSpace {
        /// The region.
        path: PathBuf,
        /// The bytes needed, and the bytes free.
        cause: String,
    },
    /// The file to be created exists.
    #[error("{}: exists already; choose another name, or remove the file if its content is not needed", .0.display())]
    Exists(PathBuf),
    /// The region is shorter than its user needs.
    #[error(
        "{}: holds {len} bytes where at least {need} are needed; the file was truncated, or it is not what it should be: restore it from a copy", path.display()
    )]
    TooShort {
        /// The region.
        path: PathBuf,
        /// Bytes it has.
        len: u64,
        /// Bytes it should have at least.
        need: u64,
    },
    /// Neither a regular file nor a devdax device.
    #[error("{}: is a {kind}; a pool is a regular file or a devdax device (/dev/daxX.Y)", path.display())]
    NotARegion {
        /// The path.
        path: PathBuf,
        /// The kind of the file.
        kind: &'static str,
    },
    /// A protection that needs protection keys, which are not available.
    #[error(
        "{}: cannot be protected by keys: this CPU or kernel has none, or all are in use; choose another protection, such as chunk", .0.display()
    )]
    NoKeys(PathBuf),
    /// A protection that needs a file, on a region without one.
    #[error(
        "{}: cannot be protected in this way, which takes a file; choose another protection, such as chunk", .0.display()
    )]
    NoFile(PathBuf),
    /// More regions than can be watched.
    #[error("{}: too many protected regions in one process; serve some from another, or without protection", .0.display())]
    TooMany(PathBuf),
    /// A length that cannot be mapped.
    #[error("{}: cannot be {len} bytes long: {cause}", path.display())]
    BadLength {
        /// The region.
        path: PathBuf,
        /// The length asked for.
        len: u64,
        /// The reason, and a length that would be possible.
        cause: String,
    },
}

/// Returns the remedy for an error of the system, to append to its message; may be empty.
fn remedy(path: &Path, source: &io::Error) -> String {
    let text = match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => return refused(path),
        Some(libc::ENOENT) => return missing(path),
        Some(libc::ENOSPC) => "; free space on the file system, or choose a smaller size",
        Some(libc::EDQUOT) => "; the quota is used up: choose a smaller size",
        Some(libc::ENOMEM) => {
            "; choose a smaller size, or raise the limits on address space and on locked and huge memory"
        }
        Some(libc::ENODEV | libc::EOPNOTSUPP) => {
            "; the file system cannot do this: put the file on fsdax, tmpfs, ext4, xfs or btrfs"
        }
        Some(libc::EROFS) => "; the file system is mounted read-only",
        _ => "",
    };
    text.to_owned()
}

/// Returns the directory of a path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Names the user that may open a file, or make one in its directory.
fn refused(path: &Path) -> String {
    let of = |path: &Path| path.metadata().map(|found| (found.uid(), found.mode() & 0o7777));
    let own = rustix::process::geteuid().as_raw();
    match (of(path), of(parent(path))) {
        (Ok((user, mode)), _) if user == own => format!(
            "; it belongs to this user (mode {mode:04o}): try `chmod u+rw`; `lsattr` shows whether it \
             is immutable"
        ),
        (Ok((user, mode)), _) => format!(
            "; it belongs to user {user} (mode {mode:04o}): run this as that user, or give the file \
             a group of yours and mode 660 (`chgrp`, `chmod`)"
        ),
        (Err(err), Ok((user, mode))) if err.kind() == io::ErrorKind::NotFound => format!(
            "; its directory belongs to user {user} (mode {mode:04o}): run this as that user, or \
             choose another directory"
        ),
        _ => "; this user may not search a directory above it".to_owned(),
    }
}

/// Names the directory that has to be created before a file.
fn missing(path: &Path) -> String {
    match parent(path).metadata() {
        Err(_) => format!("; the directory {} does not exist", parent(path).display()),
        Ok(_) => "; create it first".to_owned(),
    }
}

impl Error {
    /// Makes the error of a system call on `path`; `action` completes "cannot …".
    pub(crate) fn io(path: &Path, action: &'static str, e: impl Into<io::Error>) -> Self {
        Error::Io { path: path.to_owned(), action, source: e.into() }
    }

    /// Returns the errno that a system call would return for this.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::InUse(_) => libc::EBUSY,
            Error::NoSpace { .. } => libc::ENOSPC,
            Error::Exists(_) => libc::EEXIST,
            Error::TooShort { .. } | Error::BadLength { .. } => libc::EINVAL,
            Error::NotARegion { .. } | Error::NoFile(_) => libc::ENODEV,
            Error::NoKeys(_) => libc::EOPNOTSUPP,
            Error::TooMany(_) => libc::EMFILE,
        }
    }
}
