//! The end of a cache: writes back all data before the unmount, and records what remains.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pmcache::Command;
use rustix::fs::XattrFlags;
use serde::{Deserialize, Serialize};

use crate::unfinished::{self, Unfinished};
use crate::{size, stats};

/// Interval at which the progress of a flush is shown.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Interval between two lines of progress if stderr is no terminal but, for example, the journal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Changes that a cache could not write back. The pool keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remainder {
    /// Bytes that are only in the pool.
    pub dirty_bytes: u64,
    /// Files with such bytes, or that need attention.
    pub dirty_files: u64,
    /// The first file that could not be written back, and the reason.
    pub first: Option<String>,
}

impl Remainder {
    fn of(status: &pmcache::Status) -> Self {
        let first = status.troubles.first();
        Self {
            dirty_bytes: status.dirty_bytes,
            dirty_files: status.dirty_files.max(status.troubles.len() as u64),
            first: first.map(|trouble| format!("{}: {}", trouble.path, trouble.what)),
        }
    }

    fn is_nothing(&self) -> bool {
        (self.dirty_files, self.dirty_bytes) == (0, 0)
    }

    /// Returns the message for the user of a cache of `dir` in `pool`.
    pub fn message(&self, pool: &str, dir: &str) -> String {
        let mut text = format!(
            "{} of {} files are not in {dir}; {pool} keeps them. `keepstone attach {pool} {dir}` goes on with them, \
             `keepstone attach drain {pool} {dir}` writes them back without a mount",
            size::show(self.dirty_bytes),
            self.dirty_files
        );
        if let Some(first) = &self.first {
            text += &format!("\n{first}");
        }
        text
    }
}

/// Writes back everything of a mounted cache, and shows the progress. A failure is no error here:
/// the pool keeps what is left, and the end of the server tells.
pub fn flush_before_unmount(dir: &Path, json: bool) -> Result<()> {
    let left = || {
        let stats = stats::ask_one(dir).map(|stats| stats["cache"].clone()).unwrap_or_default();
        stats["dirty_bytes"].as_u64().unwrap_or(0)
    };
    let total = left();
    let bar = if json { ProgressBar::hidden() } else { ProgressBar::new(total) };
    bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")?);
    bar.set_message("writing back");
    let prints_lines = !json && bar.is_hidden();
    let mut line_at = Instant::now() + LINE_EVERY;
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| flush(dir));
        while !flush.is_finished() {
            std::thread::sleep(SHOW_EVERY.min(Duration::from_millis(1 + total / (1 << 20))));
            let left = left();
            bar.set_position(total.saturating_sub(left));
            if prints_lines && Instant::now() >= line_at {
                line_at += LINE_EVERY;
                tell!("{}: writing back, {} left", dir.display(), size::show(left));
            }
        }
    });
    bar.finish_and_clear();
    Ok(())
}

/// Writes back everything of a mounted cache, as far as possible.
fn flush(dir: &Path) {
    let _ = rustix::fs::setxattr(dir, &*Command::Flush.attribute(), b"", XattrFlags::empty());
}

/// Records what an unmounted cache could not write back, and then fails. The process that waits for
/// the end of the server reads the record.
pub fn record(status: &pmcache::Status, pool: &Path, names: (&str, &str)) -> Result<()> {
    let left = Remainder::of(status);
    if left.is_nothing() {
        return Ok(());
    }
    unfinished::record(pool, &Unfinished::NotWrittenBack(left.clone()))?;
    bail!("{}", left.message(names.0, names.1))
}
