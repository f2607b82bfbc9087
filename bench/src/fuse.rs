//! Through FUSE: Keepstone against libfuse's own examples over tmpfs, by the same system calls.
//!
//! Every server is a child in the foreground that ends with this process.
//!
//! A request to a FUSE server is two changes of task. If the scheduler moves server and client to
//! different CPUs, each change wakes an idle CPU, which takes a virtual machine tens of
//! microseconds, or no time while another process keeps that CPU busy. To compare servers rather
//! than luck, all of them and the client are bound to one CPU unless asked otherwise.

use crate::engine::size;
use crate::peer;
use crate::ramdisk::run as command;
use crate::rounds::{Case, Outcome, Plan};
use crate::store::{Durable, Kernel, open_dir};
use crate::workload::{APPEND_BYTES, Bed, NAMES};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// "Within 10%".
const TARGET: f64 = 0.9;

/// Longest time for a server to end after its mount.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Paths of the programs.
pub struct Programs {
    /// `keepstone`.
    pub keepstone: PathBuf,
    /// The layout of pools.
    pub layout: String,
    /// The directory with `passthrough_ll` and `passthrough_hp` (`scripts/lib/peers.sh`).
    pub peers: PathBuf,
}

/// Runs the cases. Pool and files are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, programs: &Programs, dir: &Path, bound: bool) -> Result<Vec<Outcome>> {
    raise_descriptor_limit()?;
    if bound {
        bind_to_one_cpu()?;
    }
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let servers = Servers::new(programs, tmp.path());
    let mut outcomes = Vec::new();
    let uncached = [
        servers.keepstone("keepstone, no cache", "1G", &["--no-cache"])?,
        servers.passthrough_ll("passthrough_ll, no cache", "never")?,
    ];
    compare(plan, "no-cache", &uncached, &mut outcomes)?;
    drop(uncached);
    let cached = [
        servers.keepstone("keepstone", "1G", &[])?,
        servers.passthrough_hp("passthrough_hp")?,
        servers.passthrough_ll("passthrough_ll, cached", "always")?,
    ];
    compare(plan, "cached", &cached, &mut outcomes)?;
    Ok(outcomes)
}

/// Raises this process's limit of descriptors, which servers inherit. `passthrough_ll` keeps one
/// for each inode that the kernel knows.
fn raise_descriptor_limit() -> Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    Ok(rustix::process::setrlimit(Resource::Nofile, most)?)
}

/// Binds this process and its children to one CPU.
fn bind_to_one_cpu() -> Result<()> {
    let mut one = CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    Ok(rustix::thread::sched_setaffinity(None, &one)?)
}

/// Compares the first server with the second; the others and the tmpfs below are for orientation.
fn compare(
    plan: &Plan,
    group: &str,
    servers: &[Server],
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let mut stores = Vec::new();
    for server in servers {
        stores.push((server.name.as_str(), server.store(Durable::Never)?));
    }
    let bare = tempfile::tempdir_in(servers[0].home.path())?;
    stores.push(("tmpfs itself", Kernel::new(open_dir(bare.path())?, Durable::Never)));
    let mut beds = Vec::new();
    for (name, store) in &stores {
        beds.push(Bed::new(name, store, NAMES).with_context(|| format!("preparing {name}"))?);
    }
    let peer = &servers[1].name;
    let case =
        |name: &str, what: &str| Case::new(format!("{group}/{name}"), what).target(peer, TARGET);
    for len in [4 << 10, 1 << 20] {
        let mut read = case(&format!("read/{}", size(len)), "pread at random").bytes(len as u64);
        let mut write = case(&format!("write/{}", size(len)), "pwrite at random").bytes(len as u64);
        for bed in &beds {
            read = read.with(bed.read(len));
            write = write.with(bed.overwrite(len));
        }
        plan.run(read, outcomes)?;
        plan.run(write, outcomes)?;
    }
    let len = 4 << 10;
    let mut append = case("append/4K", "pwrite at the end of a growing file")
        .bytes(len as u64)
        .ops_max(APPEND_BYTES / len as u64);
    let mut create = case("create+unlink", "create, close and unlink a file");
    let mut open = case("open+close", "open and close one of 10 000 files");
    let mut stat = case("stat", "stat one of 10 000 files");
    let mut list = case("readdir", "list a directory of 10 000 names");
    let mut rename = case("rename", "rename a file, there and back in turn");
    for bed in &beds {
        append = append.with(bed.append(len)?);
        create = create.with(bed.create_unlink());
        open = open.with(bed.open_close());
        stat = stat.with(bed.stat());
        list = list.with(bed.list());
        rename = rename.with(bed.rename(false)?);
    }
    for case in [append, create, open, stat, list, rename] {
        plan.run(case, outcomes)?;
    }
    drop(beds);

    // Writes with `fdatasync`, as an application makes them to keep its data safe. Keepstone has
    // written it already.
    let mut stores = Vec::new();
    for server in servers {
        let fresh = server.store(Durable::Each)?;
        stores.push((server.name.as_str(), fresh));
    }
    let mut beds = Vec::new();
    for (name, store) in &stores {
        beds.push(Bed::new(name, store, 1).with_context(|| format!("preparing {name}"))?);
    }
    let mut synced =
        case("write+fdatasync/4K", "pwrite at random, then fdatasync").bytes(len as u64);
    for bed in &beds {
        synced = synced.with(bed.overwrite(len));
    }
    plan.run(synced, outcomes)
}

/// Starts servers whose mounts and files are in one directory.
pub struct Servers<'a> {
    programs: &'a Programs,
    tmp: &'a Path,
}

impl<'a> Servers<'a> {
    /// Makes servers whose files are in `tmp`.
    pub fn new(programs: &'a Programs, tmp: &'a Path) -> Self {
        Self { programs, tmp }
    }

    /// Makes a pool of `size` and mounts it with `options`.
    pub fn keepstone(&self, name: &str, size: &str, options: &[&str]) -> Result<Server> {
        let home = tempfile::tempdir_in(self.tmp)?;
        let pool = home.path().join("pool");
        let keepstone = &self.programs.keepstone;
        let layout = &self.programs.layout;
        let made = ["--size", size, "--layout", layout];
        command(Command::new(keepstone).arg("mkfs").arg(&pool).args(made))?;
        self.mounted_in(name, home, &pool, options)
    }

    /// Mounts a pool that exists.
    pub fn mounted(&self, name: &str, pool: &Path, options: &[&str]) -> Result<Server> {
        self.mounted_in(name, tempfile::tempdir_in(self.tmp)?, pool, options)
    }

    fn mounted_in(
        &self,
        name: &str,
        home: TempDir,
        pool: &Path,
        options: &[&str],
    ) -> Result<Server> {
        Server::start(name, home, |dir| {
            let mut words: Vec<PathBuf> = vec![self.programs.keepstone.clone()];
            words.extend(["mount", "--foreground"].map(Into::into));
            words.extend(options.iter().map(Into::into));
            words.extend([pool.into(), dir.into()]);
            words
        })
    }

    /// Makes a pool of `size`, the cache of the directory `below`. The kernel sends it no events of
    /// that file system, because each event would cost its cause, which is the peer.
    pub fn attached(&self, name: &str, size: &str, below: &Path) -> Result<Server> {
        let home = tempfile::tempdir_in(self.tmp)?;
        let pool = home.path().join("pool");
        let keepstone = &self.programs.keepstone;
        let options = ["--cache", "--size", size];
        command(Command::new(keepstone).arg("mkfs").arg(&pool).args(options))?;
        Server::start(name, home, |dir| {
            let mut words = vec![keepstone.into(), "attach".into()];
            words.extend(["--foreground", "--watch", "off"].map(Into::into));
            [words, vec![pool, below.into(), dir.into()]].concat()
        })
    }

    /// Starts libfuse's example `passthrough_ll` over an empty directory. `cache` is its option of
    /// that name.
    fn passthrough_ll(&self, name: &str, cache: &str) -> Result<Server> {
        let home = tempfile::tempdir_in(self.tmp)?;
        let source = home.path().join("source");
        std::fs::create_dir(&source)?;
        let options = format!("source={},cache={cache}", source.display());
        Server::start(name, home, |dir| {
            vec![
                self.programs.peers.join("passthrough_ll"),
                "-f".into(),
                "-o".into(),
                options.into(),
                dir.into(),
            ]
        })
    }

    /// Starts libfuse's example `passthrough_hp` over an empty directory.
    fn passthrough_hp(&self, name: &str) -> Result<Server> {
        let home = tempfile::tempdir_in(self.tmp)?;
        let source = home.path().join("source");
        std::fs::create_dir(&source)?;
        Server::start(name, home, |dir| {
            vec![
                self.programs.peers.join("passthrough_hp"),
                "--foreground".into(),
                source,
                dir.into(),
            ]
        })
    }
}

/// A FUSE server and its mount.
pub struct Server {
    name: String,
    child: Child,
    dir: PathBuf,
    /// Holds the mount point and what the server keeps.
    home: TempDir,
    /// The directory of a cache, which ends after its server.
    _below: Option<TempDir>,
}

impl Server {
    /// Starts the program that `words` names for a mount point, and waits until it serves.
    fn start(name: &str, home: TempDir, words: impl FnOnce(&Path) -> Vec<PathBuf>) -> Result<Self> {
        let dir = home.path().join("mount");
        std::fs::create_dir(&dir)?;
        let before = std::fs::metadata(&dir)?.dev();
        let words = words(&dir);
        ensure!(words[0].exists(), "{} is missing; `make bench` builds it", words[0].display());
        let child = peer::start(&words)?;
        let mut server = Self { name: name.to_owned(), child, dir, home, _below: None };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::metadata(&server.dir)?.dev() == before {
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} ended before it served ({status})");
            }
            ensure!(Instant::now() < deadline, "{name} does not mount");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(server)
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps the directory of a cache until the server has ended.
    pub fn over(mut self, below: TempDir) -> Self {
        self._below = Some(below);
        self
    }

    /// Ends the server at once, which fails all calls that wait for it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Returns the process ID of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes a directory in its mount for the given kind of use.
    fn store(&self, durable: Durable) -> Result<Kernel> {
        let dir = self.dir.join(format!("{durable:?}"));
        std::fs::create_dir(&dir)?;
        Ok(Kernel::new(open_dir(&dir)?, durable))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(err) = fuse::unmount(&self.dir, true) {
            // Removing the directory would remove the files of the mount.
            tell!("{}: cannot unmount: {err}", self.dir.display());
            self.home.disable_cleanup(true);
        }
        peer::end(&mut self.child, ENDS_WITHIN);
    }
}
