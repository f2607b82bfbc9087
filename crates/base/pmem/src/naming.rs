//! New files of regions, and when they get their names.
//!
//! A file that gets its name when its content is complete is never seen without it, and a process
//! that is killed before leaves nothing.

use crate::error::Error;
use crate::region::Region;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Makes a file.
pub(crate) fn named(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|e| match e {
        Errno::EXIST => Error::Exists(path.to_owned()),
        e => Error::io(path, "create the file", e),
    })
}

/// Makes a file that gets this name later, if the file system can.
pub(crate) fn nameless(path: &Path) -> Result<OwnedFd, Error> {
    if rustix::fs::lstat(path).is_ok() {
        return Err(Error::Exists(path.to_owned()));
    }
    // Whatever the reason, the other way works, or explains why not.
    os::nameless::make_beside(path).or_else(|_| named(path))
}

/// Returns whether a file has a name.
pub(crate) fn has_name(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).map_or(true, |stat| stat.st_nlink > 0)
}

impl Region {
    /// Returns whether the file of the region has a name. Devices and memory count as named.
    pub fn has_name(&self) -> bool {
        self.regular_file().is_none_or(has_name)
    }

    /// Gives the file of [`create_nameless`](crate::OpenOptions::create_nameless) its name, if it
    /// has none.
    ///
    /// # Errors
    /// [`Error::Exists`] if another file has that name.
    pub fn name_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let Some(file) = self.regular_file().filter(|file| !has_name(file)) else {
            return Ok(());
        };
        os::nameless::give_name(file, path).map_err(|e| match e {
            Errno::EXIST => Error::Exists(path.to_owned()),
            e => Error::io(path, "name the file", e),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    #[test]
    fn a_file_is_named_when_it_is_complete() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("region");
        let entries = || std::fs::read_dir(dir.path()).unwrap().count();
        let region = OpenOptions::default().create_nameless(&path, 4096).unwrap();
        assert!(entries() == 0 && !region.has_name());
        region.name_file(&path).unwrap();
        assert!(entries() == 1 && region.has_name());
        region.name_file(&path).unwrap();
        let again = OpenOptions::default().create_nameless(&path, 4096);
        assert!(matches!(again, Err(Error::Exists(_))));
        std::fs::remove_file(&path).unwrap();

        let region = OpenOptions::default().create_nameless(&path, 4096).unwrap();
        std::fs::write(&path, "of another program").unwrap();
        assert!(matches!(region.name_file(&path), Err(Error::Exists(_))));
        drop(region);
        assert_eq!(entries(), 1);
    }
}
