//! Every layout is recognised by the first bytes of a pool, and opened by its engine.

use engines::Layout;
use pmem::{Access, Lock, OpenOptions, Region};
use pool::{CheckOptions, Error, FormatOptions, MountOptions};
use std::path::Path;
use vfs::{Caller, NewKind, NewNode, ROOT};

const BYTES: u64 = 8 << 20;

fn open(path: &Path) -> Region {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    options.open(path, Access::ReadWrite).unwrap()
}

#[test]
fn a_pool_is_opened_by_the_engine_that_it_is_laid_out_for() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for layout in Layout::ALL {
        assert_eq!(Layout::named(layout.name()), Some(layout));
        let path = dir.path().join(layout.name());
        let region = Region::create(&path, BYTES).unwrap();
        let options = FormatOptions { label: "one".into(), owner: (7, 8), ..Default::default() };
        let made = layout.format(&region, &options).unwrap();
        assert_eq!((made.layout, &*made.label), (layout.name(), "one"));
        assert_eq!(Layout::of(&region), Some(layout));
        assert_eq!(engines::info(&region).unwrap().uuid, made.uuid);
        let report = engines::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
        assert!(report.clean());
        let alone = engines::mount(region, &MountOptions::default()).unwrap();
        let root = alone.getattr(ROOT).unwrap();
        assert_eq!((root.uid, root.gid), (7, 8));
        let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
        alone.create(&Caller::ROOT, ROOT, b"name", &node).unwrap();
        drop(alone);
        if !layout.is_shared() {
            let refused = engines::attach(open(&path), &MountOptions::default()).err();
            assert!(matches!(refused, Some(Error::Shared(_))));
            continue;
        }
        // Two engines on one pool, as in two processes.
        let one = engines::attach(open(&path), &MountOptions::default()).unwrap();
        let two = engines::attach(open(&path), &MountOptions::default()).unwrap();
        assert_eq!(one.descriptors().len(), 2, "the region's and the shared state's");
        one.create(&Caller::ROOT, ROOT, b"other", &node).unwrap();
        assert!(two.lookup(ROOT, b"name").is_ok() && two.lookup(ROOT, b"other").is_ok());
    }
}

#[test]
fn what_is_no_pool_is_not_opened() {
    for first in [&b""[..], b"KSTNNONE", b"\0\0\0\0\0\0\0\0"] {
        let region = || {
            let region = Region::anonymous(BYTES).unwrap();
            pmem::Medium::write(&region, 0, first);
            region
        };
        let none = |err| matches!(err, Some(Error::NotAPool(_)));
        assert_eq!(Layout::of(&region()), None);
        assert!(none(engines::info(&region()).err()));
        assert!(none(engines::check(&region(), &CheckOptions::default(), &|_, _| {}).err()));
        assert!(none(engines::mount(region(), &MountOptions::default()).err()));
        assert!(none(engines::attach(region(), &MountOptions::default()).err()));
    }
}
