//! Finds out what a descriptor refers to: its file system, its directory, its delegation.

use crate::Direct;
use crate::delegation::{By, Delegated};
use crate::epoch::InsideEpoch;
use crate::file::FileSystemKind;
use crate::lock::Held;
use crate::table::borrow;
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags};
use std::ffi::CStr;
use std::sync::OnceLock;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const FUSE_MAGIC: u64 = 0x6573_5546;
/// The attribute by which a cache over a directory identifies itself. Its value is the time for
/// which the kernel's state of its files is valid: in ns, in decimal.
const COHERENCE: &CStr = c"keepstone.cache.coherence";

/// Flag for `statx`: also ask for the number of the mount, unique until the machine restarts (since
/// Linux 6.8).
pub const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// Caches that are remembered.
const CACHES: usize = 4;

/// Caches that descriptors were of: their mounts, and the time that [`kind_of`] returns for their
/// files.
#[derive(Default)]
pub struct Caches([OnceLock<(u64, u64)>; CACHES]);

impl Caches {
    fn find(&self, mount: u64) -> Option<u64> {
        let known = self.0.iter().filter_map(OnceLock::get).find(|(known, _)| *known == mount);
        known.map(|(_, fresh_ns)| *fresh_ns)
    }

    fn add(&self, mount: u64, fresh_ns: u64) {
        let _ = self.0.iter().find(|slot| slot.set((mount, fresh_ns)).is_ok());
    }
}

/// Returns the kind of file system and, for a cache, the time for which the kernel's state of the
/// file is valid, in ns (direct-C5). `None`: the file is not served.
pub fn kind_of(fd: i32, stat: &Statx, caches: &Caches) -> Option<(FileSystemKind, u64)> {
    if stat.stx_attributes.contains(StatxAttributes::DAX) {
        return Some((FileSystemKind::Dax, 0));
    }
    let has_number = stat.stx_mask & UNIQUE_MOUNT.bits() != 0;
    let mount = has_number.then_some(stat.stx_mnt_id);
    if let Some(fresh_ns) = mount.and_then(|mount| caches.find(mount)) {
        return Some((FileSystemKind::Cached, fresh_ns));
    }
    match rustix::fs::fstatfs(borrow(fd)).ok()?.f_type as u64 {
        TMPFS_MAGIC => Some((FileSystemKind::Tmpfs, 0)),
        FUSE_MAGIC => {
            let fresh_ns = coherence_of(fd)?;
            if let Some(mount) = mount {
                caches.add(mount, fresh_ns);
            }
            Some((FileSystemKind::Cached, fresh_ns))
        }
        _ => None,
    }
}

fn coherence_of(fd: i32) -> Option<u64> {
    let mut text = [0u8; 20];
    let len = rustix::fs::fgetxattr(borrow(fd), COHERENCE, &mut text).ok()?;
    std::str::from_utf8(text.get(..len)?).ok()?.parse().ok().filter(|ns| *ns > 0)
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

impl Direct {
    /// Whether a descriptor is of a file of a cache, looked at or not. Asks the kernel, so it is
    /// used for counts only.
    pub fn is_of_cache(&self, fd: i32) -> bool {
        if let Some(_inside) = InsideEpoch::enter()
            && let Some((_, description)) = self.get(fd)
        {
            return description.file().kind() == FileSystemKind::Cached;
        }
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(borrow(fd), c"", how, StatxFlags::TYPE | UNIQUE_MOUNT);
        stat.is_ok_and(|stat| {
            u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG
                && matches!(kind_of(fd, &stat, &self.caches), Some((FileSystemKind::Cached, _)))
        })
    }

    /// Returns the attributes of a descriptor's file, and its delegation, if one is known here.
    pub(crate) fn stat(&self, held: &Held<'_>, fd: i32) -> Option<(Statx, Option<By>)> {
        let wanted = StatxFlags::BASIC_STATS | UNIQUE_MOUNT;
        let stat = |how| rustix::fs::statx(borrow(fd), c"", AtFlags::EMPTY_PATH | how, wanted).ok();
        // The kernel knows which file it is; the pool knows the end of a delegated file.
        let is_promising = self.habits.promises(fd);
        let mut found =
            stat(if is_promising { AtFlags::STATX_DONT_SYNC } else { AtFlags::empty() })?;
        match self.delegated(held, device(&found), found.stx_ino) {
            Some((by, size)) => {
                found.stx_size = size;
                Some((found, Some(by)))
            }
            None if is_promising => Some((stat(AtFlags::empty())?, None)),
            None => Some((found, None)),
        }
    }

    /// Returns the delegation of a file, if one is remembered, and the size of the file.
    fn delegated(&self, held: &Held<'_>, dev: u64, ino: u64) -> Option<(By, u64)> {
        let known = self.known_file(held, dev, ino).map(|index| &self.files.at(index).delegated);
        let by = known.and_then(Delegated::get).or_else(|| self.remembered.take(held, (dev, ino)));
        let by = by?;
        let size = self.pool_if_valid(by)?.getattr(by.shadow).ok()?.size;
        Some((by, size))
    }
}
