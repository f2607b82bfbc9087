//! Pools for measuring: memory with all pages present, gone with the process.

use crate::workload::FILE_BYTES;
use anyhow::{Context as _, Result};
use bpfs::FormatOptions;
use clap::ValueEnum;
use pmem::{Access, Medium as _, OpenOptions, Region};
use std::path::Path;

/// The memory that stands in for persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backing {
    /// Anonymous memory: 2 MiB pages where the kernel grants them, as fsdax and devdax have.
    Anonymous,
    /// A file in --dir: the pages that tmpfs gives it, usually of 4 KiB.
    File,
}

/// A formatted region with [`FILE_BYTES`] behind the pool that no file system uses.
pub struct Pool {
    /// The mapping.
    pub region: Region,
    /// Where the unused bytes start.
    pub spare: u64,
}

impl Pool {
    /// Makes a pool of `bytes`. The name of a file in `dir` is removed at once, so that nothing
    /// stays behind however the process ends.
    pub fn create(backing: Backing, dir: &Path, bytes: u64) -> Result<Self> {
        let options = OpenOptions { populate: true, ..OpenOptions::default() };
        let region = match backing {
            Backing::Anonymous => options.anonymous(bytes + FILE_BYTES)?,
            Backing::File => {
                let file = tempfile::Builder::new()
                    .prefix("keepstone-bench-pool-")
                    .tempfile_in(dir)
                    .with_context(|| format!("cannot create a pool in {}", dir.display()))?;
                file.as_file().set_len(bytes + FILE_BYTES)?;
                options.open(file.path(), Access::ReadWrite)?
            }
        };
        format_front(&region, bytes)?;
        Ok(Self { region, spare: bytes })
    }
}

/// Formats the first `bytes` of a region that has more. `format` always takes all of what it gets,
/// but writes only the first few blocks; these are made elsewhere and copied.
fn format_front(region: &Region, bytes: u64) -> Result<()> {
    let front = Region::anonymous(bytes)?;
    bpfs::format(&front, &FormatOptions::default())?;
    let mut blocks = vec![0; 1 << 20];
    front.read(0, &mut blocks);
    region.write_nt(0, &blocks);
    let _ = region.fence();
    Ok(())
}
