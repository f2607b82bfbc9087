//! Options of a server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use vfs::{Durability, FileSystem, KernelCache, Right};

use crate::counters::OpCounters;

/// The extended attribute of the root directory that holds the server's statistics. It is
/// computed when read, cannot be written and is not listed.
pub const STATS_XATTR: &str = "user.keepstone.stats";

/// The attribute of the root directory with those statistics that the server has at hand.
pub const BRIEF_STATS_XATTR: &str = "user.keepstone.stats.brief";

/// The extent to which the kernel may answer by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Lifetime of names, absent names and attributes in the kernel; with zero it always asks the
    /// server.
    pub ttl: Duration,
    /// Whether file pages, listings and link targets stay in the page cache. Without it every read
    /// and write comes to the server (`FOPEN_DIRECT_IO`).
    pub keep_cache: bool,
    /// Whether files are opened and created without a request, if the kernel can do that. The
    /// server is not notified of their closing either. Direct writes to one file then go one at a
    /// time, because the answer to an opening would have to permit parallel ones.
    pub skip_opens: bool,
    /// Whether writes stay in the page cache until a sync, the closing of the file, or a write-back
    /// by the kernel. Only for engines that promise nothing before a sync ([`Durability::OnSync`]),
    /// see [`Caching::allowed_by`].
    pub writeback: bool,
}

impl Caching {
    /// The caching of a mount that is the only writer of its pool.
    pub const EXCLUSIVE: Self = Self {
        ttl: Duration::from_secs(24 * 3600),
        keep_cache: true,
        skip_opens: true,
        writeback: false,
    };
    /// No caching: the engine answers every request.
    pub const NONE: Self =
        Self { ttl: Duration::ZERO, keep_cache: false, skip_opens: false, writeback: false };

    /// Returns the part of this caching that `fs` allows.
    ///
    /// # Errors
    /// If the kernel would hold back writes that must be durable before a sync, or has no pages to
    /// keep them in.
    pub fn allowed_by(self, fs: &dyn FileSystem) -> io::Result<Self> {
        let caching = match fs.kernel_cache() {
            KernelCache::WhileAlone => self,
            KernelCache::UpTo(time) => {
                Self { ttl: self.ttl.min(time), keep_cache: false, skip_opens: false, ..self }
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

/// The user that reads statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsReader {
    /// Root, or the user that runs the server.
    Owner,
    /// Another user, which may not be allowed to see names of files.
    Other,
}

impl StatsReader {
    /// Returns the class of a user ID.
    pub(crate) fn of(uid: u32) -> Self {
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own { Self::Owner } else { Self::Other }
    }
}

/// A function that computes the value of [`STATS_XATTR`] for a reader, or with `true` that of
/// [`BRIEF_STATS_XATTR`].
pub type Stats = Box<dyn Fn(StatsReader, bool) -> Vec<u8> + Send + Sync>;

/// A function that returns the right needed to read or change an attribute of this name.
pub type Rights = fn(name: &[u8], changes: bool) -> Right;

/// Options of a [`Server`](crate::Server).
pub struct ServerOptions {
    /// The extent to which the kernel may cache.
    pub caching: Caching,
    /// Counters of requests.
    pub counters: Arc<OpCounters>,
    /// Computes [`STATS_XATTR`]; `None`: there is no such attribute.
    pub stats: Option<Stats>,
}
