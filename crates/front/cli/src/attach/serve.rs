//! Serving a cache until it is unmounted.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fuse::{
    Caching, MountAccess, MountFlags, MountKind, MountOptions, OpCounters, Server, ServerOptions,
    StatsReader, StopSignals,
};
use pmem::Medium as _;
use serde::Serialize;

use super::args::{ServerArgs, StoreArgs};
use super::{Attached, Place, Ready, ending, open, watch};
use crate::mount::absolute_dir;
use crate::mount::options::Options;
use crate::{background, mount, pool};

/// Interval between two checks for data to write back or evict.
const MAINTAIN_EVERY: Duration = Duration::from_millis(200);

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
    /// Null in brief statistics, if it takes time.
    cache: Option<pmcache::Status>,
}

/// Attaches, mounts, calls `started`, and serves. Returns after the unmount, when everything that
/// can be written back has been.
pub fn run(
    args: &ServerArgs,
    store: &StoreArgs,
    started: impl FnOnce(&Ready) -> Result<()>,
) -> Result<()> {
    // Blocked before any thread exists, so that all threads inherit the mask.
    let stop = StopSignals::block()?;
    mount::handle_faults()?;
    // Opens the backing store before anything is mounted over it.
    let plan = AttachPlan::new(args)?;
    let asked = &plan.asked;
    let mut flags = asked.flags;
    let cache = Arc::new(open(&plan.pool, &plan.place, store, |bytes, under, options| {
        flags = mount::flags::of_cache(under.mount_flags(), asked)?;
        under.serve_with(flags);
        let percent = |n: u64| bytes / 100 * n;
        options.mode = args.data;
        options.read_only = flags.contains(MountFlags::RDONLY);
        options.write_through = args.write_through;
        (options.high, options.low, options.cap) =
            (percent(args.high), percent(args.low.min(args.high)), percent(args.cap));
        // Pinned files leave room for writes.
        options.pin_max = percent((100 - args.cap) * 4 / 5);
        options.pin_user_max = options.pin_max / 5;
        options.max_age_ns = i64::from(args.max_age) * 1_000_000_000;
        options.coherence_ns = i64::from(args.coherence) * 1_000_000;
        options.reserve = args.reserve;
        options.read_ahead = args.read_ahead.unwrap_or(plan.place.read_ahead());
        options.bypass = args.bypass;
        options.policy = args.policy;
        Ok(())
    })?);
    // Removes the record of an earlier server: the open pool has the data that it describes.
    ending::take(&plan.pool)?;
    watch::begin(&cache, args.watch)?;
    let ready = plan.ready(cache.status(), cache.pool().0.region().domain());
    let threads = pool::threads(args.threads);
    let counters = Arc::new(OpCounters::default());
    let server = Server::new(
        cache.clone(),
        ServerOptions {
            caching: Caching::EXCLUSIVE,
            counters: counters.clone(),
            stats: Some(stats(&cache, &ready, counters, threads, |cache, _| {
                (Some(cache.status()), cache.pool().0.region().counters().snapshot())
            })),
        },
    )?;
    let server = server.restricted(pmcache::right);
    let invalidator = server.invalidator();
    watch::follow(&cache, invalidator.clone())?;
    if threads > 1 {
        let forget = move |ino| invalidator.forget(ino);
        let path = plan.pool.as_os_str().as_bytes().to_vec();
        cache.delegate_to_programs(path, Box::new(forget));
    }
    mount::reap(Arc::downgrade(&cache.pool().0));
    mount::remove_abandoned();
    let engine = Arc::downgrade(&cache.pool().0);
    let background = Arc::downgrade(&cache);
    let options = plan.mount_options(args, MountKind::Cache, flags);
    let mounted = fuse::mount(server, &plan.mount, &options).with_context(|| {
        format!("{}: cannot mount; `keepstone doctor` may know why", ready.mount)
    })?;
    // Programs use a pool directly only if its server has recorded the device of the mount.
    let (major, minor) = mounted.mount_point().device();
    cache.pool().0.begin_serving(rustix::fs::makedev(major, minor))?;
    mount::end_on_signal(stop, mounted.mount_point());
    mount::flags::follow(plan.pool.clone(), mounted.mount_point(), asked, engine);
    maintain(background);
    started(&ready)?;
    mounted.serve().with_context(|| format!("{}: the session broke", ready.mount))?;
    ending::finish(&cache);
    let ended = ending::record(&cache.status(), &plan.pool, (&ready.pool, &ready.dir));
    cache.backing().end_use();
    ended
}

/// Writes back and evicts in the background, for as long as the cache exists.
fn maintain(cache: Weak<Attached>) {
    // The cache has logged failures and recorded them with their files.
    let step = |cache: &Attached| cache.maintain().unwrap_or(false);
    background::maintain(cache, MAINTAIN_EVERY, Duration::ZERO, step);
}

/// The status of a cache, if it was read, and the counters of the pool's memory.
pub type CacheStats = (Option<pmcache::Status>, pmem::CountersSnapshot);

/// Returns the function that computes the statistics of a cache, for as long as the cache exists.
/// `read` reads the status, and the counters of the pool's memory. With `true`, it may leave out
/// the status.
pub fn stats<C: Send + Sync + 'static>(
    cache: &Arc<C>,
    ready: &Ready,
    counters: Arc<OpCounters>,
    threads: usize,
    read: impl Fn(&C, bool) -> CacheStats + Send + Sync + 'static,
) -> fuse::Stats {
    let cache = Arc::downgrade(cache);
    let (pool, dir, mount) = (ready.pool.clone(), ready.dir.clone(), ready.mount.clone());
    let domain = ready.domain.clone();
    let started = Instant::now();
    Box::new(move |reader, is_brief| {
        let Some(cache) = cache.upgrade() else { return Vec::new() };
        let (status, medium) = read(&cache, is_brief);
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
            medium,
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
    pub fn mount_options(
        &self,
        args: &ServerArgs,
        kind: MountKind,
        flags: MountFlags,
    ) -> MountOptions {
        let for_all = rustix::process::geteuid().is_root() || args.allow_other;
        MountOptions {
            kind,
            source: self.pool.display().to_string(),
            access: if for_all { MountAccess::All } else { MountAccess::Owner },
            flags,
            threads: pool::threads(args.threads),
        }
    }
}
