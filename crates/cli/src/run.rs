//! `keepstone run`: a program with libkeepstone.so, and what that served.
//!
//! The library finds the mounts itself; this command tells it where it lies (`KEEPSTONE_RUN`, so that
//! it can restore `LD_PRELOAD` in scrubbed environments), which descriptors to give out
//! (`KEEPSTONE_FDS`), which directories of other file systems to serve (`KEEPSTONE_DIRECT`) and where to
//! count (`KEEPSTONE_STATS`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::program::Program;
use crate::{output, stats};

/// File name of the library.
const LIBRARY: &str = "libkeepstone.so";
/// Size of the file of counters: room for more classes than there are.
const COUNTERS_BYTES: u64 = 4096;
/// The first 8 bytes of that file, once a process has found it.
const MAGIC: &[u8] = b"KSRUN002";
const RECORD_BYTES: usize = 40;

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
    let dirs = mounts()?;
    // What their servers say; nothing where one does not answer.
    let before: Vec<_> = dirs.iter().map(|dir| stats::read(dir).unwrap_or_default()).collect();
    let is_direct = |stats: &Value| stats["direct"] == true;
    if !before.iter().any(is_direct) && args.direct.is_empty() {
        output::notice(match dirs.len() {
            0 => {
                "no pool is mounted and no --direct given: nothing to serve; see `keepstone mount -o direct`"
            }
            _ => {
                "no pool is mounted with -o direct: all calls go through the mount; unmount it, and see \
                 `keepstone mount -o direct`"
            }
        });
    }
    let name = &args.command[0];
    if let Some(why) = Program::find(Path::new(name)).and_then(|program| program.not_served()) {
        output::notice(format!("{}: {why}; it uses the mount", name.display()));
    }
    let mut command = Command::new(name);
    command.args(&args.command[1..]).env("LD_PRELOAD", preload(&library)?);
    command.env("KEEPSTONE_RUN", &library).env("KEEPSTONE_FDS", args.fds.name());
    if !args.direct.is_empty() {
        command.env("KEEPSTONE_DIRECT", direct_dirs(&args.direct)?);
        if args.mtime == Mtime::Lazy {
            command.env("KEEPSTONE_DIRECT_LAZY", "1");
        }
    }
    if !args.stats {
        return Err(not_started(name, &command.exec()));
    }
    let counters = Counters::create()?;
    command.env("KEEPSTONE_STATS", counters.0.path());
    ignore_keyboard(&mut command);
    let status = match command.status() {
        Ok(status) => status,
        Err(err) => return Err(not_started(name, &err)),
    };
    let after = dirs.iter().zip(&before).map(|(dir, before)| {
        let before = requests(before);
        let mut requests = requests(&stats::read(dir).unwrap_or_default());
        requests.iter_mut().for_each(|(kind, n)| *n -= before.get(kind).copied().unwrap_or(0));
        requests.retain(|_, n| *n > 0);
        (dir.display().to_string(), requests)
    });
    let status = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8;
    let not_direct = dirs.iter().zip(&before).filter(|(_, stats)| !is_direct(stats));
    let report = Report {
        status,
        calls: counters.read()?,
        mounts: after.collect(),
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
fn not_started(name: &OsString, err: &io::Error) -> anyhow::Error {
    output::notice(format!("{}: {err}", name.display()));
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

/// `LD_PRELOAD` with the library first.
fn preload(library: &Path) -> Result<OsString> {
    let text = library.to_str().filter(|path| !path.contains([':', ' ']));
    let Some(text) = text else {
        bail!("{}: LD_PRELOAD cannot name a path with a colon or a space", library.display());
    };
    let others = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty());
    let mut list = OsString::from(text);
    if let Some(others) = others {
        list.push(":");
        list.push(others);
    }
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

fn mounts() -> Result<Vec<PathBuf>> {
    let ours = fuse::mounts()?.into_iter().filter(fuse::MountEntry::is_keepstone);
    Ok(ours.map(|entry| entry.dir).collect())
}

/// What the server of a mount has been asked so far.
fn requests(stats: &Value) -> BTreeMap<String, u64> {
    let requests = stats["requests"].as_object().into_iter().flatten();
    requests.filter_map(|(kind, n)| Some((kind.clone(), n.as_u64()?))).collect()
}

/// The file in which all processes of the run count; removed when dropped.
struct Counters(tempfile::NamedTempFile);

impl Counters {
    fn create() -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix("keepstone-run-").tempfile_in("/dev/shm");
        let file = file.context("cannot make a file in /dev/shm to count in")?;
        file.as_file().set_len(COUNTERS_BYTES)?;
        // For processes that become another user.
        file.as_file().set_permissions(Permissions::from_mode(0o666))?;
        Ok(Self(file))
    }

    /// What was counted; nothing where no process was served.
    fn read(&self) -> Result<BTreeMap<String, Calls>> {
        Ok(parse(&std::fs::read(self.0.path())?))
    }
}

/// Magic, number of records, then of each: name in 16 bytes, three counters of 8 bytes.
fn parse(file: &[u8]) -> BTreeMap<String, Calls> {
    let Some(records) = file.strip_prefix(MAGIC) else {
        return BTreeMap::new();
    };
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    let (len, records) = records.split_at(8);
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
        eprintln!(
            "{:12} {:>14} {:>14} {:>14} {:>14}",
            "calls", "in user space", "ms", "us per call", "handed over"
        );
        for (class, calls) in &self.calls {
            let Calls { served, handed_over, served_ns } = *calls;
            let (ms, us) = (served_ns as f64 / 1e6, served_ns as f64 / 1e3 / served.max(1) as f64);
            eprintln!("{class:12} {served:14} {ms:14.3} {us:14.3} {handed_over:14}");
        }
        for (dir, requests) in &self.mounts {
            let total: u64 = requests.values().sum();
            let why =
                if self.not_direct.contains(dir) { " (mounted without -o direct)" } else { "" };
            eprintln!("requests to the server of {dir}{why}: {total}");
            for (kind, n) in requests {
                eprintln!("{kind:12} {n:14}");
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
