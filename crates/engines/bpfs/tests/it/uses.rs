//! What the server of a pool with a backing store asks before it evicts: what was used since it
//! asked before, and what is clean.

use crate::backed::{BLOCK, MIB, Pool, attr, load, load_range, remount, with_file};
use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::Region;
use vfs::{Backed as _, Caller, Errno, FileKind, FileSystem as _, Ino, ROOT, SetAttr};

/// A call that uses a file.
type Use = fn(&Pool, Ino) -> vfs::Result<()>;

const USES: [(&str, Use); 8] = [
    ("read", |fs, f| fs.read(f, 5, &mut [0; 10]).map(drop)),
    ("write a word", |fs, f| fs.write(f, 8, b"word")),
    ("write blocks", |fs, f| fs.write(f, 0, &[7; 2 * BLOCK as usize])),
    ("append", |fs, f| fs.append(f, b"more").map(drop)),
    ("truncate", |fs, f| {
        let set = SetAttr { size: Some(MIB), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, f, &set).map(drop)
    }),
    ("copy from", |fs, f| {
        let other = fs.peek(ROOT, b"other")?.ino;
        fs.copy_range((f, 0), (other, 0), 100).map(drop)
    }),
    ("copy to", |fs, f| {
        let other = fs.peek(ROOT, b"other")?.ino;
        fs.copy_range((other, 0), (f, 0), 100).map(drop)
    }),
    ("read without a copy", |fs, f| {
        let (at, len) = fs.pin_content(f, 0, 100)?;
        fs.put_read_buf();
        assert!(at.is_some() && len == 100);
        Ok(())
    }),
];

#[test]
fn each_use_is_noted_until_it_is_taken() {
    let (fs, f) = with_file(16 * MIB, MIB);
    fs.create(&Caller::ROOT, ROOT, b"other", &suite::FILE).unwrap();
    let other = fs.peek(ROOT, b"other").unwrap().ino;
    fs.write(other, 0, &[3; 200]).unwrap();
    assert!(fs.take_use(other) && !fs.take_use(f));
    load_range(&fs, f, 0..MIB);
    fs.getattr(f).unwrap();
    assert!(!fs.take_use(f), "a load is no use");
    for (name, call) in USES {
        for _ in 0..2 {
            call(&fs, f).unwrap();
            call(&fs, f).unwrap();
            assert!(fs.take_use(f), "{name}");
            assert!(!fs.take_use(f), "{name} was taken");
        }
    }
    // The server's own calls are no uses.
    let version = fs.version(f).unwrap();
    let version = fs.clean_content(f, 0..MIB, version).unwrap().unwrap();
    fs.clean_inode(f, version, 1).unwrap().unwrap();
    fs.evict_content(f, 0..MIB).unwrap();
    fs.begin_write_back(f).unwrap();
    assert!(!fs.take_use(f));
    assert!(!fs.take_use(Ino(0)) && !fs.take_use(Ino(u64::MAX)));
    // A use is not in PM, and belongs to one life.
    fs.write(other, 0, b"x").unwrap();
    let fs = remount(fs);
    assert!(!fs.take_use(other));
    fs.write(other, 0, b"x").unwrap();
    fs.forget(other, 9);
    fs.unlink(ROOT, b"other").unwrap();
    assert!(!fs.take_use(other), "it is gone");
    let again = fs.create(&Caller::ROOT, ROOT, b"again", &suite::FILE).unwrap().ino;
    assert!(again != other || !fs.take_use(again));
}

#[test]
fn a_pool_without_a_backing_store_notes_no_use() {
    let region = Region::anonymous(16 * MIB).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    let f = fs.create(&Caller::ROOT, ROOT, b"f", &suite::FILE).unwrap().ino;
    fs.create(&Caller::ROOT, ROOT, b"other", &suite::FILE).unwrap();
    fs.write(f, 0, &[1; MIB as usize]).unwrap();
    for (name, call) in USES {
        // There is nothing in the other file yet.
        let _ = call(&fs, f);
        assert!(!fs.take_use(f), "{name}");
    }
    assert_eq!(fs.clean_range(f, 0), Err(Errno::OPNOTSUPP));
}

#[test]
fn clean_ranges_are_those_neither_absent_nor_dirty_nor_holes() {
    let (fs, f) = with_file(16 * MIB, 4 * MIB + 10);
    assert_eq!(fs.clean_range(f, 0), Ok(None));
    load_range(&fs, f, 0..64 * BLOCK);
    load_range(&fs, f, 4 * MIB..4 * MIB + 10);
    fs.write(f, 3 * BLOCK + 7, b"dirty").unwrap();
    fs.load_hole(f, 64 * BLOCK..80 * BLOCK).unwrap();
    let mut found = Vec::new();
    while let Some(range) =
        fs.clean_range(f, found.last().map_or(0, |r: &std::ops::Range<u64>| r.end)).unwrap()
    {
        found.push(range.start..range.end.next_multiple_of(BLOCK));
    }
    let end = 4 * MIB;
    assert_eq!(found, [0..3 * BLOCK, 4 * BLOCK..64 * BLOCK, end..end + BLOCK]);
    assert_eq!(fs.clean_range(ROOT, 0), Err(Errno::ISDIR));
}

#[test]
fn a_directory_with_references_keeps_its_names() {
    let (fs, _) = with_file(16 * MIB, 10);
    let dir = load_dir_with_a_file(&fs);
    let held = fs.lookup(ROOT, b"dir").unwrap().ino;
    assert_eq!(held, dir);
    assert_eq!(fs.evict_names(dir), Ok(false));
    fs.forget(held, 1);
    assert_eq!(fs.evict_names(dir), Ok(true));
    remount(fs);
}

/// Loads a directory into the root, whose names are there.
fn load_dir_with_a_file(fs: &Pool) -> Ino {
    let sub = fs.create(&Caller::ROOT, ROOT, b"dir", &suite::DIR).unwrap().ino;
    fs.forget(sub, 1);
    fs.set_identity(sub, b"a directory").unwrap();
    let version = fs.version(sub).unwrap();
    fs.clean_inode(sub, version, 1).unwrap().unwrap();
    // Evicted, so that names can be loaded.
    assert_eq!(fs.evict_names(sub), Ok(true));
    load(fs, sub, "file", attr(FileKind::File, 10));
    fs.finish_names(sub).unwrap();
    sub
}
