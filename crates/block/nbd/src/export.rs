//! Exports: devices with names, and counters of their requests.

use crate::request::{Limits, Mode};
use crate::wire::{STRING_BYTES_MAX, export};
use pmbd::{BlockDevice, BlockSizes, RequestTimes};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest read or payload, in bytes: clients assume this value by default.
pub const LEN_MAX: u32 = 32 << 20;

/// The smallest block, in bytes, that clients assume by default.
pub const BLOCK_ASSUMED: u32 = 512;

/// A device under a name.
pub struct Export {
    name: String,
    description: String,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    /// The counters of its requests.
    pub counters: ExportCounters,
    /// The times of its requests, from the moment at which a thread takes a request until its reply
    /// is sent.
    pub times: Arc<RequestTimes>,
}

/// A name or a description that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExport {
    /// It is longer than the protocol allows.
    #[error("the name or description of an export has at most {STRING_BYTES_MAX} bytes")]
    TooLong,
    /// Clients could not distinguish the two exports.
    #[error("two exports are called `{0}`; name one of them otherwise, with --export NAME=PATH")]
    Twice(String),
}

impl Export {
    /// Makes an export of `device` under `name`.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        device: Arc<dyn BlockDevice>,
        read_only: bool,
    ) -> Result<Self, BadExport> {
        let (name, description) = (name.into(), description.into());
        if name.len() > STRING_BYTES_MAX || description.len() > STRING_BYTES_MAX {
            return Err(BadExport::TooLong);
        }
        let read_only = read_only || device.is_read_only();
        let (counters, times) = (ExportCounters::default(), Arc::default());
        Ok(Self { name, description, device, read_only, counters, times })
    }

    /// Returns the name by which clients ask for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description for users.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether requests that store are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the block sizes of the device, with requests of at most 32 MiB (`LEN_MAX`).
    pub fn block_sizes(&self) -> BlockSizes {
        let sizes = self.device.block_sizes();
        BlockSizes { maximum: sizes.maximum.min(LEN_MAX), ..sizes }
    }

    /// Returns its capabilities for a client with replies of this mode.
    pub(crate) fn flags(&self, mode: Mode) -> u16 {
        let always = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_FUA
            | export::CAN_MULTI_CONN
            | export::SEND_CACHE;
        let stores = if self.read_only {
            export::READ_ONLY
        } else {
            export::SEND_TRIM | export::SEND_WRITE_ZEROES | export::SEND_FAST_ZERO
        };
        let structured = if mode == Mode::Simple { 0 } else { export::SEND_DF };
        always | stores | structured
    }

    /// Returns the current limits of requests.
    pub(crate) fn limits(&self, mode: Mode, block_status: bool) -> Limits {
        let sizes = self.block_sizes();
        Limits {
            mode,
            size: self.device.size(),
            block: sizes.minimum,
            len_max: sizes.maximum,
            read_only: self.read_only,
            block_status,
        }
    }
}

/// The exports of a server.
pub struct Exports(Vec<Arc<Export>>);

impl Exports {
    /// Makes the list. The first export is also served under the empty name, unless another one has
    /// that name.
    pub fn new(exports: impl IntoIterator<Item = Export>) -> Result<Self, BadExport> {
        let mut list: Vec<Arc<Export>> = Vec::new();
        for export in exports {
            if list.iter().any(|other| other.name == export.name) {
                return Err(BadExport::Twice(export.name));
            }
            list.push(Arc::new(export));
        }
        Ok(Self(list))
    }

    /// Iterates over all exports.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.0.iter()
    }

    /// Returns the export that a client means by `name`.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        let named = self.0.iter().find(|export| export.name.as_bytes() == name);
        named.or_else(|| self.0.first().filter(|_| name.is_empty()))
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an export's requests since the server started, of all connections.
        #[derive(Debug, Default)]
        pub struct ExportCounters { $($(#[$doc])* pub(crate) $name: AtomicU64,)* }

        /// The same counts at one moment, or those of one connection that are not yet added.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct ExportCounts { $($(#[$doc])* pub $name: u64,)* }

        impl ExportCounters {
            /// Returns the current counts.
            pub fn snapshot(&self) -> ExportCounts {
                ExportCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Adds the counts of a connection, and resets them.
            pub(crate) fn take(&self, counts: &mut ExportCounts) {
                $(if counts.$name != 0 {
                    self.$name.fetch_add(counts.$name, Ordering::Relaxed);
                })*
                *counts = ExportCounts::default();
            }
        }

        impl ExportCounts {
            /// Iterates over names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Sessions that began.
    sessions,
    /// Sessions that ended.
    sessions_ended,
    /// Reads.
    reads,
    /// Bytes read.
    read_bytes,
    /// Writes.
    writes,
    /// Bytes written.
    write_bytes,
    /// Writes, trims and zeroings that had to be durable before the reply.
    fua,
    /// Flushes.
    flushes,
    /// Trims.
    trims,
    /// Zeroings.
    zeroes,
    /// Prefetch requests (`CACHE`).
    caches,
    /// Requests for block status.
    block_status,
    /// Requests that were refused or failed.
    errors,
    /// System calls that sent replies: several requests share one.
    sends,
    /// System calls that received requests.
    receives,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn export(name: &str) -> Export {
        Export::new(name, "", MemoryDevice::new(4096), false).unwrap()
    }

    #[test]
    fn the_first_is_the_default() {
        let exports = Exports::new([export("a"), export("b")]).unwrap();
        assert_eq!(exports.find(b"").unwrap().name(), "a");
        assert_eq!(exports.find(b"b").unwrap().name(), "b");
        assert!(exports.find(b"c").is_none());
        let exports = Exports::new([export("a"), export("")]).unwrap();
        assert_eq!(exports.find(b"").unwrap().name(), "");
        let twice = Exports::new([export("a"), export("a")]).err();
        assert_eq!(twice, Some(BadExport::Twice("a".into())));
    }

    #[test]
    fn a_read_only_device_makes_a_read_only_export() {
        let mut device = MemoryDevice::of(4096);
        device.read_only = true;
        let export = Export::new("x", "", Arc::new(device), false).unwrap();
        assert!(export.is_read_only());
        assert_eq!(export.flags(Mode::Simple) & export::SEND_TRIM, 0);
    }
}
