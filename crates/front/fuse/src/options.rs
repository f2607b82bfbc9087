//! What a mount may be told.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use vfs::{Durability, FileSystem, KernelCache, Right};

use crate::counters::OpCounters;

/// The extended attribute of the root directory that holds the server's statistics. It is
/// computed when read, cannot be written and is not listed.
pub const STATS_XATTR: &str = "user.keepstone.stats";

/// How long the kernel may answer by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Lifetime of names, absent names and attributes in the kernel; zero asks the server always.
    pub ttl: Duration,
    /// Whether file pages, listings and link targets stay in the page cache. Without it every read
    /// and write comes to the server (`FOPEN_DIRECT_IO`).
    pub keep_cache: bool,
    /// Whether the kernel drops pages of a file whose size or time of modification has changed.
    pub checks_pages: bool,
    /// Whether files are opened and created without asking the server, which then does not hear of
    /// their being closed either: where the kernel can do that. Direct writes to one file then go one at a time, because the
    /// permission to do otherwise is part of the answer.
    pub skip_opens: bool,
    /// Whether what is written stays in the page cache until it is synced, the file is closed, or the kernel sees fit. Only for
    /// engines that promise nothing before a sync ([`Durability::OnSync`]), see [`Caching::allowed_by`].
    pub writeback: bool,
}

impl Caching {
    /// For a mount that is the only writer of its pool.
    pub const EXCLUSIVE: Self = Self {
        ttl: Duration::from_secs(24 * 3600),
        keep_cache: true,
        checks_pages: false,
        skip_opens: true,
        writeback: false,
    };
    /// Every request is answered by the engine.
    pub const NONE: Self = Self {
        ttl: Duration::ZERO,
        keep_cache: false,
        checks_pages: false,
        skip_opens: false,
        writeback: false,
    };

    /// As much of it as `fs` lets the kernel keep.
    ///
    /// # Errors
    /// Where the kernel would keep back writes that are durable before a sync, or has no pages to keep them in.
    pub fn allowed_by(self, fs: &dyn FileSystem) -> io::Result<Self> {
        let caching = match fs.kernel_cache() {
            KernelCache::WhileAlone => self,
            KernelCache::UpTo(time) => {
                Self { ttl: self.ttl.min(time), keep_cache: false, skip_opens: false, ..self }
            }
            KernelCache::Checked(time) => {
                Self { ttl: self.ttl.min(time), checks_pages: true, skip_opens: false, ..self }
            }
        };
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        match (self.writeback, fs.durability()) {
            (false, _) => Ok(caching),
            (true, Durability::OnSync) if caching.keep_cache => Ok(caching),
            (true, Durability::OnSync) => {
                refused("writeback: the kernel may keep no pages of this mount")
            }
            (true, Durability::OnReturn | Durability::MetadataOnReturn) => refused(
                "writeback: changes of this pool are durable before they are synced, and the kernel would keep them back",
            ),
        }
    }
}

/// The user who reads statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsReader {
    /// Root, or the user whose server it is.
    Owner,
    /// Another user, who may not be allowed to see names of files.
    Other,
}

impl StatsReader {
    /// The user with this ID.
    pub(crate) fn of(uid: u32) -> Self {
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own { Self::Owner } else { Self::Other }
    }
}

/// Computes the value of [`STATS_XATTR`] for a reader.
pub type Stats = Box<dyn Fn(StatsReader) -> Vec<u8> + Send + Sync>;

/// The right that reading or changing an attribute of this name takes.
pub type Rights = fn(name: &[u8], changes: bool) -> Right;

/// How a [`Server`](crate::Server) behaves.
pub struct ServerOptions {
    /// What the kernel may keep.
    pub caching: Caching,
    /// Where requests are counted.
    pub counters: Arc<OpCounters>,
    /// What [`STATS_XATTR`] holds; `None`: no such attribute.
    pub stats: Option<Stats>,
}
