//! The contract's suite on SCMFS.

use pmem::Region;
use scmfs::{FormatOptions, MountOptions, Prealloc, Scmfs};
use vfs::FileSystem;

fn make_with(prealloc: Prealloc) -> Box<dyn FileSystem> {
    let region = Region::anonymous(64 << 20).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { prealloc, ..MountOptions::default() };
    Box::new(Scmfs::mount(region, &options).unwrap())
}

fn make() -> Box<dyn FileSystem> {
    make_with(Prealloc::default())
}

fn make_on_demand() -> Box<dyn FileSystem> {
    make_with(Prealloc::off())
}

#[test]
fn scenarios() {
    vfs::conformance::run_all(make);
    vfs::conformance::run_all(make_on_demand);
}

/// `KEEPSTONE_OPS` and `KEEPSTONE_SEED` choose more, or one again.
#[test]
fn generated() {
    vfs::conformance::run_generated(make, 60, 400);
    vfs::conformance::run_generated(make_on_demand, 60, 400);
}

#[test]
fn stress() {
    for seed in 0..8 {
        let fs = make();
        vfs::conformance::stress(&*fs, 4, 1500, seed).unwrap();
    }
}
