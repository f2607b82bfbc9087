//! The contract's suite on SCMFS, in each configuration.

use pmem::Region;
use pool::{Consistency, FormatOptions, MountOptions, WritePolicy};
use vfs::FileSystem;

fn make_with(options: &MountOptions) -> Box<dyn FileSystem> {
    let region = Region::anonymous(64 << 20).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    Box::new(scmfs::Scmfs::mount(region, options).unwrap())
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

/// Runs the suite in each configuration.
#[test]
fn configurations() {
    for make in [make_through, make_cached, make_unordered] {
        vfs::conformance::run_all(make);
        vfs::conformance::run_generated(make, 15, 300);
        vfs::conformance::stress(&*make(), 4, 800, 1).unwrap();
    }
}
