//! The tests that all engines share.

use crate::common::{OnDemand, Scmfs};

/// Without pre-allocated space.
mod on_demand {
    use super::OnDemand;

    suite::tests!(OnDemand: conformance, entries, limits, pins, smoke, writers);
}

suite::tests!(
    Scmfs: access, conformance, deaths, entries, hostile, limits, mount_events, pins, processes, scan, sharing, smoke, thin, writers
);
