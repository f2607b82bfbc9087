//! What a directory of the kernel's promises beside the contract: identities, owners, durability, descriptors.

mod common;

use backing::{Backing as _, DirFs, Options};
use common::{Disk, KINDS, descriptors, directory, file, node, open, open_without_handles};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use vfs::acl::ACL_DEFAULT;
use vfs::{Caller, Errno, FileKind, FileSystem as _, NewKind, NewNode, ROOT, RenameFlags};
use vfs::{SetAttr, SetTime, SetXattr, Timestamp};

const USER: Caller = Caller { uid: 1000, gid: 100 };
/// `CAP_NET_RAW`, permitted and effective, as the kernel stores it (`vfs_cap_data`).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Both ways to hold inodes.
fn both_ways(dir: &Path, test: impl Fn(&dyn Fn() -> DirFs)) {
    test(&|| open(dir));
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }
    test(&|| open_without_handles(dir));
}

#[test]
fn an_identity_stays_whatever_the_names() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        both_ways(&path, |open| {
            let fs = open();
            let (a, d) = (file(&fs, ROOT, b"a"), directory(&fs, ROOT, b"d"));
            let identity = fs.identity(a).unwrap();
            assert!(identity.0.len() <= backing::Identity::LEN_MAX);
            assert_ne!(identity, fs.identity(d).unwrap());
            fs.rename((ROOT, b"a"), (d, b"b"), RenameFlags::empty()).unwrap();
            assert_eq!(fs.path(a).unwrap(), b"d/b");
            assert_eq!(fs.lookup(d, b"b").unwrap().ino, a);
            fs.link(a, ROOT, b"c").unwrap();
            fs.unlink(d, b"b").unwrap();
            assert_eq!(fs.identity(a).unwrap(), identity);
            assert_eq!(fs.find(&identity, b"").unwrap().ino, a, "while it is known");
            let dir_identity = fs.identity(d).unwrap();
            drop(fs);

            // After a restart, with a hint that is right, wrong, and none.
            fs::write(path.join("wrong"), b"").unwrap();
            for hint in [b"c".as_slice(), b"wrong", b"d/b", b"wrong/x", b"", b"../x"] {
                let fs = open();
                let found = fs.find(&identity, hint).unwrap();
                assert_eq!(found.ino, fs.lookup(ROOT, b"c").unwrap().ino, "on {kind}");
                assert_eq!(found.nlink, 1);
                assert_eq!(fs.find(&dir_identity, hint).unwrap().kind, FileKind::Dir);
                let root = fs.identity(ROOT).unwrap();
                assert_eq!(fs.find(&root, hint).unwrap().ino, ROOT);
            }
        });
    }
}

#[test]
fn a_new_life_of_a_number_is_another_identity() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        both_ways(&path, |open| {
            let fs = open();
            let (mut numbers, mut identities) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                let ino = file(&fs, ROOT, b"a");
                numbers.push(fs::metadata(path.join("a")).unwrap().ino());
                identities.push(fs.identity(ino).unwrap());
                fs.unlink(ROOT, b"a").unwrap();
                fs.forget(ino, 1);
            }
            numbers.sort_unstable();
            numbers.dedup();
            if kind == "ext4" {
                assert!(numbers.len() < 40, "no number was used again");
            }
            let last = identities[39].clone();
            identities.sort_unstable();
            identities.dedup();
            assert_eq!(identities.len(), 40, "on {kind}");
            assert_eq!(fs.find(&last, b"a"), Err(Errno::STALE));
            file(&fs, ROOT, b"a");
            assert_eq!(fs.find(&last, b"a"), Err(Errno::STALE), "on {kind}");
        });
    }
}

/// A number is not taken for the file that others made while we mean the one that they removed.
#[test]
fn what_others_replace_is_another_inode() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let old = file(&fs, ROOT, b"a");
    fs.write(old, 0, b"old").unwrap();
    // Only handles hold it now.
    drop(fs);
    let fs = DirFs::open(&path, Options { inodes_open: 1, contents_open: 1, opens_handles: true })
        .unwrap();
    let old = fs.lookup(ROOT, b"a").unwrap();
    file(&fs, ROOT, b"other");
    let mut is_reused = false;
    for _ in 0..200 {
        fs::remove_file(path.join("a")).unwrap();
        fs::write(path.join("a"), b"new").unwrap();
        if fs::metadata(path.join("a")).unwrap().ino() == old.ino.0 {
            is_reused = true;
            break;
        }
    }
    assert!(is_reused, "the number was not used again");
    let new = fs.lookup(ROOT, b"a").unwrap();
    assert_ne!(new.ino, old.ino);
    assert_eq!(fs.getattr(old.ino), Err(Errno::STALE));
    assert_eq!(fs.getattr(new.ino).unwrap().size, 3);
}

#[test]
fn an_error_is_not_absence() {
    let disk = Disk::new("tmpfs");
    let path = disk.dir("d");
    let fs = open(&path);
    assert_eq!(fs.find(&backing::Identity(vec![7; 200]), b""), Err(Errno::INVAL));
    let ino = file(&fs, ROOT, b"a");
    let identity = fs.identity(ino).unwrap();
    drop(fs);
    let fs = open_without_handles(&path);
    // No descriptor is left to look with.
    let was = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let none = rustix::process::Rlimit { current: Some(3), maximum: was.maximum };
    let out = in_child(|| {
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        fs.find(&identity, b"b") == Err(Errno::MFILE)
    });
    assert!(out);
    assert_eq!(fs.find(&identity, b"b").unwrap().nlink, 1);
}

/// What `test` says on a thread that has descriptors of its own.
fn in_child(test: impl FnOnce() -> bool + Send) -> bool {
    std::thread::scope(|scope| scope.spawn(test).join().unwrap())
}
