//! The contract's suite on SCMFS.

mod common;

use common::Scmfs;

suite::tests!(Scmfs: conformance);
