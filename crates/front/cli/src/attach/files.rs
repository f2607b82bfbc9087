//! Commands for single files of an attached cache, and for all files in a directory.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use fuse::MountEntry;
use indicatif::{ProgressBar, ProgressStyle};
use pmcache::{Command, FileStatus};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;

use crate::{output, size};

/// Longest status in JSON, in bytes.
const STATUS_MAX: usize = 4096;

/// The state of a file after a command.
#[derive(Serialize)]
struct Report {
    path: PathBuf,
    #[serde(flatten)]
    status: Option<FileStatus>,
    error: Option<String>,
}

pub fn run(command: Command, paths: &[PathBuf], json: bool) -> Result<ExitCode> {
    let mut files = Vec::new();
    for path in paths {
        let path = std::path::absolute(path)?;
        require_cache(&path)?;
        if command == Command::Flush && is_whole(&path)? {
            ask(command, &path).with_context(|| path.display().to_string())?;
        } else {
            find(&path, &mut files).with_context(|| path.display().to_string())?;
        }
    }
    if files.is_empty() && matches!(command, Command::Warm | Command::Pin) {
        bail!("no regular files there: nothing to {}", name(command));
    }
    let total = files.iter().map(|(_, bytes)| bytes).sum();
    let bar = if json { ProgressBar::hidden() } else { ProgressBar::new(total) };
    bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")?);
    bar.set_message(name(command));
    let mut reports = Vec::new();
    for (path, bytes) in files {
        let done = ask(command, &path);
        let (status, error) = match done {
            Ok(status) => (Some(status), None),
            Err(err) => (None, Some(format!("{err:#}"))),
        };
        bar.inc(bytes);
        reports.push(Report { path, status, error });
    }
    bar.finish_and_clear();
    let is_kept = command != Command::Warm || is_still_cached(&mut reports);
    let failed = reports.iter().filter(|report| report.error.is_some()).count();
    if json {
        output::json(&reports)?;
    } else {
        show(command, &reports);
    }
    if !is_kept {
        output::notice(
            "the pool is too small for all of it: files that were read first have left it again",
        );
    }
    Ok(if failed == 0 && is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the state of each file again. Returns whether as much is cached as right after the files
/// were read.
fn is_still_cached(reports: &mut [Report]) -> bool {
    let cached = |reports: &[Report]| -> u64 {
        reports.iter().filter_map(|report| Some(report.status.as_ref()?.cached_bytes)).sum()
    };
    let before = cached(reports);
    for report in reports.iter_mut().filter(|report| report.status.is_some()) {
        if let Ok(status) = ask(Command::Status, &report.path) {
            report.status = Some(status);
        }
    }
    cached(reports) >= before
}

/// Fails if a path is not on a cache. Called before anything is done.
pub fn require_cache(path: &Path) -> Result<()> {
    let found = path.symlink_metadata().with_context(|| path.display().to_string())?;
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    // A cache knows the command, which is for files only.
    let knows = |dir: &Path| {
        let status = &*Command::Status.attribute();
        rustix::fs::lgetxattr(dir, status, &mut [0u8; STATUS_MAX][..]) == Err(Errno::INVAL)
    };
    let is_it = |mount: &MountEntry| mount.is_keepstone() && mount.device == device;
    if fuse::mounts()?.iter().any(|mount| is_it(mount) && knows(&mount.dir)) {
        return Ok(());
    }
    explain(Command::Status, Errno::NODATA).with_context(|| path.display().to_string())
}

fn name(command: Command) -> &'static str {
    let named = Command::NAMES.iter().find(|(known, _)| *known == command);
    named.map_or("", |(_, name)| name)
}

/// Returns whether a path is the mount point of a cache.
fn is_whole(path: &Path) -> Result<bool> {
    let mounted = fuse::mount_at(path)?;
    Ok(mounted.is_some_and(|mount| mount.is_keepstone()))
}

/// Collects the regular files at and below a path, on its file system, with their sizes. Does not
/// follow links.
fn find(path: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let first = path.symlink_metadata()?;
    let mut left = vec![(path.to_owned(), first.clone())];
    while let Some((path, found)) = left.pop() {
        if found.is_file() {
            files.push((path, found.len()));
        } else if found.is_dir() && found.dev() == first.dev() {
            for entry in path.read_dir()? {
                let path = entry?.path();
                match path.symlink_metadata() {
                    Ok(found) => left.push((path, found)),
                    // Removed meanwhile.
                    Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
                    Err(err) => return Err(err).with_context(|| path.display().to_string()),
                }
            }
        }
    }
    Ok(())
}

/// Executes a command for one file, and returns its state afterwards. The state of a directory is
/// empty.
fn ask(command: Command, path: &Path) -> Result<FileStatus> {
    if !command.only_reads() {
        let attribute = command.attribute();
        let asked = rustix::fs::lsetxattr(path, &*attribute, b"", XattrFlags::empty());
        asked.or_else(|errno| explain(command, errno))?;
        if path.is_dir() {
            return Ok(FileStatus::default());
        }
    }
    let read = if command == Command::Warm { command } else { Command::Status };
    let mut text = [0; STATUS_MAX];
    let len = match rustix::fs::lgetxattr(path, &*read.attribute(), &mut text[..]) {
        Ok(len) => len,
        Err(errno) => return explain(read, errno),
    };
    Ok(serde_json::from_slice(&text[..len])?)
}

fn explain<T>(command: Command, errno: Errno) -> Result<T> {
    match errno {
        Errno::NOSPC if command == Command::Flush => bail!(
            "there is no space in the cached directory; what is not written back stays in the pool"
        ),
        Errno::STALE => bail!(
            "others have changed it in the cached directory, too; `keepstone attach status` lists such conflicts, and \
             `keepstone attach resolve` ends them"
        ),
        Errno::OPNOTSUPP | Errno::NODATA => bail!(
            "not below the mount point of a cache; `keepstone attach POOL DIR` makes a pool the cache of DIR"
        ),
        Errno::NOSPC => bail!(
            "the pool cannot hold it beside what is pinned and not written back; unpin other files with `keepstone attach unpin`, \
             or make a larger pool (`keepstone attach status` shows how much may be pinned)"
        ),
        Errno::BUSY => bail!(
            "programs change it faster than it is written back; stop them, or try again later"
        ),
        Errno::DQUOT => bail!("its owner has as much pinned as one user may; unpin other files"),
        Errno::PERM => bail!("only the owner of a file and root pin and unpin it"),
        errno => Err(std::io::Error::from(errno).into()),
    }
}

fn show(command: Command, reports: &[Report]) {
    let mut sum = FileStatus::default();
    for report in reports {
        if let Some(status) = &report.status {
            sum.size_bytes += status.size_bytes;
            sum.cached_bytes += status.cached_bytes;
            sum.dirty_bytes += status.dirty_bytes;
            if command == Command::Status {
                let pinned = if status.is_pinned { ", pinned" } else { "" };
                say!(
                    "{}: {} of {} cached, {} not written back, data={}{pinned}",
                    report.path.display(),
                    size::show(status.cached_bytes),
                    size::show(status.size_bytes),
                    size::show(status.dirty_bytes),
                    status.mode
                );
            }
        }
        if let Some(error) = &report.error {
            output::notice(format!("{}: {error}", report.path.display()));
        }
    }
    say!(
        "{} files, {}: {} cached, {} not written back",
        reports.len(),
        size::show(sum.size_bytes),
        size::show(sum.cached_bytes),
        size::show(sum.dirty_bytes)
    );
}
