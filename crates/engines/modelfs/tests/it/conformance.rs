//! The model engine keeps the contract and all synced changes, and loses all others in a crash.

use modelfs::layout::{BLOCK, HEADER, POOL_MIN, SAVED, half};
use modelfs::{ModelFs, check, format};
use pmem::{Medium, Region};
use pool::{CheckOptions, Error, FormatOptions, MountOptions};
use vfs::conformance::{run_all, run_generated};
use vfs::tree::{diff, tree};
use vfs::{Caller, Errno, FileSystem, Ino, NewKind, NewNode, ROOT};

fn pool(bytes: u64) -> Region {
    let region = Region::anonymous(bytes).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    region
}

fn mount(region: Region) -> ModelFs<Region> {
    ModelFs::mount(region, &MountOptions::default()).unwrap()
}

fn file(fs: &dyn FileSystem, name: &[u8]) -> Result<Ino, Errno> {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    fs.create(&Caller::ROOT, ROOT, name, &node).map(|entry| entry.ino)
}

#[test]
fn the_contract_is_kept() {
    let make = || -> Box<dyn FileSystem> { Box::new(mount(pool(64 << 20))) };
    run_all(make);
    run_generated(make, 10, 200);
}

/// A full pool accepts no more data, loses none, and can be emptied.
#[test]
fn a_full_pool_is_whole() {
    let fs = mount(pool(POOL_MIN));
    let ino = file(&fs, b"file").unwrap();
    let mut written = 0;
    while fs.append(ino, &[7; 1000]).is_ok() {
        written += 1000;
    }
    assert!(written > 20_000, "{written} bytes");
    assert_eq!(fs.getattr(ino).unwrap().size, written);
    let full = tree(&fs).unwrap();
    assert_eq!(fs.append(ino, &[7; 1000]), Err(Errno::NOSPC));
    assert_eq!(fs.append(Ino(77), &[7; 1000]), Err(Errno::STALE), "space is asked for last");
    assert_eq!(diff(&tree(&fs).unwrap(), &full), None);
    fs.sync().unwrap();
    fs.unlink(ROOT, b"file").unwrap();
    fs.forget(ino, 1);
    file(&fs, b"another").unwrap();
    assert_eq!(fs.statfs().blocks - fs.statfs().blocks_free, 1);
}

/// A file without a name takes space, too: it may get a name.
#[test]
fn a_file_without_a_name_takes_space() {
    let fs = mount(pool(POOL_MIN));
    let ino = fs.tmpfile(&Caller::ROOT, ROOT, 0o644, 0).unwrap().ino;
    let mut written = 0;
    while written < 2 * POOL_MIN && fs.append(ino, &[7; 1000]).is_ok() {
        written += 1000;
    }
    assert!((20_000..POOL_MIN / 2).contains(&written), "{written} bytes");
    assert!(fs.statfs().blocks_free < 2);
    // This may succeed or fail for want of room.
    let _ = fs.link(ino, ROOT, b"name");
    fs.sync().unwrap();
}

/// Returns the bytes of a pool, as a crash now would leave them.
fn bytes(medium: &impl Medium) -> Vec<u8> {
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(0, &mut bytes);
    bytes
}

fn region(bytes: &[u8]) -> Region {
    let region = Region::anonymous(bytes.len() as u64).unwrap();
    region.write(0, bytes);
    region
}

#[test]
fn what_was_synced_is_there_and_no_more() {
    let fs = mount(pool(1 << 20));
    let synced = file(&fs, b"synced").unwrap();
    fs.write(synced, 0, b"content").unwrap();
    fs.fsync(synced).unwrap();
    let before = tree(&fs).unwrap();
    file(&fs, b"unsynced").unwrap();
    let crashed = mount(region(&bytes(fs.medium())));
    assert_eq!(diff(&tree(&crashed).unwrap(), &before), None);
    let now = tree(&fs).unwrap();
    fs.sync().unwrap();
    let again = mount(region(&bytes(fs.medium())));
    assert_eq!(diff(&tree(&again).unwrap(), &now), None);
    assert_eq!(fs.fsync(Ino(99)), Err(Errno::STALE));

    // Unmounting syncs; a sync without changes stores nothing.
    let stores = |fs: &ModelFs<Region>| fs.medium().counters().snapshot().fences;
    let fences = stores(&fs);
    fs.sync().unwrap();
    assert_eq!(stores(&fs), fences);
    fs.unlink(ROOT, b"synced").unwrap();
    fs.sync().unwrap();
    assert_eq!(stores(&fs), fences + 2, "one for the tree, one for the commit");

    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let read_only = ModelFs::mount(region(&bytes(fs.medium())), &options).unwrap();
    assert_eq!(file(&read_only, b"new"), Err(Errno::ROFS));
    assert_eq!(read_only.unlink(ROOT, b"unsynced"), Err(Errno::ROFS));
}

/// Damaged bytes are refused, or load as a valid file system.
#[test]
fn bad_pools_are_refused() {
    let fs = mount(pool(POOL_MIN));
    for name in [b"a", b"b", b"c"] {
        fs.write(file(&fs, name).unwrap(), 0, name).unwrap();
    }
    fs.sync().unwrap();
    let good = bytes(fs.medium());
    let refused = |at: u64, word: u64| {
        let region = region(&good);
        region.store_u64(at, word);
        match ModelFs::mount(region, &MountOptions::default()) {
            Ok(fs) => {
                tree(&fs).unwrap();
                None
            }
            Err(err) => Some(err),
        }
    };
    assert!(matches!(refused(0, 1), Some(Error::NotAPool(_))));
    assert!(matches!(refused(8, 2), Some(Error::Unusable(_))), "version");
    assert!(matches!(refused(16, 1 << 41), Some(Error::Unusable(_))), "size");
    let saved = half(POOL_MIN, 2);
    assert!(matches!(refused(saved, u64::MAX), Some(Error::Damaged(_))), "length");
    for at in (saved + HEADER..saved + HEADER + 512).step_by(8) {
        for word in [0, 1, 1 << 63, u64::MAX] {
            refused(at, word);
        }
    }
    assert!(refused(saved + HEADER, 0).is_some());
    // A number of saves that was not reached: its half holds the previous tree.
    assert!(refused(SAVED, 3).is_none(), "the tree of before");
    let damaged = region(&good);
    damaged.write(saved + HEADER, &[255; 64]);
    let report = check(&damaged, &CheckOptions::default()).unwrap();
    assert_eq!(report.problems.len(), 1);
    let short = Region::anonymous(POOL_MIN - BLOCK).unwrap();
    assert!(matches!(format(&short, &FormatOptions::default()), Err(Error::Unformattable(_))));
    assert!(matches!(check(&short, &CheckOptions::default()), Err(Error::NotAPool(_))));
}
