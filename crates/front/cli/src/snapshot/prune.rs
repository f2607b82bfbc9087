//! `keepstone snapshot prune`, and `snapshot create --keep`: deletes snapshots by a rule.

use std::path::{Path, PathBuf};

use ::pool::Snapshot;
use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use vfs::Errno;

use super::keep::KeepRule;
use super::{attached, check_layout, explain, release};
use crate::{output, pool};

/// `keepstone snapshot prune`
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=….
    pub pool: PathBuf,
    /// What stays: a list of N (the newest), Nh, Nd, Nw (the newest of each of N hours, days, weeks
    /// that have one, in UTC).
    #[arg(long, value_name = "RULE")]
    pub keep: KeepRule,
    /// Leave all snapshots alone whose names do not begin so.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Only show what would be deleted.
    #[arg(long)]
    pub dry_run: bool,
}

/// Which snapshots a rule is about, and which of them stay.
#[derive(Debug)]
pub struct Pruning<'a> {
    pub keep: &'a KeepRule,
    pub prefix: &'a str,
    pub dry_run: bool,
}

#[derive(Debug, Default, Serialize)]
pub struct Pruned {
    kept: Vec<String>,
    deleted: Vec<String>,
    /// Snapshots that should go, but are mounted, or being sent.
    in_use: Vec<String>,
    dry_run: bool,
}

#[derive(Serialize)]
struct Report {
    pool: String,
    #[serde(flatten)]
    pruned: Pruned,
}

pub fn run(args: &PruneArgs, json: bool) -> Result<()> {
    let path = pool::absolute(&args.pool)?;
    check_layout(&path)?;
    let pruning = Pruning { keep: &args.keep, prefix: &args.prefix, dry_run: args.dry_run };
    let pruned = prune(&path, &pruning)?;
    if json {
        return output::json(&Report { pool: path.display().to_string(), pruned });
    }
    pruned.say(&path);
    Ok(())
}

impl Pruned {
    /// Reports what was deleted.
    pub fn say(&self, path: &Path) {
        let done = if self.dry_run { "would be deleted" } else { "deleted" };
        let shown = |name: &String| pool::of_snapshot(path, name).display().to_string();
        self.deleted.iter().for_each(|name| say!("{}: {done}", shown(name)));
        for name in &self.in_use {
            tell!("keepstone: {}: is in use, and stays", shown(name));
        }
    }
}

/// Deletes the snapshots that a rule does not keep.
pub fn prune(path: &Path, pruning: &Pruning<'_>) -> Result<Pruned> {
    let mut all = engines::snapshots(&pool::open_to_look(path)?)
        .with_context(|| path.display().to_string())?;
    all.retain(|snapshot| !snapshot.is_incomplete && snapshot.name.starts_with(pruning.prefix));
    let created: Vec<u64> = all.iter().map(|snapshot| snapshot.created_ns).collect();
    let kept = pruning.keep.kept(&created);
    let mut pruned = Pruned { dry_run: pruning.dry_run, ..Pruned::default() };
    let mut goes = Vec::new();
    for (Snapshot { name, .. }, kept) in all.into_iter().zip(kept) {
        if kept { &mut pruned.kept } else { &mut goes }.push(name);
    }
    if pruning.dry_run || goes.is_empty() {
        pruned.deleted = goes;
        return Ok(pruned);
    }
    attached(path, |fs| {
        for name in goes {
            match release::delete(fs, path, &name) {
                Ok(()) => pruned.deleted.push(name),
                Err(Errno::BUSY) => pruned.in_use.push(name),
                // Another process was faster.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(explain(e, path, &name)),
            }
        }
        Ok(())
    })?;
    Ok(pruned)
}
