//! `keepstone run`: a program with libkeepstone.so, and what that served.
//!
//! The library finds the mounts itself, faster if it is told where they were (`KEEPSTONE_MOUNTS`). This command also
//! tells it where it lies (`KEEPSTONE_RUN`, so that it can restore `LD_PRELOAD` in scrubbed environments), which
//! descriptors to give out (`KEEPSTONE_FDS`), which directories of other file systems to serve (`KEEPSTONE_DIRECT`)
//! and where to count (`KEEPSTONE_STATS`).
//!
//! No server of a mount is asked before the program starts, as one that is stopped would hold up all programs;
//! only `--stats` asks, and waits [`ANSWER_WITHIN`].

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::process::Resource;
use serde::Serialize;
use serde_json::Value;

use crate::locks::Locks;
use crate::program::Program;
use crate::{busy, output, stats};

/// File name of the library.
const LIBRARY: &str = "libkeepstone.so";
/// Size of the file of counters: room for more classes than there are.
const COUNTERS_BYTES: usize = 4096;
/// The first 8 bytes of that file.
const MAGIC: &[u8] = b"KSRUN003";
const RECORD_BYTES: usize = 40;
/// Numbers of descriptors that programs use are below this one, as far as their limit allows.
const DESCRIPTOR_MIN: u64 = 1000;
/// How long servers may take to say what they have been asked.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// `keepstone run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Print what was served in user space and what went through the mounts, when CMD has ended.
    #[arg(long)]
    pub stats: bool,
    /// Which descriptors CMD gets for files of pools.
    #[arg(long, value_enum, default_value_t = Fds::Auto)]
    pub fds: Fds,
    /// Serve regular files below DIR as well, where its file system is a tmpfs or mounted with DAX: they
    /// are read and overwritten by memory copies. May be given several times.
    #[arg(long, value_name = "DIR")]
    pub direct: Vec<PathBuf>,
    /// How closely the times of files below --direct follow writes.
    #[arg(long, value_enum, default_value_t = Mtime::Exact)]
    pub mtime: Mtime,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// How closely times follow writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mtime {
    /// To the tick of the kernel's clock (some 4 ms), as the kernel's own.
    Exact,
    /// To the second.
    Lazy,
}

/// Which descriptors programs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fds {
    /// Served in user space.
    Fast,
    /// The mount's, for programs that hand them to the kernel themselves (io_uring, Linux AIO).
    Real,
    /// `real` for programs that load liburing or libaio, else `fast`.
    Auto,
}

impl Fds {
    const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Real => "real",
            Self::Auto => "auto",
        }
    }
}

/// Calls of one class.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Calls {
    /// Answered in user space.
    served: u64,
    /// Made by the kernel on a descriptor that had been served.
    handed_over: u64,
    /// What the former took, in nanoseconds.
    served_ns: u64,
}

/// What `--stats` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Exit status of CMD, as a shell counts it.
    status: u8,
    /// By class; classes without calls are left out.
    calls: BTreeMap<String, Calls>,
    /// Requests that reached the server of each mount meanwhile, by mount point and kind. Other
    /// programs' are among them.
    mounts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Those among them that only the server serves: they are not mounted with `-o direct`.
    not_direct: Vec<String>,
}

pub fn run(args: &RunArgs, json: bool) -> Result<ExitCode> {
    let library = library()?;
    // Before the table is read: who finds another one later knows that a mount has come since.
    let newest = mounts::newest_mount();
    let table = std::fs::read(fuse::TABLE)?;
    let mounts = fuse::mounts_in(&table);
    if args.direct.is_empty()
        && let Some(why) = nothing_to_serve(&mounts)
    {
        output::notice(why);
    }
    let name = &args.command[0];
    if let Some(why) = Program::find(Path::new(name)).and_then(|program| program.not_served()) {
        output::notice(format!("{}: {why}; it uses the mount", name.display()));
    }
    let mut command = Command::new(name);
    command.args(&args.command[1..]).env("LD_PRELOAD", preload(&library)?);
    command.env("KEEPSTONE_RUN", &library).env("KEEPSTONE_FDS", args.fds.name());
    if let Some(newest) = newest {
        let found = mounts::PoolMount::announce(&table, newest);
        command.env("KEEPSTONE_MOUNTS", OsString::from_vec(found));
    }
    if !args.direct.is_empty() {
        command.env("KEEPSTONE_DIRECT", direct_dirs(&args.direct)?);
        if args.mtime == Mtime::Lazy {
            command.env("KEEPSTONE_DIRECT_LAZY", "1");
        }
    }
    if !args.stats {
        return Err(not_started(name, &command.exec(), json));
    }
    let dirs = mounts.into_iter().filter(fuse::MountEntry::is_keepstone).map(|mount| mount.dir);
    let before = ask(dirs.collect());
    let counters = Counters::create().context("cannot make a file to count in")?;
    command.env("KEEPSTONE_STATS", counters.path());
    ignore_keyboard(&mut command);
    let status = match command.status() {
        Ok(status) => status,
        Err(err) => return Err(not_started(name, &err, json)),
    };
    let after = ask(before.keys().cloned().collect());
    let meanwhile = after.iter().map(|(dir, after)| {
        let before = before.get(dir).map(requests).unwrap_or_default();
        let mut requests = requests(after);
        requests
            .iter_mut()
            .for_each(|(kind, n)| *n -= before.get(kind).copied().unwrap_or(0).min(*n));
        requests.retain(|_, n| *n > 0);
        (dir.display().to_string(), requests)
    });
    let status = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8;
    let not_direct = before.iter().filter(|(_, stats)| stats["direct"] != true);
    let report = Report {
        status,
        calls: counters.read()?,
        mounts: meanwhile.collect(),
        not_direct: not_direct.map(|(dir, _)| dir.display().to_string()).collect(),
    };
    if json {
        output::json(&report)?;
    } else {
        report.print();
    }
    Ok(ExitCode::from(status))
}

/// As a shell says it: 127 where there is no such program, 126 where it cannot be run.
fn not_started(name: &OsString, err: &io::Error, json: bool) -> anyhow::Error {
    output::error(&anyhow::anyhow!("{}: {err}", name.display()), json);
    std::process::exit(if err.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
}

/// The keyboard's signals are for CMD; this program waits for it.
fn ignore_keyboard(command: &mut Command) {
    let set = |action| {
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: neither action is a handler.
            unsafe { libc::signal(signal, action) };
        }
    };
    set(libc::SIG_IGN);
    // SAFETY: between fork and exec, only system calls.
    unsafe {
        command.pre_exec(move || {
            set(libc::SIG_DFL);
            Ok(())
        });
    }
}

/// The library that belongs to this program: beside it, or in the `lib` beside its directory.
pub fn library() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KEEPSTONE_LIBRARY") {
        return Ok(path.into());
    }
    let program = std::env::current_exe().context("cannot find out where this program lies")?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(LIBRARY), dir.join("../lib").join(LIBRARY)];
    match places.iter().find_map(|path| path.canonicalize().ok()) {
        Some(path) => Ok(path),
        None => bail!(
            "{LIBRARY} is neither in {} nor in ../lib; build it with `cargo build -p preload`, or \
             name it in KEEPSTONE_LIBRARY",
            dir.display()
        ),
    }
}

/// `LD_PRELOAD` with the library last: others that a user preloads see the program's calls before it.
fn preload(library: &Path) -> Result<OsString> {
    let text = library.to_str().filter(|path| !path.contains([':', ' ']));
    let Some(text) = text else {
        bail!("{}: LD_PRELOAD cannot name a path with a colon or a space", library.display());
    };
    let mut list = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if !list.is_empty() {
        list.push(":");
    }
    list.push(text);
    Ok(list)
}

/// What the library takes for directories: without links, separated by colons.
fn direct_dirs(dirs: &[PathBuf]) -> Result<OsString> {
    let mut list = OsString::new();
    for dir in dirs {
        let real = dir.canonicalize().with_context(|| format!("--direct {}", dir.display()))?;
        if !real.is_dir() {
            bail!("--direct {}: not a directory", dir.display());
        }
        if real.as_os_str().as_encoded_bytes().contains(&b':') {
            bail!("--direct {}: a path with a colon cannot be passed on", dir.display());
        }
        if !list.is_empty() {
            list.push(":");
        }
        list.push(real);
    }
    Ok(list)
}

/// Why no call can be served in user space, if none can, as far as that is seen without asking a server.
fn nothing_to_serve(mounts: &[fuse::MountEntry]) -> Option<String> {
    let pools: Vec<_> = mounts.iter().filter(|mount| mount.is_keepstone()).collect();
    if pools.is_empty() {
        return Some(
            "no pool is mounted and no --direct given: nothing to serve; see `keepstone mount -o direct`"
                .to_owned(),
        );
    }
    // What lies on somebody else's server is not looked at.
    let on_server = |pool: &Path| {
        let above = mounts.iter().filter(|mount| pool.starts_with(&mount.dir));
        let above = above.max_by_key(|mount| mount.dir.as_os_str().len());
        above.is_some_and(|mount| {
            ["fuse", "nfs", "cifs", "9p"].iter().any(|t| mount.fs_type.starts_with(t))
        })
    };
    if pools.iter().any(|mount| on_server(&mount.source)) {
        return None;
    }
    let locks = Locks::read();
    let (direct, not_direct): (Vec<_>, Vec<_>) =
        pools.into_iter().partition(|mount| busy::is_shared(&locks, &mount.source) != Some(false));
    let Some(first) = direct.first() else {
        let dir = not_direct.first()?.dir.display();
        return Some(format!(
            "no pool is mounted with -o direct: all calls go through the mount; unmount it \
             (`keepstone umount {dir}`), and see `keepstone mount -o direct`"
        ));
    };
    let may = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    let usable = |pool: &Path| {
        use rustix::fs::{AtFlags, CWD, accessat};
        accessat(CWD, pool, may, AtFlags::EACCESS) != Err(rustix::io::Errno::ACCESS)
    };
    if direct.iter().any(|mount| usable(&mount.source)) {
        return None;
    }
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Some(format!(
        "{pool}, mounted on {dir}: user {user} may not open the pool for reading and writing, so all calls go \
         through the mount; as its owner: `chgrp {group} {pool} && chmod 660 {pool}`",
        pool = first.source.display(),
        dir = first.dir.display(),
    ))
}

/// What the servers of these mounts say; those that do not, or not in time, or not to this user, are left out.
fn ask(dirs: Vec<PathBuf>) -> BTreeMap<PathBuf, Value> {
    let answers = stats::ask(dirs, ANSWER_WITHIN).into_iter();
    answers.filter_map(|(dir, stats)| Some((dir, stats.ok()?))).collect()
}

/// What the server of a mount has been asked so far.
fn requests(stats: &Value) -> BTreeMap<String, u64> {
    let requests = stats["requests"].as_object().into_iter().flatten();
    requests.filter_map(|(kind, n)| Some((kind.clone(), n.as_u64()?))).collect()
}

/// The file in which all processes of the run count. It has no name that others could open, nobody can shorten
/// it, and it ends with the last of them.
struct Counters(OwnedFd);

impl Counters {
    fn create() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"keepstone-run", flags)?;
        let mut content = [0; COUNTERS_BYTES];
        content[..MAGIC.len()].copy_from_slice(MAGIC);
        rustix::io::pwrite(&file, &content, 0)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // Inherited, so that processes that become another user count, too; beyond the numbers that programs see.
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let min = DESCRIPTOR_MIN.min(limit.saturating_sub(8)) as i32;
        let inherited = rustix::io::fcntl_dupfd_cloexec(&file, min)?;
        rustix::io::fcntl_setfd(&inherited, FdFlags::empty())?;
        Ok(Self(inherited))
    }

    /// Leads to it in processes that have closed the descriptor; its last part is the number of that.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// What was counted; nothing where no process was served.
    fn read(&self) -> Result<BTreeMap<String, Calls>> {
        let mut content = [0; COUNTERS_BYTES];
        let len = rustix::io::pread(self.0.as_fd(), &mut content, 0)?;
        Ok(parse(&content[..len]))
    }
}

/// Magic, number of records, then of each: name in 16 bytes, three counters of 8 bytes.
fn parse(file: &[u8]) -> BTreeMap<String, Calls> {
    let records = file.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(8));
    let Some((len, records)) = records else {
        return BTreeMap::new();
    };
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    let records = records.chunks_exact(RECORD_BYTES).take(number(len) as usize);
    let records = records.map(|record| {
        let (name, counters) = record.split_at(16);
        let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
        let counter = |index: usize| number(&counters[8 * index..8 * (index + 1)]);
        (name, Calls { served: counter(0), handed_over: counter(1), served_ns: counter(2) })
    });
    records.filter(|(_, calls)| *calls != Calls::default()).collect()
}

impl Report {
    /// On stderr: stdout is CMD's.
    fn print(&self) {
        tell!(
            "{:12} {:>14} {:>14} {:>14} {:>14}",
            "calls",
            "in user space",
            "ms",
            "us per call",
            "handed over"
        );
        for (class, calls) in &self.calls {
            let Calls { served, handed_over, served_ns } = *calls;
            let (ms, us) = (served_ns as f64 / 1e6, served_ns as f64 / 1e3 / served.max(1) as f64);
            tell!("{class:12} {served:14} {ms:14.3} {us:14.3} {handed_over:14}");
        }
        for (dir, requests) in &self.mounts {
            let total: u64 = requests.values().sum();
            let why =
                if self.not_direct.contains(dir) { " (mounted without -o direct)" } else { "" };
            tell!("requests to the server of {dir}{why}: {total}");
            for (kind, n) in requests {
                tell!("{kind:12} {n:14}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        assert!(parse(&[0; 4096]).is_empty());
        assert!(parse(MAGIC).is_empty() && parse(b"").is_empty());
        let mut file = MAGIC.to_vec();
        file.extend(2u64.to_ne_bytes());
        for (name, counters) in [(b"open", [3u64, 1, 900]), (b"read", [0; 3])] {
            file.extend(name);
            file.extend([0; 12]);
            file.extend(counters.iter().flat_map(|counter| counter.to_ne_bytes()));
        }
        file.resize(4096, 0);
        let open = Calls { served: 3, handed_over: 1, served_ns: 900 };
        assert_eq!(parse(&file), BTreeMap::from([("open".to_owned(), open)]));
    }
}
