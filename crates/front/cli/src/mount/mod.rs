//! `keepstone mount`, and the same as a helper of `mount(8)`.
//!
//! In the background, the server is another run of this program (`--daemon`): no process is forked
//! once threads exist. It reports readiness, or why not, on its standard output.

mod background;
mod faults;
pub mod flags;
mod flush;
mod helper;
pub mod options;
mod prealloc;
mod serve;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::args::MountArgs;
use crate::pool::{self, DomainReport};
use crate::{output, size};
use options::Options;

pub use background::log_of;
pub use faults::handle as handle_faults;
pub use helper::run_as_helper;
pub use serve::{end_on_signal, reap, remove_abandoned};

/// Everything that a mount needs to know.
#[derive(Debug)]
struct Plan {
    pool: PathBuf,
    dir: PathBuf,
    options: Options,
}

/// What the server says once programs can use the mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ready {
    pool: String,
    dir: String,
    layout: String,
    uuid: String,
    label: String,
    size_bytes: u64,
    read_only: bool,
    domain: DomainReport,
    /// Emulated speed, where it is.
    emulation: Option<String>,
    pid: u32,
    /// Where the server writes what it has to say, in the background.
    log: Option<PathBuf>,
    /// What happened on the way that the user should know.
    notices: Vec<String>,
}

pub fn run(args: &MountArgs, json: bool) -> Result<ExitCode> {
    let plan = Plan::new(args)?;
    if args.daemon {
        background::serve(&plan);
    } else if args.foreground {
        serve::run(&plan, |ready| announce(ready, json))?;
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
    if let Some(emulation) = &ready.emulation {
        say!("speed emulated: {emulation}");
    }
    if let Some(log) = &ready.log {
        say!("log {}", log.display());
    }
    Ok(())
}

/// Whether a list of `mount -o` is understood.
///
/// # Errors
/// With the option that is not.
pub fn check_options(list: &str) -> Result<()> {
    Options::default().add(list, false)
}

impl Plan {
    fn new(args: &MountArgs) -> Result<Self> {
        let mut options = Options::default();
        for list in &args.options {
            options.add(list, false)?;
        }
        options.read_only(args.read_only);
        options.no_cache |= args.no_cache;
        options.threads = args.threads.or(options.threads);
        options.emulation = args.emulate.or(options.emulation);
        let interval = args.data_flush_interval;
        options.data_flush_interval = interval.unwrap_or(options.data_flush_interval);
        Self::resolve(&args.pool, &args.dir, options)
    }

    fn resolve(pool: &Path, dir: &Path, options: Options) -> Result<Self> {
        Ok(Self { pool: pool::absolute(pool)?, dir: absolute_dir(dir)?, options })
    }
}

/// Refuses where a mount of ours is alive; gives what the user should know about a dead one, whose pool is `pool`. That stays
/// until the new one takes its place, so that nobody meanwhile uses the directory below.
pub fn check_place(dir: &Path, pool: &Path) -> Result<Vec<String>> {
    if fuse::is_stale(dir)? {
        let log = background::log_of(pool);
        let log = log.map_or_else(String::new, |log| format!("; its log: {}", log.display()));
        return Ok(vec![format!("{}: replaced a mount whose server had died{log}", dir.display())]);
    }
    match fuse::mount_at(dir)? {
        Some(mount) if mount.claims_keepstone() => bail!(
            "{0}: {1} is mounted there; unmount it first with `keepstone umount {0}`",
            dir.display(),
            mount.source.display()
        ),
        _ => Ok(Vec::new()),
    }
}

/// The absolute path of a mount point, stale or not.
pub fn absolute_dir(dir: &Path) -> Result<PathBuf> {
    // By its name first: the server of a mount need not answer.
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
