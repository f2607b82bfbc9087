//! `keepstone attach`: a pool as the cache of a directory, or of a tree in an object store.

mod args;
pub mod ending;
mod files;
mod inner;
mod place;
mod plan;
mod resolve;
mod serve;
mod status;
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use pmcache::Command;
use serde::{Deserialize, Serialize};

use crate::args::{Cli, CliCommand};
use crate::mount::{PoolLife, absolute_dir};
use crate::output::wrong_usage;
use crate::{background, output, pool, size, trust, utab};
pub use args::AttachArgs;
use args::{AttachCommand, ServerArgs, StoreArgs};
use place::Place;
pub use status::show;

/// A cache that is open.
type Tree = pmcache::Loading<inner::Inner, place::Below>;

/// The server's report when programs can use the mount.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    pool: String,
    dir: String,
    mount: String,
    data: String,
    domain: pool::DomainReport,
    size_bytes: u64,
    dirty_bytes: u64,
    troubles: usize,
    pid: u32,
    log: Option<PathBuf>,
    /// Notices for the user about the start.
    notices: Vec<String>,
}

impl Ready {
    /// Prints a notice if files need attention.
    fn notice_troubles(&self) {
        if self.troubles > 0 {
            output::notice(format!(
                "{} files need attention: `keepstone attach status {}`",
                self.troubles, self.mount
            ));
        }
    }
}

pub fn run(args: &AttachArgs, json: bool) -> Result<ExitCode> {
    match (&args.command, &args.server) {
        (Some(AttachCommand::Status { mount, prometheus }), _) => {
            status::run(mount, *prometheus, json)
        }
        (Some(AttachCommand::Drain { pool, dir, store }), _) => drain(pool, dir, store, json),
        (Some(AttachCommand::Discard { pool, dir, path, store }), _) => {
            discard(pool, dir, path, store, json)
        }
        (Some(AttachCommand::Resolve { paths, keep }), _) => resolve::run(paths, *keep, json),
        (Some(AttachCommand::Warm(files)), _) => files::run(Command::Warm, &files.paths, json),
        (Some(AttachCommand::Pin(files)), _) => files::run(Command::Pin, &files.paths, json),
        (Some(AttachCommand::Unpin(files)), _) => files::run(Command::Unpin, &files.paths, json),
        (Some(AttachCommand::Flush(files)), _) => files::run(Command::Flush, &files.paths, json),
        (Some(AttachCommand::Invalidate(files)), _) => {
            files::run(Command::Invalidate, &files.paths, json)
        }
        (Some(AttachCommand::Show(files)), _) => files::run(Command::Status, &files.paths, json),
        (None, Some(server)) => start(server, &args.store, json),
        (None, None) => {
            Err(wrong_usage("which pool, and which directory? See `keepstone attach --help`"))
        }
    }
}

impl AttachArgs {
    /// Returns whether this command line starts a server.
    pub fn is_server(&self) -> bool {
        self.command.is_none()
    }
}

fn start(args: &ServerArgs, store: &StoreArgs, json: bool) -> Result<ExitCode> {
    if args.foreground {
        make_pool(args)?;
        serve::run(args, store, |ready| {
            utab::register(Path::new(&ready.pool), Path::new(&ready.mount));
            background::notify_ready();
            announce(ready, json)
        })?;
    } else if args.daemon {
        let log = log_of(args)?;
        background::serve(|ready| serve::run(args, store, ready));
        background::remove_if_empty(&log);
    } else {
        announce(&start_in_background(args, store)?, json)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the pool if it does not exist and the options say so.
fn make_pool(args: &ServerArgs) -> Result<()> {
    let &ServerArgs { create, size, thin, thick, .. } = args;
    let life = PoolLife { create, size, thin, thick, cache: true, ..PoolLife::default() };
    life.begin(&args.pool)
}

/// Starts a server and waits until it is ready.
fn start_in_background(args: &ServerArgs, store: &StoreArgs) -> Result<Ready> {
    make_pool(args)?;
    let log = log_of(args)?;
    let ready: Ready = background::start(arguments(args, store)?, &log)?;
    utab::register(Path::new(&ready.pool), Path::new(&ready.mount));
    Ok(Ready { log: (!background::logs_to_journal()).then_some(log), ..ready })
}

/// Returns the path of the log of a server in the background.
fn log_of(args: &ServerArgs) -> Result<PathBuf> {
    let (info, _) = pool::info(&pool::absolute(&args.pool)?)?;
    Ok(background::log_path(&info.uuid.to_string()))
}

/// Attaches a cache for the helper of `mount(8)`. `words` is a command line as of `attach`.
pub fn run_for_mount(words: &[OsString]) -> Result<()> {
    let cli = Cli::of_words(words).map_err(|err| anyhow!("{}", err.to_string().trim_end()))?;
    let CliCommand::Attach(AttachArgs { server: Some(args), store, .. }) = cli.command else {
        bail!("option `attach`: needs a directory");
    };
    let ready = start_in_background(&args, &store)?;
    ready.notices.iter().for_each(output::notice);
    ready.notice_troubles();
    Ok(())
}

fn announce(ready: &Ready, json: bool) -> Result<()> {
    if json {
        return output::json(ready);
    }
    ready.notices.iter().for_each(output::notice);
    say!("{} attached to {}, mounted on {}", ready.pool, ready.dir, ready.mount);
    say!(
        "{}, data={}, {} not written back",
        size::show(ready.size_bytes),
        ready.data,
        size::show(ready.dirty_bytes)
    );
    say!("domain {}", ready.domain);
    ready.notice_troubles();
    if let Some(log) = &ready.log {
        say!("log {}", log.display());
    }
    Ok(())
}

/// Returns the command line that gives the server the same arguments, with absolute paths.
fn arguments(args: &ServerArgs, store: &StoreArgs) -> Result<Vec<OsString>> {
    let mut words: Vec<OsString> = vec!["attach".into(), "--daemon".into()];
    let mut flag = |is_set: bool, name: &str| {
        if is_set {
            words.push(name.into());
        }
    };
    flag(args.write_through, "--write-through");
    flag(args.read_only, "--read-only");
    flag(args.allow_other, "--allow-other");
    let options = [
        ("--data", args.data.to_string()),
        ("--fsync", args.fsync.clone()),
        ("--max-age", args.max_age.to_string()),
        ("--policy", args.policy.to_string()),
    ];
    words.extend(options.map(|(name, value)| OsString::from(format!("{name}={value}"))));
    words.extend(args.mount_options.iter().map(|list| OsString::from(format!("-o{list}"))));
    words.extend(args.watch.map(|watch| OsString::from(format!("--watch={watch}"))));
    words.extend(args.threads.map(|n| OsString::from(format!("--threads={n}"))));
    words.extend(store.words().map(OsString::from));
    let place = Place::parse(&args.dir)?;
    words.extend(["--".into(), pool::absolute(&args.pool)?.into(), place.path().into()]);
    if let Some(mount) = &args.mount {
        words.push(absolute_dir(mount)?.into());
    }
    Ok(words)
}

/// Explains what to do with a pool that an older version used as the cache of `dir`.
pub fn older_cache(dir: &str) -> String {
    format!(
        "an older version of Keepstone made this pool the cache of {dir}; write it back with `keepstone attach drain` of that \
         version, then format it with `keepstone mkfs --cache`"
    )
}

/// Fails if other users may write the pool of a cache.
fn require_own(pool: &Path, place: &Place) -> Result<()> {
    if let Some(why) = trust::changeable_by(pool)? {
        bail!(
            "{0}: other users may write the pool ({why}), and so all files of {1}; take that from them with `chmod go-w` (their \
             programs use the cache through its mount), or format a pool of your own with `keepstone mkfs --cache`",
            pool.display(),
            place.path().display()
        );
    }
    Ok(())
}

#[derive(Serialize)]
struct Drained {
    written_bytes: u64,
    files: u64,
    left_bytes: u64,
    troubles: Vec<pmcache::Trouble>,
}

fn drain(pool: &Path, dir: &Path, store: &StoreArgs, json: bool) -> Result<ExitCode> {
    let (status, written) = serve::drain(&pool::absolute(pool)?, &Place::parse(dir)?, store)?;
    let done = Drained {
        written_bytes: status.counters.drained_bytes,
        files: status.counters.drained_files,
        left_bytes: status.dirty_bytes,
        troubles: status.troubles,
    };
    if json {
        output::json(&done)?;
    } else {
        say!(
            "{} of {} files written back, {} left",
            size::show(done.written_bytes),
            done.files,
            size::show(done.left_bytes)
        );
        status::show_troubles(&done.troubles);
    }
    let is_done = written.is_ok() && done.left_bytes == 0 && done.troubles.is_empty();
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Resolves a conflict in a pool that is not attached: the directory is kept.
fn discard(
    pool: &Path,
    dir: &Path,
    path: &Path,
    store: &StoreArgs,
    json: bool,
) -> Result<ExitCode> {
    let (left, resolved) =
        serve::discard(&pool::absolute(pool)?, &Place::parse(dir)?, path, store)?;
    resolved
        .or_else(|errno| resolve::explain(errno, resolve::Side::Directory))
        .with_context(|| path.display().to_string())?;
    if json {
        output::json(&serde_json::json!({ "kept": resolve::Side::Directory, "left": left }))?;
    } else {
        say!("{}: what the directory has is kept", path.display());
        status::show_troubles(&left);
    }
    Ok(ExitCode::SUCCESS)
}
