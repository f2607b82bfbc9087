//! Time to mount: the scan derives the volatile state from the medium.

use crate::rounds::{Spread, progress};
use crate::workload::{Buffer, numbered};
use anyhow::{Result, ensure};
use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::Region;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use vfs::{Caller, FileSystem as _, Ino, NewKind, NewNode};

/// Files per directory, unless all are in one.
const PER_DIR: u64 = 1000;

/// Time to mount one pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Files in the pool.
    pub files: u64,
    /// Bytes in each.
    pub file_bytes: u64,
    /// Directories they are spread over.
    pub dirs: u64,
    /// Times of mounting in milliseconds by one thread and by two.
    pub ms: [Spread; 2],
    /// The target on two threads, in milliseconds.
    pub target_ms: Option<f64>,
}

impl Row {
    /// Returns whether the target is met; `None` without a target.
    pub fn met(&self) -> Option<bool> {
        self.target_ms.map(|target| self.ms[1].median <= target)
    }
}

/// Measures. `quick` leaves the pools of a million files out.
pub fn run(quick: bool) -> Result<Vec<Row>> {
    let mut shapes = vec![];
    for files in [10_000_u64, 100_000, 1_000_000] {
        for file_bytes in [0, 4096] {
            shapes.push((files, file_bytes, files.div_ceil(PER_DIR)));
        }
    }
    shapes.push((1_000_000, 0, 1));
    if quick {
        shapes.retain(|(files, ..)| *files <= 100_000);
    }
    let rounds = if quick { 5 } else { 9 };
    shapes
        .into_iter()
        .map(|(files, file_bytes, dirs)| measure(files, file_bytes, dirs, rounds))
        .collect()
}

/// Measures mounts of a pool with `files` files of `file_bytes` each, in `dirs` directories, with
/// one and with two threads.
fn measure(files: u64, file_bytes: u64, dirs: u64, rounds: usize) -> Result<Row> {
    let region = Region::anonymous((64 << 20) + files * (file_bytes + 1024))?;
    bpfs::format(&region, &FormatOptions::default())?;
    fill(&region, files, file_bytes, dirs)?;
    let bar = progress(&format!("mount {files} files"), rounds as u64);
    let mut ms = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for threads in [1, 2] {
            let options = MountOptions { threads: Some(threads), ..MountOptions::default() };
            let start = Instant::now();
            let fs = Bpfs::mount(&region, &options)?;
            ms[threads - 1].push(start.elapsed().as_secs_f64() * 1e3);
            let found = fs.mount_report().inodes;
            ensure!(
                found == files + dirs + 1,
                "{found} inodes found of {files} files and {dirs} directories"
            );
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Row {
        files,
        file_bytes,
        dirs,
        ms: ms.map(Spread::of),
        target_ms: (files == 1_000_000).then_some(1000.0),
    })
}

/// Creates the directories and files; `files` must be a multiple of `dirs`.
fn fill(region: &Region, files: u64, file_bytes: u64, dirs: u64) -> Result<()> {
    let fs = Bpfs::mount(region, &MountOptions::default())?;
    let data = Buffer::new(file_bytes as usize);
    let make = |dir: Ino, i: u64, kind| -> vfs::Result<Ino> {
        let node = NewNode { kind, mode: 0o755, umask: 0 };
        let name = numbered(i as usize);
        Ok(fs.create(&Caller::ROOT, dir, name.to_bytes(), &node)?.ino)
    };
    let bar = progress(&format!("make {files} files"), files);
    for d in 0..dirs {
        let dir = make(fs.root(), d, NewKind::Dir)?;
        let share = files / dirs;
        for i in 0..share {
            let file = make(dir, i, NewKind::File)?;
            fs.write(file, 0, data.get())?;
            fs.forget(file, 1);
        }
        bar.inc(share);
    }
    bar.finish_and_clear();
    Ok(())
}
