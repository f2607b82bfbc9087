//! What all engines have alike.

mod common;

use common::Bpfs;

suite::tests!(Bpfs: access, entries, limits, mount_events, pins, scan, sharing, smoke, writers);
