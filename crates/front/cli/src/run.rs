//! `keepstone run`: runs a program with libkeepstone.so, and reports what the library served.
//!
//! This command passes information to the library in environment variables:
//!
//! - `KEEPSTONE_MOUNTS`: the mounts at the start. Without it the library finds them itself, more
//!   slowly.
//! - `KEEPSTONE_RUN`: the path of the library, so that it can restore `LD_PRELOAD` in scrubbed
//!   environments.
//! - `KEEPSTONE_FDS`: which descriptors to give to programs.
//! - `KEEPSTONE_DIRECT`: directories of other file systems to serve.
//! - `KEEPSTONE_STATS`: the file in which to count ([`counters`]).
//! - `KEEPSTONE_RECORD`: the file of traces, to which processes add their numbers.
//!
//! Then the command becomes the program by `execve`, and the library prints a line at the program's
//! end if too little was served. Only for `--stats` and `--explain` the command waits and reports.
//!
//! The command asks no server of a mount before the program starts, because a stopped server would
//! delay all programs. Only for `--stats` and `--explain` it asks, and waits up to
//! [`ANSWER_WITHIN`].

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use counters::Counters;
use rustix::io::FdFlags;
use rustix::process::Resource;
use serde_json::Value;

use crate::program::Program;
use crate::report::Report;
use crate::{obstacles, output, stats};

/// File name of the library.
const LIBRARY: &str = "libkeepstone.so";
/// Name of an installed library. Programs that run keep this name, so that it may not contain the
/// full version, which the next upgrade removes.
const INSTALLED: &str = concat!("libkeepstone.so.", env!("CARGO_PKG_VERSION_MAJOR"));
/// Directories of an installed library, relative to that of this program.
const LIBRARY_DIRS: [&str; 3] = ["../lib", "../lib/x86_64-linux-gnu", "../lib64"];
/// Lowest number for a descriptor of this command, above those that programs use, as far as the
/// limit allows.
const DESCRIPTOR_MIN: u64 = 1000;
/// Longest time for servers to report the requests that they have received.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// `keepstone run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// After CMD has ended, print how many calls were served in user space and how many went
    /// through the mounts, by class of call and by program.
    #[arg(long)]
    pub stats: bool,
    /// After CMD has ended, list the files that went through the mounts, with the reasons, and the
    /// programs that could not be served.
    #[arg(long)]
    pub explain: bool,
    /// Print no notices about mounts and programs that are not served. Without --stats or
    /// --explain, also count nothing.
    #[arg(long, short)]
    pub quiet: bool,
    /// Kind of descriptors that CMD gets for files of pools.
    #[arg(long, value_enum, default_value_t = Fds::Fast)]
    pub fds: Fds,
    /// Serve regular files below DIR as well, if its file system is a tmpfs or mounted with DAX:
    /// memory copies read and overwrite them. May be given several times.
    #[arg(long, value_name = "DIR")]
    pub direct: Vec<PathBuf>,
    /// Precision of modification times of files below --direct.
    #[arg(long, value_enum, default_value_t = Mtime::Exact)]
    pub mtime: Mtime,
    /// Record the accesses of each process to its pool in FILE.PID, for `keepstone simulate
    /// memory`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Precision of modification times after writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mtime {
    /// To the tick of the kernel's clock (about 4 ms), as for the kernel's writes.
    Exact,
    /// To the second.
    Lazy,
}

/// The kind of descriptors that programs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fds {
    /// Descriptors served in user space.
    #[value(alias = "auto")]
    Fast,
    /// Descriptors of the mount, for programs that pass them to the kernel in a way that the
    /// library cannot see (io_uring without liburing).
    Real,
}

impl Fds {
    const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Real => "real",
        }
    }
}

pub fn run(args: &RunArgs, json: bool) -> Result<ExitCode> {
    let library = library()?;
    // Read before the table: a later reader that finds another newest mount knows that there are
    // new mounts since.
    let newest = mounts::newest_mount();
    let table = std::fs::read(fuse::TABLE)?;
    let mounts = fuse::mounts_in(&table);
    let name = &args.command[0];
    if !args.quiet {
        notices(args, &mounts, &table).iter().for_each(|notice| tell_notice(notice, json));
    }
    let mut command = Command::new(name);
    command.args(&args.command[1..]).env("LD_PRELOAD", preload(&library)?);
    command.env("KEEPSTONE_RUN", &library).env("KEEPSTONE_FDS", args.fds.name());
    command.env("ASAN_OPTIONS", asan_options());
    if let Some(newest) = newest {
        let found = mounts::PoolMount::announce(&table, newest);
        command.env("KEEPSTONE_MOUNTS", OsString::from_vec(found));
    }
    // A recording of an outer run goes on only if this one asks for it.
    command.env_remove("KEEPSTONE_RECORD");
    if let Some(file) = &args.record {
        command.env("KEEPSTONE_RECORD", std::path::absolute(file)?);
    }
    if !args.direct.is_empty() {
        command.env("KEEPSTONE_DIRECT", direct_dirs(&args.direct)?);
        if args.mtime == Mtime::Lazy {
            command.env("KEEPSTONE_DIRECT_LAZY", "1");
        }
    }
    let reports = args.stats || args.explain;
    // A file of an outer run belongs to that run.
    command.env_remove("KEEPSTONE_STATS");
    if !reports && args.quiet {
        return Err(not_started(name, &command.exec(), json));
    }
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let file = inherited_counters(
        flag(args.stats, counters::TIMED)
            | flag(args.explain, counters::EXPLAIN)
            | flag(!reports, counters::CLOSING_LINE)
            | flag(json, counters::JSON),
    )
    .context("cannot make a file to count in")?;
    // The path leads to the file even in processes that have closed the descriptor. Its last
    // component is the descriptor's number.
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    command.env("KEEPSTONE_STATS", path);
    if !reports {
        return Err(not_started(name, &command.exec(), json));
    }
    let counters = Counters::map(file.as_fd()).context("cannot map the file to count in")?;
    if args.explain {
        counters.explain(name.as_encoded_bytes(), counters::Reason::Executed, 1, 0);
    }
    let (before, not_asked) = ask_first(mounts);
    ignore_keyboard(&mut command);
    let status = match command.status() {
        Ok(status) => status,
        Err(err) => return Err(not_started(name, &err, json)),
    };
    let after = ask(before.keys().cloned().collect());
    let meanwhile = after.iter().filter_map(|(dir, after)| {
        let before = before.get(dir).map(requests).unwrap_or_default();
        let mut requests = requests(after);
        // The question for these numbers.
        requests.entry("getxattr".to_owned()).and_modify(|n| *n = n.saturating_sub(1));
        requests
            .iter_mut()
            .for_each(|(kind, n)| *n -= before.get(kind).copied().unwrap_or(0).min(*n));
        requests.retain(|_, n| *n > 0);
        (!requests.is_empty()).then(|| (dir.display().to_string(), requests))
    });
    let status = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8;
    let is_not_direct = |stats: &Value| stats["direct"] != true && stats["cache"].is_null();
    let not_direct = before.iter().filter(|(_, stats)| is_not_direct(stats));
    let not_direct = not_direct.map(|(dir, _)| dir.display().to_string()).collect();
    let report = Report::new(status, counters, (meanwhile.collect(), not_direct, not_asked));
    if json {
        output::json(&report)?;
    } else {
        report.print(args.stats, args.explain);
    }
    Ok(ExitCode::from(status))
}

/// Returns notices for the user before the program starts: reasons why it, or mounts, cannot be
/// served.
fn notices(args: &RunArgs, mounts: &[fuse::MountEntry], table: &[u8]) -> Vec<String> {
    let mut notices = Vec::new();
    if args.direct.is_empty() {
        if mounts.iter().any(fuse::MountEntry::is_keepstone) {
            let mut found = obstacles::of_mounts(mounts);
            found.retain(|obstacle| is_named(&obstacle.dir, &args.command));
            notices.extend(found.iter().map(ToString::to_string));
        } else {
            notices.push(
                "no pool is mounted and no --direct given: nothing to serve; see `keepstone mount`"
                    .to_owned(),
            );
        }
    }
    let direct = args.direct.iter().filter_map(|dir| dir.canonicalize().ok());
    notices.extend(direct.filter_map(|dir| obstacles::of_direct(&dir, table)));
    if let Some(limit) = ::mounts::scarce_address_space() {
        notices.push(format!(
            "the address space of programs is limited to {} MiB (`ulimit -v`): they use pools through the mount; from {} MiB on \
             they use them directly",
            limit >> 20,
            ::mounts::ADDRESS_SPACE_MIN >> 20
        ));
    }
    let name = Path::new(&args.command[0]);
    if let Some(why) = Program::find(name).and_then(|program| program.not_served()) {
        notices.push(format!("{}: {why}; it uses the mount", name.display()));
    }
    notices
}

/// Returns whether a program is likely to use the mount on `dir`: it starts there, or one of its
/// arguments names it. The line at the program's end reports other mounts that it used.
fn is_named(dir: &Path, command: &[OsString]) -> bool {
    let here = std::env::current_dir().unwrap_or_default();
    let text = dir.as_os_str().as_bytes();
    let names = |arg: &OsString| {
        let is_within = here.join(arg).starts_with(dir);
        is_within || arg.as_bytes().windows(text.len()).any(|part| part == text)
    };
    here.starts_with(dir) || command.iter().any(names)
}

/// Prints a notice on stderr, because stdout belongs to CMD.
fn tell_notice(notice: &str, json: bool) {
    if json {
        tell!("{}", serde_json::json!({ "notice": notice }));
    } else {
        output::notice(notice);
    }
}

/// Reports the error and exits as a shell does: with 127 if there is no such program, 126 if it
/// cannot be run.
fn not_started(name: &OsString, err: &io::Error, json: bool) -> anyhow::Error {
    output::error(&anyhow::anyhow!("{}: {err}", name.display()), json);
    std::process::exit(if err.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
}

/// Ignores the keyboard's signals, which are meant for CMD, while this program waits for it.
fn ignore_keyboard(command: &mut Command) {
    let set = |action| {
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: neither action is a handler.
            unsafe { libc::signal(signal, action) };
        }
    };
    set(libc::SIG_IGN);
    // SAFETY: the closure makes only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            set(libc::SIG_DFL);
            Ok(())
        });
    }
}

/// Returns the path of the library that belongs to this program: in the same directory, or where
/// `make install` and packages put it.
pub fn library() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KEEPSTONE_LIBRARY") {
        return Ok(path.into());
    }
    let program = std::env::current_exe().context("cannot find out where this program lies")?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let installed = LIBRARY_DIRS.map(|lib| (dir.join(lib), INSTALLED));
    let mut places = [(dir.to_owned(), LIBRARY)].into_iter().chain(installed);
    let found = places.find_map(|(dir, name)| {
        let path = dir.canonicalize().ok()?.join(name);
        path.exists().then_some(path)
    });
    found.with_context(|| {
        format!(
            "{LIBRARY} is neither in {} nor, as {INSTALLED}, in {} from there; build it with \
             `cargo build -p preload`, or name it in KEEPSTONE_LIBRARY",
            dir.display(),
            LIBRARY_DIRS.join(", ")
        )
    })
}

/// Returns `LD_PRELOAD` with the library last, so that other preloaded libraries see the program's
/// calls first.
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

/// Returns `ASAN_OPTIONS` that let the runtime of AddressSanitizer start although it is a library
/// that is loaded after this one. Its functions that check the program's memory still work: only
/// functions that this library exports come before the runtime's.
fn asan_options() -> OsString {
    let mut options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
}

/// Returns the directories in the form that the library expects: without links, separated by
/// colons.
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

/// Returns the statistics of Keepstone's mounts before the program starts, and the reasons why
/// other servers were not asked or did not answer.
fn ask_first(
    mounts: Vec<fuse::MountEntry>,
) -> (BTreeMap<PathBuf, Value>, BTreeMap<String, String>) {
    let mut not_asked = BTreeMap::new();
    let mut dirs = Vec::new();
    for mount in mounts.into_iter().filter(fuse::MountEntry::claims_keepstone) {
        let dir = mount.dir.display().to_string();
        if mount.is_of_another() {
            not_asked.insert(dir, "another user has mounted it".to_owned());
        } else {
            not_asked.insert(dir, "its server did not answer".to_owned());
            dirs.push(mount.dir);
        }
    }
    let answers = ask(dirs);
    answers.keys().for_each(|dir| drop(not_asked.remove(&dir.display().to_string())));
    (answers, not_asked)
}

/// Returns the statistics from the servers of these mounts. Leaves out servers that fail, are late
/// or do not answer this user.
fn ask(dirs: Vec<PathBuf>) -> BTreeMap<PathBuf, Value> {
    let answers = stats::ask(dirs, ANSWER_WITHIN, stats::read_brief).into_iter();
    answers.filter_map(|(dir, stats)| Some((dir, stats.ok()?))).collect()
}

/// Returns the requests that the server of a mount has received so far, by kind.
fn requests(stats: &Value) -> BTreeMap<String, u64> {
    let requests = stats["requests"].as_object().into_iter().flatten();
    requests.filter_map(|(kind, n)| Some((kind.clone(), n.as_u64()?))).collect()
}

/// Creates the file in which all programs of the run count. They inherit its descriptor, so that
/// programs that change their user count, too. The descriptor's number is above those that programs
/// use.
fn inherited_counters(flags: u32) -> Result<OwnedFd> {
    let file = Counters::create(flags, std::process::id())?;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let min = DESCRIPTOR_MIN.min(limit.saturating_sub(8)) as i32;
    let inherited = rustix::io::fcntl_dupfd_cloexec(&file, min)?;
    rustix::io::fcntl_setfd(&inherited, FdFlags::empty())?;
    Ok(inherited)
}
