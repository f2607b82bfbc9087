//! `keepstone simulate memory record`: a trace of a file system that does a benchmark of the paper
//! in a pool in DRAM.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use engines::Layout;
use memsim::record::Recorder;
use memsim::trace::End as TraceEnd;
use pmem::{OpenOptions, SharedObserver};
use pool::{Engine, FormatOptions, MountOptions};
use rng::Rng;
use vfs::{Caller, Errno, Ino, NewKind, NewNode, ROOT};

use crate::copies::replace_file;
use crate::{args, output, size};

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Append to a file (BPFS Figure 3 a).
    Append,
    /// Overwrite at random places of a file of half the pool (Figure 3 b).
    Overwrite,
    /// Create files (Figure 3 c).
    Create,
    /// Create 100 files, read, append, create and remove at random, then remove all (Figure 4 a).
    Postmark,
}

/// `keepstone simulate memory record`
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The memory trace to write.
    pub trace: PathBuf,
    /// The workload.
    #[arg(long, default_value = "append")]
    pub workload: Workload,
    /// Number of operations.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub operations: u32,
    /// Bytes of a write.
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = size::parse)]
    pub bytes: u64,
    /// File system.
    #[arg(long, value_parser = args::layouts(), default_value = Layout::ALL[0].name())]
    pub layout: Layout,
    /// Size of the pool in DRAM.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size::parse)]
    pub size: u64,
    /// Seed of random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Record the stored bytes, too.
    #[arg(long)]
    pub content: bool,
}

pub fn run(args: &RecordArgs, json: bool) -> Result<()> {
    let end = replace_file(&args.trace, |file| record(args, file.try_clone()?))?;
    if json {
        let seconds = end.elapsed_ns as f64 / 1e9;
        return output::json(&serde_json::json!({ "events": end.events, "elapsed_s": seconds }));
    }
    say!("{}: {} events of {} operations", args.trace.display(), end.events, args.operations);
    Ok(())
}

/// Records the workload to a file.
fn record(args: &RecordArgs, file: File) -> Result<TraceEnd> {
    let recorder = Recorder::paused(file, args.content);
    let observer = Some(recorder.clone() as SharedObserver);
    let region = OpenOptions { observer, ..OpenOptions::default() }.anonymous(args.size)?;
    args.layout.format(&region, &FormatOptions::default())?;
    let mounting = MountOptions { seed: Some(args.seed), ..MountOptions::default() };
    let fs = engines::mount(region, &mounting)?;
    let mut run =
        WorkloadRun { fs: &*fs, args, rng: Rng::new(args.seed), recorder: &recorder, op: 0 };
    run.workload().map_err(|err| {
        anyhow!("the workload failed in the pool of {}: {err}", size::show(args.size))
    })?;
    Ok(recorder.finish()?)
}

/// A workload under way.
struct WorkloadRun<'a> {
    fs: &'a dyn Engine,
    args: &'a RecordArgs,
    rng: Rng,
    recorder: &'a Recorder,
    op: u32,
}

impl WorkloadRun<'_> {
    /// Prepares, records the operations, and ends with a sync.
    fn workload(&mut self) -> vfs::Result<()> {
        let data = vec![0x5a; usize::try_from(self.args.bytes).unwrap_or(usize::MAX)];
        match self.args.workload {
            Workload::Append => {
                let file = self.create("file")?;
                self.recorder.resume();
                self.repeat(|run, _| run.fs.append(file, &data).map(drop))?;
            }
            Workload::Overwrite => {
                let file = self.create("file")?;
                let len = self.args.size / 2;
                let mut at = 0;
                while at < len {
                    self.fs.write(file, at, &[1; 1 << 16])?;
                    at += 1 << 16;
                }
                self.recorder.resume();
                let places = (len.saturating_sub(self.args.bytes) / 8).max(1);
                self.repeat(|run, _| {
                    let at = run.rng.below(places) * 8;
                    run.fs.write(file, at, &data)
                })?;
            }
            Workload::Create => {
                self.recorder.resume();
                self.repeat(|run, op| run.create(&format!("file-{op}")).map(drop))?;
            }
            Workload::Postmark => {
                self.recorder.resume();
                self.postmark(&data)?;
            }
        }
        self.fs.sync()
    }

    fn repeat(&mut self, mut op: impl FnMut(&mut Self, u32) -> vfs::Result<()>) -> vfs::Result<()> {
        for number in 0..self.args.operations {
            self.recorder.operation(number);
            op(self, number)?;
            self.recorder.returned(number);
        }
        Ok(())
    }

    fn postmark(&mut self, data: &[u8]) -> vfs::Result<()> {
        const FILES: u32 = 100;
        let mut files: Vec<(String, Ino)> = Vec::new();
        let mut buffer = vec![0; data.len()];
        let add = |run: &mut Self, files: &mut Vec<(String, Ino)>| {
            let name = format!("file-{}", run.op);
            run.op += 1;
            let ino = run.create(&name)?;
            run.fs.append(ino, data)?;
            files.push((name, ino));
            Ok::<(), Errno>(())
        };
        for _ in 0..FILES {
            add(self, &mut files)?;
        }
        self.repeat(|run, _| {
            let at = run.rng.index(files.len());
            match run.rng.below(4) {
                0 => run.fs.read(files[at].1, 0, &mut buffer).map(drop),
                1 => run.fs.append(files[at].1, data).map(drop),
                2 => add(run, &mut files),
                _ if files.len() > 1 => run.remove(files.swap_remove(at)),
                _ => Ok(()),
            }
        })?;
        files.into_iter().try_for_each(|file| self.remove(file))
    }

    fn create(&self, name: &str) -> vfs::Result<Ino> {
        let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
        Ok(self.fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &node)?.ino)
    }

    fn remove(&self, (name, ino): (String, Ino)) -> vfs::Result<()> {
        self.fs.unlink(ROOT, name.as_bytes())?;
        self.fs.forget(ino, 1);
        Ok(())
    }
}
