//! The model is held to its own contract.

use vfs::conformance::{number_from_env, run_all, run_generated, stress};
use vfs::model::Model;

#[test]
fn scenarios() {
    run_all(|| Box::new(Model::new()));
}

#[test]
fn generated_sequences() {
    run_generated(|| Box::new(Model::new()), 50, 300);
}

#[test]
fn threads() {
    let ops = number_from_env("KEEPSTONE_OPS").unwrap_or(400);
    stress(&Model::new(), 4, ops as usize, 1).unwrap();
}
