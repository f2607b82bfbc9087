//! Pools that nobody formatted like this.

mod common;

use common::Bpfs;

suite::tests!(Bpfs: hostile);
