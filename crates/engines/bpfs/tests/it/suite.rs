//! The tests that all engines share.

use crate::common::Bpfs;

suite::tests!(
    Bpfs: access, conformance, deaths, entries, hostile, limits, mount_events, pins, processes, scan, sharing, smoke, thin, writers
);
