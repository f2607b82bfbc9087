//! What can be chosen when a device is opened.

use crate::raw::Raw;
use crate::{BlockDevice, Error};
use pmem::{Access, Emulation, FlushInstruction, Guarded, Lock, OpenOptions, Protection};
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
        }
    }
}

/// Opens the region at `path`, a file or a devdax device, as a block device.
pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Arc<dyn BlockDevice>, Error> {
    if options.atomic.is_some() || options.checksums {
        return Err(Error::NotSupported);
    }
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let how = OpenOptions {
        emulation: Some(options.emulation),
        flush: options.scheme.flush(),
        lock: Some(if options.read_only { Lock::Shared } else { Lock::Exclusive }),
        ..OpenOptions::default()
    };
    let medium = Guarded::new(how.open(path, access)?, options.protection)?;
    let tally = medium.tally();
    Ok(Arc::new(Raw::new(medium, options.scheme, options.read_only).with_tally(tally)))
}
