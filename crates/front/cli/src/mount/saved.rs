//! Pools that are made when they are mounted (`create`), and pools in memory that survive a reboot:
//! copied to a file at the unmount (`save`), and back at the mount (`restore`).

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use engines::Layout;
use os::nameless::parent_of;

use crate::args::MkfsArgs;
use crate::copies::{NewFile, copy_pool};
use crate::{mkfs, pool, trust};

/// The steps before and after a mount that make and save the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolLife {
    /// Whether to format a pool that does not exist.
    pub create: bool,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Its layout, unless that is the default.
    pub layout: Option<Layout>,
    /// As `mkfs --cache`.
    pub cache: bool,
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
        self.save.as_ref().map_or(Ok(()), |file| check_place(file))?;
        // Also a symbolic link without a target, which mkfs explains.
        let exists = pool.symlink_metadata().is_ok();
        if exists && (self.create || self.restore.is_some()) {
            trust::refuse_planted(pool, "remove it, or name another file")?;
        }
        match &self.restore {
            _ if exists => {}
            Some(file) if file.exists() => copy_pool(file, pool, None).with_context(|| {
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
            max_size: None,
            layout: self.layout.unwrap_or(Layout::ALL[0]),
            cache: self.cache,
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
    check_target(pool, file).and_then(|()| copy_pool(pool, file, None)).with_context(failed)
}

/// Refuses a name under which no file can be made.
fn check_place(file: &Path) -> Result<()> {
    NewFile::beside(file).map(drop).with_context(|| {
        let dir = parent_of(file).display();
        format!("{}: no file can be made in {dir}; choose another name", file.display())
    })
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
