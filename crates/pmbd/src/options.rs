//! What can be chosen when a device is opened.

use crate::atomic::{self, Atomic, Geometry};
use crate::buffered::{self, Buffered, Buffering};
use crate::raw::Raw;
use crate::{BlockDevice, Error};
use pmem::{
    Access, Emulation, FlushInstruction, Guarded, Lock, Medium as _, OpenOptions, Protection,
    Region,
};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// How bytes get into PM and become durable (PMBD, Table III).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Non-temporal stores and a fence: past the cache. A barrier has nothing to write back.
    #[default]
    Nt,
    /// Stores, a `clwb` for each line, a fence: the lines stay cached.
    Clwb,
    /// Stores, a `clflushopt` (or `clflush`) for each line, a fence: the lines are evicted.
    Clflush,
    /// Stores; the barrier writes back what was stored since the last one.
    Wb,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 4] = [Scheme::Nt, Scheme::Clwb, Scheme::Clflush, Scheme::Wb];

    /// The flush instruction that it insists on, if the CPU has it.
    fn flush(self) -> Option<FlushInstruction> {
        use FlushInstruction::{Clflush, ClflushOpt, Clwb};
        let first = |wanted: &[FlushInstruction]| wanted.iter().copied().find(|f| f.available());
        match self {
            Scheme::Nt | Scheme::Wb => None,
            Scheme::Clwb => first(&[Clwb]),
            Scheme::Clflush => first(&[ClflushOpt, Clflush]),
        }
    }

    /// The name that [`Display`](fmt::Display), [`FromStr`] and serde use.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Nt => "nt",
            Scheme::Clwb => "clwb",
            Scheme::Clflush => "clflush",
            Scheme::Wb => "wb",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is none of [`Scheme::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown write scheme `{0}`; use nt, clwb, clflush or wb")]
pub struct UnknownScheme(pub String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(s: &str) -> Result<Self, UnknownScheme> {
        Scheme::ALL.into_iter().find(|x| x.name() == s).ok_or_else(|| UnknownScheme(s.to_owned()))
    }
}

/// How to open a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What keeps stray writes out.
    pub protection: Protection,
    /// How bytes become durable.
    pub scheme: Scheme,
    /// Emulated speed of the medium.
    pub emulation: Emulation,
    /// Whether requests that store are refused.
    pub read_only: bool,
    /// The size of the blocks that are never torn, in bytes, where the region was formatted for that;
    /// `None` for a region whose bytes are those of the device.
    pub atomic: Option<u32>,
    /// Whether content is checked when it is read. It takes atomic blocks, whose checksums are stored
    /// with them.
    pub checksums: bool,
    /// Buffers in DRAM for writes. They do not survive a fork; and a process that is killed takes with it what is in
    /// them, which no barrier has covered.
    pub buffering: Option<Buffering>,
    /// Whether space that is discarded, or zeroed without keeping it, goes back to the file system of the region. A
    /// store there takes space anew; where there is none, SIGBUS ends the process. Not with atomic blocks.
    pub thin: bool,
    /// Whether processes that had the device open were killed: the first barrier then covers what they have
    /// confirmed, wherever it is.
    pub after_death: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            protection: Protection::best(),
            scheme: Scheme::default(),
            emulation: Emulation::default(),
            read_only: false,
            atomic: None,
            checksums: false,
            buffering: None,
            thin: false,
            after_death: false,
        }
    }
}

/// Opens the region at `path`, a file or a devdax device, as a block device.
pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Arc<dyn BlockDevice>, Error> {
    let path = path.as_ref();
    let Options { scheme, checksums, read_only, .. } = *options;
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let how = OpenOptions {
        emulation: Some(options.emulation),
        flush: scheme.flush(),
        reserve: if read_only || options.atomic.is_some() { 0 } else { room_to_grow(path) },
        lock: Some(if read_only { Lock::Shared } else { Lock::Exclusive }),
        ..OpenOptions::default()
    };
    let region = how.open(path, access)?;
    check_kind(path, &region, options)?;
    let medium = Guarded::new(region, options.protection)?;
    let tally = medium.tally();
    let device: Arc<dyn BlockDevice> = match options.atomic {
        None => {
            let raw = Raw::new(medium, scheme, read_only)?.with_tally(tally);
            let raw = if options.thin { raw.thin() } else { raw };
            if options.after_death {
                raw.distrust();
            }
            Arc::new(raw)
        }
        Some(_) => Arc::new(Atomic::open(medium, scheme, checksums, read_only)?.with_tally(tally)),
    };
    Ok(match options.buffering {
        None => device,
        Some(how) => Arc::new(Buffered::new(device, how)?),
    })
}

/// Address space for a device that may grow while it is served: to four times its size, or to 64 GiB.
fn room_to_grow(path: &Path) -> u64 {
    let len = std::fs::metadata(path).map_or(0, |file| file.len());
    len.saturating_mul(4).clamp(64 << 30, 1 << 46)
}

/// Whether the region was formatted as the options say.
fn check_kind(path: &Path, region: &Region, options: &Options) -> Result<(), Error> {
    let mismatch = |cause| Err(Error::Mismatch { path: path.to_owned(), cause });
    let found = atomic::superblock(region);
    let has = found.block_bytes;
    match options.atomic {
        None if options.checksums => mismatch(
            "checksums take atomic blocks: format it with --atomic, for example 4096".into(),
        ),
        Some(block) if options.buffering.is_some() && block as usize > buffered::PAGE => {
            mismatch(format!(
                "write buffers hold pages of {} bytes, which are less than an atomic block of {block}: \
                 leave out --buffers",
                buffered::PAGE
            ))
        }
        Some(_) if options.thin => mismatch(
            "atomic blocks share their space, of which none is given back: leave out --thin".into(),
        ),
        None if found.verify(region.len()).is_ok() => mismatch(format!(
            "has atomic blocks of {has} bytes, and is no use without knowing where they are: add --atomic {has}"
        )),
        Some(block) if !found.is_ours() => mismatch(format!(
            "has no atomic blocks: format it first, which clears it, or leave out --atomic {block}"
        )),
        Some(block) if has != block => {
            mismatch(format!("has atomic blocks of {has} bytes, not {block}: say --atomic {has}"))
        }
        _ => Ok(()),
    }
}

/// Formats an existing region as a device with atomic blocks of `block` bytes, a power of two from 512 to
/// 16384. All content is lost. Returns the size of the device in bytes.
pub fn format(path: impl AsRef<Path>, block: u32) -> Result<u64, Error> {
    let path = path.as_ref();
    let region = Region::open(path, Access::ReadWrite)?;
    let geometry = Geometry::within(block, region.len()).ok_or_else(|| bad_block(path, block))?;
    atomic::format(&region, &geometry);
    region.health()?;
    Ok(geometry.device_len())
}

/// Creates a file for a device of at least `size` bytes, all zeros, and formats it where blocks shall be
/// atomic. Returns the size of the device in bytes.
pub fn create(path: impl AsRef<Path>, size: u64, atomic: Option<u32>) -> Result<u64, Error> {
    let path = path.as_ref();
    let Some(block) = atomic else {
        Region::create(path, size)?;
        return Ok(size);
    };
    let geometry = Geometry::of(block, size.div_ceil(u64::from(block).max(1)))
        .ok_or_else(|| bad_block(path, block))?;
    let region = Region::create(path, geometry.region_len())?;
    atomic::format(&region, &geometry);
    region.health()?;
    Ok(geometry.device_len())
}

fn bad_block(path: &Path, block: u32) -> Error {
    let cause = format!(
        "cannot have atomic blocks of {block} bytes: use a power of two from 512 to 16384 that fits many times, \
         and at most 2^32 blocks"
    );
    Error::Mismatch { path: path.to_owned(), cause }
}
