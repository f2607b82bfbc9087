//! Watching what the kernel's table says of a mount.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use mounts::{FS_TYPE, Line, PoolMount};
use rustix::event::{PollFd, PollFlags, poll};

use crate::mount::MountPoint;
use crate::table::TABLE;

/// Tells when a mount is remounted, covered in part or whole, moved or unmounted: the kernel wakes those
/// who poll the table, in the same mount namespace, for every change (`proc(5)`).
pub struct MountWatch {
    /// Only polled.
    table: File,
    device: (u32, u32),
    /// The pool.
    source: Vec<u8>,
    /// What the table said of the mount at the last look.
    last: Mutex<Vec<PoolMount>>,
}

impl MountWatch {
    /// Watches a mount from now on.
    pub fn begin(mount_point: &MountPoint) -> io::Result<Self> {
        let (file, device) = (File::open(TABLE)?, mount_point.device());
        let table = std::fs::read(TABLE)?;
        let ours = ours(&table, device).next();
        let source = ours.map_or_else(Vec::new, |line| line.source.to_vec());
        Ok(Self { table: file, device, source, last: Mutex::new(find(&table, device)) })
    }

    /// Waits until there is something new in the table, of any mount.
    pub fn wait(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        Ok(())
    }

    /// Looks at the table, and calls `changed` where it says something else of the mount than at the
    /// last look. When it returns, all calls have been made for what had changed before. Returns
    /// whether the mount is still there.
    pub fn look(&self, changed: impl FnOnce()) -> io::Result<bool> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let table = std::fs::read(TABLE)?;
        let now = find(&table, self.device);
        if now != *last {
            *last = now;
            changed();
        }
        // The number of a device that is gone is given to the next one.
        Ok(ours(&table, self.device).any(|line| line.source == self.source))
    }
}

/// The mounts of pools that have this device.
fn ours(table: &[u8], device: (u32, u32)) -> impl Iterator<Item = Line<'_>> {
    let lines = table.split(|&b| b == b'\n').filter_map(Line::parse);
    lines.filter(move |line| line.device == device && line.fs_type == FS_TYPE.as_bytes())
}

fn find(table: &[u8], device: (u32, u32)) -> Vec<PoolMount> {
    let mut mounts = PoolMount::find(table);
    mounts.retain(|mount| mount.device == device);
    mounts
}
