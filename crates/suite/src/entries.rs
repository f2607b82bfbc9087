//! Names that come and go in a block: what is in memory and what is in PM must agree on where the free
//! entries are. And an entry whose inode has not come to be is one of them.

use bpfs::layout::{BLOCK, INODE, Word};
use bpfs::{Bpfs, CheckOptions, FormatOptions, MountOptions};
use pmem::{Medium, Region};
use std::collections::BTreeSet;
use vfs::{Caller, Errno, FileSystem, NewKind, NewNode, ROOT};

const FILE: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };

fn make(fs: &Bpfs<Region>, name: &str) {
    let made = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap();
    fs.forget(made.ino, 1);
}

fn names(fs: &Bpfs<Region>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    fs.readdir(ROOT, 2, &mut |entry| names.insert(String::from_utf8_lossy(entry.name).into()))
        .unwrap();
    names
}

/// Removes names from a full block in some order, then makes others, of all lengths, in their place.
fn refill(order: &[usize]) {
    let region = Region::anonymous(8 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    let mut expected = BTreeSet::new();
    for i in 0..300 {
        let name = format!("{i:04}-in-place");
        make(&fs, &name);
        expected.insert(name);
    }
    for i in order {
        let name = format!("{i:04}-in-place");
        fs.unlink(ROOT, name.as_bytes()).unwrap();
        expected.remove(&name);
    }
    for len in [40, 20, 7, 7, 60, 1, 33] {
        let name = "n".repeat(len) + &expected.len().to_string();
        make(&fs, &name);
        expected.insert(name);
        assert_eq!(names(&fs), expected, "after {order:?}");
    }
    let again = Bpfs::mount(fs.into_medium(), &MountOptions::default()).unwrap();
    assert_eq!(names(&again), expected, "after {order:?} and a mount");
}

/// As a power failure leaves a creation of which the inode's first or second line did not persist.
#[test]
fn an_entry_without_its_inode_is_left_over() {
    for word in [Word::Mode, Word::Rdev] {
        let region = Region::anonymous(8 << 20).unwrap();
        bpfs::format(&region, &FormatOptions::default()).unwrap();
        let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
        make(&fs, "kept");
        let ino = fs.create(&Caller::ROOT, ROOT, b"lost", &FILE).unwrap().ino;
        let region = fs.into_medium();
        // The only leaf of the inode file.
        region.store_u64(BLOCK + ino.0 * INODE + word as u64, 0);

        let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
        assert_eq!((report.problems.len(), report.stale_words, report.names), (0, 1, 1));
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = Bpfs::mount(region, &options).unwrap();
        assert_eq!(names(&fs), ["kept".to_owned()].into());
        assert_eq!(fs.peek(ROOT, b"lost"), Err(Errno::NOENT));

        let fs = Bpfs::mount(fs.into_medium(), &MountOptions::default()).unwrap();
        assert_eq!(names(&fs), ["kept".to_owned()].into());
        make(&fs, "lost");
        let region = fs.into_medium();
        let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
        assert_eq!((report.problems.len(), report.stale_words, report.names), (0, 0, 2));
    }
}

#[test]
fn free_entries_become_one() {
    refill(&[12, 13, 14, 11]);
    for order in [[20, 21, 22, 23, 24], [24, 23, 22, 21, 20], [21, 23, 22, 20, 24]] {
        refill(&order);
    }
    refill(&[30, 32, 34, 33, 31, 29, 35, 0, 2, 1]);
}
