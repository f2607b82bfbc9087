//! The contract's suite on SCMFS.

use pmem::Region;
use scmfs::{FormatOptions, MountOptions, Scmfs};
use vfs::FileSystem;

fn make() -> Box<dyn FileSystem> {
    let region = Region::anonymous(64 << 20).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    Box::new(Scmfs::mount(region, &MountOptions::default()).unwrap())
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
