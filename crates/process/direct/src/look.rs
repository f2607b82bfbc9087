//! Finds out what a descriptor refers to: its file system, its directory.

use crate::file::FileSystemKind;
use crate::table::borrow;
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags};
use std::ffi::CStr;

const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Returns the kind of file system. `None`: the file is not served.
pub fn kind_of(fd: i32, stat: &Statx) -> Option<FileSystemKind> {
    if stat.stx_attributes.contains(StatxAttributes::DAX) {
        return Some(FileSystemKind::Dax);
    }
    let is_tmpfs = rustix::fs::fstatfs(borrow(fd)).ok()?.f_type as u64 == TMPFS_MAGIC;
    is_tmpfs.then_some(FileSystemKind::Tmpfs)
}

/// Returns the attributes of a descriptor's file.
pub fn stat(fd: i32) -> Option<Statx> {
    rustix::fs::statx(borrow(fd), c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()
}

/// Checks whether a descriptor's path leads below one of these directories.
pub fn is_below(fd: i32, dirs: &[Vec<u8>]) -> bool {
    let mut link = [0u8; 32];
    let prefix = b"/proc/self/fd/";
    link[..prefix.len()].copy_from_slice(prefix);
    let mut digits = [0u8; 10];
    let mut len = 0;
    let mut rest = fd;
    while rest > 0 || len == 0 {
        digits[len] = b'0' + (rest % 10) as u8;
        rest /= 10;
        len += 1;
    }
    for (to, digit) in link[prefix.len()..].iter_mut().zip(digits[..len].iter().rev()) {
        *to = *digit;
    }
    let Ok(link) = CStr::from_bytes_until_nul(&link) else { return false };
    let mut target = [std::mem::MaybeUninit::<u8>::uninit(); libc::PATH_MAX as usize];
    let Ok((path, _)) = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut target) else {
        return false;
    };
    let path = &*path;
    dirs.iter().any(|dir| {
        let rest = path.strip_prefix(dir.as_slice());
        rest.is_some_and(|rest| rest.first() == Some(&b'/') || dir.ends_with(b"/"))
    })
}

/// Returns the device of a file.
pub fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}
