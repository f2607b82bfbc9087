//! Fuzz targets: what strangers send, as functions of bytes.
//!
//! Each target takes arbitrary bytes and returns. A panic, a hang or an access out of bounds is a
//! finding. Three drivers use the same functions: the tests of this crate ([`mutate`], a fixed
//! number of inputs), `make fuzz` without a nightly compiler (the same for a time), and `fuzz/`
//! with cargo-fuzz (guided by coverage, under AddressSanitizer).
//!
//! | sender | targets |
//! |---|---|
//! | client of a socket | [`nbd::session`], [`nbd::tls`] |
//! | member of a pool | [`image::bpfs`], [`image::scmfs`], [`device::atomic`] |
//! | member of a cache's pool | [`needs::needs`] |
//! | user of a mount | [`cache::control`], [`mounts::names`] |
//! | maker of a foreign mount | [`mounts::table`] |
//! | sender of a stream, or a member of the sending pool | [`stream::received`], [`stream::sent`] |
//! | maker of a trace that is crashed | [`traces::text`], [`traces::log`], [`traces::entries`] |
//! | operator of a bucket | [`store::objects`], [`store::tree`], [`replies::http`] |

#![warn(missing_docs)]

pub mod cache;
pub mod device;
pub mod image;
pub mod input;
pub mod mounts;
pub mod mutate;
pub mod nbd;
pub mod needs;
pub mod replies;
pub mod store;
pub mod stream;
pub mod traces;

/// A target and the valid inputs that mutations start from.
pub struct Target {
    /// Also the name of its cargo-fuzz target.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8]),
    /// Makes valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 17] = [
    Target { name: "nbd_session", run: nbd::session, seeds: nbd::session_seeds },
    Target { name: "nbd_tls", run: nbd::tls, seeds: nbd::tls_seeds },
    Target { name: "atomic_region", run: device::atomic, seeds: device::seeds },
    Target { name: "pool_bpfs", run: image::bpfs, seeds: image::seeds },
    Target { name: "pool_scmfs", run: image::scmfs, seeds: image::seeds },
    Target { name: "cache_control", run: cache::control, seeds: cache::control_seeds },
    Target { name: "cache_needs", run: needs::needs, seeds: needs::seeds },
    Target { name: "mount_names", run: mounts::names, seeds: mounts::name_seeds },
    Target { name: "mount_table", run: mounts::table, seeds: mounts::table_seeds },
    Target { name: "store_objects", run: store::objects, seeds: store::object_seeds },
    Target { name: "store_tree", run: store::tree, seeds: store::tree_seeds },
    Target { name: "store_replies", run: replies::http, seeds: replies::seeds },
    Target { name: "stream_received", run: stream::received, seeds: stream::received_seeds },
    Target { name: "stream_sent", run: stream::sent, seeds: stream::sent_seeds },
    Target { name: "trace_text", run: traces::text, seeds: traces::text_seeds },
    Target { name: "trace_log", run: traces::log, seeds: traces::log_seeds },
    Target { name: "trace_entries", run: traces::entries, seeds: traces::entries_seeds },
];
