//! Attaches pools, and keeps other threads out of them while the process image is replaced.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, IntoRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use ::mounts::PoolMount;
use ::pool::{Engine, MountOptions};
use posix::{AttachedPool, Errno, Fork, MountSpec};
use rustix::thread::{Timespec, nanosleep};
use vfs::FileSystem;

use crate::needs::LoadedPool;
use crate::start::{debug, process};
use crate::stats::{self, Reason};
use crate::{calls, fork, mounts, needs, record};

/// Attached pools, as many as the process layer takes.
static ATTACHED: [AtomicPtr<Arc<dyn Engine>>; 16] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; 16];

/// Returns what the process layer has to know of a mount.
pub fn spec(mount: PoolMount) -> MountSpec {
    let dev = mounts::device_number(&mount);
    let is_believed = mount.is_by(&mounts::believed_users());
    let PoolMount { dir, pool, device, .. } = mount;
    let mountpoint = dir.clone();
    let looked_at = dir.clone();
    let look = move || mounts::state(&looked_at, device);
    let attach = move || {
        let attached = match is_believed {
            true => attach(Path::new(OsStr::from_bytes(&pool)), (&dir, dev)),
            false => Err(Foreign.into()),
        };
        if let Err(err) = &attached {
            stats::set_why(reason(&**err));
            let (pool, dir) = (String::from_utf8_lossy(&pool), String::from_utf8_lossy(&dir));
            debug(format_args!("{pool} on {dir} is left to the kernel: {err}"));
        }
        attached.map_err(|_| Errno::NOTSUP)
    };
    MountSpec { mountpoint, dev, look: Box::new(look), attach: Box::new(attach) }
}

/// Returns the reason that a pool cannot be attached.
fn reason(err: &(dyn std::error::Error + 'static)) -> Reason {
    if err.is::<Foreign>() {
        return Reason::Foreign;
    }
    let io = match err.downcast_ref::<pmem::Error>() {
        Some(pmem::Error::InUse(_)) => return Reason::Exclusive,
        Some(pmem::Error::Io { source, .. }) => Some(source.kind()),
        _ => match err.downcast_ref::<::pool::Error>() {
            Some(::pool::Error::Shared(source)) => Some(source.kind()),
            _ => None,
        },
    };
    match io {
        Some(ErrorKind::WouldBlock) => Reason::Exclusive,
        Some(ErrorKind::PermissionDenied) => Reason::Permission,
        Some(ErrorKind::NotFound | ErrorKind::Unsupported) => Reason::Namespace,
        _ => Reason::Unusable,
    }
}

/// Joins the processes that use the pool. Fails if the mount has the pool for itself (`-o
/// exclusive`).
fn attach(pool: &Path, (dir, device): (&[u8], u64)) -> Result<AttachedPool, Refused> {
    let (engine, hidden) = join(pool, device)?;
    let is_mapped = engine.region().descriptor().is_some();
    let file = hidden.filter(|_| is_mapped).map(|fd| library::pool_file(&*engine, fd));
    let fs = if engine.backed().is_some() { served(&engine, dir)? } else { engine.clone() };
    Ok(AttachedPool { on_fork: on_fork(&engine), events: engine, fs, file })
}

/// Returns a pool whose server loads what is absent, as a file system.
fn served(engine: &Arc<dyn Engine>, dir: &[u8]) -> Result<Arc<dyn FileSystem>, Refused> {
    let dir = CString::new(dir)?;
    let root = needs::open_root(&dir)?.into_raw_fd();
    let root = process().ok_or(Errno::NOTSUP)?.fd_allocator().hide(root)?;
    Ok(Arc::new(LoadedPool::new(engine.clone(), root, dir)))
}

/// Returns the function that the process layer calls when the process forks.
fn on_fork(fs: &Arc<dyn Engine>) -> Box<dyn Fn(Fork) + Send + Sync> {
    let forking = fs.clone();
    Box::new(move |step| match step {
        Fork::Begins => forking.begin_fork(),
        // It fails only if the pool does, and then every call fails.
        Fork::Inherits(ino) => drop(forking.inherit(ino)),
        Fork::Ends => forking.end_fork(),
    })
}

/// The reason that a pool is not attached.
type Refused = Box<dyn std::error::Error>;

/// An error: as far as this process knows, the mount is not of the pool that it names.
#[derive(Debug)]
struct Foreign;

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Reason::Foreign.text())
    }
}

impl std::error::Error for Foreign {}

/// Attempts to find the announcement of a new mount's server, and the pause between two of them.
const LOOKS: usize = 50;
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Checks whether the pool's own server serves the mount of this device. The server announces that
/// after it has mounted.
fn is_served_at(fs: &dyn Engine, device: u64) -> bool {
    (0..LOOKS).any(|look| {
        if look > 0 {
            let _ = nanosleep(&BETWEEN_LOOKS);
        }
        fs.is_served_at(device)
    })
}

/// Opens a pool for good that is mounted as this device; returns it and the first of its
/// descriptors.
fn join(pool: &Path, device: u64) -> Result<(Arc<dyn Engine>, Option<RawFd>), Refused> {
    let fs = open(pool)?;
    if !is_served_at(&*fs, device) {
        return Err(Foreign.into());
    }
    // Hides them from the program. The descriptors that the engine remembers are only closed with
    // it, and it is never dropped.
    let process = process().ok_or(Errno::NOTSUP)?;
    let descriptors: Vec<_> = fs.descriptors().iter().map(AsRawFd::as_raw_fd).collect();
    let hidden = process.fd_allocator().hide_all(&descriptors)?;
    let address = Box::into_raw(Box::new(fs.clone()));
    let free = |slot: &&AtomicPtr<_>| {
        let null = std::ptr::null_mut();
        slot.compare_exchange(null, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if !ATTACHED.iter().any(|slot| free(&slot)) {
        // SAFETY: made above, and not shared yet.
        drop(unsafe { Box::from_raw(address) });
        return Err("too many pools".into());
    }
    fork::attached();
    calls::locking::unlock_ours();
    Ok((fs, hidden.first().copied()))
}

/// Opens a pool that other processes use, too.
pub fn open(pool: &Path) -> Result<Arc<dyn Engine>, Refused> {
    let lock = Some(pmem::Lock::Shared);
    let observer = record::observer();
    let options = pmem::OpenOptions { lock, observer, ..pmem::OpenOptions::default() };
    let region = options.open(pool, pmem::Access::ReadWrite);
    let fs = match (region, branch_of(pool)) {
        (Err(missing), Some((pool, name))) if is_missing(&missing) => {
            let region = options.open(pool, pmem::Access::ReadWrite)?;
            match engines::attach_branch(region, name, &MountOptions::default()) {
                // The mount of a snapshot.
                Err(::pool::Error::Errno(Errno::NOENT)) => return Err(missing.into()),
                attached => attached?,
            }
        }
        (region, _) => engines::attach(region?, &MountOptions::default())?,
    };
    if takes_too_much() {
        return Err(
            "it would take more than half of the address space that is allowed (`ulimit -v`)"
                .into(),
        );
    }
    Ok(fs)
}

/// Returns whether there is no such file.
fn is_missing(err: &pmem::Error) -> bool {
    matches!(err, pmem::Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// Splits the source of the mount of a branch, POOL@NAME.
fn branch_of(source: &Path) -> Option<(&Path, &str)> {
    let (pool, name) = source.to_str()?.rsplit_once('@')?;
    ::pool::check_branch_name(name).is_ok().then_some((Path::new(pool), name))
}

/// Checks whether the current mappings leave the program less than half of its limit on address
/// space.
fn takes_too_much() -> bool {
    let Some(limit) = ::mounts::address_space_limit() else { return false };
    let statm = mounts::read(c"/proc/self/statm").unwrap_or_default();
    let first = statm.split(|byte| *byte == b' ').next().and_then(|word| str::from_utf8(word).ok());
    let pages: u64 = first.and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64 > limit / 2
}

/// Keeps the other threads of this process out of its pools for good: the process is about to end,
/// which would stop them at any instruction.
pub fn leave() {
    for_each(|fs| std::mem::forget(fs.pause()));
}

/// Calls `f` while the other threads of this process are outside of its pools: `f` may replace the
/// process image.
pub fn while_others_wait<T>(f: impl FnOnce() -> T) -> T {
    let mut paused = Vec::new();
    for_each(|fs| paused.extend(fs.pause()));
    f()
}

fn for_each(mut f: impl FnMut(&'static dyn Engine)) {
    if os::threads::is_only_one() {
        return;
    }
    for slot in &ATTACHED {
        // SAFETY: null, or an engine that the process layer keeps for good.
        if let Some(fs) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
            f(&**fs);
        }
    }
}
