//! Listings of directories.

use super::inode::stat;
use super::{DirFs, reopen_quietly};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, statat};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use vfs::{DirEntry, Errno, FileKind, Ino, ROOT, Result};

/// The size of the buffer for entries, in bytes.
const BUFFER: usize = 32 << 10;

/// Opens a directory for listing.
pub fn open_listing(dir: &OwnedFd) -> Result<OwnedFd> {
    reopen_quietly(dir, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Calls `each` for the entries of a listing from `cookie` on, until it returns `false`. It gets
/// the name, the kind, the inode number and the position after the entry.
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

/// The positions after `.` and `..`, which not all file systems list first. The kernel's own
/// positions follow.
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;

/// Converts a cookie to the kernel's position. `i64::MAX` is the kernel's end of a listing and is
/// not changed.
fn place_of(cookie: u64) -> u64 {
    if cookie >= i64::MAX as u64 { i64::MAX as u64 } else { cookie.saturating_sub(AFTER_DOTDOT) }
}

fn cookie_of(place: u64) -> u64 {
    place.saturating_add(AFTER_DOTDOT).min(i64::MAX as u64)
}

/// Returns the inode number of the parent of a listed directory, also if something is mounted over
/// it. The listing must be at its start.
pub fn number_above(stream: &OwnedFd) -> Result<Option<u64>> {
    let mut above = None;
    for_each_entry(stream, 0, |name, _, number, _| {
        above = (name.to_bytes() == b"..").then_some(number);
        Ok(above.is_none())
    })?;
    Ok(above)
}

impl DirFs {
    /// Implements `FileSystem::readdir`.
    pub(super) fn list(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let fd = self.directory(dir)?;
        let (key, is_removed) = {
            let nodes = self.nodes();
            let node = nodes.get(dir)?;
            (node.key, node.is_nameless)
        };
        if is_removed || stat(fd.as_fd())?.stx_nlink == 0 {
            return Err(Errno::NOENT);
        }
        let mut emit_dots =
            |name: &[u8], ino, cookie| emit(&DirEntry { ino, kind: FileKind::Dir, name, cookie });
        if cookie < AFTER_DOT && !emit_dots(b".", dir, AFTER_DOT) {
            return Ok(());
        }
        let stream = open_listing(&fd)?;
        if cookie < AFTER_DOTDOT {
            let above = match number_above(&stream)?.filter(|_| dir != ROOT) {
                Some(number) => self.nodes().number_or_own((key.0, number)),
                None => ROOT,
            };
            if !emit_dots(b"..", above, AFTER_DOTDOT) {
                return Ok(());
            }
            rustix::fs::seek(&stream, SeekFrom::Start(0))?;
        }
        for_each_entry(&stream, place_of(cookie), |name, kind, number, place| {
            if matches!(name.to_bytes(), b"." | b"..") {
                return Ok(true);
            }
            let kind = match kind_of_type(kind) {
                Some(kind) => kind,
                None => match statat(&stream, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileKind::from_mode(stat.st_mode).ok_or(Errno::IO)?,
                    // The entry has been removed meanwhile.
                    Err(Errno::NOENT) => return Ok(true),
                    Err(errno) => return Err(errno),
                },
            };
            // A listing reports the inode below a mount point, not the mounted one, as the kernel
            // does.
            let ino = self.nodes().number_or_own((key.0, number));
            Ok(emit(&DirEntry { ino, kind, name: name.to_bytes(), cookie: cookie_of(place) }))
        })
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
