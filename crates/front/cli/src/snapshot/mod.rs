//! `keepstone snapshot`
//!
//! `create` and `delete` join the processes that use the pool, as a program under `keepstone run`
//! does. So they need no server, and may be used by all users who may write to the pool. `list`
//! only reads the pool, mounted or not. `rollback` does the first if programs use the pool.
//! Otherwise it opens the pool alone, and inodes keep their numbers.

mod diff;
mod keep;
mod prune;
mod release;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use ::pool::{Engine, Snapshot, Snapshots};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand};
use engines::branching::Branches;
use pmem::{Access, OpenOptions, Region};
use serde::Serialize;
use vfs::Errno;

use self::keep::KeepRule;
use crate::stream::token;
use crate::{output, pool, size};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep the present state of a pool, also while programs use it.
    #[command(after_help = "\
Example: keepstone snapshot create /dev/shm/pool monday
         keepstone mount /dev/shm/pool@monday /mnt/monday

The snapshot has what all calls had done that returned before it, and nothing half. Programs wait \
for less than a millisecond per million files. All is shared with the pool, so a snapshot takes \
no space until the pool changes. Stores through mmap that the kernel has not written back are not \
in it: call `sync` before. With --keep, older snapshots are deleted afterwards, as by `snapshot \
prune`.")]
    Create(CreateArgs),
    /// List the snapshots of a pool, the oldest first.
    #[command(after_help = "Example: keepstone snapshot list /mnt --space")]
    List(ListArgs),
    /// Delete snapshots, also while programs use the pool; the space that only they hold becomes
    /// free.
    #[command(after_help = "Example: keepstone snapshot delete /mnt monday tuesday")]
    Delete(DeleteArgs),
    /// Delete the snapshots that a rule does not keep.
    #[command(after_help = "\
Example: keepstone snapshot prune /mnt --keep 3,24h,7d,4w --prefix auto- --dry-run

A snapshot stays if any item of the rule keeps it: `3` keeps the three newest; `24h`, `7d` and \
`4w` keep the newest of each hour, day or week, the last 24, 7 and 4 of those that have one (in \
UTC; weeks begin on Mondays). So none goes only because time passes. Snapshots that are mounted \
stay, and so do incomplete ones.")]
    Prune(prune::PruneArgs),
    /// List the paths that differ between a snapshot and another one, or the present state.
    #[command(after_help = "\
Example: keepstone snapshot diff /mnt monday tuesday

`+` marks added paths, `-` removed ones, and `M` files and directories that have changed. A \
renamed file is removed and added.")]
    Diff(diff::DiffArgs),
    /// Make the state of a pool the one of a snapshot, also while programs use the pool.
    #[command(after_help = "\
Example: keepstone snapshot create /dev/shm/pool before-rollback
         keepstone snapshot rollback /dev/shm/pool monday

All changes since the snapshot are lost, unless another snapshot has them. All snapshots and \
branches stay. A power failure meanwhile leaves one of both states. Files that programs have open \
keep their content, and have no name any more; so end databases before.")]
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

/// `keepstone snapshot create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    pub named: NamedArgs,
    /// Then delete the snapshots that this rule does not keep, such as 3,24h,7d (see `prune`).
    #[arg(long, value_name = "RULE")]
    pub keep: Option<KeepRule>,
    /// Leave all snapshots alone whose names do not begin so.
    #[arg(long, requires = "keep", default_value = "")]
    pub prefix: String,
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
pub fn name(name: &str) -> Result<String, String> {
    ::pool::check_snapshot_name(name).map(|()| name.to_owned()).map_err(str::to_owned)
}

#[derive(Serialize)]
struct Changed<'a> {
    pool: String,
    snapshots: &'a [String],
}

#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    changed: Changed<'a>,
    /// The snapshots that `--keep` has deleted. Null without it.
    pruned: Option<prune::Pruned>,
}

#[derive(Serialize)]
struct ListedSnapshot {
    #[serde(flatten)]
    snapshot: Snapshot,
    /// The token to resume with, of an incomplete snapshot.
    token: Option<String>,
}

#[derive(Serialize)]
struct SnapshotList {
    pool: String,
    snapshots: Vec<ListedSnapshot>,
    /// Bytes that become free if all snapshots are deleted. Null without `--space`.
    held_bytes: Option<u64>,
}

pub fn run(command: &SnapshotCommand, json: bool) -> Result<ExitCode> {
    match command {
        SnapshotCommand::Create(args) => create(args, json),
        SnapshotCommand::List(args) => list(args, json),
        SnapshotCommand::Delete(args) => delete(args, json),
        SnapshotCommand::Prune(args) => prune::run(args, json),
        SnapshotCommand::Diff(args) => diff::run(args, json),
        SnapshotCommand::Rollback(args) => roll_back(args, json),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// As [`pool::attached`], for a pool that can have snapshots.
pub fn attached<T>(path: &Path, body: impl FnOnce(&dyn Engine) -> Result<T>) -> Result<T> {
    check_layout(path)?;
    pool::attached(path, |fs| body(&**fs))
}

/// Refuses pools that have no snapshots, with the reason.
pub fn check_layout(path: &Path) -> Result<()> {
    let (info, _) = pool::info(path)?;
    let shown = path.display();
    if info.layout != engines::Layout::Bpfs.name() {
        bail!(
            "{shown}: a pool of the layout {} cannot keep an older state; only pools of bpfs have snapshots",
            info.layout
        );
    }
    if info.has_backing_store {
        bail!("{shown}: the pool of a cache has no snapshots; its backing store may have them");
    }
    Ok(())
}

/// Explains why a command has failed.
fn explain(errno: Errno, path: &Path, name: &str) -> anyhow::Error {
    let pool = path.display();
    match errno {
        Errno::EXIST => anyhow!("{pool}: has a snapshot {name} already; choose another name"),
        Errno::NOENT => {
            anyhow!("{pool}: has no snapshot {name}; `keepstone snapshot list {pool}` lists them")
        }
        Errno::BUSY => release::explain_busy(path, name),
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

fn create(args: &CreateArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.named.pool)?;
    let name = &args.named.name;
    attached(&path, |fs| fs.create_snapshot(name).map_err(|e| explain(e, &path, name)))?;
    let pruning = |keep| prune::Pruning { keep, prefix: &args.prefix, dry_run: false };
    let pruned = args.keep.as_ref().map(|keep| prune::prune(&path, &pruning(keep))).transpose()?;
    let snapshots = std::slice::from_ref(name);
    if json {
        let pool = path.display().to_string();
        return output::json(&Created { changed: Changed { pool, snapshots }, pruned });
    }
    report(&path, snapshots, "created", json)?;
    pruned.iter().for_each(|pruned| pruned.say(&path));
    Ok(())
}

fn delete(args: &DeleteArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    attached(&path, |fs| {
        let mut names = args.names.iter();
        names.try_for_each(|name| {
            release::delete(fs, &path, name).map_err(|e| explain(e, &path, name))
        })
    })?;
    report(&path, &args.names, "deleted", json)
}

fn roll_back(args: &NamedArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    // The lock proves that no process uses the pool. Branches are in the inodes of the pool, which
    // change as a whole then.
    let has_branches = !engines::branches(&pool::open_to_look(&path)?)?.is_empty();
    let alone = match OpenOptions::default().open(&path, Access::ReadWrite) {
        Ok(region) => Some(region).filter(|_| !has_branches),
        Err(pmem::Error::InUse(_)) => None,
        Err(err) => return Err(err.into()),
    };
    match alone {
        Some(region) => roll_back_to(&path, region, &args.name)?,
        None => attached(&path, |fs| {
            let done = Branches::open(fs, true).and_then(|branches| branches.roll_back(&args.name));
            done.map_err(|err| explain_error(err, &path, &args.name))
        })?,
    }
    report(&path, std::slice::from_ref(&args.name), "is the state of the pool", json)
}

/// Makes the state of a pool, which no other process uses, the one of a snapshot.
pub fn roll_back_to(path: &Path, region: Region, name: &str) -> Result<()> {
    engines::roll_back(&region, name).map_err(|err| explain_error(err, path, name))
}

fn explain_error(err: ::pool::Error, path: &Path, name: &str) -> anyhow::Error {
    match err {
        ::pool::Error::Errno(errno) => explain(errno, path, name),
        err => anyhow::Error::new(err).context(path.display().to_string()),
    }
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
        let listed = |snapshot: Snapshot| {
            let token = snapshot.is_incomplete.then(|| token(&path, &snapshot.name)).flatten();
            ListedSnapshot { snapshot, token }
        };
        let snapshots = list.into_iter().map(listed).collect();
        return output::json(&SnapshotList { pool: shown(), snapshots, held_bytes });
    }
    let width = list.iter().map(|snapshot| snapshot.name.chars().count()).max().unwrap_or(0);
    for Snapshot { name, created_ns, held_bytes, is_incomplete } in &list {
        let created = humantime::format_rfc3339_seconds(time(*created_ns));
        let held = held_bytes.map_or_else(String::new, |held| format!("  {}", size::show(held)));
        let state = if *is_incomplete { "  incomplete" } else { "" };
        say!("{name:width$}  {created}{held}{state}");
        if *is_incomplete && let Some(token) = token(&path, name) {
            say!("{:width$}  --resume {token}", "");
        }
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
