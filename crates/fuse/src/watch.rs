//! Watching what the kernel's table says of a mount.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use mounts::{Line, PoolMount};
use rustix::event::{PollFd, PollFlags, poll};

use crate::mount::Place;
use crate::table::TABLE;

/// Tells when a mount is remounted, covered in part or whole, moved or unmounted: the kernel wakes those
/// who poll the table, in the same mount namespace, for every change (`proc(5)`).
pub struct TermsWatch {
    /// Only polled.
    table: File,
    device: (u32, u32),
    /// What the table said of the mount at the last look.
    last: Mutex<Vec<PoolMount>>,
}

impl TermsWatch {
    /// Watches a mount from now on.
    pub fn begin(place: &Place) -> io::Result<Self> {
        let (table, device) = (File::open(TABLE)?, place.device());
        Ok(Self { table, device, last: Mutex::new(find(&std::fs::read(TABLE)?, device)) })
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
        let mut lines = table.split(|&b| b == b'\n').filter_map(Line::parse);
        Ok(lines.any(|line| line.device == self.device))
    }
}

fn find(table: &[u8], device: (u32, u32)) -> Vec<PoolMount> {
    let mut mounts = PoolMount::find(table);
    mounts.retain(|mount| mount.device == device);
    mounts
}
