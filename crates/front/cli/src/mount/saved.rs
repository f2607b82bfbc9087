//! Pools that are made when they are mounted (`create`), and pools in memory that survive a reboot:
//! copied to a file at the unmount (`save`), and back at the mount (`restore`).
//!
//! A copy is written under a temporary name beside its own, made durable, and renamed. So neither
//! name ever leads to half a pool. Holes stay holes.

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use engines::Layout;
use indicatif::{ProgressBar, ProgressStyle};
use pmem::{Access, Lock, OpenOptions};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::args::MkfsArgs;
use crate::{mkfs, pool};

/// Bytes that are read and written at once.
const PIECE: u64 = 1 << 20;

/// The steps before and after a mount that make and save the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolLife {
    /// Whether to format a pool that does not exist.
    pub create: bool,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Its layout, unless that is the default.
    pub layout: Option<Layout>,
    /// As `mkfs --thin`.
    pub thin: bool,
    /// As `mkfs --thick`.
    pub thick: bool,
    /// The file to make the pool from if it does not exist.
    pub restore: Option<PathBuf>,
    /// The file to copy the pool to when it is unmounted.
    pub save: Option<PathBuf>,
}

impl PoolLife {
    /// Sets an option. Returns false for other options.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        let file = || match value {
            "" => bail!("option `{name}`: needs a file, as in `{name}=/var/lib/pool.saved`"),
            _ => std::path::absolute(value).with_context(|| format!("option `{name}={value}`")),
        };
        match name {
            "create" => self.create = true,
            "size" => self.size = Some(crate::size::parse(value)?),
            "layout" => {
                let wrong = || format!("option `layout={value}`: no such layout");
                self.layout = Some(Layout::named(value).with_context(wrong)?);
            }
            "thin" => self.thin = true,
            "thick" | "no-thin" => self.thick = true,
            "save" => self.save = Some(file()?),
            "restore" => self.restore = Some(file()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the option that the server of the mount needs.
    pub fn of_server(&self) -> Option<String> {
        self.save.as_ref().map(|file| format!("save={}", file.display()))
    }

    /// Makes the pool if it does not exist, from a saved one or a new one.
    pub fn begin(&self, pool: &Path) -> Result<()> {
        if self.save.as_ref().is_some_and(|file| file.to_string_lossy().contains(',')) {
            bail!("--save: the name of the file has a comma, which separates mount options");
        }
        // Also a symbolic link without a target, which mkfs explains.
        let exists = pool.symlink_metadata().is_ok();
        match &self.restore {
            _ if exists => {}
            Some(file) if file.exists() => copy_pool(file, pool).with_context(|| {
                format!("{}: cannot be restored from {}", pool.display(), file.display())
            })?,
            Some(file) if !self.create => bail!(
                "{}: no such file to restore {} from; with --create, a new pool is made",
                file.display(),
                pool.display()
            ),
            _ if self.create => mkfs::make(&self.mkfs(pool)).map(drop)?,
            _ => {}
        }
        self.save.as_ref().map_or(Ok(()), |file| check_target(pool, file))
    }

    fn mkfs(&self, pool: &Path) -> MkfsArgs {
        MkfsArgs {
            pool: pool.to_owned(),
            size: self.size,
            layout: self.layout.unwrap_or(Layout::ALL[0]),
            cache: false,
            thin: self.thin,
            thick: self.thick,
            label: String::new(),
            force: false,
        }
    }
}

/// Copies a pool that is no longer mounted to its saved copy.
pub fn save(pool: &Path, file: &Path) -> Result<()> {
    let failed = || format!("{}: cannot be saved to {}", pool.display(), file.display());
    check_target(pool, file).and_then(|()| copy_pool(pool, file)).with_context(failed)
}

/// Refuses to overwrite anything but an older copy of the same pool.
fn check_target(pool: &Path, file: &Path) -> Result<()> {
    let found = match file.symlink_metadata() {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| file.display().to_string())?,
    };
    let (this, _) = pool::info(pool)?;
    let is_copy = found.is_file()
        && file.canonicalize()? != pool.canonicalize()?
        && pool::info(file).is_ok_and(|(saved, _)| saved.uuid == this.uuid);
    if !is_copy {
        bail!(
            "{}: is no saved copy of {}; choose another name, or remove it",
            file.display(),
            pool.display()
        );
    }
    Ok(())
}

/// Copies a pool that no process uses. The new file replaces one of that name.
fn copy_pool(from: &Path, to: &Path) -> Result<()> {
    // The lock excludes all users that write to it.
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = pool::open(from, &options, Access::ReadOnly)?;
    engines::info(&region).with_context(|| format!("{}: is no pool", from.display()))?;
    let name = to.file_name().with_context(|| format!("{}: is no file", to.display()))?;
    let temporary = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let temporary = to.with_file_name(temporary);
    let copied = copy_file(from, &temporary).and_then(|()| Ok(std::fs::rename(&temporary, to)?));
    if copied.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    copied?;
    // The new name is durable, too.
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(dir)?.sync_all()?)
}

/// Copies what is no hole, durably, to a new file with the same owner and mode, as far as allowed.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let old = File::open(from)?;
    let found = old.metadata()?;
    let new = FileOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    new.set_len(found.len())?;
    // The bar hides itself if stderr is not a terminal.
    let bar = ProgressBar::new(found.len()).with_style(
        ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta:>4}")
            .expect("a valid template"),
    );
    bar.set_message("copying");
    let (mut at, mut piece) = (0, vec![0; PIECE as usize]);
    while at < found.len() {
        match rustix::fs::seek(&old, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => break,
            Err(_) => {} // Holes are not reported.
        }
        let len = PIECE.min(found.len() - at) as usize;
        old.read_exact_at(&mut piece[..len], at)?;
        for (i, part) in piece[..len].chunks(1 << 16).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                new.write_all_at(part, at + (i << 16) as u64)?;
            }
        }
        at += len as u64;
        bar.set_position(at);
    }
    let _ = std::os::unix::fs::fchown(&new, owner(&found).0, owner(&found).1);
    new.set_permissions(found.permissions())?;
    new.sync_all()?;
    bar.finish_and_clear();
    Ok(())
}

/// Returns user and group of a file, for a call that sets them.
fn owner(found: &std::fs::Metadata) -> (Option<u32>, Option<u32>) {
    use std::os::unix::fs::MetadataExt as _;
    (Some(found.uid()), Some(found.gid()))
}
