//! What all engines have alike.

mod common;

use common::Bpfs;

suite::tests!(Bpfs: entries, limits, mount_events, pins, scan, sharing, smoke);
