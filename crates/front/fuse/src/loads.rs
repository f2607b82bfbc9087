//! Needs that programs with direct access send to the server of a pool with a backing store.
//!
//! They come as an `ioctl` on the root directory. A need names inodes and ranges, and gives nothing
//! away; but serving it takes time and space. So only root, the user that runs the server, and
//! processes that have opened the pool may send one. The latter may have become another user since.

use fuser::{INodeNo, Request};
use vfs::{Errno, Need, Result};

use crate::counters::CountedOp;
use crate::server::Server;

/// A function that loads what is absent of a need; returns whether anything was.
pub type Loads = Box<dyn Fn(&Need<'_>) -> Result<bool> + Send + Sync>;

impl Server {
    /// Serves the needs of programs with direct access.
    #[must_use]
    pub fn loading(mut self, loads: Loads) -> Self {
        self.loads = Some(loads);
        self
    }

    /// Handles a need; returns the result of the `ioctl`.
    pub(crate) fn load(
        &self,
        req: &Request,
        ino: INodeNo,
        argument: &[u8],
    ) -> std::result::Result<i32, fuser::Errno> {
        self.call(CountedOp::Ioctl, |_| {
            let loads = self.loads.as_ref().filter(|_| ino == INodeNo::ROOT);
            let loads = loads.ok_or(Errno::NOTTY)?;
            let own = rustix::process::geteuid().as_raw();
            if req.uid() != 0 && req.uid() != own && !self.uses_pool(req.pid()) {
                return Err(Errno::PERM);
            }
            loads(&Need::from_bytes(argument).ok_or(Errno::INVAL)?).map(i32::from)
        })
    }

    /// Whether the process of a thread has the pool open.
    fn uses_pool(&self, thread: u32) -> bool {
        let Some(shared) = &self.shared else { return false };
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let process = process.and_then(|number| number.trim().parse().ok());
        process.is_some_and(|process| shared.events.is_user(process))
    }
}
