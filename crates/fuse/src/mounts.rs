//! The kernel's table of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type of every mount made here.
pub const FS_TYPE: &str = "fuse.keepstone";

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of the mounted file system's anonymous device.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Per-mount options, such as `ro`.
    pub options: String,
    /// Type, such as `fuse.keepstone`.
    pub fs_type: String,
    /// What is mounted: the pool.
    pub source: PathBuf,
}

impl MountEntry {
    /// Whether it is one of ours, alive or not.
    pub fn is_keepstone(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// All mounts that this process sees, later ones on top.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at exactly `dir`, an absolute path.
pub fn mount_at(dir: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|entry| entry.dir == dir))
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let dir = unescape(fields.nth(1)?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    fields.find(|&field| field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let device = (device.0.parse().ok()?, device.1.parse().ok()?);
    Some(MountEntry { device, dir, options, fs_type, source })
}

/// Undoes the octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|d| *byte == b'\\' && d.iter().all(u8::is_ascii_digit));
        if let Some(digits) = digits {
            out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &tail[3..];
        } else {
            out.push(*byte);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line = b"36 35 0:98 / /mnt/my\\040dir rw,noatime shared:1 master:2 - fuse.keepstone \
                     /dev/shm/a\\134b rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.device, (0, 98));
        assert_eq!(entry.dir, Path::new("/mnt/my dir"));
        assert_eq!(entry.options, "rw,noatime");
        assert_eq!(entry.source, Path::new("/dev/shm/a\\b"));
        assert!(entry.is_keepstone());
        assert_eq!(parse(b"nonsense"), None);
    }
}
