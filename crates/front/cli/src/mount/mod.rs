//! `keepstone mount`, also as a helper of `mount(8)`.
//!
//! In the background, the server is another run of this program (`--daemon`): no process is forked
//! once threads exist. The server reports on its standard output that it is ready, or why it is
//! not.

mod background;
pub mod flags;
mod flush;
mod helper;
pub mod options;
mod prealloc;
pub mod recording;
mod saved;
mod serve;
mod snapshots;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::pool::DurabilityMode;
use anyhow::{Context as _, Result, bail};
use os::ending::after_ending;
use serde::{Deserialize, Serialize};

use crate::args::MountArgs;
use crate::background::notify_ready;
use crate::pool::{self, DomainReport};
use crate::{busy, output, size, snapshot, utab};
use options::Options;

pub use background::log_of;
pub use helper::run_as_helper;
pub use saved::PoolLife;
pub use serve::{
    Changes, end_on_signal, follow, follow_flags, handle_faults, reap, record_access,
    remove_abandoned,
};

/// The parameters of a mount.
#[derive(Debug)]
struct MountPlan {
    pool: PathBuf,
    /// The snapshot or branch of the pool that is mounted, if it is not the pool's own tree.
    part: Option<PoolPart>,
    dir: PathBuf,
    options: Options,
}

/// A state of a pool other than its own tree, by its name.
#[derive(Debug)]
enum PoolPart {
    Snapshot(String),
    Branch(String),
}

impl PoolPart {
    /// Finds the part of this name. A missing one counts as a snapshot, whose mount reports that.
    fn find(pool: &Path, name: String) -> Result<Self> {
        let branches = engines::branches(&pool::open_to_look(pool)?)?;
        let is_branch = branches.iter().any(|branch| branch.name == name && branch.is_finished);
        if is_branch {
            return Ok(Self::Branch(name));
        }
        snapshot::check_layout(pool)?;
        Ok(Self::Snapshot(name))
    }

    fn name(&self) -> &str {
        match self {
            Self::Snapshot(name) | Self::Branch(name) => name,
        }
    }
}

/// The server's report when programs can use the mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    pool: String,
    dir: String,
    layout: String,
    uuid: String,
    label: String,
    size_bytes: u64,
    read_only: bool,
    /// The time at which operations are durable.
    durability: String,
    domain: DomainReport,
    /// Emulated speed, if any.
    emulation: Option<String>,
    pid: u32,
    /// The log of a server in the background.
    log: Option<PathBuf>,
    /// Notices for the user about the start.
    notices: Vec<String>,
}

pub fn run(args: &MountArgs, json: bool) -> Result<ExitCode> {
    let plan = MountPlan::new(args)?;
    if args.daemon {
        background::serve(&plan);
    } else if args.foreground {
        serve::run(&plan, |ready| {
            utab::register(&plan.source(), &plan.dir);
            notify_ready();
            announce(ready, json)
        })?;
    } else {
        announce(&background::start(&plan)?, json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn announce(ready: &Ready, json: bool) -> Result<()> {
    if json {
        return output::json(ready);
    }
    ready.notices.iter().for_each(output::notice);
    let read_only = if ready.read_only { ", read-only" } else { "" };
    say!("{} mounted on {}{read_only}", ready.pool, ready.dir);
    say!("{}, {}, domain {}", ready.layout, size::show(ready.size_bytes), ready.domain);
    if ready.durability != DurabilityMode::default().to_string() {
        say!("durability {}: what is not synced may be lost, in order", ready.durability);
    }
    if let Some(emulation) = &ready.emulation {
        say!("speed emulated: {emulation}");
    }
    if let Some(log) = &ready.log {
        say!("log {}", log.display());
    }
    Ok(())
}

/// Checks a list of `mount -o`.
///
/// # Errors
/// Names the first option that is unknown or malformed.
pub fn check_options(list: &str) -> Result<()> {
    Options::default().add(list, false)
}

impl MountPlan {
    fn new(args: &MountArgs) -> Result<Self> {
        let mut options = Options::default();
        for list in &args.options {
            options.add(list, false)?;
        }
        options.read_only(args.read_only);
        options.no_cache |= args.no_cache;
        options.threads = args.threads.or(options.threads);
        options.emulation = args.emulate.or(options.emulation);
        if let Some(file) = &args.record {
            options.record = Some(recording::file(&file.to_string_lossy())?);
        }
        let life = &mut options.life;
        life.create |= args.create;
        life.size = args.size.or(life.size);
        life.layout = args.layout.or(life.layout);
        life.thin |= args.thin;
        life.thick |= args.thick;
        for (name, file) in [("save", &args.save), ("restore", &args.restore)] {
            if let Some(file) = file {
                life.set(name, &file.to_string_lossy())?;
            }
        }
        if !args.daemon {
            life.begin(&args.pool)?;
        }
        let interval = args.data_flush_interval;
        options.data_flush_interval = interval.unwrap_or(options.data_flush_interval);
        Self::resolve(&args.pool, &args.dir, options)
    }

    fn resolve(pool: &Path, dir: &Path, mut options: Options) -> Result<Self> {
        let (pool, name) = pool::absolute_with_snapshot(pool)?;
        let part = name.map(|name| PoolPart::find(&pool, name)).transpose()?;
        if matches!(part, Some(PoolPart::Snapshot(_))) {
            options.read_only(true);
        }
        if part.is_some() && options.life != PoolLife::default() {
            bail!(
                "--create, --size, --restore and --save are for pools, not for snapshots and branches"
            );
        }
        let dir = absolute_dir(dir)?;
        if dir.metadata().is_ok_and(|found| !found.is_dir()) {
            bail!("{}: is not a directory; a pool is mounted on one", dir.display());
        }
        Ok(Self { pool, part, dir, options })
    }

    /// Returns the path of the server's log.
    fn log_path(&self, uuid: &str) -> PathBuf {
        match &self.part {
            Some(part) => crate::background::log_path(&format!("{uuid}@{}", part.name())),
            None => crate::background::log_path(uuid),
        }
    }

    /// Returns the source of the mount: the pool, or POOL@NAME.
    fn source(&self) -> PathBuf {
        match &self.part {
            Some(part) => pool::of_snapshot(&self.pool, part.name()),
            None => self.pool.clone(),
        }
    }
}

/// Fails if a living mount of Keepstone is at `dir`. Returns a notice if a dead mount of `pool` is
/// there. The dead mount stays until the new one replaces it, so that no program uses the directory
/// below meanwhile.
pub fn check_place(dir: &Path, pool: &Path) -> Result<Vec<String>> {
    let Some(mount) = fuse::mount_at(dir)?.filter(fuse::MountEntry::claims_keepstone) else {
        return Ok(Vec::new());
    };
    let of_mount = pool::of_source(mount.source.clone());
    // A server that was killed may not be dead yet.
    let died = after_ending(
        |err: &Option<io::Error>| err.is_none(),
        || busy::is_about_to_be_free(&of_mount),
        || if fuse::is_stale(dir).map_err(Some)? { Ok(()) } else { Err(None) },
    );
    match died {
        Ok(()) => {
            let log = background::log_of(pool);
            let log = log.map_or_else(String::new, |log| format!("; its log: {}", log.display()));
            Ok(vec![format!("{}: replaced a mount whose server had died{log}", dir.display())])
        }
        Err(Some(err)) => Err(err.into()),
        Err(None) => bail!(
            "{0}: {1} is mounted there; unmount it first with `keepstone umount {0}`",
            dir.display(),
            mount.source.display()
        ),
    }
}

/// Returns the absolute path of a mount point, stale or not.
pub fn absolute_dir(dir: &Path) -> Result<PathBuf> {
    // Compares the unresolved path first, because the server of a mount may not answer.
    let named = std::path::absolute(dir)?;
    if fuse::mount_at(&named)?.is_some_and(|mount| mount.claims_keepstone()) {
        return Ok(named);
    }
    let stale = |err: &io::Error| err.kind() == io::ErrorKind::NotConnected;
    match dir.canonicalize() {
        Ok(dir) => Ok(dir),
        Err(err) if stale(&err) => match (dir.parent(), dir.file_name()) {
            (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
            _ => bail!("{}: name it from its parent directory", dir.display()),
        },
        Err(err) => Err(err).with_context(|| {
            format!("{0}: no such directory; create it with `mkdir {0}`", dir.display())
        }),
    }
}
