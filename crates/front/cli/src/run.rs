//! `keepstone run`: a program with libkeepstone.so, and what that served.
//!
//! The library finds the mounts itself, faster if it is told where they were (`KEEPSTONE_MOUNTS`). This command also
//! tells it where it lies (`KEEPSTONE_RUN`, so that it can restore `LD_PRELOAD` in scrubbed environments), which
//! descriptors to give out (`KEEPSTONE_FDS`), which directories of other file systems to serve (`KEEPSTONE_DIRECT`), whether
//! there are caches over directories (`KEEPSTONE_CACHES`) and where to count (`KEEPSTONE_STATS`, [`counters`]). It becomes
//! the program, which says itself at its end if too little was served; only for `--stats` and `--explain` it waits and
//! reports.
//!
//! No server of a mount is asked before the program starts, as one that is stopped would hold up all programs;
//! only `--stats` asks, and waits [`ANSWER_WITHIN`].

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
/// Numbers of descriptors that programs use are below this one, as far as their limit allows.
const DESCRIPTOR_MIN: u64 = 1000;
/// How long servers may take to say what they have been asked.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// `keepstone run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Print what was served in user space and what went through the mounts, by class of call and by program, when CMD has
    /// ended.
    #[arg(long)]
    pub stats: bool,
    /// List the files that went through the mounts, with the reasons, when CMD has ended, and the programs that could not
    /// be served.
    #[arg(long)]
    pub explain: bool,
    /// Say nothing about mounts and programs that are not served, and count nothing without --stats or --explain.
    #[arg(long, short)]
    pub quiet: bool,
    /// Which descriptors CMD gets for files of pools.
    #[arg(long, value_enum, default_value_t = Fds::Fast)]
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
    #[value(alias = "auto")]
    Fast,
    /// The mount's, for programs that hand them to the kernel themselves, where no library of theirs is seen doing it (a
    /// ring of io_uring without liburing).
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
    // Before the table is read: who finds another one later knows that a mount has come since.
    let newest = mounts::newest_mount();
    let table = std::fs::read(fuse::TABLE)?;
    let mounts = fuse::mounts_in(&table);
    let name = &args.command[0];
    if !args.quiet {
        notices(args, &mounts).iter().for_each(|notice| tell_notice(notice, json));
    }
    let mut command = Command::new(name);
    command.args(&args.command[1..]).env("LD_PRELOAD", preload(&library)?);
    command.env("KEEPSTONE_RUN", &library).env("KEEPSTONE_FDS", args.fds.name());
    command.env("ASAN_OPTIONS", asan_options());
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
    if mounts.iter().any(fuse::MountEntry::is_cache) {
        command.env("KEEPSTONE_CACHES", "1");
    }
    let reports = args.stats || args.explain;
    // What another run counts in, is that one's.
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
    // Leads to it in processes that have closed the descriptor; its last part is the number of that.
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

/// What the user is told before the program starts: why it, or mounts, cannot be served.
fn notices(args: &RunArgs, mounts: &[fuse::MountEntry]) -> Vec<String> {
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

/// Whether a program is likely to use what is mounted on `dir`: it starts there, or one of its arguments names it. The line at
/// its end reports other mounts that it used.
fn is_named(dir: &Path, command: &[OsString]) -> bool {
    let here = std::env::current_dir().unwrap_or_default();
    let text = dir.as_os_str().as_bytes();
    let names = |arg: &OsString| {
        let is_within = here.join(arg).starts_with(dir);
        is_within || arg.as_bytes().windows(text.len()).any(|part| part == text)
    };
    here.starts_with(dir) || command.iter().any(names)
}

/// On stderr, as stdout is CMD's.
fn tell_notice(notice: &str, json: bool) {
    if json {
        tell!("{}", serde_json::json!({ "notice": notice }));
    } else {
        output::notice(notice);
    }
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

/// `ASAN_OPTIONS` by which the runtime of AddressSanitizer starts behind the library, where it is a library itself. It still
/// has the functions that check the program's memory: only those that the library exports come later.
fn asan_options() -> OsString {
    let mut options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
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

/// Statistics of our mounts before the program starts, and why other servers were not asked or did not answer.
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

/// A descriptor of the file in which all programs of the run count, inherited by them, so that those that become another user
/// count, too. Its number is beyond those that programs see.
fn inherited_counters(flags: u32) -> Result<OwnedFd> {
    let file = Counters::create(flags, std::process::id())?;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let min = DESCRIPTOR_MIN.min(limit.saturating_sub(8)) as i32;
    let inherited = rustix::io::fcntl_dupfd_cloexec(&file, min)?;
    rustix::io::fcntl_setfd(&inherited, FdFlags::empty())?;
    Ok(inherited)
}
