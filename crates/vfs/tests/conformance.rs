//! The model is held to its own contract.

use vfs::conformance::run_all;
use vfs::model::Model;

#[test]
fn scenarios() {
    run_all(|| Box::new(Model::new()));
}
