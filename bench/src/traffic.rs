//! Bytes that the paper's microbenchmarks (BPFS §5.2.1) write to the medium. Counts are exact, and
//! the same on all machines with the same store and flush instructions (MOVDIR64B, CLWB).

use crate::engine::size;
use crate::pool::{Backing, Pool};
use crate::rounds::{Traffic, progress};
use crate::store::{Engine, Store as _};
use crate::workload::{Buffer, FILE_BYTES, numbered};
use anyhow::Result;
use bpfs::{Bpfs, MountOptions};
use pmem::{Counters, Medium as _};
use rng::Rng;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Appends of the paper.
const APPENDS: u64 = 130_000;
const WRITES: u64 = 10_000;
const SIZES: [usize; 5] = [8, 64, 512, 1024, 4096];

/// Traffic of one microbenchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The name of the microbenchmark.
    pub name: String,
    /// Operations.
    pub ops: u64,
    /// Bytes asked to be written by one operation; 0 for creations.
    pub asked: u64,
    /// Traffic of one operation on average.
    pub traffic: Traffic,
}

impl Row {
    /// Returns the bytes written to the medium divided by the bytes asked.
    pub fn amplification(&self) -> Option<f64> {
        (self.asked > 0).then(|| self.traffic.bytes() / self.asked as f64)
    }
}

/// Counts. Each row starts with a new pool.
pub fn run() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let bar = progress("traffic", 2 * SIZES.len() as u64 + 3);
    for len in SIZES {
        let engine = engine()?;
        let file = engine.create(&engine.root()?, c"log")?;
        let data = Buffer::new(len);
        rows.push(count(
            format!("append {}", size(len)),
            engine.0.medium().counters(),
            (APPENDS, len),
            |_| engine.append(&file, 0, data.get()),
        )?);
        bar.inc(1);
    }
    for len in SIZES {
        let engine = engine()?;
        let file = engine.create(&engine.root()?, c"table")?;
        let chunk = Buffer::new(1 << 20);
        for offset in (0..FILE_BYTES).step_by(1 << 20) {
            engine.write(&file, offset, chunk.get())?;
        }
        let data = Buffer::new(len);
        let mut rng = Rng::new(1);
        rows.push(count(
            format!("random write {} in 128 MiB", size(len)),
            engine.0.medium().counters(),
            (WRITES, len),
            |_| {
                let offset = rng.below_fast(FILE_BYTES / len as u64) * len as u64;
                engine.write(&file, offset, data.get())
            },
        )?);
        bar.inc(1);
    }
    for files in [100, 1_000, 10_000] {
        let engine = engine()?;
        let root = engine.root()?;
        rows.push(count(
            format!("create {files} files"),
            engine.0.medium().counters(),
            (files, 0),
            |i| {
                let file = engine.create(&root, &numbered(i as usize))?;
                engine.close(file);
                Ok(())
            },
        )?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn engine() -> Result<Engine> {
    let pool = Pool::create(Backing::Anonymous, Path::new(""), 1 << 30)?;
    Ok(Engine(Bpfs::mount(pool.region, &MountOptions::default())?))
}

/// Does `ops` operations of `asked` bytes each, and counts what they move.
fn count(
    name: String,
    counters: &Counters,
    (ops, asked): (u64, usize),
    mut op: impl FnMut(u64) -> vfs::Result<()>,
) -> Result<Row> {
    let before = counters.snapshot();
    for i in 0..ops {
        op(i)?;
    }
    Ok(Row {
        name,
        ops,
        asked: asked as u64,
        traffic: Traffic::per_op(counters.snapshot() - before, ops),
    })
}
