//! What all engines have alike.

mod common;

use common::Scmfs;

suite::tests!(Scmfs: access, entries, limits, mount_events, pins, scan, sharing, smoke);
