//! `keepstone stats`
//!
//! The server of a mount publishes its counters as the value of an extended attribute of the root
//! directory ([`fuse::STATS_XATTR`]): this needs no socket and no cleanup, and works wherever the
//! mount is visible.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::Value;

use crate::args::StatsArgs;
use crate::output::{self, text};
use crate::pool::DomainReport;
use crate::prometheus::Metrics;
use crate::{attach, mount, size, umount};

/// Facts about a mount that do not change while the pool is mounted.
#[derive(Debug, Serialize)]
pub struct PoolStats {
    pub pool: String,
    pub dir: String,
    pub uuid: String,
    pub label: String,
    pub domain: DomainReport,
    pub emulation: Option<String>,
    pub read_only: bool,
    /// The time at which operations are durable.
    pub durability: String,
    /// Whether programs may bypass the mount.
    pub direct: bool,
    pub pid: u32,
    pub version: String,
    pub threads: usize,
    /// The file that the pool is copied to when it is unmounted.
    pub save: Option<String>,
}

/// The statistics that the server publishes.
#[derive(Serialize)]
pub struct ServerStats<'a> {
    #[serde(flatten)]
    pub pool: &'a PoolStats,
    pub uptime_s: u64,
    #[serde(flatten)]
    pub requests: fuse::OpSnapshot,
    pub medium: pmem::CountersSnapshot,
    pub space: vfs::StatFs,
    /// Fragmentation of free space.
    pub free: pool::FreeSpace,
    pub mount: &'a pool::MountReport,
}

/// Longest time for the server of a named mount to answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Reads the statistics of the server of the mount at `dir`. Fails if it takes too long.
pub fn ask_one(dir: &Path) -> Result<Value> {
    ask(vec![dir.to_owned()], ANSWER_WITHIN, read).remove(dir).unwrap_or_else(|| {
        bail!("{}: its server does not answer; it may be stopped", dir.display())
    })
}

/// Reads the statistics of the server of the mount at `dir`. Fails with `ETIMEDOUT` if it takes
/// longer than `within`.
pub fn read(dir: &Path, within: Duration) -> Result<Value> {
    read_as(fuse::STATS_XATTR, dir, within)
}

/// As [`read`], without what takes the server time: the status of a cache, which looks at all
/// inodes. A server of an earlier version gives all.
pub fn read_brief(dir: &Path, within: Duration) -> Result<Value> {
    let is_unknown = |err: &anyhow::Error| {
        matches!(err.downcast_ref(), Some(&(Errno::NODATA | Errno::OPNOTSUPP)))
    };
    match read_as(fuse::BRIEF_STATS_XATTR, dir, within) {
        Err(err) if is_unknown(&err) => read(dir, within),
        answer => answer,
    }
}

fn read_as(attribute: &str, dir: &Path, within: Duration) -> Result<Value> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let name = CString::new(attribute)?;
    let ask = |room: &mut [u8]| rustix::fs::getxattr(&*path, &*name, room);
    let answer = fuse::call_apart(within, vfs::Limits::MAX.xattr, ask)?;
    let value = answer
        .unwrap_or(Err(Errno::TIMEDOUT))
        .with_context(|| format!("{}: its server does not answer", dir.display()))?;
    Ok(serde_json::from_slice(&value)?)
}

/// Reads the statistics of the servers of these mounts by `read`, or their errors. Leaves out
/// servers that do not answer in time.
pub fn ask(
    dirs: Vec<PathBuf>,
    within: Duration,
    read: fn(&Path, Duration) -> Result<Value>,
) -> BTreeMap<PathBuf, Result<Value>> {
    let (sender, receiver) = mpsc::channel();
    let asked = dirs.len();
    for dir in dirs {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let stats = read(&dir, within);
            let is_silent = |err: &anyhow::Error| err.downcast_ref() == Some(&Errno::TIMEDOUT);
            if !stats.as_ref().is_err_and(is_silent) {
                let _ = sender.send((dir, stats));
            }
        });
    }
    let deadline = Instant::now() + within;
    let left = || deadline.saturating_duration_since(Instant::now());
    (0..asked).map_while(|_| receiver.recv_timeout(left()).ok()).collect()
}

/// Fails unless a pool is mounted at the absolute path `dir` and its server is alive.
pub fn require_alive(dir: &Path) -> Result<()> {
    let mounted = fuse::mount_at(dir)?;
    if let Some(mount) = mounted.as_ref().filter(|mount| mount.is_of_another()) {
        let user = mount.user.map_or_else(|| "another".to_owned(), |user| user.to_string());
        bail!(
            "{}: user {user} has mounted it, whose server is not asked; ask it as that user",
            dir.display()
        );
    }
    let Some(mount) = mounted.filter(fuse::MountEntry::is_keepstone) else {
        bail!("{}: no pool is mounted there; `keepstone mount POOL {0}` mounts one", dir.display());
    };
    if fuse::is_stale(dir)? {
        let log = mount::log_of(&mount.source);
        let log = log.map_or_else(String::new, |log| format!(", see {}", log.display()));
        bail!(
            "{}: its server has died{log}; mount the pool there again to replace it",
            dir.display()
        );
    }
    Ok(())
}

pub fn run(args: &StatsArgs, json: bool) -> Result<ExitCode> {
    let dir = umount::find(&args.dir)?.dir;
    require_alive(&dir)?;
    let stats = ask_one(&dir)?;
    if args.prometheus {
        let mut metrics = Metrics::default();
        metrics.add_mount(&stats);
        say!("{metrics}");
        return Ok(ExitCode::SUCCESS);
    }
    if json {
        output::json(&stats)?;
        return Ok(ExitCode::SUCCESS);
    }
    if stats["cache"].is_object() {
        attach::show(&stats)
    } else {
        show(&stats)
    }
    show_counts(&stats);
    Ok(ExitCode::SUCCESS)
}

fn show(stats: &Value) {
    let bytes = |value: &Value| size::show(value.as_u64().unwrap_or(0));
    let space = &stats["space"];
    let blocks = |field: &str| {
        let product = space[field].as_u64()?.checked_mul(space["block_size"].as_u64()?)?;
        Some(size::show(product))
    };
    output::table([
        ("pool", text(&stats["pool"])),
        ("mounted on", text(&stats["dir"])),
        ("uuid", text(&stats["uuid"])),
        ("domain", text(&stats["domain"]["name"])),
        ("durability", text(&stats["durability"])),
        ("server", format!("pid {}, {} threads", stats["pid"], stats["threads"])),
        ("direct", text(&stats["direct"])),
        ("uptime", format!("{} s", stats["uptime_s"])),
        ("size", blocks("blocks").unwrap_or_default()),
        ("free", blocks("blocks_free").unwrap_or_default()),
        ("longest free run", bytes(&stats["free"]["longest_bytes"])),
        ("free for huge pages", bytes(&stats["free"]["huge_bytes"])),
        ("read", bytes(&stats["read_bytes"])),
        ("written", bytes(&stats["written_bytes"])),
        ("panics", text(&stats["panics"])),
    ]);
}

/// Prints the counters of the server of a mount.
fn show_counts(stats: &Value) {
    for field in ["requests", "medium", "mount"] {
        // A cache has no counts of a mount of its own.
        let Some(counts) = stats[field].as_object() else { continue };
        say!("\n{field}");
        let rows = counts.iter().map(|(name, value)| (format!("  {name}"), text(value)));
        output::table(rows);
    }
}
