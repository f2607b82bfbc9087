//! The errors of devices and requests.

use crate::atomic::{Fault, show_faults};
use std::io;
use std::path::PathBuf;

/// The reason why a device could not be opened, or a request not be served. Unless the variant
/// states otherwise, nothing was stored.
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
        /// Bytes of the device.
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
    /// The content of a block differs from the written content.
    #[error("block {block} is damaged: its checksum is {found:#010x}, written was {written:#010x}")]
    Damaged {
        /// Number of the block.
        block: u64,
        /// Checksum of the content found.
        found: u32,
        /// Checksum of the written content.
        written: u32,
    },
    /// The content of a block is lost.
    #[error(
        "block {block} is lost: its word of the map, {word:#018x}, names no data block; writing the block makes it \
         good again"
    )]
    Lost {
        /// Number of the block.
        block: u64,
        /// Its word.
        word: u64,
    },
    /// The map is inconsistent for some blocks. The others can be read: open the device read-only.
    #[error(
        "the map is damaged: {}; serve it --read-only to read the other blocks; `keepstone bdev check` says what is \
         left of these, and with --repair gives up what is not",
        show_faults(faults)
    )]
    Unsound {
        /// All faults of the map.
        faults: Vec<Fault>,
    },
    /// The superblock of the region is invalid.
    #[error(
        "{what}; restore the region from a copy, or format it anew if its content is not needed"
    )]
    Corrupt {
        /// The invalid part, and the reason.
        what: String,
    },
    /// The region does not match the options.
    #[error("{}: {cause}", path.display())]
    Mismatch {
        /// The region.
        path: PathBuf,
        /// The difference, and the option to use.
        cause: String,
    },
    /// The device does not support the request, or not as fast as it demands.
    #[error("not supported")]
    NotSupported,
    /// The region could not be opened.
    #[error(transparent)]
    Region(#[from] pmem::Error),
    /// The medium failed. Data that was durable before still is. The data of this request may be
    /// stored or not.
    #[error(transparent)]
    Io(#[from] io::Error),
}
