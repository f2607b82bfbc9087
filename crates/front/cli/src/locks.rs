//! The processes that have a lock on a file, from the kernel's table of locks (`proc_locks(5)`).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{major, minor};

/// A copy of the table.
pub struct LockFiles(String);

/// An `flock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFile {
    pub exclusive: bool,
    /// 0 for a process in another PID namespace.
    pub pid: u32,
}

impl LockFiles {
    /// Reads the table. If that fails, the copy is empty.
    pub fn read() -> Self {
        Self(fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    /// Returns the locks that processes hold on a file.
    pub fn on(&self, path: &Path) -> Vec<LockFile> {
        let Ok(stat) = fs::metadata(path) else { return Vec::new() };
        let file = format!("{:02x}:{:02x}:{}", major(stat.dev()), minor(stat.dev()), stat.ino());
        self.0.lines().filter_map(|line| lock(line, &file)).collect()
    }
}

/// Parses the `flock` in a line of the table, if it is on `file` and is held rather than waited
/// for: `1: FLOCK ADVISORY WRITE 4711 00:19:42 0 EOF`.
fn lock(line: &str, file: &str) -> Option<LockFile> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_flock = fields.next()? == "FLOCK";
    let exclusive = fields.nth(1)? == "WRITE";
    let pid = fields.next()?.parse().unwrap_or(0);
    (is_flock && fields.next()? == file).then_some(LockFile { exclusive, pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_holds_this_file_is_named() {
        let file = "00:19:62";
        let held = lock("1: FLOCK  ADVISORY  WRITE 3012 00:19:62 0 EOF", file);
        assert_eq!(held, Some(LockFile { exclusive: true, pid: 3012 }));
        let shared = lock("12: FLOCK  ADVISORY  READ 0 00:19:62 0 EOF", file);
        assert_eq!(shared, Some(LockFile { exclusive: false, pid: 0 }));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 3012 00:19:62 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 3012 00:19:63 0 EOF",
            "1: POSIX  ADVISORY  WRITE 3012 00:19:62 0 EOF",
            "",
        ] {
            assert_eq!(lock(other, file), None, "{other}");
        }
    }
}
