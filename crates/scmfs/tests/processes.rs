//! Several processes on one pool are killed at any moment.

mod common;

use common::Scmfs;

suite::tests!(Scmfs: processes);
