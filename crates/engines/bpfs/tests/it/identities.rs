//! Identities of inodes in the backing store.

use crate::backed::{BLOCK, load_range, remount, with_file};
use bpfs::Bpfs;
use pmem::Region;
use suite::FILE;
use vfs::{Backed as _, Caller, Errno, FileSystem as _, ROOT};

#[test]
fn an_identity_changes_only_without_marks() {
    let (fs, f) = with_file(16 << 20, 2 * BLOCK);
    let set = |identity: &[u8]| fs.set_identity(f, identity);
    assert_eq!((set(b""), set(&[1; 40])), (Err(Errno::INVAL), Err(Errno::INVAL)));
    assert_eq!(set(b"some object"), Ok(()), "it has this one");
    assert_eq!(set(b"another object"), Err(Errno::BUSY), "all is absent");
    load_range(&fs, f, 0..2 * BLOCK);
    fs.write(f, 0, &[1; 4096]).unwrap();
    assert_eq!(set(b"another object"), Err(Errno::BUSY), "a block is clean");
    fs.write(f, BLOCK, &[1; 4096]).unwrap();
    assert_eq!(set(b"another object"), Ok(()));
    let new = fs.create(&Caller::ROOT, ROOT, b"new", &FILE).unwrap().ino;
    let version = fs.version(new).unwrap();
    assert_eq!(fs.clean_inode(new, version, 9), Err(Errno::INVAL), "it has no object");
    assert_eq!(fs.clean_content(new, 0..BLOCK, version), Err(Errno::INVAL));
    fs.set_identity(new, &[7; 39]).unwrap();
    let seen = |fs: &Bpfs<Region>| {
        let mut seen = vec![];
        fs.each_inode(&mut |ino, has| seen.push((ino, has.identity.clone()))).unwrap();
        seen
    };
    let all = seen(&fs);
    assert_eq!(all[1..], [(f, b"another object".to_vec()), (new, vec![7; 39])]);
    fs.forget(new, 1);
    assert_eq!(seen(&remount(fs)), all);
}

#[test]
fn a_stamp_counts_until_write_back_begins() {
    let (fs, f) = with_file(16 << 20, 2 * BLOCK);
    let state = |fs: &Bpfs<Region>| {
        let residence = fs.residence(f).unwrap();
        (residence.is_clean, residence.is_busy, residence.stamp)
    };
    assert_eq!((state(&fs), fs.getattr(f).unwrap().rdev), ((true, false, 5), 0));
    load_range(&fs, f, 0..2 * BLOCK);
    fs.write(f, 0, b"x").unwrap();
    assert_eq!(state(&fs), (false, false, 5));
    fs.begin_write_back(f).unwrap();
    assert_eq!(state(&fs), (false, true, 5));
    let fs = remount(fs);
    assert_eq!(state(&fs), (false, true, 5));
    let version = fs.version(f).unwrap();
    let version = fs.clean_content(f, 0..u64::MAX, version).unwrap().unwrap();
    fs.clean_inode(f, version, 6).unwrap().unwrap();
    assert_eq!(state(&fs), (true, false, 6));
    fs.begin_write_back(f).unwrap();
    assert_eq!(state(&fs), (false, true, 6), "it may differ from now on");
    fs.write(f, 0, &[1; 2 * BLOCK as usize]).unwrap();
    fs.set_identity(f, b"another object").unwrap();
    assert_eq!(state(&remount(fs)), (false, true, 6));
}
