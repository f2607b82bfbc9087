//! Tests names that come and go in a block: the memory and PM must agree on where the free entries
//! are. An entry whose inode was never completed counts as free.

use crate::{DIR, Engine, FILE, Fs, check_and_remount, create, mount, mounted};
use namespace::layout::Word;
use pmem::Medium as _;
use pool::{CheckOptions, MountOptions};
use std::collections::BTreeSet;
use vfs::{Caller, Errno, FileSystem as _, ROOT, RenameFlags};

fn names<E: Engine>(fs: &Fs<E>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    fs.readdir(ROOT, 2, &mut |entry| names.insert(String::from_utf8_lossy(entry.name).into()))
        .unwrap();
    names
}

/// Removes names from a full block in the given order, and then creates names of various lengths in
/// their place.
fn refill<E: Engine>(order: &[usize]) {
    let fs = mounted::<E>(8 << 20);
    let mut expected = BTreeSet::new();
    for i in 0..300 {
        let name = format!("{i:04}-in-place");
        create::<E>(&fs, ROOT, &name, &FILE);
        expected.insert(name);
    }
    for i in order {
        let name = format!("{i:04}-in-place");
        fs.unlink(ROOT, name.as_bytes()).unwrap();
        expected.remove(&name);
    }
    for len in [40, 20, 7, 7, 60, 1, 33] {
        let name = "n".repeat(len) + &expected.len().to_string();
        create::<E>(&fs, ROOT, &name, &FILE);
        expected.insert(name);
        assert_eq!(names::<E>(&fs), expected, "after {order:?}");
    }
    let again = mount::<E, _>(fs.into_medium());
    assert_eq!(names::<E>(&again), expected, "after {order:?} and a mount");
}

/// Tests the state that a power failure leaves if the first or second line of a new inode did not
/// persist.
pub fn an_entry_without_its_inode_is_left_over<E: Engine>() {
    for word in [Word::Mode, Word::Rdev] {
        let fs = mounted::<E>(8 << 20);
        create::<E>(&fs, ROOT, "kept", &FILE);
        let ino = fs.create(&Caller::ROOT, ROOT, b"lost", &FILE).unwrap().ino;
        let region = fs.into_medium();
        region.store_u64(E::inode_at(ino) + word as u64, 0);

        let report = E::check(&region, &CheckOptions::default()).unwrap();
        assert_eq!((report.problems.len(), report.stale_words, report.names), (0, 1, 1));
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = Fs::<E>::mount(region, &options).unwrap();
        assert_eq!(names::<E>(&fs), ["kept".to_owned()].into());
        assert_eq!(fs.peek(ROOT, b"lost"), Err(Errno::NOENT));

        let fs = mount::<E, _>(fs.into_medium());
        assert_eq!(names::<E>(&fs), ["kept".to_owned()].into());
        create::<E>(&fs, ROOT, "lost", &FILE);
        let region = fs.into_medium();
        let report = E::check(&region, &CheckOptions::default()).unwrap();
        assert_eq!((report.problems.len(), report.stale_words, report.names), (0, 0, 2));
    }
}

/// Tests that neighbouring free entries are merged, whatever the order in which they were freed.
pub fn free_entries_become_one<E: Engine>() {
    refill::<E>(&[12, 13, 14, 11]);
    for order in [[20, 21, 22, 23, 24], [24, 23, 22, 21, 20], [21, 23, 22, 20, 24]] {
        refill::<E>(&order);
    }
    refill::<E>(&[30, 32, 34, 33, 31, 29, 35, 0, 2, 1]);
}

/// Tests pools in which directories get the last block, whose last entry ends with the pool. Small
/// pools use the last block early if their last unit of 2 MiB is incomplete.
pub fn directories_lie_at_the_end_of_a_pool<E: Engine>() {
    for blocks in 1..=12 {
        let fs = mounted::<E>((4 << 20) + blocks * 4096);
        let dirs = ["a", "b"].map(|name| create::<E>(&fs, ROOT, name, &DIR));
        for i in 0..9000 {
            let name = format!("file-{i}");
            let made = fs.create(&Caller::ROOT, dirs[i % 2], name.as_bytes(), &FILE);
            match made {
                Ok(entry) => fs.forget(entry.ino, 1),
                Err(e) => {
                    assert_eq!(e, Errno::NOSPC);
                    break;
                }
            }
        }
        for i in 0..100 {
            let (from, to) = (format!("file-{}", 2 * i), format!("moved-{i}"));
            let flags = RenameFlags::empty();
            fs.rename((dirs[0], from.as_bytes()), (dirs[1], to.as_bytes()), flags).unwrap();
        }
        check_and_remount::<E>(fs);
    }
}
