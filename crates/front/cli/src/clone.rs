//! `keepstone clone`
//!
//! The command joins the processes that use the pool, as a program under `keepstone run` does, and
//! clones by the engine's own calls ([`pool::clone_tree`](::pool::clone_tree)). The kernel passes
//! no request to clone on to a FUSE server.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::pool::Engine;
use anyhow::{Context as _, Result, bail};
use fuse::MountEntry;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::Access as Permission;
use serde::Serialize;
use vfs::{Cloned, Errno, FileSystem, Ino};

use crate::args::CloneArgs;
use crate::{output, pool, size};

#[derive(Serialize)]
struct ClonedReport {
    source: PathBuf,
    destination: PathBuf,
    files: u64,
    directories: u64,
    others: u64,
    /// Bytes of all files.
    bytes: u64,
    /// Whether the files share their blocks; else they were copied.
    shared: bool,
}

/// Source and destination in a mounted pool.
struct Places {
    mount: MountEntry,
    source: PathBuf,
    /// The directory of the destination, and its name there.
    parent: PathBuf,
    name: Vec<u8>,
}

pub fn run(args: &CloneArgs, json: bool) -> Result<ExitCode> {
    let places = Places::find(args)?;
    let mount = &places.mount;
    let (info, _) = pool::info(&pool::of_source(mount.source.clone()))?;
    if info.has_backing_store {
        bail!(
            "{}: the files of a cache cannot share blocks; copy them with `cp -a`",
            mount.dir.display()
        );
    }
    let fs = pool::attach(&mount.source)?;
    let cloned = clone(&*fs, &places);
    let cloned = cloned.and_then(|cloned| fs.sync().map(|()| cloned));
    let shared = fs.limits().clones;
    fs.close()?;
    let destination = places.parent.join(OsStr::from_bytes(&places.name));
    let cloned = cloned.map_err(|errno| explain(errno, &places, &destination))?;
    let report = ClonedReport {
        source: places.source,
        destination,
        files: cloned.files,
        directories: cloned.dirs,
        others: cloned.others,
        bytes: cloned.bytes,
        shared,
    };
    if json {
        output::json(&report)?;
    } else {
        say!("{}", summary(&report));
    }
    Ok(ExitCode::SUCCESS)
}

impl Places {
    /// Finds the pool that holds both paths, through its mount.
    fn find(args: &CloneArgs) -> Result<Self> {
        let source = args.source.canonicalize().with_context(|| shown(&args.source))?;
        let destination = std::path::absolute(&args.destination)?;
        let (Some(parent), Some(name)) = (destination.parent(), destination.file_name()) else {
            bail!("{}: not the name of a new file or directory", shown(&args.destination));
        };
        let parent = parent.canonicalize().with_context(|| shown(parent))?;
        let mount = mount_of(&source)?;
        if mount_of(&parent)?.device != mount.device {
            bail!(
                "{} and {} are not in the same pool; copy with `cp -a`",
                source.display(),
                parent.display()
            );
        }
        rustix::fs::access(&source, Permission::READ_OK).with_context(|| shown(&source))?;
        rustix::fs::access(&parent, Permission::WRITE_OK | Permission::EXEC_OK)
            .with_context(|| shown(&parent))?;
        let name = name.as_bytes().to_vec();
        Ok(Self { mount, source, parent, name })
    }

    /// Returns the inode of a path of the mount, with a reference.
    fn inode(&self, fs: &dyn FileSystem, path: &Path) -> vfs::Result<Ino> {
        let inside = path.strip_prefix(&self.mount.dir).map_err(|_| Errno::XDEV)?;
        let inside = Path::new("/").join(inside);
        let found =
            vfs::path::at(fs, inside.as_os_str().as_bytes(), |dir, name| fs.lookup(dir, name))?;
        // The mount may show only a part of the pool.
        if path.metadata().map_or(0, |of_kernel| of_kernel.ino()) != found.ino.0 {
            fs.forget(found.ino, 1);
            return Err(Errno::XDEV);
        }
        Ok(found.ino)
    }
}

/// Returns the mount that a path lies in, a mounted pool.
fn mount_of(path: &Path) -> Result<MountEntry> {
    let mounts = fuse::mounts()?;
    let device = path.metadata().with_context(|| shown(path))?.dev();
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    mounts
        .into_iter()
        .rev()
        .find(|mount| mount.device == device && path.starts_with(&mount.dir))
        .filter(MountEntry::is_keepstone)
        .with_context(|| format!("{}: not in a mounted pool", shown(path)))
}

/// Clones, and shows how far it is if stderr is a terminal.
fn clone(fs: &dyn Engine, places: &Places) -> vfs::Result<Cloned> {
    let style = ProgressStyle::with_template("{spinner} {msg} {pos} files").expect("a template");
    let bar = ProgressBar::no_length().with_style(style).with_message("cloning");
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut progress = |done: &Cloned| {
        bar.set_position(done.files);
        true
    };
    let unique = vfs::unique_number();
    let source = places.inode(fs, &places.source)?;
    let cloned = places.inode(fs, &places.parent).and_then(|parent| {
        let to = (parent, &places.name[..]);
        let cloned = ::pool::clone_tree(fs, source, to, unique, &mut progress);
        fs.forget(parent, 1);
        cloned
    });
    fs.forget(source, 1);
    bar.finish_and_clear();
    cloned
}

/// Explains why a clone failed.
fn explain(errno: Errno, places: &Places, destination: &Path) -> anyhow::Error {
    let (source, to) = (places.source.display(), destination.display());
    match errno {
        Errno::EXIST => anyhow::anyhow!("{to}: exists; remove it, or choose another name"),
        Errno::INVAL => anyhow::anyhow!("{to} lies below {source}; choose a place outside of it"),
        Errno::NOSPC => anyhow::anyhow!("the pool is full; nothing of {to} was made"),
        Errno::XDEV => anyhow::anyhow!(
            "{} does not show the root of the pool; use a mount that does",
            places.mount.dir.display()
        ),
        errno => anyhow::Error::new(errno).context(format!("{source} to {to}")),
    }
}

fn summary(report: &ClonedReport) -> String {
    let count = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    let how = if report.shared { "shared" } else { "copied: this layout shares no blocks" };
    format!(
        "{}: {} and {}, {} {how}",
        report.destination.display(),
        count(report.files, "file", "files"),
        count(report.directories, "directory", "directories"),
        size::show(report.bytes),
    )
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
