//! Pools with a backing store that others change: inodes are reloaded, and names go.

use crate::backed::{BLOCK, MIB, Pool, attr, load, load_dir, load_range, remount, with_file};
use suite::content;
use vfs::{
    ABSENT, Attr, Backed as _, Caller, Errno, FileKind, FileSystem as _, Ino, LoadedObject, ROOT,
    SetAttr, Timestamp,
};

fn theirs(attr: Attr) -> LoadedObject<'static> {
    let (mtime, ctime) = (Timestamp(70), Timestamp(71));
    let attr = Attr { perm: 0o604, uid: 9, gid: 8, mtime, ctime, ..attr };
    LoadedObject { attr, identity: b"some object", stamp: 6, target: b"", xattrs: &[] }
}

fn absent(fs: &Pool, f: Ino) -> Option<std::ops::Range<u64>> {
    fs.absent_range(f, 0).unwrap()
}

#[test]
fn a_clean_file_gets_all_of_its_object_at_once() {
    let xattrs = [(b"user.a".to_vec(), vec![7; 9000]), (b"user.b".to_vec(), b"b".to_vec())];
    for (before, after) in
        [(0, 5), (5, 0), (100, 3 * BLOCK), (5 * MIB, 70), (3 * BLOCK + 1, 5 * MIB), (MIB, 1 << 40)]
    {
        let (fs, f) = with_file(32 << 20, before);
        let free = fs.statfs().blocks_free;
        load_range(&fs, f, 0..before);
        let object = LoadedObject { xattrs: &xattrs, ..theirs(attr(FileKind::File, after)) };
        assert_eq!(fs.reload(f, &object, 5), Ok(true), "{before} to {after}");
        let check = |fs: &Pool| {
            let Attr { size, perm, uid, gid, mtime, ctime, .. } = fs.getattr(f).unwrap();
            assert_eq!((size, perm, uid, gid), (after, 0o604, 9, 8));
            assert_eq!((mtime, ctime), (Timestamp(70), Timestamp(71)));
            assert_eq!(fs.getxattr(f, b"user.a").unwrap(), [7; 9000]);
            let residence = fs.residence(f).unwrap();
            assert!(residence.is_clean && !residence.is_busy && residence.stamp == 6);
            assert_eq!(absent(fs, f), (after > 0).then_some(0..after));
        };
        check(&fs);
        let fs = remount(fs);
        check(&fs);
        if after < 8 * MIB {
            load_range(&fs, f, 0..after);
            assert_eq!(content(&fs, f).len() as u64, after);
        }
        // The same state again: what may have changed unseen is dropped.
        let bare = LoadedObject { xattrs: &[], ..object.clone() };
        assert_eq!(fs.reload(f, &bare, 6), Ok(true));
        assert_eq!(fs.listxattr(f).unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(fs.statfs().blocks_free, free, "content and attributes are free");
        assert_eq!(fs.reload(f, &bare, 6), Ok(true), "nothing differs");
        remount(fs);
    }
}

#[test]
fn what_is_dirty_is_not_reloaded() {
    let (fs, f) = with_file(16 << 20, 3 * BLOCK);
    load_range(&fs, f, 0..3 * BLOCK);
    let object = theirs(attr(FileKind::File, 7));
    assert_eq!(fs.reload(f, &object, 4), Ok(false), "it has another stamp");
    fs.write(f, 9, b"ours").unwrap();
    assert_eq!(fs.reload(f, &object, 5), Ok(false));
    // Only the content is.
    let version = fs.version(f).unwrap();
    fs.clean_inode(f, version, 5).unwrap().unwrap();
    assert_eq!(fs.reload(f, &object, 5), Ok(false));
    let mut bytes = [0; 4];
    fs.read(f, 9, &mut bytes).unwrap();
    assert_eq!(&bytes, b"ours");
    let version = fs.version(f).unwrap();
    fs.clean_content(f, 0..u64::MAX, version).unwrap().unwrap();
    let other = LoadedObject { identity: b"another object", ..object.clone() };
    assert_eq!(fs.reload(f, &other, 5), Err(Errno::INVAL));
    let other = LoadedObject { attr: attr(FileKind::Fifo, 0), ..object.clone() };
    assert_eq!(fs.reload(f, &other, 5), Err(Errno::INVAL));
    assert_eq!(fs.reload(f, &object, 5), Ok(true));
    assert_eq!(fs.note_stamp(f, 6, 7), Ok(false), "it is clean");
    fs.begin_write_back(f).unwrap();
    assert_eq!(fs.note_stamp(f, 6, 7), Ok(false), "it is busy");
    remount(fs);
}

#[test]
fn links_and_kinds_are_kept() {
    let (fs, f) = with_file(16 << 20, 100);
    let more = theirs(Attr { nlink: 3, ..attr(FileKind::File, 100) });
    assert_eq!(fs.reload(f, &more, 5), Ok(true));
    assert_eq!((fs.getattr(f).unwrap().nlink, fs.residence(f).unwrap().absent_links), (3, 2));
    assert_eq!(fs.unlink(ROOT, b"f"), Err(ABSENT));
    fs.begin_names(ROOT).unwrap();
    let link = LoadedObject { target: b"target", ..theirs(attr(FileKind::Symlink, 6)) };
    let ino = fs.load_name(ROOT, b"link", &LoadedObject { stamp: 5, ..link.clone() }).unwrap();
    fs.forget(ino, 1);
    let chr = theirs(Attr { rdev: 0x103, ..attr(FileKind::Char, 0) });
    let device = fs.load_name(ROOT, b"chr", &chr).unwrap();
    fs.forget(device, 1);
    fs.finish_names(ROOT).unwrap();
    assert_eq!(fs.reload(ino, &link, 5), Ok(true));
    assert_eq!(fs.readlink(ino).unwrap(), b"target");
    assert_eq!(fs.reload(device, &chr, 0), Ok(true), "it has no stamp");
    assert_eq!(fs.getattr(device).unwrap().rdev, 0x103);
    let fs = remount(fs);
    assert_eq!(fs.readlink(ino).unwrap(), b"target");
}

/// Entries go and come while the names count as absent, and nothing else changes them.
#[test]
fn names_follow_those_below() {
    let (fs, f) = with_file(16 << 20, 3 * BLOCK);
    fs.begin_names(ROOT).unwrap();
    let d = load_dir(&fs, ROOT, "d");
    let inside = load(&fs, d, "inside", attr(FileKind::File, 9));
    fs.finish_names(d).unwrap();
    fs.finish_names(ROOT).unwrap();
    assert_eq!(fs.unload_name(d, b"inside", inside), Err(Errno::INVAL), "names do not go");
    fs.begin_names(ROOT).unwrap();
    fs.begin_names(d).unwrap();
    let names = |dir| {
        let mut names = Vec::new();
        fs.each_name(dir, &mut |name, ino, kind| names.push((name.to_vec(), ino, kind))).unwrap();
        names
    };
    let (file, dir) = (FileKind::File, FileKind::Dir);
    assert_eq!(names(ROOT), [(b"f".to_vec(), f, file), (b"d".to_vec(), d, dir)]);
    assert_eq!(fs.unlink(d, b"inside"), Err(ABSENT));
    assert_eq!(fs.lookup(d, b"other").map(drop), Err(ABSENT));
    assert_eq!(fs.unload_name(ROOT, b"d", d), Ok(false), "it has entries");
    assert_eq!(fs.unload_name(d, b"inside", f), Ok(false), "it leads elsewhere");
    fs.lookup(d, b"inside").unwrap();
    assert_eq!(fs.unload_name(d, b"inside", inside), Ok(true));
    assert_eq!(names(d), []);
    assert_eq!(fs.getattr(inside).unwrap().nlink, 0, "it is in use");
    fs.forget(inside, 1);
    assert_eq!(fs.getattr(inside).map(drop), Err(Errno::STALE));
    let set = SetAttr { perm: Some(0o711), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, d, &set).unwrap();
    assert_eq!(fs.unload_name(ROOT, b"d", d), Ok(false), "it is dirty");
    let version = fs.version(d).unwrap();
    fs.clean_inode(d, version, 7).unwrap().unwrap();
    assert_eq!(fs.unload_name(ROOT, b"d", d), Ok(true));
    load_range(&fs, f, 0..3 * BLOCK);
    fs.write(f, 5, b"ours").unwrap();
    assert_eq!(fs.unload_name(ROOT, b"f", f), Ok(false), "it is dirty");
    fs.load_link(ROOT, b"f2", f).unwrap();
    assert_eq!(fs.unload_name(ROOT, b"f", f), Ok(true), "it has another name");
    let root = theirs(attr(dir, 0));
    assert_eq!(fs.reload(ROOT, &root, 0), Err(Errno::INVAL));
    fs.finish_names(ROOT).unwrap();
    let fs = remount(fs);
    assert_eq!(fs.peek(ROOT, b"f2").unwrap().ino, f);
}
