//! A process dies at each access to PM. Alone in its program, as it forks.

mod common;

use common::Scmfs;

suite::tests!(Scmfs: deaths);
