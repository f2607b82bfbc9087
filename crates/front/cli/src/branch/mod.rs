//! `keepstone branch`
//!
//! The commands join the processes that use the pool, as those on snapshots do.
//! [`engines::branching`] does the work.

mod commit;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::pool::{BranchInfo, Engine, Error, check_branch_name};
use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use engines::branching::Branches;
use serde::Serialize;
use vfs::Errno;

use crate::{output, pool, snapshot};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum BranchCommand {
    /// Make branches of the present state of a pool, also while programs use it.
    #[command(after_help = "\
Example: keepstone branch create /dev/shm/pool test-1
         keepstone mount /dev/shm/pool@test-1 /mnt/test-1

A branch is a copy of the pool's tree that programs can change: the changes are in the branch \
only. Contents are shared until they change. It has what all calls had done that returned before, \
and nothing half. Stores through mmap that the kernel has not written back are not in it: call \
`sync` before.")]
    Create(NamesArgs),
    /// List the branches of a pool.
    #[command(after_help = "Example: keepstone branch list /mnt")]
    List(ListArgs),
    /// Make a branch the tree of the pool, in one step; the branch ends.
    #[command(after_help = "\
Example: keepstone umount /mnt/test-1
         keepstone branch commit /dev/shm/pool test-1

Unmount the branch before; the pool may stay mounted and in use. What the pool has changed since \
the branch was made is merged into the branch before. If both have changed a path, the command \
changes nothing and lists these paths; --force takes the state of the branch for them. Files that \
programs have open in the pool lose their names: the programs go on with the old files until they \
open them again.

Exit status: 0 done; 1 both have changed the listed paths, or an error; 2 wrong usage.")]
    Commit(CommitArgs),
    /// Remove branches; all their space becomes free.
    #[command(after_help = "Example: keepstone branch discard /dev/shm/pool test-1 test-2")]
    Discard(NamesArgs),
}

/// A pool, and names of branches.
#[derive(Debug, Args)]
pub struct NamesArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The names of the branches: 1 to 62 bytes without `/`, `@` and control characters.
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
}

/// `keepstone branch list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
}

/// `keepstone branch commit`
#[derive(Debug, Args)]
pub struct CommitArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// The name of the branch.
    #[arg(value_parser = name)]
    pub name: String,
    /// Take the state of the branch for paths that both have changed.
    #[arg(long)]
    pub force: bool,
}

/// Checks a name on the command line.
fn name(name: &str) -> Result<String, String> {
    check_branch_name(name).map(|()| name.to_owned()).map_err(str::to_owned)
}

#[derive(Serialize)]
struct Changed<'a> {
    pool: String,
    branches: &'a [String],
}

#[derive(Serialize)]
struct BranchList {
    pool: String,
    branches: Vec<ListedBranch>,
}

/// A branch in a list.
#[derive(Serialize)]
struct ListedBranch {
    #[serde(flatten)]
    branch: BranchInfo,
    /// The directories on which it is mounted.
    mounted_on: Vec<String>,
}

pub fn run(command: &BranchCommand, json: bool) -> Result<ExitCode> {
    match command {
        BranchCommand::Create(args) => {
            on_each(args, ("created", true), json, |all, name| all.create(name))
        }
        BranchCommand::List(args) => list(args, json),
        BranchCommand::Commit(args) => commit::run(args, json),
        BranchCommand::Discard(args) => {
            on_each(args, ("discarded", false), json, |all, name| all.discard(name))
        }
    }
}

/// Opens a pool, runs a function on its branches, of which one has this name, and makes its effect
/// durable. A pool without a directory of branches gets one only if the function `creates`
/// branches.
fn with_branches<T>(
    path: &Path,
    (name, creates): (&Cell<&str>, bool),
    body: impl FnOnce(&Branches<'_>) -> Result<T, Error>,
) -> Result<T> {
    check_layout(path)?;
    pool::attached(path, |fs| {
        let done = Branches::open(&**fs, creates).and_then(|branches| body(&branches));
        done.map_err(|error| match error {
            Error::Errno(Errno::EXIST) if has_snapshot(&**fs, name.get()) => anyhow!(
                "{}: has a snapshot {}; choose another name for the branch",
                path.display(),
                name.get()
            ),
            Error::Errno(errno) => explain(errno, path, name.get()),
            error => anyhow::Error::new(error).context(path.display().to_string()),
        })
    })
}

/// Returns whether the pool has a snapshot of this name.
fn has_snapshot(fs: &dyn Engine, name: &str) -> bool {
    let all = engines::snapshots(fs.region()).unwrap_or_default();
    all.iter().any(|snapshot| snapshot.name == name)
}

/// Refuses pools that have no branches, with the reason.
fn check_layout(path: &Path) -> Result<()> {
    let (info, _) = pool::info(path)?;
    let shown = path.display();
    if info.layout != engines::Layout::Bpfs.name() {
        bail!("{shown}: a pool of the layout {}; only pools of bpfs have branches", info.layout);
    }
    if info.has_backing_store {
        bail!("{shown}: the pool of a cache has no branches");
    }
    Ok(())
}

/// Explains why a command has failed.
fn explain(errno: Errno, pool: &Path, name: &str) -> anyhow::Error {
    let pool = pool.display();
    match errno {
        Errno::EXIST => anyhow!("{pool}: has a branch {name} already; choose another name"),
        Errno::TIMEDOUT => anyhow!("{pool}: another command on its branches runs; try again later"),
        Errno::AGAIN => anyhow!(
            "{pool}: programs change the pool all the time; stop them, and commit {name} again"
        ),
        Errno::NOENT => {
            anyhow!("{pool}: has no branch {name}; `keepstone branch list {pool}` lists them")
        }
        Errno::BUSY => anyhow!("{pool}@{name}: is mounted; unmount it first"),
        Errno::MLINK => anyhow!(
            "{pool}: has as many branches and snapshots as it can have (40); discard or delete one first"
        ),
        Errno::NOSPC => anyhow!(
            "{pool}: no space for names and attributes of the branch {name}; nothing has changed. Discard a branch, or \
             remove files"
        ),
        errno => anyhow::Error::new(errno).context(format!("{pool}@{name}")),
    }
}

/// Runs a function for each name, and reports what was done.
fn on_each(
    args: &NamesArgs,
    (done, creates): (&str, bool),
    json: bool,
    each: impl Fn(&Branches<'_>, &str) -> Result<(), Error>,
) -> Result<ExitCode> {
    let path = match creates {
        true => pool::absolute_of_tree(&args.pool)?,
        false => pool::absolute(&args.pool)?,
    };
    let current = Cell::new(args.names.first().map_or("", String::as_str));
    with_branches(&path, (&current, creates), |branches| {
        args.names.iter().try_for_each(|name| {
            current.set(name);
            each(branches, name)
        })
    })?;
    let pool = path.display().to_string();
    if json {
        output::json(&Changed { pool, branches: &args.names })?;
    } else {
        args.names.iter().for_each(|name| say!("{pool}@{name}: {done}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    let mounts: Vec<_> = fuse::mounts()?.into_iter().filter(|m| m.is_keepstone()).collect();
    let found = engines::branches(&pool::open_to_look(&path)?)?;
    let branches = found.into_iter().map(|branch| {
        let source = pool::of_snapshot(&path, &branch.name);
        let its = mounts.iter().filter(|mount| mount.source == source);
        let mounted_on = its.map(|mount| mount.dir.display().to_string()).collect();
        ListedBranch { branch, mounted_on }
    });
    let branches: Vec<ListedBranch> = branches.collect();
    if json {
        output::json(&BranchList { pool: path.display().to_string(), branches })?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = branches.iter().map(|b| b.branch.name.chars().count()).max().unwrap_or(0);
    for ListedBranch { branch, mounted_on } in &branches {
        let created = humantime::format_rfc3339_seconds(snapshot::time(branch.created_ns));
        let state = match (branch.is_finished, mounted_on.as_slice()) {
            (false, _) => "  unfinished; the next command on branches removes it".to_owned(),
            (true, []) => String::new(),
            (true, dirs) => format!("  mounted on {}", dirs.join(", ")),
        };
        say!("{:width$}  {created}{state}", branch.name);
    }
    Ok(ExitCode::SUCCESS)
}
