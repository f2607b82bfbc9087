//! The limits of known file systems.

use rustix::fs::{fstatfs, fstatvfs};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use vfs::{Limits, Result};

const EXT_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// Returns the limits of the file system of a directory. For an unknown file system these are the
/// contract's: the kernel refuses larger values.
pub fn of(dir: &OwnedFd) -> Result<&'static Limits> {
    let stat = fstatfs(dir)?;
    let limits = match stat.f_type as u64 {
        // Blocks of a file have numbers of 32 bits.
        EXT_MAGIC => Limits {
            file_size: (stat.f_bsize as u64 * u64::from(u32::MAX)).min(Limits::MAX.file_size),
            symlink: (stat.f_bsize as usize - 1).min(Limits::MAX.symlink),
            ..Limits::MAX
        },
        XFS_MAGIC => Limits { symlink: 1023, ..Limits::MAX },
        _ => Limits::MAX,
    };
    let name = (fstatvfs(dir)?.f_namemax as usize).min(Limits::MAX.name);
    Ok(interned(Limits { name, clones: false, ..limits }))
}

/// Returns a copy of the limits that lives as long as the process; there are few different ones.
fn interned(limits: Limits) -> &'static Limits {
    static KNOWN: Mutex<Vec<&'static Limits>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = known.iter().find(|same| ***same == limits) {
        return same;
    }
    known.push(Box::leak(Box::new(limits)));
    known[known.len() - 1]
}
