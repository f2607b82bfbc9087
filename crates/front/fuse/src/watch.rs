//! Watches the entries of a mount in the kernel's table.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use mounts::{FS_TYPE, Line, PoolMount};
use rustix::event::{PollFd, PollFlags, poll};

use crate::mount::MountPoint;
use crate::table::TABLE;

/// A watch that notices when a mount is remounted, covered in part or whole, moved or unmounted.
/// The kernel wakes processes that poll the table, in the same mount namespace, on every change
/// (`proc(5)`).
pub struct MountWatch {
    /// Only polled.
    table: File,
    device: (u32, u32),
    /// The pool.
    source: Vec<u8>,
    /// The entries of the mount at the last look.
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

    /// Waits until the table changes, for any mount.
    pub fn wait(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        Ok(())
    }

    /// Reads the table, and calls `changed` if the mount's entries differ from those at the last
    /// look. When it returns, all calls for earlier changes have been made. Returns whether the
    /// mount is still there.
    pub fn look(&self, changed: impl FnOnce()) -> io::Result<bool> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let table = std::fs::read(TABLE)?;
        let now = find(&table, self.device);
        if now != *last {
            *last = now;
            changed();
        }
        // The kernel reuses the number of a device that is gone.
        Ok(ours(&table, self.device).any(|line| line.source == self.source))
    }
}

/// Returns the mounts of pools with this device.
fn ours(table: &[u8], device: (u32, u32)) -> impl Iterator<Item = Line<'_>> {
    let lines = table.split(|&b| b == b'\n').filter_map(Line::parse);
    lines.filter(move |line| line.device == device && line.fs_type == FS_TYPE.as_bytes())
}

fn find(table: &[u8], device: (u32, u32)) -> Vec<PoolMount> {
    let mut mounts = PoolMount::find(table);
    mounts.retain(|mount| mount.device == device);
    mounts
}
