//! What a request can fail with.

use crate::atomic::{Fault, show_faults};
use std::io;
use std::path::PathBuf;

/// Why a device could not be opened or a request not be served. Nothing was stored, unless it says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request reaches beyond the end of the device.
    #[error("request of {len} bytes at {off} on a device of {size} bytes")]
    OutOfRange {
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
        /// Of the device, in bytes.
        size: u64,
    },
    /// The request does not consist of whole blocks.
    #[error("request of {len} bytes at {off}, which is not a multiple of the block size {block}")]
    Misaligned {
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
        /// The smallest unit of requests, in bytes.
        block: u32,
    },
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The content of a block is not what was written.
    #[error("block {block} is damaged: its checksum is {found:#010x}, written was {written:#010x}")]
    Damaged {
        /// Number of the block.
        block: u64,
        /// Checksum of what is there.
        found: u32,
        /// Checksum of what was written.
        written: u32,
    },
    /// The content of a block is nowhere.
    #[error(
        "block {block} is lost: its word of the map, {word:#018x}, names no data block; writing the block makes it \
         good again"
    )]
    Lost {
        /// Number of the block.
        block: u64,
        /// What its word is.
        word: u64,
    },
    /// The map says what cannot be of some blocks. The others can be read: open the device read-only.
    #[error(
        "the map is damaged: {}; serve it --read-only to read the other blocks; `keepstone bdev check` says what is \
         left of these, and with --repair gives up what is not",
        show_faults(faults)
    )]
    Unsound {
        /// All that is wrong.
        faults: Vec<Fault>,
    },
    /// What the region says about itself cannot be.
    #[error(
        "{what}; restore the region from a copy, or format it anew if its content is not needed"
    )]
    Corrupt {
        /// Which part, and how.
        what: String,
    },
    /// The region is not what the options say.
    #[error("{}: {cause}", path.display())]
    Mismatch {
        /// The region.
        path: PathBuf,
        /// In what, and which option would do.
        cause: String,
    },
    /// The device cannot do that, or not fast, as the request demands.
    #[error("not supported")]
    NotSupported,
    /// The region could not be opened.
    #[error(transparent)]
    Region(#[from] pmem::Error),
    /// The medium failed. What was durable before still is; what this request stored is not known.
    #[error(transparent)]
    Io(#[from] io::Error),
}
