//! Pools that nobody formatted like this.

mod common;

use common::Scmfs;

suite::tests!(Scmfs: hostile);
