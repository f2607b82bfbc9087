//! Listings of directories.

use super::{DirFs, reopen};
use crate::nodes::Key;
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, statat};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use vfs::{DirEntry, Errno, FileKind, Ino, ROOT, Result};

/// Bytes of entries that are asked for at once.
const BUFFER: usize = 32 << 10;

/// A directory, open to be listed.
pub fn open_listing(dir: &OwnedFd) -> Result<OwnedFd> {
    reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Calls `each` with name, kind, inode number and the place after it of what is listed from `cookie` on, until it returns
/// `false`.
pub fn for_each_entry(
    stream: &OwnedFd,
    cookie: u64,
    mut each: impl FnMut(&std::ffi::CStr, FileType, u64, u64) -> Result<bool>,
) -> Result<()> {
    if cookie != 0 {
        rustix::fs::seek(stream, SeekFrom::Start(cookie))?;
    }
    let mut buf = vec![MaybeUninit::uninit(); BUFFER];
    let mut entries = RawDir::new(stream, &mut buf);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let next = entry.next_entry_cookie();
        if !each(entry.file_name(), entry.file_type(), entry.ino(), next)? {
            break;
        }
    }
    Ok(())
}

impl DirFs {
    pub(super) fn list(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let fd = self.directory(dir)?;
        let key = self.nodes().get(dir)?.key;
        // No file system counts so far, and the kernel's offsets are signed.
        if i64::try_from(cookie).is_err() {
            return Ok(());
        }
        let stream = open_listing(&fd)?;
        for_each_entry(&stream, cookie, |name, kind, number, cookie| {
            let kind = match kind_of_type(kind) {
                Some(kind) => kind,
                None => match statat(&stream, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileKind::from_mode(stat.st_mode).ok_or(Errno::IO)?,
                    // It is gone since.
                    Err(Errno::NOENT) => return Ok(true),
                    Err(errno) => return Err(errno),
                },
            };
            let name = name.to_bytes();
            let ino = self.listed_number(dir, key, name, number);
            Ok(emit(&DirEntry { ino, kind, name, cookie }))
        })
    }

    /// The number of what is listed in a directory. What is mounted on a name is not asked for, as the kernel does not.
    fn listed_number(&self, dir: Ino, dir_key: Key, name: &[u8], number: u64) -> Ino {
        match name {
            b"." => dir,
            b".." if dir == ROOT => ROOT,
            _ => self.nodes().number_or_own((dir_key.0, number)),
        }
    }
}

fn kind_of_type(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::Char,
        FileType::BlockDevice => FileKind::Block,
        FileType::Unknown => return None,
    })
}
