//! The server of a cache: programs use its pool as any other pool, and this process loads, writes
//! back and evicts.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ::pool::DurabilityMode;
use anyhow::{Context as _, Result, anyhow, bail};
use backing::{Change, Reach, Watch};
use eviction::PolicyKind;
use fuse::{Caching, Invalidator, MountPoint, OpCounters, Server, ServerOptions, StopSignals};
use pmcache::{EvictOptions, KeptSide, Loading};
use pmem::Medium as _;
use rustix::io::Errno;
use vfs::{Backed as _, FileSystem as _, Loader as _, WaitingCalls};

use super::args::{ServerArgs, StoreArgs};
use super::ending;
use super::inner::Inner;
use super::place::Place;
use super::plan::{self, AttachPlan};
use super::{Ready, Tree, watch};
use crate::{background, mount, pool, unfinished};

/// Interval between two looks for data to write back.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Inodes that are compared with the directory in each such interval.
const SWEPT: usize = 1024;

/// Interval between two looks for room in the pool.
const EVICT_EVERY: Duration = Duration::from_millis(50);

/// Returns which calls wait for the directory.
fn through(args: &ServerArgs) -> WaitingCalls {
    match (args.write_through, args.fsync.as_str()) {
        (true, _) => WaitingCalls::Writes,
        (false, "through") => WaitingCalls::Syncs,
        _ => WaitingCalls::Nothing,
    }
}

/// Opens the cache.
fn open(
    pool: &Path,
    place: &Place,
    store: &StoreArgs,
    policy: PolicyKind,
    (data, through): (DurabilityMode, WaitingCalls),
) -> Result<Tree> {
    super::require_own(pool, place)?;
    let inner = Inner::open(pool)?;
    inner.0.set_durability(data)?;
    let below = place.open(store)?;
    let name = place.path().display().to_string();
    let options = EvictOptions { policy, ..EvictOptions::for_pool(&inner.statfs()) };
    let cache = Loading::attach(inner, below)
        .map_err(|err| match err {
            Errno::XDEV => anyhow!(
                "the pool is the cache of another directory or store; make a new one with `keepstone mkfs --cache`. If \
                 that directory is lost, `keepstone export` writes what the pool has to an archive"
            ),
            err => err.into(),
        })
        .with_context(|| format!("{} as the cache of {name}", pool.display()))?;
    Ok(cache.with_eviction(options).with_promise(data.to_string(), through))
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
    let plan = AttachPlan::new(args)?;
    // Opens the backing store before anything is mounted over it.
    let cache =
        Arc::new(open(&plan.pool, &plan.place, store, args.policy, (args.data, through(args)))?);
    let flags = mount::flags::of_cache(cache.backing().mount_flags(), &plan.asked)?;
    cache.backing().serve_with(flags);
    // Removes the record of an earlier server: the open pool has the data that it describes.
    unfinished::take(&plan.pool)?;
    let reach = begin_to_watch(&cache, args.watch)?;
    guard(&cache)?;
    let engine = cache.pool().0.clone();
    let threads = pool::threads(args.threads);
    let ready = plan.ready(cache.status(), cache.pool().0.region().domain());
    let counters = Arc::new(OpCounters::default());
    let changes = Arc::new(OnceLock::<mount::Changes>::new());
    mount::record_access(&*engine, plan.asked.flags);
    let loader = cache.clone();
    let caching = Caching { skip_opens: false, ..Caching::EXCLUSIVE };
    let (told, dir) = (changes.clone(), plan.mount.clone());
    let stats = plan::stats(&cache, &ready, counters.clone(), threads, move |cache| {
        // A remount waits for this answer (`mount::helper`), so announce changes first.
        let _ = told.get().map(mount::Changes::look);
        mount::follow_flags(&*cache.pool().0, &dir);
    });
    let options = ServerOptions { caching, counters, stats: Some(stats) };
    let server = Server::new(cache.clone(), options)?
        .shared(engine.clone())
        .restricted(pmcache::right)
        .loading(Box::new(move |need| loader.load(need)));
    let options = plan.mount_options(args, flags);
    let kernel = server.invalidator();
    let mounted = fuse::mount(server, &plan.mount, &options).with_context(|| {
        format!("{}: cannot mount; `keepstone doctor` may know why", ready.mount)
    })?;
    mount::end_on_signal(stop, mounted.mount_point());
    make_room_for_names(&cache, mounted.mount_point());
    let weak = Arc::downgrade(&engine);
    drop(engine);
    mount::flags::follow(
        plan.pool.clone(),
        mounted.mount_point(),
        flags,
        &plan.asked,
        weak.clone(),
    );
    let _ = changes.set(mount::Changes::begin(&mounted.mount_point(), weak.clone())?);
    mount::follow(changes);
    mount::reap(weak);
    mount::remove_abandoned();
    // A read-only mount writes back, too: what is dirty from before.
    maintain(Arc::downgrade(&cache), Duration::from_secs(args.max_age.into()));
    follow(&cache, reach, kernel)?;
    started(&ready)?;
    // The end of the mount writes back.
    mounted.serve().with_context(|| format!("{}: the session broke", ready.mount))?;
    let ended = ending::record(&cache.status(), &plan.pool, (&ready.pool, &ready.dir));
    cache.backing().end_use();
    ended
}

/// Begins to watch for changes by others in the directory. If nothing was asked for, does what its
/// file system supports, and notes why it cannot do more. Returns the changes that are reported.
fn begin_to_watch(cache: &Tree, asked: Option<Watch>) -> Result<Option<Reach>> {
    let how = asked.unwrap_or(Watch::Notify);
    if how == Watch::Off {
        return Ok(None);
    }
    match (cache.watch(how), asked) {
        (Ok(reach), _) => {
            cache.note_watch(how, reach, None);
            Ok(Some(reach))
        }
        (Err(errno), None) => {
            note_no_reports(cache, errno);
            Ok(None)
        }
        (Err(errno), Some(how)) => bail!("--watch {how}: {}", watch::reason(errno)),
    }
}

/// Begins to make programs wait that open files in the directory, if that was asked for. The
/// threads that permit this run before anything is guarded, as this process opens files, too.
fn guard(cache: &Arc<Tree>) -> Result<()> {
    if !cache.guards() {
        return Ok(());
    }
    watch::repeat("openings", Arc::downgrade(cache), |cache: &Tree| {
        if let Err(errno) = cache.take_openings(watch::LIMIT) {
            tracing::error!("cannot take openings: {errno}");
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    })?;
    watch::repeat("openers", Arc::downgrade(cache), |cache: &Tree| {
        cache.sort_openings(watch::LIMIT);
        true
    })?;
    watch::repeat("opened", Arc::downgrade(cache), |cache: &Tree| {
        cache.write_back_openings(watch::LIMIT);
        true
    })?;
    cache.guard_loaded().context("--watch permission")
}

/// Notes why changes are not reported.
fn note_no_reports(cache: &Tree, errno: Errno) {
    cache.note_watch(Watch::Off, Reach::default(), Some(watch::reason(errno)));
}

/// Starts the thread that follows changes by others, and the one that compares what is not
/// reported.
fn follow(cache: &Arc<Tree>, reach: Option<Reach>, kernel: Invalidator) -> Result<()> {
    let weak = Arc::downgrade(cache);
    let sweeping = kernel.clone();
    if reach.is_some() {
        watch::repeat("changes", weak.clone(), move |cache: &Tree| {
            let told = cache.follow_changes(watch::LIMIT, &|change| forget(cache, &kernel, change));
            told.inspect_err(|errno| note_no_reports(cache, *errno)).is_ok()
        })?;
    }
    if reach == Some(Reach::Whole) {
        return Ok(());
    }
    watch::repeat("sweep", weak, move |cache: &Tree| {
        if let Err(err) = cache.sweep(SWEPT, &|change| forget(cache, &sweeping, change)) {
            tracing::error!("cannot look for changes by others: {err}");
        }
        std::thread::sleep(LOOK_EVERY);
        true
    })
}

/// Lets eviction make the kernel forget names, by one thread at a time.
fn make_room_for_names(cache: &Tree, mount_point: MountPoint) {
    let is_busy = Arc::new(AtomicBool::new(false));
    cache.when_full(move || {
        if is_busy.swap(true, Relaxed) {
            return;
        }
        let (mount_point, is_busy) = (mount_point.clone(), is_busy.clone());
        std::thread::spawn(move || {
            if let Err(err) = mount_point.forget_unused() {
                tracing::warn!("the pool is full of names that the kernel remembers: {err}");
            }
            is_busy.store(false, Relaxed);
        });
    });
}

/// Makes the kernel forget what a change concerns, or everything that the pool has.
fn forget(cache: &Tree, kernel: &Invalidator, change: &Change) {
    if *change == Change::Lost {
        // An error of the pool shows in every call of programs, too.
        let _ = cache.pool().each_inode(&mut |ino, _| kernel.content(ino));
    }
    watch::forget_in(kernel, change);
}

/// Writes back and evicts in the background, for as long as the cache exists.
fn maintain(cache: Weak<Tree>, max_age: Duration) {
    let step = move |cache: &Tree| {
        cache.follow_space_below();
        if let Err(err) = cache.write_back_when_due(max_age) {
            tracing::error!("cannot write back: {err}");
        }
        cache.load_pinned();
        maintain_pool(cache);
        false
    };
    background::maintain(cache.clone(), LOOK_EVERY, Duration::ZERO, step);
    let evict = |cache: &Tree| {
        cache.keep_room().unwrap_or_else(|err| {
            tracing::error!("cannot make room: {err}");
            false
        })
    };
    background::maintain(cache, EVICT_EVERY, Duration::ZERO, evict);
}

/// Lets a thin pool give back space that eviction and removals have left free, and take some in
/// advance.
fn maintain_pool(cache: &Tree) {
    if let Err(err) = cache.pool().0.maintain() {
        tracing::error!("cannot maintain the pool: {err}");
    }
}

/// Writes everything back without a mount; returns the status before and after, and the error of
/// the write-back.
pub fn drain(
    pool: &Path,
    place: &Place,
    store: &StoreArgs,
) -> Result<(pmcache::Status, vfs::Result<()>)> {
    let cache = open(pool, place, store, Default::default(), Default::default())?;
    let done = cache.close();
    Ok((cache.status(), done))
}

/// Resolves the conflict of a path without a mount: the directory is kept. Returns what still needs
/// attention, and the result.
pub fn discard(
    pool: &Path,
    place: &Place,
    path: &Path,
    store: &StoreArgs,
) -> Result<(Vec<pmcache::Trouble>, vfs::Result<()>)> {
    let cache = open(pool, place, store, PolicyKind::default(), Default::default())?;
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.as_bytes()),
        _ => None,
    });
    let found = names.into_iter().try_fold(vfs::ROOT, |dir, name| Ok(cache.peek(dir, name)?.ino));
    let ino = found.map_err(|errno: Errno| anyhow!("{}: {errno}", path.display()))?;
    let resolved = cache.resolve(ino, KeptSide::Directory);
    // Others may keep the rest from being written back, which `left` tells.
    let _ = cache.close();
    Ok((cache.status().troubles, resolved))
}
