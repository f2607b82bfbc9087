//! Listings of directories.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use vfs::{Errno, FileKind, Ino};

use crate::{FileType, Pool};

/// Entries that are read from a directory at once.
const BATCH: usize = 64;

/// The entries of a directory, as an iterator. Entries that stay are listed once; those that other
/// threads or programs create and remove meanwhile may be listed.
pub struct ReadDir {
    pool: Pool,
    ino: Ino,
    /// Where the next batch begins.
    cookie: u64,
    batch: VecDeque<DirEntry>,
    /// Whether `.` and `..` are among the entries.
    has_dots: bool,
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir").field("pool", &self.pool).field("ino", &self.ino.0).finish()
    }
}

impl Drop for ReadDir {
    fn drop(&mut self) {
        self.pool.fs().forget(self.ino, 1);
    }
}

impl ReadDir {
    pub(crate) fn open(pool: &Pool, path: &Path) -> io::Result<Self> {
        let entry = pool.find(path)?;
        let (pool, ino, batch) = (pool.clone(), entry.ino, VecDeque::new());
        let dir = Self { pool, ino, cookie: 0, batch, has_dots: false };
        if entry.kind == FileKind::Dir { Ok(dir) } else { Err(Errno::NOTDIR.into()) }
    }

    /// Lists `.` and `..`, too.
    #[doc(hidden)]
    pub fn with_dots(mut self) -> Self {
        self.has_dots = true;
        self
    }

    fn fill(&mut self) -> Result<(), Errno> {
        let (batch, cookie, has_dots) = (&mut self.batch, &mut self.cookie, self.has_dots);
        self.pool.fs().readdir(self.ino, *cookie, &mut |entry| {
            *cookie = entry.cookie;
            if has_dots || !matches!(entry.name, b"." | b"..") {
                batch.push_back(DirEntry {
                    ino: entry.ino.0,
                    kind: entry.kind,
                    name: OsString::from_vec(entry.name.to_vec()),
                    cookie: entry.cookie,
                });
            }
            batch.len() < BATCH
        })
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty()
            && let Err(errno) = self.fill()
        {
            return Some(Err(errno.into()));
        }
        self.batch.pop_front().map(Ok)
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    ino: u64,
    kind: FileKind,
    name: OsString,
    cookie: u64,
}

impl DirEntry {
    /// Returns the name.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the kind of file; a symbolic link is not followed.
    pub fn file_type(&self) -> FileType {
        FileType(self.kind)
    }

    /// Returns the inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Returns where a later listing continues behind this entry (`d_off`).
    #[doc(hidden)]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}
