//! The options of a cache's server, and its reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use fuse::{MountAccess, MountFlags, MountOptions, OpCounters, StatsReader};
use pmem::Medium as _;
use serde::Serialize;

use super::args::ServerArgs;
use super::{Place, Ready, Tree};
use crate::mount::absolute_dir;
use crate::mount::options::Options;
use crate::{mount, pool};

/// The counters that the server publishes.
#[derive(Serialize)]
struct ServeStats<'a> {
    pool: &'a str,
    dir: &'a str,
    mount: &'a str,
    domain: &'a pool::DomainReport,
    pid: u32,
    version: &'static str,
    threads: usize,
    uptime_s: u64,
    #[serde(flatten)]
    requests: fuse::OpSnapshot,
    medium: pmem::CountersSnapshot,
    /// Null in brief statistics.
    cache: Option<pmcache::Status>,
}

/// Returns the function that computes the statistics of a cache, for as long as the cache exists.
/// It calls `before` first each time.
pub fn stats(
    cache: &Arc<Tree>,
    ready: &Ready,
    counters: Arc<OpCounters>,
    threads: usize,
    before: impl Fn(&Tree) + Send + Sync + 'static,
) -> fuse::Stats {
    let cache = Arc::downgrade(cache);
    let (pool, dir, mount) = (ready.pool.clone(), ready.dir.clone(), ready.mount.clone());
    let domain = ready.domain.clone();
    let started = Instant::now();
    Box::new(move |reader, is_brief| {
        let Some(cache) = cache.upgrade() else { return Vec::new() };
        before(&cache);
        let status = (!is_brief).then(|| cache.status());
        let stats = ServeStats {
            pool: &pool,
            dir: &dir,
            mount: &mount,
            domain: &domain,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            threads,
            uptime_s: started.elapsed().as_secs(),
            requests: counters.snapshot(),
            medium: cache.pool().0.region().counters().snapshot(),
            cache: match reader {
                StatsReader::Owner => status,
                StatsReader::Other => status.map(pmcache::Status::without_names),
            },
        };
        serde_json::to_vec(&stats).unwrap_or_default()
    })
}

/// The place where a cache is mounted, and the options of the mount.
pub struct AttachPlan {
    pub pool: PathBuf,
    pub place: Place,
    pub mount: PathBuf,
    pub asked: Options,
    pub notices: Vec<String>,
}

impl AttachPlan {
    /// Checks the arguments of a server.
    pub fn new(args: &ServerArgs) -> Result<Self> {
        let (pool, place) = (pool::absolute(&args.pool)?, Place::parse(&args.dir)?);
        let mount = match &args.mount {
            Some(mount) => absolute_dir(mount)?,
            None => place.mount_point()?,
        };
        let notices = mount::check_place(&mount, &pool)?;
        let mut asked = Options::default();
        args.mount_options.iter().try_for_each(|list| asked.add(list, false))?;
        asked.for_cache()?;
        asked.read_only(args.read_only);
        Ok(Self { pool, place, mount, asked, notices })
    }

    /// Returns the report of the server of a cache with this status.
    pub fn ready(&self, status: pmcache::Status, domain: pmem::Domain) -> Ready {
        Ready {
            pool: self.pool.display().to_string(),
            dir: self.place.path().display().to_string(),
            mount: self.mount.display().to_string(),
            data: status.mode,
            domain: domain.into(),
            size_bytes: status.size_bytes,
            dirty_bytes: status.dirty_bytes,
            troubles: status.troubles.len(),
            pid: std::process::id(),
            log: None,
            notices: self.notices.clone(),
        }
    }

    /// Returns the options of the mount.
    pub fn mount_options(&self, args: &ServerArgs, flags: MountFlags) -> MountOptions {
        let for_all = rustix::process::geteuid().is_root() || args.allow_other;
        MountOptions {
            source: self.pool.display().to_string(),
            access: if for_all { MountAccess::All } else { MountAccess::Owner },
            flags,
            threads: pool::threads(args.threads),
        }
    }
}
