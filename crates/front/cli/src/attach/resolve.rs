//! `keepstone attach resolve`: keeps one side of a conflict.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use pmcache::{Command, KeptSide};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;

use super::files;
use crate::output;

/// The side of a conflict that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The changes that programs made through the cache.
    Cache,
    /// The changes that others made in DIR.
    Directory,
}

impl From<Side> for KeptSide {
    fn from(side: Side) -> Self {
        match side {
            Side::Cache => Self::Cache,
            Side::Directory => Self::Directory,
        }
    }
}

/// The result for one path.
#[derive(Serialize)]
struct ResolvedConflict {
    path: PathBuf,
    kept: Side,
    error: Option<String>,
}

pub fn run(paths: &[PathBuf], keep: Side, json: bool) -> Result<ExitCode> {
    let mut all = Vec::new();
    for path in paths {
        let path = std::path::absolute(path)?;
        files::require_cache(&path)?;
        let error = ask(&path, keep).err().map(|err| format!("{err:#}"));
        all.push(ResolvedConflict { path, kept: keep, error });
    }
    if json {
        output::json(&all)?;
    }
    for ResolvedConflict { path, error, .. } in &all {
        match (error, keep) {
            (Some(error), _) => output::notice(format!("{}: {error}", path.display())),
            _ if json => {}
            (None, Side::Cache) => say!("{}: what the cache has is kept", path.display()),
            (None, Side::Directory) => say!("{}: what the directory has is kept", path.display()),
        }
    }
    let is_done = all.iter().all(|resolved| resolved.error.is_none());
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ask(path: &Path, keep: Side) -> Result<()> {
    let command = match keep {
        Side::Cache => Command::KeepCache,
        Side::Directory => Command::KeepDirectory,
    };
    let asked = rustix::fs::lsetxattr(path, &*command.attribute(), b"", XattrFlags::empty());
    asked.or_else(|errno| explain(errno, keep))
}

/// Explains why a conflict could not be resolved.
pub fn explain(errno: Errno, keep: Side) -> Result<()> {
    match errno {
        Errno::ALREADY => {
            bail!("it is in no conflict; `keepstone attach status` names those that are")
        }
        Errno::PERM | Errno::ACCESS => {
            bail!("only root and the user whose cache it is resolve conflicts")
        }
        Errno::NOENT => bail!("the directory that it is in is gone below: resolve that one"),
        Errno::BUSY => bail!(
            "the cache has what lies in its place below under another name, too: remove that name first"
        ),
        Errno::AGAIN => bail!("programs or others change it all the time; try again"),
        Errno::IO if keep == Side::Cache => bail!(
            "the cache does not have all of it, and others have changed or removed the rest below: copy what you need, then \
             use --keep directory"
        ),
        errno => Err(std::io::Error::from(errno)).context("cannot resolve the conflict"),
    }
}
