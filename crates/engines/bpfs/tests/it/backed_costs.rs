//! Costs of loads, marks and evictions in a pool with a backing store.

use crate::backed::{BLOCK, MIB, Pool, attr, load, load_dir, load_range};
use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::Medium as _;
use suite::FILE;
use vfs::{
    Attr, Backed as _, Caller, FileKind, FileSystem as _, Ino, LoadedObject, ROOT, Timestamp,
};

/// Returns the bytes by non-temporal stores, the flushed lines, and the fences of a call.
fn cost<T>(fs: &Pool, call: impl FnOnce() -> T) -> (u64, u64, u64) {
    let before = fs.medium().counters().snapshot();
    call();
    let d = fs.medium().counters().snapshot() - before;
    (d.nt_bytes, d.lines_flushed, d.fences)
}

#[test]
fn costs() {
    let region = suite::flushed(true).anonymous(16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions { is_backed: true, ..FormatOptions::default() }).unwrap();
    let clock = || Timestamp(1);
    let fs = Bpfs::mount(region, &MountOptions { clock, ..MountOptions::default() }).unwrap();
    load_dir(&fs, ROOT, "first");
    let mut loaded = None;
    let file = attr(FileKind::File, 2 * MIB);
    assert_eq!(cost(&fs, || loaded = Some(load(&fs, ROOT, "f", file))), (0, 3, 1), "a name");
    let f = loaded.unwrap();
    let link = || fs.load_link(ROOT, b"link", f).unwrap();
    assert_eq!(cost(&fs, link), (0, 2, 1), "a link");
    assert_eq!(cost(&fs, || fs.finish_names(ROOT).unwrap()), (0, 1, 1), "the end of names");
    let block = || load_range(&fs, f, 0..BLOCK);
    assert_eq!(cost(&fs, block), (2 * BLOCK, 1, 3), "a block, and the pointer block");
    let many = || load_range(&fs, f, 64 * BLOCK..128 * BLOCK);
    assert_eq!(cost(&fs, many), (64 * BLOCK, 0, 1), "64 blocks");
    let overwrite = || fs.write(f, 8, &[1; 8]).unwrap();
    assert_eq!(cost(&fs, overwrite), (0, 4, 3), "the first store to an inode that is clean");
    assert_eq!(cost(&fs, overwrite), (0, 1, 1), "as in a pool without a backing store");
    let overwrite = || fs.write(f, 64 * BLOCK, &[1; 8]).unwrap();
    assert_eq!(cost(&fs, overwrite), (0, 2, 2), "the first store to a block that is clean");
    let overwrite = || fs.write(f, 65 * BLOCK, &[1; 4096]).unwrap();
    assert_eq!(cost(&fs, overwrite), (4096, 1, 2), "a block that is clean, by copy-on-write");
    let version = fs.version(f).unwrap();
    let mark = || fs.clean_content(f, 0..2 * MIB, version).unwrap().unwrap();
    assert_eq!(cost(&fs, mark), (0, 9, 1), "marking content clean");
    assert_eq!(cost(&fs, || fs.begin_write_back(f).unwrap()), (0, 1, 1), "before a write-back");
    let new = fs.create(&Caller::ROOT, ROOT, b"new", &FILE).unwrap().ino;
    let identity = || fs.set_identity(new, b"another object").unwrap();
    assert_eq!(cost(&fs, identity), (0, 2, 1), "an identity");
    let version = fs.version(f).unwrap();
    let mark = || fs.clean_inode(f, version, 9).unwrap().unwrap();
    assert_eq!(cost(&fs, mark), (0, 1, 1), "marking an inode clean");
    let evict = |range| cost(&fs, || fs.evict_content(f, range).unwrap());
    assert_eq!(evict(64 * BLOCK..96 * BLOCK), (0, 4, 1), "eviction of 32 blocks");
    assert_eq!(evict(0..2 * MIB), (0, 1, 1), "eviction of the rest");
    load_range(&fs, f, 0..BLOCK);
    let theirs = LoadedObject {
        attr: Attr { mtime: Timestamp(9), ctime: Timestamp(9), ..attr(FileKind::File, MIB) },
        identity: b"some object",
        stamp: 10,
        target: b"",
        xattrs: &[],
    };
    // Two lines of a record, and one that clears it.
    let reload = || assert!(fs.reload(f, &theirs, 9).unwrap());
    assert_eq!(cost(&fs, reload), (192, 2, 4), "the object of a clean inode was changed");
    let dir = load_again(&fs);
    assert_eq!(cost(&fs, || fs.begin_names(dir).unwrap()), (0, 1, 0), "entries may go");
    let gone = fs.peek(dir, b"gone").unwrap().ino;
    let unload = || assert!(fs.unload_name(dir, b"gone", gone).unwrap());
    assert_eq!(cost(&fs, unload), (0, 1, 1), "a name that is gone below");
    fs.finish_names(dir).unwrap();
    fs.create(&Caller::ROOT, dir, b"new", &FILE).unwrap();
    let note = || assert!(fs.note_stamp(dir, 5, 11).unwrap());
    assert_eq!(cost(&fs, note), (0, 1, 1), "the stamp of a dirty inode");
}

/// Loads a directory with a name.
fn load_again(fs: &Pool) -> Ino {
    fs.begin_names(ROOT).unwrap();
    let dir = load_dir(fs, ROOT, "dir");
    fs.finish_names(ROOT).unwrap();
    load(fs, dir, "gone", attr(FileKind::File, 0));
    fs.finish_names(dir).unwrap();
    dir
}
