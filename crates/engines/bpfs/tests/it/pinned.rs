//! Pools with a backing store: pins, content that is made dirty, and inodes that are replaced by
//! their objects.

use crate::backed::{BLOCK, attr, load_dir, load_range, remount, with_file};
use bpfs::Bpfs;
use pmem::Region;
use suite::content;
use vfs::{
    Backed as _, Caller, Errno, FileKind, FileSystem as _, Ino, LoadedObject, ROOT, SetAttr,
};

fn theirs(size: u64) -> LoadedObject<'static> {
    let attr = vfs::Attr { perm: 0o604, ..attr(FileKind::File, size) };
    LoadedObject { attr, identity: b"some object", stamp: 6, target: b"", xattrs: &[] }
}

fn is_pinned(fs: &Bpfs<Region>, ino: Ino) -> bool {
    fs.residence(ino).unwrap().is_pinned
}

#[test]
fn a_pin_outlives_all_but_the_inode() {
    let (fs, f) = with_file(16 << 20, 3 * BLOCK);
    fs.set_pinned(f, true).unwrap();
    let fs = remount(fs);
    assert!(is_pinned(&fs, f));
    load_range(&fs, f, 0..3 * BLOCK);
    fs.write(f, 3, b"ours").unwrap();
    fs.begin_write_back(f).unwrap();
    let version = fs.version(f).unwrap();
    let version = fs.clean_content(f, 0..u64::MAX, version).unwrap().unwrap();
    fs.clean_inode(f, version, 5).unwrap().unwrap();
    assert_eq!(fs.reload(f, &theirs(BLOCK), 5), Ok(true));
    assert!(is_pinned(&fs, f), "its object is another one, and so is all of it but the pin");
    let fs = remount(fs);
    assert!(is_pinned(&fs, f));
    fs.set_pinned(f, false).unwrap();
    assert!(!is_pinned(&fs, f));
    fs.set_pinned(f, true).unwrap();
    fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(fs.set_pinned(f, true), Err(Errno::STALE));
    let node = vfs::NewNode { kind: vfs::NewKind::File, mode: 0o600, umask: 0 };
    let new = fs.create(&Caller::ROOT, ROOT, b"new", &node).unwrap().ino;
    assert!(!is_pinned(&fs, new), "the next life of the number has no pin");
    assert!(!is_pinned(&remount(fs), new));
}

/// backed-B7.
#[test]
fn names_of_what_is_pinned_stay() {
    let (fs, f) = with_file(16 << 20, BLOCK);
    fs.begin_names(ROOT).unwrap();
    let dir = load_dir(&fs, ROOT, "dir");
    fs.finish_names(ROOT).unwrap();
    fs.set_identity(ROOT, b"the root").unwrap();
    fs.clean_inode(ROOT, fs.version(ROOT).unwrap(), 1).unwrap().unwrap();
    fs.set_pinned(f, true).unwrap();
    assert!(!fs.evict_names(ROOT).unwrap());
    assert_eq!(fs.peek(ROOT, b"dir").unwrap().ino, dir, "nothing has gone");
    let fs = remount(fs);
    assert!(!fs.evict_names(ROOT).unwrap());
    fs.set_pinned(f, false).unwrap();
    assert!(fs.evict_names(ROOT).unwrap());
}

#[test]
fn all_of_an_inode_becomes_dirty() {
    // A block, blocks under one block of pointers, and absent ones behind them.
    for (size, loaded) in [(BLOCK, BLOCK), (5 * BLOCK, 5 * BLOCK), (9 << 20, 7 * BLOCK)] {
        let (fs, f) = with_file(32 << 20, size);
        load_range(&fs, f, 0..loaded);
        let before = content_of(&fs, f, loaded);
        fs.make_dirty(f).unwrap();
        let check = |fs: &Bpfs<Region>| {
            assert!(!fs.residence(f).unwrap().is_clean);
            assert_eq!(fs.dirty_range(f, 0).unwrap(), Some(0..loaded));
            assert_eq!(fs.clean_range(f, 0).unwrap(), None);
            assert_eq!(content_of(fs, f, loaded), before);
            assert_eq!(fs.evict_content(f, 0..u64::MAX).unwrap(), 0);
        };
        check(&fs);
        check(&remount(fs));
    }
}

fn content_of(fs: &Bpfs<Region>, f: Ino, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    assert_eq!(fs.read(f, 0, &mut bytes).unwrap() as u64, len);
    bytes
}

#[test]
fn an_inode_gives_way_to_its_object() {
    let (fs, f) = with_file(16 << 20, 3 * BLOCK);
    let free = fs.statfs().blocks_free;
    load_range(&fs, f, 0..2 * BLOCK);
    fs.write(f, 9, b"ours").unwrap();
    fs.append(f, &[7; 5000]).unwrap();
    let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, f, &set).unwrap();
    fs.setxattr(f, b"user.ours", b"value", vfs::SetXattr::Any).unwrap();
    assert_eq!(fs.reload(f, &theirs(BLOCK), 5), Ok(false));
    assert_eq!(fs.replace(f, &theirs(BLOCK), 4), Ok(false), "it has another stamp");
    let dir = LoadedObject { attr: attr(FileKind::Dir, 0), ..theirs(0) };
    assert_eq!(fs.replace(f, &dir, 5), Err(Errno::ISDIR));
    assert_eq!(fs.replace(f, &theirs(BLOCK), 5), Ok(true));
    let check = |fs: &Bpfs<Region>| {
        let found = fs.getattr(f).unwrap();
        assert_eq!((found.size, found.perm), (BLOCK, 0o604));
        assert_eq!(fs.listxattr(f).unwrap(), Vec::<Vec<u8>>::new());
        let residence = fs.residence(f).unwrap();
        assert!(residence.is_clean && residence.stamp == 6);
        assert_eq!(fs.absent_range(f, 0).unwrap(), Some(0..BLOCK));
        assert_eq!(fs.statfs().blocks_free, free, "its content and its attributes are free");
    };
    check(&fs);
    let fs = remount(fs);
    check(&fs);
    load_range(&fs, f, 0..BLOCK);
    fs.write(f, 0, b"again").unwrap();
    assert_eq!(&content(&fs, f)[..5], b"again");
    fs.begin_write_back(f).unwrap();
    assert_eq!(fs.replace(f, &theirs(BLOCK), 6), Ok(false), "its stamp does not count");
}
