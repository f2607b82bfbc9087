//! Opens the pool, mounts it, and serves it until it is unmounted.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ::pool::{DurabilityMode, Engine, Otherwise};
use anyhow::{Context as _, Result, anyhow, bail};
use engines::Layout;
use fuse::{
    Caching, MountAccess, MountFlags, MountOptions, MountPoint, MountWatch, OpCounters, Server,
    ServerOptions, StopSignals,
};
use pmem::{Medium as _, OpenOptions, Region};
use vfs::{Durability, Errno, FileSystem};

use super::options::{Options, Sharing};
use super::recording::Recording;
use super::snapshots::{self, SnapDir};
use super::{MountPlan, PoolPart, Ready, flags};
use crate::stats::{PoolStats, ServerStats};
use crate::unfinished::{self, Unfinished};
use crate::{busy, pool, tags};

/// Interval between two checks for programs that died.
const REAP_EVERY: Duration = Duration::from_secs(1);

/// Longest time for programs to close their files when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// The last words of a server whose memory is broken or has no room.
const LAST_WORDS: &str = "SIGBUS: memory is broken, or /dev/shm is full; \
the server ends. What was durable stays so: mount again, and run `keepstone doctor`\n";

/// Handles SIGBUS. If `pool` can repair the fault, the server continues. Else it reports the fault
/// and ends; durable data stays durable.
pub fn handle_faults() -> io::Result<()> {
    ::pool::handle_faults(Otherwise::End(LAST_WORDS))
}

/// Mounts, calls `started`, and serves. Returns when the file system is unmounted and the pool
/// closed.
pub fn run(plan: &MountPlan, started: impl FnOnce(&Ready) -> Result<()>) -> Result<()> {
    // Blocked before any thread exists, so that all threads inherit the mask.
    let stop = StopSignals::block()?;
    handle_faults()?;
    raise_address_space();
    let mut notices = super::check_place(&plan.dir, &plan.pool)?;

    let threads = pool::threads(plan.options.threads);
    let read_only = plan.options.is_read_only();
    let mounting = ::pool::MountOptions {
        read_only,
        threads: Some(threads),
        prealloc: plan.options.prealloc.clone(),
        write_policy: plan.options.write_policy,
        past_cache: plan.options.past_cache,
        consistency: plan.options.consistency,
        ..Default::default()
    };
    let recording = Recording::begin(&plan.options)?;
    let Opened { fs, is_shared, notice } = open(plan, &mounting, recording.as_ref())?;
    let domain = fs.region().domain();
    notices.extend(notice);
    let (flags, notice) = flags::of_mount(&plan.pool, &plan.options)?;
    notices.extend(notice);
    if let Some(dir) = pmcache::older_cache_of(&*fs) {
        bail!("{0}: {1}", plan.pool.display(), crate::attach::older_cache(&dir));
    }
    let info = engines::info(fs.region())?;
    if info.has_backing_store {
        bail!(
            "{0}: the pool is for the cache of a directory, which `keepstone attach {0} DIR` serves",
            plan.pool.display()
        );
    }
    if !read_only {
        tags::refuse_twin(&plan.pool, &info)?;
    }
    let is_branch = matches!(plan.part, Some(PoolPart::Branch(_)));
    set_durability(&*fs, (&plan.options, is_branch), info.layout)
        .with_context(|| plan.pool.display().to_string())?;
    let mut idle = plan.options.of_scmfs();
    if plan.options.durability == DurabilityMode::Ordered {
        idle.retain(|word| !word.starts_with("data_flush_interval="));
    }
    if info.layout != Layout::Scmfs.name() && !idle.is_empty() {
        notices.push(format!(
            "{}: without effect on a pool of {}: -o {}",
            plan.pool.display(),
            info.layout,
            idle.join(",")
        ));
    }
    let ready = Ready {
        pool: plan.source().display().to_string(),
        dir: plan.dir.display().to_string(),
        layout: info.layout.to_owned(),
        uuid: info.uuid.to_string(),
        label: info.label.clone(),
        size_bytes: info.size_bytes,
        read_only,
        durability: fs.durability_mode().to_string(),
        domain: domain.into(),
        emulation: plan.options.emulation.map(|e| e.to_string()),
        pid: std::process::id(),
        log: None,
        notices,
    };

    record_access(&*fs, plan.options.flags);
    let counters = Arc::new(OpCounters::default());
    // Set if programs may use the pool by direct access.
    let changes = Arc::new(OnceLock::new());
    let caching = caching(&plan.options, is_shared);
    let served: Arc<dyn FileSystem> =
        match shows_snapshots(plan, &caching, (is_shared, info.layout)) {
            true => snapshots::below(fs.clone(), plan.pool.clone(), threads),
            false => fs.clone(),
        };
    let server = Server::new(
        served,
        ServerOptions {
            caching,
            counters: counters.clone(),
            stats: Some(stats((plan, is_shared), &fs, &changes, counters, threads, &ready)),
        },
    )
    .with_context(|| format!("{}: mount option", ready.pool))?;
    let server = if is_shared { server.shared(fs.clone()) } else { server };
    let is_behind = fs.durability() != Durability::OnReturn;
    // Only the server holds the engine from here on, so the engine ends with the server.
    let reaped = Arc::downgrade(&fs);
    drop(fs);
    if !read_only {
        maintain(reaped.clone(), &plan.options);
    }
    let root = rustix::process::geteuid().is_root();
    let by_default = if root { MountAccess::All } else { MountAccess::Owner };
    let options = MountOptions {
        source: ready.pool.clone(),
        access: plan.options.access.unwrap_or(by_default),
        flags,
        threads,
    };
    let mounted = fuse::mount(server, &plan.dir, &options).with_context(|| {
        format!("{}: cannot mount; `keepstone doctor` may know why", plan.dir.display())
    })?;
    end_on_signal(stop, mounted.mount_point());
    flags::follow(plan.pool.clone(), mounted.mount_point(), flags, &plan.options, reaped.clone());
    if !read_only && is_behind {
        super::flush::begin(reaped.clone(), plan.options.data_flush_interval);
    }
    if is_shared {
        let _ = changes.set(Changes::begin(&mounted.mount_point(), reaped.clone())?);
        follow(changes);
        reap(reaped);
        remove_abandoned();
    }
    started(&ready)?;
    tracing::info!("{} mounted on {}", ready.pool, ready.dir);
    mounted.serve().with_context(|| format!("{}: the session broke", ready.dir))?;
    tracing::info!("{} unmounted", ready.pool);
    if let Some(recording) = recording {
        recording.finish()?;
    }
    if let Some(file) = &plan.options.life.save {
        super::saved::save(&plan.pool, file).inspect_err(|err| {
            let what = Unfinished::NotSaved(format!("{err:#}"));
            if let Err(err) = unfinished::record(&plan.pool, &what) {
                tracing::error!("cannot record that the pool was not saved: {err:#}");
            }
        })?;
    }
    Ok(())
}

/// Raises the limit on address space as far as this user may: mappings of a server need addresses,
/// but hardly any memory.
fn raise_address_space() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    let unlimited = Rlimit { current: None, maximum: None };
    let _ = setrlimit(Resource::As, unlimited)
        .or_else(|_| setrlimit(Resource::As, Rlimit { current: maximum, maximum }));
}

/// Sets the time at which operations are durable, for all processes that use the pool. A mount that
/// changes nothing leaves it.
fn set_durability(
    fs: &dyn Engine,
    (options, is_branch): (&Options, bool),
    layout: &str,
) -> Result<()> {
    let mode = options.durability;
    if mode != DurabilityMode::default() && layout != Layout::Bpfs.name() {
        bail!(
            "option `durability={mode}`: only pools of bpfs have it. In a pool of {layout}, names are durable when a call \
             returns, and contents when they are synced"
        );
    }
    // A branch has the mode of its pool, which another mount may have set.
    let keeps = is_branch && mode == DurabilityMode::default();
    if options.is_read_only() || keeps { Ok(()) } else { Ok(fs.set_durability(mode)?) }
}

/// A pool that is open.
struct Opened {
    fs: Arc<dyn Engine>,
    /// Whether programs may bypass the mount.
    is_shared: bool,
    /// The reason why they may not, if the options allow it.
    notice: Option<String>,
}

fn open(
    plan: &MountPlan,
    mounting: &::pool::MountOptions,
    recording: Option<&Recording>,
) -> Result<Opened> {
    let options = &plan.options;
    let context = || plan.source().display().to_string();
    if let Some(PoolPart::Branch(name)) = &plan.part {
        return open_branch(plan, name, mounting);
    }
    if let Some(PoolPart::Snapshot(name)) = &plan.part {
        let region = pool::open_to_look(&plan.pool)?;
        let fs = engines::mount_snapshot(region, name, mounting).map_err(|err| match err {
            ::pool::Error::Errno(Errno::BUSY) => anyhow!("{}: is being deleted", context()),
            ::pool::Error::Errno(Errno::OPNOTSUPP) => {
                anyhow!("{}: only pools of bpfs have snapshots", context())
            }
            err => anyhow::Error::new(err).context(context()),
        })?;
        return Ok(Opened { fs, is_shared: false, notice: None });
    }
    let mut refused = None;
    if options.is_read_only() && options.sharing == Sharing::Required {
        bail!(
            "option `direct`: a read-only mount has no direct access; leave out `direct` or `ro`"
        );
    }
    if is_to_be_shared(options) {
        // A second mount of a pool needs an explicit `-o direct`, because the kernel could cache
        // nothing of either.
        if options.sharing == Sharing::Possible
            && let Some(who) = busy::server(&plan.pool)
        {
            bail!(
                "{}: in use by {who}; or mount it here, too, by `-o direct`",
                plan.pool.display()
            );
        }
        let attached = open_region(plan, Some(pmem::Lock::Shared), recording)
            .and_then(|region| engines::attach(region, mounting).with_context(context));
        match attached {
            Ok(fs) => return Ok(Opened { fs, is_shared: true, notice: None }),
            Err(err) if options.sharing == Sharing::Required => return Err(err),
            Err(err) => refused = Some(err),
        }
    }
    let mounted = open_region(plan, None, recording)
        .and_then(|region| engines::mount(region, mounting).with_context(context));
    match (mounted, refused) {
        (Ok(fs), refused) => {
            let notice =
                refused.map(|why| format!("programs use the pool through the mount only: {why:#}"));
            Ok(Opened { fs, is_shared: false, notice })
        }
        (Err(_), Some(why)) | (Err(why), None) => Err(why),
    }
}

/// Opens a branch, which the processes that use the pool share with it.
fn open_branch(plan: &MountPlan, name: &str, mounting: &::pool::MountOptions) -> Result<Opened> {
    let options = &plan.options;
    if options.sharing == Sharing::Refused || options.is_read_only() || options.record.is_some() {
        bail!(
            "{}: a branch is shared with its pool; mount it without `-o exclusive`, `-o ro` and `--record`",
            plan.source().display()
        );
    }
    let region = open_region(plan, Some(pmem::Lock::Shared), None)?;
    let fs = engines::attach_branch(region, name, mounting).map_err(|err| match err {
        ::pool::Error::Errno(Errno::BUSY) => {
            anyhow!("{}: is being committed or discarded", plan.source().display())
        }
        err => anyhow::Error::new(err).context(plan.source().display().to_string()),
    })?;
    Ok(Opened { fs, is_shared: true, notice: None })
}

/// Returns whether programs may bypass the mount. A read-only mount excludes writers instead.
/// Unless the user requires direct access, it must cost nothing: while no program uses it, the
/// kernel must cache as much as without it.
fn is_to_be_shared(options: &Options) -> bool {
    match options.sharing {
        _ if options.is_read_only() || options.record.is_some() => false,
        Sharing::Required => true,
        Sharing::Refused => false,
        Sharing::Possible => {
            !options.writeback && (options.no_cache || fuse::kernel_keeps_until_told())
        }
    }
}

/// Passes `noatime`, `nodiratime` and `strictatime` to the engine, because the kernel leaves times
/// to it.
pub fn record_access(fs: &dyn Engine, flags: MountFlags) {
    let files = !flags.contains(MountFlags::NOATIME);
    let dirs = files && !flags.contains(MountFlags::NODIRATIME);
    fs.record_access(files, dirs, flags.contains(MountFlags::STRICTATIME));
}

/// Passes the current flags of the mount to the engine.
pub fn follow_flags(fs: &dyn Engine, dir: &Path) {
    let Ok(Some(mount)) = fuse::mount_at(dir) else { return };
    let has = |name: &str| mount.has_option(name);
    let flags = [
        (has("noatime"), MountFlags::NOATIME),
        (has("nodiratime"), MountFlags::NODIRATIME),
        // The table shows the other two modes by name, so without them it is strictatime.
        (!has("noatime") && !has("relatime"), MountFlags::STRICTATIME),
    ];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag);
    record_access(fs, set.collect());
}

/// Removes the shared state of pools that no living process uses.
pub fn remove_abandoned() {
    match engines::remove_abandoned() {
        Ok(0) => {}
        Ok(bytes) => tracing::info!("removed {} KiB that killed servers left", bytes >> 10),
        Err(err) => tracing::warn!("cannot look for shared state that killed servers left: {err}"),
    }
}

/// Notifies programs with direct access when the mount is remounted, or something is mounted in it.
pub struct Changes {
    watch: MountWatch,
    fs: Weak<dyn Engine>,
}

impl Changes {
    /// Begins to look for changes of a mount.
    pub fn begin(mount: &MountPoint, fs: Weak<dyn Engine>) -> io::Result<Self> {
        Ok(Self { watch: MountWatch::begin(mount)?, fs })
    }

    /// Announces changes before this call. Returns whether the mount still exists.
    pub fn look(&self) -> io::Result<bool> {
        self.watch.look(|| self.fs.upgrade().iter().for_each(|fs| fs.announce_mount_change()))
    }

    /// Announces changes for as long as the mount exists.
    fn follow(&self) -> io::Result<()> {
        while self.look()? {
            self.watch.wait()?;
        }
        Ok(())
    }
}

/// Starts a thread that announces changes.
pub fn follow(changes: Arc<OnceLock<Changes>>) {
    std::thread::spawn(move || {
        if let Some(Err(err)) = changes.get().map(Changes::follow) {
            tracing::error!("programs will not be notified of changes of the mount: {err}");
        }
    });
}

/// Starts a thread that cleans up after programs that have ended, and updates the permissions of
/// the shared state when those of the pool change.
pub fn reap(fs: Weak<dyn Engine>) {
    std::thread::spawn(move || {
        while let Some(fs) = fs.upgrade() {
            match fs.reap_processes() {
                Ok(0) => {}
                Ok(n) => tracing::debug!("cleared away after {n} programs that have ended"),
                Err(err) => tracing::error!("cannot clear away after programs that died: {err}"),
            }
            let _ = fs.follow_owner();
            drop(fs);
            std::thread::sleep(REAP_EVERY);
        }
    });
}

/// Starts a thread that does the engine's deferred work, step by step.
fn maintain(fs: Weak<dyn Engine>, options: &Options) {
    let (every, pause) = (options.collect_every_ms, options.collect_pause_ms);
    let (every, pause) = (Duration::from_millis(every), Duration::from_millis(pause));
    crate::background::maintain(fs, every, pause, |fs| {
        fs.maintain().unwrap_or_else(|err| {
            tracing::error!("the collector failed: {err}");
            false
        })
    });
}

/// Returns whether the mount shows the snapshots of the pool. If the kernel opens files without a
/// request, the server could not refuse to open them for writing, unless the mount is read-only.
fn shows_snapshots(plan: &MountPlan, caching: &Caching, (is_shared, layout): (bool, &str)) -> bool {
    let options = &plan.options;
    let refuses_writers = is_shared || !caching.skip_opens || options.is_read_only();
    plan.part.is_none()
        && options.snapdir == SnapDir::Hidden
        && layout == Layout::Bpfs.name()
        && refuses_writers
}

fn caching(options: &Options, is_shared: bool) -> Caching {
    let writeback = options.writeback;
    // Programs with direct access do not see writes that the kernel holds back.
    if options.no_cache || is_shared && writeback {
        return Caching { writeback, ..Caching::NONE };
    }
    Caching { skip_opens: !options.ask_open, writeback, ..Caching::EXCLUSIVE }
}

fn open_region(
    plan: &MountPlan,
    lock: Option<pmem::Lock>,
    recording: Option<&Recording>,
) -> Result<Region> {
    let options = OpenOptions {
        emulation: plan.options.emulation,
        observer: recording.map(Recording::observer),
        ..OpenOptions::default()
    };
    if plan.options.is_read_only() {
        // Other processes may read the pool at the same time; none may write.
        let options = OpenOptions { lock: Some(pmem::Lock::Shared), ..options };
        return pool::open(&plan.pool, &options, pmem::Access::ReadOnly);
    }
    pool::open(&plan.pool, &OpenOptions { lock, ..options }, pmem::Access::ReadWrite)
}

fn stats(
    (plan, is_shared): (&MountPlan, bool),
    fs: &Arc<dyn Engine>,
    changes: &Arc<OnceLock<Changes>>,
    counters: Arc<OpCounters>,
    threads: usize,
    ready: &Ready,
) -> fuse::Stats {
    let (fs, changes) = (Arc::downgrade(fs), changes.clone());
    let started = Instant::now();
    let pool = PoolStats {
        pool: ready.pool.clone(),
        dir: plan.dir.display().to_string(),
        uuid: ready.uuid.clone(),
        label: ready.label.clone(),
        domain: ready.domain.clone(),
        emulation: ready.emulation.clone(),
        read_only: ready.read_only,
        durability: ready.durability.clone(),
        direct: is_shared,
        pid: ready.pid,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        threads,
        save: plan.options.life.save.as_ref().map(|file| file.display().to_string()),
    };
    Box::new(move |_, _| {
        let Some(fs) = fs.upgrade() else {
            return Vec::new();
        };
        // A remount waits for this answer (`mount::helper`), so announce changes first.
        let _ = changes.get().map(Changes::look);
        follow_flags(&*fs, Path::new(&pool.dir));
        let stats = ServerStats {
            pool: &pool,
            uptime_s: started.elapsed().as_secs(),
            requests: counters.snapshot(),
            medium: fs.region().counters().snapshot(),
            space: fs.statfs(),
            free: fs.free_space(),
            mount: fs.mount_report(),
        };
        serde_json::to_vec(&stats).unwrap_or_default()
    })
}

/// Unmounts at the first signal, waiting for programs to finish; exits at the second. The pool is
/// consistent in both cases, as it always is.
pub fn end_on_signal(stop: StopSignals, mount_point: MountPoint) {
    std::thread::spawn(move || {
        let (signal, sender) = stop.wait();
        tracing::warn!("signal {signal} from process {sender}: unmounting");
        std::thread::spawn(move || {
            if let Err(err) = mount_point.end(STOP_GRACE) {
                tracing::error!("cannot unmount: {err}");
            }
        });
        let (signal, sender) = stop.wait();
        tracing::warn!("signal {signal} from process {sender}: leaving at once");
        std::process::exit(1);
    });
}
