//! The contract's suite on BPFS.

mod common;

use common::Bpfs;

suite::tests!(Bpfs: conformance);
