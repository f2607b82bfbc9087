//! The contract's suite on SCMFS.

use pmem::Region;
use pool::{Consistency, WritePolicy};
use scmfs::{FormatOptions, MountOptions, Scmfs};
use vfs::FileSystem;

fn make() -> Box<dyn FileSystem> {
    make_with(&MountOptions::default())
}

fn make_with(options: &MountOptions) -> Box<dyn FileSystem> {
    let region = Region::anonymous(64 << 20).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    Box::new(Scmfs::mount(region, options).unwrap())
}

fn make_through() -> Box<dyn FileSystem> {
    make_with(&MountOptions { write_policy: WritePolicy::Through, ..MountOptions::default() })
}

fn make_cached() -> Box<dyn FileSystem> {
    make_with(&MountOptions { write_policy: WritePolicy::Cached, ..MountOptions::default() })
}

fn make_unordered() -> Box<dyn FileSystem> {
    make_with(&MountOptions { consistency: Consistency::None, ..MountOptions::default() })
}

/// With each thing that can be chosen.
#[test]
fn configurations() {
    for make in [make_through, make_cached, make_unordered] {
        vfs::conformance::run_all(make);
        vfs::conformance::run_generated(make, 15, 300);
        vfs::conformance::stress(&*make(), 4, 800, 1).unwrap();
    }
}

#[test]
fn scenarios() {
    vfs::conformance::run_all(make);
}

/// `KEEPSTONE_OPS` and `KEEPSTONE_SEED` choose more, or one again.
#[test]
fn generated() {
    vfs::conformance::run_generated(make, 60, 400);
}

#[test]
fn stress() {
    for seed in 0..8 {
        let fs = make();
        vfs::conformance::stress(&*fs, 4, 1500, seed).unwrap();
    }
}
