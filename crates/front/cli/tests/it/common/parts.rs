//! Snapshots and branches of a pool, each with a mount of its own.

use std::fs;
use std::path::PathBuf;

use super::Sandbox;

/// A mounted snapshot or branch.
pub struct MountedPart<'a> {
    pub s: &'a Sandbox,
    pub dir: PathBuf,
    /// The name by which it is unmounted.
    shown: String,
}

impl<'a> MountedPart<'a> {
    pub fn new(s: &'a Sandbox, name: &str) -> Self {
        let dir = s.outside(&format!("of-{name}"));
        fs::create_dir(&dir).unwrap();
        let shown = dir.to_str().unwrap().to_owned();
        s.ok(["mount", &part_of(s, name), &shown]);
        Self { s, dir, shown }
    }

    /// As [`new`](Self::new); it is unmounted by POOL@NAME, not by its directory.
    pub fn by_source(s: &'a Sandbox, name: &str) -> Self {
        let mut part = Self::new(s, name);
        part.shown = part_of(s, name);
        part
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for MountedPart<'_> {
    fn drop(&mut self) {
        let output = self.s.run(["umount", &self.shown]);
        assert!(output.status.success() || std::thread::panicking(), "{output:?}");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Returns POOL@NAME.
pub fn part_of(s: &Sandbox, name: &str) -> String {
    format!("{}@{name}", s.pool_str())
}

/// Returns the bytes in use in a mounted pool.
pub fn used(s: &Sandbox) -> u64 {
    let stat = rustix::fs::statvfs(&s.dir).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}
