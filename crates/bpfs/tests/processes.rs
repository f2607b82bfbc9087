//! Several processes on one pool are killed at any moment.

mod common;

use common::Bpfs;

suite::tests!(Bpfs: processes);
