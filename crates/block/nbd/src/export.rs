//! Exports: devices with names, and what was asked of them.

use crate::request::{Limits, Mode};
use crate::wire::{STRING_BYTES_MAX, export};
use pmbd::{BlockDevice, BlockSizes};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest read or payload, in bytes: what clients assume where nobody tells them.
pub const LEN_MAX: u32 = 32 << 20;

/// The smallest block that clients assume where nobody tells them.
pub const BLOCK_ASSUMED: u32 = 512;

/// A device under a name.
pub struct Export {
    name: String,
    description: String,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    /// What was asked of it.
    pub counters: Counters,
}

/// A name or a description that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExport {
    /// The protocol ends there.
    #[error("the name or description of an export has at most {STRING_BYTES_MAX} bytes")]
    TooLong,
    /// Nobody could tell the two apart.
    #[error("two exports are called `{0}`; name one of them otherwise, with --export NAME=PATH")]
    Twice(String),
}

impl Export {
    /// `device` under `name`.
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
        Ok(Self { name, description, device, read_only, counters: Counters::default() })
    }

    /// What clients ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What is behind it.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether requests that store are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The device's, as far as requests of 32 MiB go: what clients assume where nobody tells them.
    pub fn block_sizes(&self) -> BlockSizes {
        let sizes = self.device.block_sizes();
        BlockSizes { maximum: sizes.maximum.min(LEN_MAX), ..sizes }
    }

    /// What it can do, for a client that gets replies as `mode` says.
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

    /// What a session may ask, now.
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
    /// The first is also served under the empty name, unless another one has that.
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

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.0.iter()
    }

    /// The one that a client means by `name`.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        let named = self.0.iter().find(|export| export.name.as_bytes() == name);
        named.or_else(|| self.0.first().filter(|_| name.is_empty()))
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What was asked of an export since the server started, of all connections.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64,)* }

        /// The same, at one moment, or of one connection since it last told.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The numbers now.
            pub fn snapshot(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Adds what a connection has counted by itself, and starts that over.
            pub(crate) fn take(&self, counts: &mut Counts) {
                $(if counts.$name != 0 {
                    self.$name.fetch_add(counts.$name, Ordering::Relaxed);
                })*
                *counts = Counts::default();
            }
        }

        impl Counts {
            /// Names and values.
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
    /// Writes, trims and zeroings that were to be durable when answered.
    fua,
    /// Flushes.
    flushes,
    /// Trims.
    trims,
    /// Zeroings.
    zeroes,
    /// Announcements.
    caches,
    /// Questions for block status.
    block_status,
    /// Requests that were refused or failed.
    errors,
    /// Times that replies were sent: several requests share one.
    sends,
    /// Times that requests were received.
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
