//! `keepstone branch`
//!
//! The commands join the processes that use the pool, as those on snapshots do. A branch is made by
//! one operation of the engine. It is removed by ordinary calls, below a name that no mount knows
//! (`@NAME`, branches-W3). One command runs at a time. Each first removes what a killed one has
//! left.

mod changes;
mod commit;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::pool::{
    BranchInfo, Engine, MountOptions, TreeSource, base_of_branch, branch_part, branches_part,
};
use ::pool::{check_branch_name, later_of_branch};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand};
use pmem::Lock;
use serde::Serialize;
use vfs::{Errno, Ino, RenameFlags};

use crate::{output, pool, snapshot};

/// Longest time to wait for other commands on branches of the pool.
const OTHERS_END_WITHIN: Duration = Duration::from_secs(60);

/// The commands.
#[derive(Debug, Subcommand)]
pub enum BranchCommand {
    /// Make branches of the present state of a pool, also while programs use it.
    #[command(after_help = "\
Example: keepstone branch create /dev/shm/pool test-1
         keepstone mount /dev/shm/pool@test-1 /mnt/test-1

A branch is a copy of the pool's tree that programs can change: the changes are in the branch only. Contents are
shared until they change. It has what all calls had done that returned before, and nothing half. Stores through mmap
that the kernel has not written back are not in it: call `sync` before.")]
    Create(NamesArgs),
    /// List the branches of a pool.
    #[command(after_help = "Example: keepstone branch list /mnt")]
    List(ListArgs),
    /// Make a branch the tree of the pool, in one step; the branch ends.
    #[command(after_help = "\
Example: keepstone umount /mnt/test-1
         keepstone branch commit /dev/shm/pool test-1

Unmount the branch before; the pool may stay mounted and in use. What the pool has changed since the branch was made
is merged into the branch before. If both have changed a path, the command changes nothing and lists these paths;
--force takes the state of the branch for them. Files that programs have open in the pool lose their names: the
programs go on with the old files until they open them again.

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
        BranchCommand::Create(args) => on_each(args, ("created", true), json, Branches::create),
        BranchCommand::List(args) => list(args, json),
        BranchCommand::Commit(args) => commit::run(args, json),
        BranchCommand::Discard(args) => {
            on_each(args, ("discarded", false), json, Branches::discard)
        }
    }
}

/// The branches of a pool that is open.
struct Branches {
    path: PathBuf,
    fs: Arc<dyn Engine>,
    /// The directory of branches.
    dir: Ino,
}

impl Branches {
    /// Opens a pool, runs a function on its branches, of which one has this name, and makes its
    /// effect durable. A pool without a directory of branches gets one only if the function
    /// `creates` branches.
    fn with<T>(
        path: PathBuf,
        (name, creates): (&str, bool),
        body: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        check_layout(&path)?;
        let shown = || path.display().to_string();
        pool::attached(&path, |fs| {
            wait_for_others(&**fs, &path)?;
            let dir = fs.branches_dir(creates).with_context(shown)?;
            let dir = dir.ok_or_else(|| explain(Errno::NOENT, &path, name))?;
            let branches = Self { path: path.clone(), fs: fs.clone(), dir };
            branches.clean()?;
            body(&branches)
        })
    }

    fn list(&self) -> Result<Vec<BranchInfo>> {
        Ok(engines::branches(self.fs.region())?)
    }

    /// Removes what killed commands have left.
    fn clean(&self) -> Result<()> {
        for branch in self.list()?.iter().filter(|branch| !branch.is_finished) {
            self.remove(&branch.name)?;
        }
        Ok(())
    }

    /// Removes an unfinished branch, and the snapshots of a branch.
    fn remove(&self, name: &str) -> Result<()> {
        let failed = |errno| explain(errno, &self.path, name);
        let unfinished = base_of_branch(name);
        match vfs::remove_tree(&*self.fs, self.dir, unfinished.as_bytes()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        for snapshot in [later_of_branch(name), base_of_branch(name)] {
            self.delete_snapshot(&snapshot).map_err(failed)?;
        }
        Ok(())
    }

    /// Deletes the snapshot of this name, if it exists.
    fn delete_snapshot(&self, name: &str) -> vfs::Result<()> {
        match self.fs.delete_snapshot(name) {
            Err(Errno::NOENT) => Ok(()),
            deleted => deleted,
        }
    }

    /// Opens a snapshot of the pool.
    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Engine>> {
        let region = pool::open_to_look(&self.path)?;
        let opened = engines::mount_snapshot(region, name, &MountOptions::default());
        opened.with_context(|| self.path.display().to_string())
    }

    /// Returns whether there is a branch of this name.
    fn has(&self, name: &str) -> Result<bool> {
        Ok(self.list()?.iter().any(|branch| branch.name == name))
    }

    /// Fails if there is no branch of this name.
    fn check_exists(&self, name: &str) -> Result<()> {
        if self.has(name)? { Ok(()) } else { Err(explain(Errno::NOENT, &self.path, name)) }
    }

    /// Excludes mounts of a branch until the pool is closed.
    fn hold_unmounted(&self, name: &str) -> Result<()> {
        match self.fs.region().lock_part(branch_part(name), Lock::Exclusive)? {
            true => Ok(()),
            false => Err(explain(Errno::BUSY, &self.path, name)),
        }
    }

    fn create(&self, name: &str) -> Result<()> {
        if self.has(name)? {
            return Err(explain(Errno::EXIST, &self.path, name));
        }
        if engines::snapshots(self.fs.region())?.iter().any(|other| other.name == name) {
            let pool = self.path.display();
            bail!("{pool}: has a snapshot {name}; choose another name for the branch");
        }
        self.build(name).inspect_err(|_| {
            let _ = self.remove(name);
        })
    }

    /// Makes a branch from a snapshot of the pool, which becomes its base.
    fn build(&self, name: &str) -> Result<()> {
        let (fs, base) = (&*self.fs, base_of_branch(name));
        let failed = |errno| explain(errno, &self.path, name);
        fs.create_snapshot(&base).map_err(failed)?;
        let to = (self.dir, name.as_bytes());
        fs.copy_tree(&TreeSource::Snapshot(&base), to).map(drop).map_err(failed)
    }

    fn discard(&self, name: &str) -> Result<()> {
        self.check_exists(name)?;
        self.hold_unmounted(name)?;
        let unfinished = base_of_branch(name);
        let (from, to) = ((self.dir, name.as_bytes()), (self.dir, unfinished.as_bytes()));
        let renamed = self.fs.rename(from, to, RenameFlags::NOREPLACE);
        renamed.map_err(|errno| explain(errno, &self.path, name))?;
        self.remove(name)
    }
}

/// Waits until no other command on branches of the pool runs, and excludes others until the pool is
/// closed.
fn wait_for_others(fs: &dyn Engine, path: &Path) -> Result<()> {
    let deadline = Instant::now() + OTHERS_END_WITHIN;
    while !fs.region().lock_part(branches_part(), Lock::Exclusive)? {
        if Instant::now() >= deadline {
            bail!("{}: another command on its branches runs; try again later", path.display());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
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
    each: fn(&Branches, &str) -> Result<()>,
) -> Result<ExitCode> {
    let path = match creates {
        true => pool::absolute_of_tree(&args.pool)?,
        false => pool::absolute(&args.pool)?,
    };
    let first = args.names.first().map_or("", String::as_str);
    Branches::with(path.clone(), (first, creates), |branches| {
        args.names.iter().try_for_each(|name| each(branches, name))
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
