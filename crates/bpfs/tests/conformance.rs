//! The contract's suite on BPFS.

use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::Region;
use vfs::FileSystem;

fn make() -> Box<dyn FileSystem> {
    let region = Region::anonymous(64 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Box::new(Bpfs::mount(region, &MountOptions::default()).unwrap())
}

#[test]
fn scenarios() {
    vfs::conformance::run_all(make);
}
