//! What all engines have alike.

mod common;

use common::{OnDemand, Scmfs};

mod on_demand {
    use super::OnDemand;

    suite::tests!(OnDemand: entries, limits, pins, smoke, writers);
}

suite::tests!(Scmfs: access, entries, limits, mount_events, pins, scan, sharing, smoke, writers);
