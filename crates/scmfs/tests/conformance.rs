//! The contract's suite on SCMFS.

mod common;

use common::Scmfs;

suite::tests!(Scmfs: conformance);

/// Without space that is set aside.
mod on_demand {
    use super::common::OnDemand;

    suite::tests!(OnDemand: conformance);
}
