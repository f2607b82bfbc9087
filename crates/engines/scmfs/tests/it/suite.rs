//! What all engines have alike.

use crate::common::{OnDemand, Scmfs};

/// Without space that is set aside.
mod on_demand {
    use super::OnDemand;

    suite::tests!(OnDemand: conformance, entries, limits, pins, smoke, writers);
}

suite::tests!(
    Scmfs: access, conformance, deaths, delegations, entries, hostile, limits, mount_events, pins, processes, scan, sharing, smoke, writers
);
