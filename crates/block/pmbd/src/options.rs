//! The options of a device, and functions that open, check, grow and create one.

use crate::atomic::{self, Atomic, CheckReport, Geometry};
use crate::buffered::{self, Buffering, buffered};
use crate::raw::Raw;
use crate::{BlockDevice, Error};
use pmem::{
    Access, Emulation, FlushInstruction, Guarded, Lock, Medium as _, OpenOptions, Protection,
    Region, SharedObserver,
};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// The least bytes of address space for a device.
const ROOM_MIN: u64 = 64 << 30;
/// The most bytes of address space for a device, unless it is larger itself. A protected device is
/// mapped twice, and processes have 2^47 bytes.
const ROOM_MAX: u64 = 8 << 40;

/// The way in which bytes are stored in PM and become durable (PMBD, Table III).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Non-temporal stores, which bypass the cache, and a fence. A barrier has nothing to write
    /// back.
    #[default]
    Nt,
    /// Stores, a `clwb` for each line, a fence: the lines stay cached.
    Clwb,
    /// Stores, a `clflushopt` (or `clflush`) for each line, a fence: the lines are evicted.
    Clflush,
    /// Stores. The barrier writes back the lines stored since the last one.
    Wb,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 4] = [Scheme::Nt, Scheme::Clwb, Scheme::Clflush, Scheme::Wb];

    /// Returns the flush instruction of the scheme, if the CPU has it.
    fn flush(self) -> Option<FlushInstruction> {
        use FlushInstruction::{Clflush, ClflushOpt, Clwb};
        let first = |wanted: &[FlushInstruction]| wanted.iter().copied().find(|f| f.available());
        match self {
            Scheme::Nt | Scheme::Wb => None,
            Scheme::Clwb => first(&[Clwb]),
            Scheme::Clflush => first(&[ClflushOpt, Clflush]),
        }
    }

    /// Returns the name that [`Display`](fmt::Display), [`FromStr`] and serde use.
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

/// A name that does not belong to a scheme of [`Scheme::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown write scheme `{0}`; use nt, clwb, clflush or wb")]
pub struct UnknownScheme(pub String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(s: &str) -> Result<Self, UnknownScheme> {
        Scheme::ALL.into_iter().find(|x| x.name() == s).ok_or_else(|| UnknownScheme(s.to_owned()))
    }
}

/// The options with which a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The protection against stray writes.
    pub protection: Protection,
    /// The way in which bytes become durable.
    pub scheme: Scheme,
    /// Emulated speed of the medium.
    pub emulation: Emulation,
    /// Whether requests that store are refused.
    pub read_only: bool,
    /// Whether no other process may have the region open, even if `read_only`. A device that is not
    /// read-only is always opened like that.
    pub alone: bool,
    /// The size of blocks that are never torn, in bytes, for which the region must have been
    /// formatted; `None` accepts any format.
    pub atomic: Option<u32>,
    /// Whether content is checked when it is read. That requires atomic blocks, which have
    /// checksums.
    pub checksums: bool,
    /// Buffers in DRAM for writes. They do not survive a fork. If the process is killed, their
    /// content is lost; no barrier has covered it.
    pub buffering: Option<Buffering>,
    /// Whether space that is discarded, or zeroed without keeping it, goes back to the file system
    /// of the region. A store there allocates space again; if the file system is full, SIGBUS ends
    /// the process. Not possible with atomic blocks.
    pub thin: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            protection: Protection::best(),
            scheme: Scheme::default(),
            emulation: Emulation::default(),
            read_only: false,
            alone: false,
            atomic: None,
            checksums: false,
            buffering: None,
            thin: false,
        }
    }
}

/// Opens the region at `path`, a file or a devdax device, as a block device: with atomic blocks, if
/// it was formatted for them. Processes that had it open before may have been killed. The first
/// barrier also covers the requests that they have confirmed.
pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Arc<dyn BlockDevice>, Error> {
    open_observed(path, options, None)
}

/// As [`open`]. The observer sees the accesses to the region.
pub fn open_observed(
    path: impl AsRef<Path>,
    options: &Options,
    observer: Option<SharedObserver>,
) -> Result<Arc<dyn BlockDevice>, Error> {
    let path = path.as_ref();
    let Options { scheme, checksums, read_only, .. } = *options;
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let how = OpenOptions {
        emulation: Some(options.emulation),
        observer,
        flush: scheme.flush(),
        reserve: if read_only { 0 } else { room_to_grow(path) },
        lock: Some(if read_only && !options.alone { Lock::Shared } else { Lock::Exclusive }),
        ..OpenOptions::default()
    };
    let region = how.open(path, access)?;
    let has_map = check_kind(path, &region, options)?;
    let medium = Guarded::new(region, options.protection)?;
    let tally = medium.tally();
    let device: Arc<dyn BlockDevice> = if has_map {
        Arc::new(Atomic::open(medium, scheme, checksums, read_only)?.with_tally(tally))
    } else {
        let raw = Raw::new(medium, scheme, read_only)?.with_tally(tally);
        let raw = if options.thin { raw.thin() } else { raw };
        if !read_only {
            raw.distrust();
        }
        Arc::new(raw)
    };
    Ok(match options.buffering {
        None => device,
        Some(how) => buffered(device, how)?,
    })
}

/// Checks the region at `path`, and repairs it if `repair`: [`atomic::check`]. `None` for a device
/// without a map, in which nothing can be wrong. No other process may have the region open for
/// writing, or with `repair` at all.
pub fn check(path: impl AsRef<Path>, repair: bool) -> Result<Option<CheckReport>, Error> {
    let (access, lock) = match repair {
        true => (Access::ReadWrite, Lock::Exclusive),
        false => (Access::ReadOnly, Lock::Shared),
    };
    let region = OpenOptions { lock: Some(lock), ..OpenOptions::default() }.open(path, access)?;
    let has_map = atomic::superblock(&region).is_ours();
    has_map.then(|| atomic::check(&region, repair)).transpose()
}

/// Extends the device at `path`, which no process has open, to `size` bytes. Returns its size.
/// Fails for a device with atomic blocks, whose size is fixed.
pub fn grow(path: impl AsRef<Path>, size: u64) -> Result<u64, Error> {
    let path = path.as_ref();
    let how = OpenOptions { reserve: size, ..OpenOptions::default() };
    let region = how.open(path, Access::ReadWrite)?;
    if atomic::superblock(&region).is_ours() {
        let cause =
            "has atomic blocks, whose number is fixed: create a larger one, and copy the content"
                .into();
        return Err(Error::Mismatch { path: path.to_owned(), cause });
    }
    region.grow(size)?;
    Ok(region.len())
}

/// Returns the address space for a device that may grow while it is served: four times its size,
/// within bounds.
fn room_to_grow(path: &Path) -> u64 {
    let len = std::fs::metadata(path).map_or(0, |file| file.len());
    len.saturating_mul(4).clamp(ROOM_MIN, ROOM_MAX).max(len)
}

/// Whether the region has atomic blocks. Fails if it does not match the options.
fn check_kind(path: &Path, region: &Region, options: &Options) -> Result<bool, Error> {
    let mismatch = |cause| Err(Error::Mismatch { path: path.to_owned(), cause });
    let found = atomic::superblock(region);
    if !found.is_ours() {
        return match options.atomic {
            Some(block) => mismatch(format!(
                "has no atomic blocks: format it first, which clears it, or leave out --atomic {block}"
            )),
            None if options.checksums => mismatch(
                "checksums take atomic blocks: format it with --atomic, for example 4096".into(),
            ),
            None => Ok(false),
        };
    }
    let has = match found.verify(region.len()) {
        Ok(geometry) => geometry.block,
        Err(what) => {
            return Err(Error::Corrupt { what: format!("has atomic blocks, but {what}") });
        }
    };
    match options.atomic {
        Some(block) if has != block => {
            mismatch(format!("has atomic blocks of {has} bytes, not {block}: leave out --atomic"))
        }
        _ if options.buffering.is_some() && has as usize > buffered::PAGE => mismatch(format!(
            "write buffers hold pages of {} bytes, which are less than an atomic block of {has}: \
             leave out --buffers",
            buffered::PAGE
        )),
        _ if options.thin => mismatch(
            "atomic blocks share their space, of which none is given back: leave out --thin".into(),
        ),
        _ => Ok(true),
    }
}

/// Formats an existing region as a device with atomic blocks of `block` bytes, a power of two from
/// 512 to 16384. All content is lost. Returns the size of the device in bytes.
pub fn format(path: impl AsRef<Path>, block: u32) -> Result<u64, Error> {
    let path = path.as_ref();
    let region = Region::open(path, Access::ReadWrite)?;
    let geometry = Geometry::within(block, region.len()).ok_or_else(|| bad_block(path, block))?;
    atomic::format(&region, &geometry);
    region.health()?;
    Ok(geometry.device_len())
}

/// Creates a file for a device of at least `size` bytes, all zeros. With `atomic`, formats it for
/// atomic blocks of that many bytes. Returns the size of the device in bytes.
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
    region.health().inspect_err(|_| {
        // This call has made the file, and it is useless.
        let _ = std::fs::remove_file(path);
    })?;
    Ok(geometry.device_len())
}

/// Makes the error for a size of atomic blocks that is not possible for this device.
fn bad_block(path: &Path, block: u32) -> Error {
    let cause = format!(
        "cannot have atomic blocks of {block} bytes: use a power of two from 512 to 16384 that fits many times, \
         and at most 2^32 blocks"
    );
    Error::Mismatch { path: path.to_owned(), cause }
}
