//! The model is held to its own contract.

use vfs::Limits;
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

/// Each limit is smaller than its maximum.
const SMALL: Limits = Limits {
    name: 60,
    symlink: 3000,
    file_size: 1 << 41,
    links: 100,
    xattr: 40_000,
    xattr_list: 30_000,
    clones: false,
};

#[test]
fn a_file_system_has_limits_of_its_own() {
    assert!(SMALL.are_within(&Limits::MAX) && !Limits::MAX.are_within(&SMALL));
    run_all(|| Box::new(Model::with_limits(&SMALL)));
    run_generated(|| Box::new(Model::with_limits(&SMALL)), 20, 300);
}

#[test]
fn threads() {
    let ops = number_from_env("KEEPSTONE_OPS").unwrap_or(400);
    stress(&Model::new(), 4, ops as usize, 1).unwrap();
}
