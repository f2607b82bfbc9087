//! The kernel's table of mounts, `/proc/self/mountinfo`. The caller reads it: inside a served
//! program, files are not opened by the standard library.

/// The type of every mount of a pool.
pub const FS_TYPE: &str = "fuse.keepstone";

/// A line of the table, `ID PARENT MAJOR:MINOR ROOT DIR OPTIONS … - TYPE SOURCE SUPER_OPTIONS`.
/// Paths are escaped as in the table: [`unescape`] them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'t> {
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// The part of the file system that is mounted.
    pub root: &'t [u8],
    /// The mount point.
    pub dir: &'t [u8],
    /// Options of the mount, such as `ro`.
    pub options: &'t [u8],
    /// Type, such as [`FS_TYPE`].
    pub fs_type: &'t [u8],
    /// The source of the mount: the pool.
    pub source: &'t [u8],
    /// Options of the file system.
    pub super_options: &'t [u8],
}

impl<'t> Line<'t> {
    /// Parses a line.
    pub fn parse(line: &'t [u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let (root, dir, options) = (fields.next()?, fields.next()?, fields.next()?);
        fields.find(|&field| field == b"-")?;
        let (fs_type, source, super_options) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { device, root, dir, options, fs_type, source, super_options })
    }

    /// Returns whether it is a mount of a pool, even if its server is dead.
    pub fn is_pool(&self) -> bool {
        self.fs_type == FS_TYPE.as_bytes()
    }

    /// Returns whether one of these users has mounted the file system. By FUSE, any user can mount
    /// a file system of any type and source.
    pub fn is_by(&self, users: &[u32]) -> bool {
        self.user().is_some_and(|user| users.contains(&user))
    }

    /// Returns the user who has mounted the file system; `None` if it is not a FUSE mount. The
    /// number belongs to the user namespace of that process.
    pub fn user(&self) -> Option<u32> {
        user(self.super_options)
    }
}

/// Returns the user who has mounted a FUSE file system: the value of its option `user_id`. `None`
/// if there is no such option.
pub(crate) fn user(super_options: &[u8]) -> Option<u32> {
    let by = |option: &[u8]| {
        let user = option.strip_prefix(b"user_id=")?;
        std::str::from_utf8(user).ok()?.parse().ok()
    };
    super_options.split(|byte| *byte == b',').find_map(by)
}

/// Undoes the octal escapes of a path (`\040` for a space).
pub fn unescape(field: &[u8]) -> Vec<u8> {
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
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line = b"36 35 0:98 / /mnt/my\\040dir rw,noatime shared:1 master:2 - fuse.keepstone \
                     /dev/shm/a\\134b rw,user_id=0";
        let entry = Line::parse(line).unwrap();
        assert_eq!(entry.device, (0, 98));
        assert_eq!(unescape(entry.dir), b"/mnt/my dir");
        assert_eq!(entry.options, b"rw,noatime");
        assert_eq!(unescape(entry.source), b"/dev/shm/a\\b");
        assert_eq!(entry.super_options, b"rw,user_id=0");
        assert!(entry.is_pool());
        assert_eq!(Line::parse(b"nonsense"), None);
    }

    #[test]
    fn a_mount_is_whose_options_say() {
        let line = |options: &str| format!("36 35 0:98 / /mnt rw - {FS_TYPE} /dev/shm/p {options}");
        let by = |line: String, users: &[u32]| Line::parse(line.as_bytes()).unwrap().is_by(users);
        assert!(by(line("rw,user_id=0,group_id=0"), &[0]));
        assert!(by(line("rw,user_id=1000"), &[0, 1000]));
        assert!(!by(line("rw,user_id=1000"), &[0]));
        assert!(!by(line("rw,user_id=0x"), &[0]));
        assert!(!by(line("rw"), &[0]));
    }
}
