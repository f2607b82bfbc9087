//! `keepstone snapshot`
//!
//! `create` and `delete` join the processes that use the pool, as a program under `keepstone run`
//! does. So they need no server, and may be used by all users who may write to the pool. `list`
//! only reads the pool, mounted or not. `rollback` needs the pool for itself.

mod diff;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ::pool::{Engine, MountOptions, Snapshot, Snapshots};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand};
use pmem::{Access, Lock, OpenOptions};
use serde::Serialize;
use std::sync::Arc;
use vfs::Errno;

use crate::{output, pool, size};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep the present state of a pool, also while programs use it.
    #[command(after_help = "\
Example: keepstone snapshot create /dev/shm/pool monday
         keepstone mount /dev/shm/pool@monday /mnt/monday

The snapshot has what all calls had done that returned before it, and nothing half. Programs wait while
names and attributes are copied: for about a second per million files. Contents are shared, so they take no space
until they change in the pool. Stores through mmap that the kernel has not written back are not in it:
call `sync` before.")]
    Create(NamedArgs),
    /// List the snapshots of a pool, the oldest first.
    #[command(after_help = "Example: keepstone snapshot list /mnt --space")]
    List(ListArgs),
    /// Delete snapshots, also while programs use the pool; the space that only they hold becomes
    /// free.
    #[command(after_help = "Example: keepstone snapshot delete /mnt monday tuesday")]
    Delete(DeleteArgs),
    /// List the paths that differ between a snapshot and another one, or the present state.
    #[command(after_help = "\
Example: keepstone snapshot diff /mnt monday tuesday

`+` marks added paths, `-` removed ones, and `M` files and directories that have changed. A renamed
file is removed and added.")]
    Diff(diff::DiffArgs),
    /// Make the state of a pool the one of a snapshot, while no process uses the pool.
    #[command(after_help = "\
Example: keepstone umount /mnt
         keepstone snapshot create /dev/shm/pool before-rollback
         keepstone snapshot rollback /dev/shm/pool monday

All changes since the snapshot are lost, unless another snapshot has them. All snapshots stay. A power
failure meanwhile leaves one of both states.")]
    Rollback(NamedArgs),
}

/// A pool, and the name of a snapshot.
#[derive(Debug, Args)]
pub struct NamedArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The name of the snapshot: 1 to 64 bytes without `/`, `@` and control characters.
    #[arg(value_parser = name)]
    pub name: String,
}

/// `keepstone snapshot list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// Also count the space that would become free. Takes time that grows with the number of files,
    /// and permission to write to the pool.
    #[arg(long)]
    pub space: bool,
}

/// `keepstone snapshot delete`
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The names of the snapshots.
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
}

/// Checks a name on the command line.
fn name(name: &str) -> Result<String, String> {
    ::pool::check_snapshot_name(name).map(|()| name.to_owned()).map_err(str::to_owned)
}

#[derive(Serialize)]
struct Changed<'a> {
    pool: String,
    snapshots: &'a [String],
}

#[derive(Serialize)]
struct SnapshotList {
    pool: String,
    snapshots: Vec<Snapshot>,
    /// Bytes that become free if all snapshots are deleted. Null without `--space`.
    held_bytes: Option<u64>,
}

pub fn run(command: &SnapshotCommand, json: bool) -> Result<ExitCode> {
    match command {
        SnapshotCommand::Create(args) => create(args, json),
        SnapshotCommand::List(args) => list(args, json),
        SnapshotCommand::Delete(args) => delete(args, json),
        SnapshotCommand::Diff(args) => diff::run(args, json),
        SnapshotCommand::Rollback(args) => roll_back(args, json),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Attaches a pool that is in use, or not, runs a function on it, and makes its effect durable.
fn attached<T>(path: &Path, body: impl FnOnce(&dyn Engine) -> Result<T>) -> Result<T> {
    check_layout(path)?;
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = pool::open(path, &options, Access::ReadWrite)?;
    let fs: Arc<dyn Engine> = engines::attach(region, &MountOptions::default())
        .with_context(|| path.display().to_string())?;
    let done = body(&*fs);
    let synced = fs.sync();
    fs.close()?;
    let done = done?;
    synced?;
    Ok(done)
}

/// Refuses pools that have no snapshots, with the reason.
fn check_layout(path: &Path) -> Result<()> {
    let (info, _) = pool::info(path)?;
    let shown = path.display();
    if info.layout != engines::Layout::Bpfs.name() {
        bail!(
            "{shown}: a pool of the layout {} overwrites files in place, so it cannot keep an older state; only pools \
             of bpfs have snapshots",
            info.layout
        );
    }
    if info.has_backing_store {
        bail!("{shown}: the pool of a cache has no snapshots; its backing store may have them");
    }
    Ok(())
}

/// Explains why a command has failed.
fn explain(errno: Errno, pool: &Path, name: &str) -> anyhow::Error {
    let pool = pool.display();
    match errno {
        Errno::EXIST => anyhow!("{pool}: has a snapshot {name} already; choose another name"),
        Errno::NOENT => {
            anyhow!("{pool}: has no snapshot {name}; `keepstone snapshot list {pool}` lists them")
        }
        Errno::BUSY => anyhow!("{pool}@{name}: is mounted; unmount it first"),
        Errno::NOTEMPTY => {
            anyhow!(
                "{pool}: has branches, which a rollback would end; commit or discard them first"
            )
        }
        Errno::MLINK => anyhow!("{pool}: has as many snapshots as it can have; delete one first"),
        Errno::NOSPC => anyhow!(
            "{pool}: no space for a copy of its names and attributes; nothing has changed. Delete a snapshot, or files"
        ),
        errno => anyhow::Error::new(errno).context(format!("{pool}@{name}")),
    }
}

fn create(args: &NamedArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    let name = &args.name;
    attached(&path, |fs| fs.create_snapshot(name).map_err(|e| explain(e, &path, name)))?;
    report(&path, std::slice::from_ref(name), "created", json)
}

fn delete(args: &DeleteArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    attached(&path, |fs| {
        let mut names = args.names.iter();
        names.try_for_each(|name| fs.delete_snapshot(name).map_err(|e| explain(e, &path, name)))
    })?;
    report(&path, &args.names, "deleted", json)
}

fn roll_back(args: &NamedArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    // The lock taken here proves that no process uses the pool.
    let region = pool::open(&path, &OpenOptions::default(), Access::ReadWrite)
        .context("a pool can be rolled back only while no process uses it")?;
    engines::roll_back(&region, &args.name).map_err(|err| match err {
        ::pool::Error::Errno(errno) => explain(errno, &path, &args.name),
        err => anyhow::Error::new(err).context(path.display().to_string()),
    })?;
    report(&path, std::slice::from_ref(&args.name), "is the state of the pool", json)
}

/// Reports what was done with snapshots of a pool.
fn report(path: &Path, snapshots: &[String], done: &str, json: bool) -> Result<()> {
    let pool = path.display().to_string();
    if json {
        return output::json(&Changed { pool, snapshots });
    }
    snapshots.iter().for_each(|name| say!("{pool}@{name}: {done}"));
    Ok(())
}

fn list(args: &ListArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    let shown = || path.display().to_string();
    let Snapshots { list, held_bytes } = match args.space {
        true => attached(&path, |fs| fs.snapshots(true).with_context(shown))?,
        false => {
            let list = engines::snapshots(&pool::open_to_look(&path)?).with_context(shown)?;
            Snapshots { list, held_bytes: None }
        }
    };
    if json {
        return output::json(&SnapshotList { pool: shown(), snapshots: list, held_bytes });
    }
    let width = list.iter().map(|snapshot| snapshot.name.chars().count()).max().unwrap_or(0);
    for Snapshot { name, created_ns, held_bytes } in &list {
        let created = humantime::format_rfc3339_seconds(time(*created_ns));
        let held = held_bytes.map_or_else(String::new, |held| format!("  {}", size::show(held)));
        say!("{name:width$}  {created}{held}");
    }
    if let Some(held) = held_bytes.filter(|_| !list.is_empty()) {
        say!("all of them hold {}", size::show(held));
    }
    Ok(())
}

/// Returns a time in nanoseconds since 1970, or the last one that can be shown.
pub fn time(ns: u64) -> SystemTime {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns).min(LAST)
}
