//! Pools with a backing store: names and content that are loaded, marked clean, and evicted.

use bpfs::{Bpfs, CheckOptions, FormatOptions, MountOptions};
use pmem::{Medium as _, Region};
use std::iter::once;
use std::ops::Range;
use suite::{DIR, FILE, content, resize};
use vfs::conformance::count_dirty;
use vfs::{
    ABSENT, Attr, Backed as _, Caller, Errno, Fallocate, FileKind, FileSystem as _, Ino,
    LoadedObject, ROOT, RenameFlags, Seek, SetAttr, SetXattr, Timestamp,
};

pub type Pool = Bpfs<Region>;

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;

fn format(bytes: u64, is_backed: bool) -> Region {
    let region = Region::anonymous(bytes).unwrap();
    bpfs::format(&region, &FormatOptions { is_backed, ..FormatOptions::default() }).unwrap();
    region
}

fn mount(region: Region) -> Pool {
    Bpfs::mount(region, &MountOptions::default()).unwrap()
}

/// A pool whose root has its names.
pub fn pool(bytes: u64) -> Pool {
    let fs = mount(format(bytes, true));
    fs.finish_names(ROOT).unwrap();
    fs
}

/// Checks the pool and mounts it again; the space that is free stays the same, and so does what is
/// dirty.
pub fn remount(fs: Pool) -> Pool {
    let free = fs.statfs().blocks_free;
    let dirty = fs.dirty_count();
    assert_eq!(dirty, count_dirty(&fs).unwrap());
    let region = fs.into_medium();
    let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    assert_eq!(report.stale_words, 0);
    let fs = mount(region);
    assert_eq!(fs.statfs().blocks_free, free, "what was free is free after a scan");
    assert_eq!(fs.dirty_count(), dirty, "after a scan");
    fs
}

pub fn attr(kind: FileKind, size: u64) -> Attr {
    let time = Timestamp(7);
    let (perm, nlink) = (0o640, if kind == FileKind::Dir { 2 } else { 1 });
    let times = Attr { atime: time, mtime: time, ctime: time, btime: time, ..Attr::NONE };
    Attr { kind, perm, nlink, size, uid: 3, gid: 4, ..times }
}

fn object(attr: Attr) -> LoadedObject<'static> {
    LoadedObject { attr, identity: b"some object", stamp: 5, target: b"", xattrs: &[] }
}

/// Loads a name, and gives back its reference.
pub fn load(fs: &Pool, dir: Ino, name: &str, attr: Attr) -> Ino {
    let ino = fs.load_name(dir, name.as_bytes(), &object(attr)).unwrap();
    fs.forget(ino, 1);
    ino
}

pub fn load_dir(fs: &Pool, dir: Ino, name: &str) -> Ino {
    load(fs, dir, name, attr(FileKind::Dir, 0))
}

/// Returns the bytes that the backing store has.
fn below(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at / 8 * 31 + at % 8 + 1) as u8).collect()
}

/// Loads a file of this size with absent content, in the root directory of a new pool.
pub fn with_file(bytes: u64, size: u64) -> (Pool, Ino) {
    let fs = mount(format(bytes, true));
    let f = load(&fs, ROOT, "f", attr(FileKind::File, size));
    fs.finish_names(ROOT).unwrap();
    (fs, f)
}

pub fn load_range(fs: &Pool, f: Ino, range: Range<u64>) -> u64 {
    fs.load_content(f, range.start, &below(range)).unwrap()
}

fn read(fs: &Pool, f: Ino, range: Range<u64>) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let n = fs.read(f, range.start, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

fn absent(fs: &Pool, f: Ino) -> Vec<Range<u64>> {
    ranges(|from| fs.absent_range(f, from))
}

fn dirty(fs: &Pool, f: Ino) -> Vec<Range<u64>> {
    ranges(|from| fs.dirty_range(f, from))
}

fn ranges(find: impl Fn(u64) -> vfs::Result<Option<Range<u64>>>) -> Vec<Range<u64>> {
    let mut from = 0;
    std::iter::from_fn(|| {
        let found = find(from).unwrap()?;
        from = found.end.next_multiple_of(BLOCK);
        Some(found)
    })
    .collect()
}

/// Marks everything of a file clean.
pub fn clean(fs: &Pool, f: Ino) {
    let version = fs.version(f).unwrap();
    let version = fs.clean_content(f, 0..u64::MAX, version).unwrap().expect("it did not change");
    fs.clean_inode(f, version, 9).unwrap().expect("it did not change");
    assert_eq!(fs.version(f), Some(version + 2));
}

pub fn clean_root(fs: &Pool) {
    fs.set_identity(ROOT, b"the root").unwrap();
    let version = fs.version(ROOT).unwrap();
    fs.clean_inode(ROOT, version, 9).unwrap().unwrap();
}

fn is_clean(fs: &Pool, ino: Ino) -> bool {
    fs.residence(ino).unwrap().is_clean
}

/// One byte short of a block, blocks at heights 0, 1 and 2, with and without a ragged end.
const SIZES: [u64; 7] =
    [1, 4095, BLOCK, 3 * BLOCK + 100, 2 * MIB, 2 * MIB + BLOCK + 1, 5 * MIB - 7];

#[test]
fn content_of_each_height_is_loaded_and_evicted() {
    for size in SIZES {
        let (fs, f) = with_file(32 << 20, size);
        let idle = fs.statfs().blocks_free;
        assert_eq!(absent(&fs, f), std::slice::from_ref(&(0..size)), "{size}");
        assert_eq!(read(&fs, f, 0..1), Err(ABSENT));
        assert!(is_clean(&fs, f));
        let fs = remount(fs);
        assert_eq!(load_range(&fs, f, 0..size), size);
        assert_eq!(load_range(&fs, f, 0..size), 0, "nothing is absent any more");
        assert_eq!((absent(&fs, f), dirty(&fs, f)), (vec![], vec![]));
        assert_eq!(content(&fs, f), below(0..size));
        let fs = remount(fs);
        assert_eq!(content(&fs, f), below(0..size));
        assert_eq!((absent(&fs, f), dirty(&fs, f)), (vec![], vec![]));
        assert!(is_clean(&fs, f));
        assert!(fs.evict_content(f, 0..size).unwrap() >= size);
        assert_eq!(fs.statfs().blocks_free, idle, "pointer blocks are free, too");
        assert_eq!(read(&fs, f, 0..size), Err(ABSENT));
        let fs = remount(fs);
        assert_eq!(absent(&fs, f), std::slice::from_ref(&(0..size)));
        let blocks = size.div_ceil(BLOCK) * (BLOCK / 512);
        assert_eq!(fs.getattr(f).unwrap().blocks, blocks, "those of its object");
    }
}

#[test]
fn ranges_are_loaded_and_evicted() {
    let size = 5 * MIB;
    let (fs, f) = with_file(32 << 20, size);
    let middle = 2 * MIB - 2 * BLOCK..2 * MIB + BLOCK;
    assert_eq!(load_range(&fs, f, middle.clone()), 3 * BLOCK);
    assert_eq!(read(&fs, f, middle.clone()).unwrap(), below(middle.clone()));
    assert_eq!(read(&fs, f, middle.start - 1..middle.end), Err(ABSENT));
    assert_eq!(read(&fs, f, middle.start..middle.end + 1), Err(ABSENT));
    assert_eq!(absent(&fs, f), [0..middle.start, middle.end..size]);
    let fs = remount(fs);
    // A range inside one that is loaded, and one across it.
    assert_eq!(load_range(&fs, f, 2 * MIB..2 * MIB + BLOCK), 0);
    assert_eq!(load_range(&fs, f, 2 * MIB - 4 * BLOCK..2 * MIB + 4 * BLOCK), 5 * BLOCK);
    // Part of a block counts only at the end of the file.
    let last = size - BLOCK..size;
    assert_eq!(fs.load_content(f, last.start, &below(last.start..size - 1)), Ok(0));
    assert_eq!(load_range(&fs, f, last.clone()), BLOCK);
    assert_eq!(fs.load_content(f, 7, &[1; 4096]), Err(Errno::INVAL));
    assert_eq!(fs.load_content(f, size + BLOCK, &[1; 4096]), Ok(0));
    let fs = remount(fs);
    assert_eq!(read(&fs, f, last.clone()).unwrap(), below(last));
    // Only whole blocks are evicted, and only those that are in the range.
    assert_eq!(fs.evict_content(f, 2 * MIB + 1..2 * MIB + 3 * BLOCK - 1), Ok(BLOCK));
    let at = 2 * MIB + BLOCK;
    assert_eq!(read(&fs, f, at..at + 1), Err(ABSENT));
    assert_eq!(read(&fs, f, 2 * MIB..at).unwrap(), below(2 * MIB..at));
    // The pointer block of the first 2 MiB becomes free with the last block under it.
    assert_eq!(fs.evict_content(f, 0..2 * MIB), Ok(5 * BLOCK));
    assert_eq!(fs.evict_content(f, 0..size), Ok(4 * BLOCK + 3 * BLOCK));
    remount(fs);
}

#[test]
fn reads_cross_what_is_loaded_and_holes() {
    let (fs, f) = with_file(16 << 20, 3 * BLOCK);
    load_range(&fs, f, 0..3 * BLOCK);
    fs.fallocate(f, Fallocate::PunchHole, BLOCK, BLOCK).unwrap();
    let mut want = below(0..3 * BLOCK);
    want[4096..8192].fill(0);
    assert_eq!(content(&fs, f), want);
    assert_eq!((absent(&fs, f), dirty(&fs, f)), (vec![], vec![]));
    // A hole is not absent, so the tree cannot be absent as a whole.
    assert_eq!(fs.evict_content(f, 0..3 * BLOCK), Ok(2 * BLOCK));
    assert_eq!(absent(&fs, f), [0..BLOCK, 2 * BLOCK..3 * BLOCK]);
    let fs = remount(fs);
    assert_eq!(read(&fs, f, BLOCK..2 * BLOCK).unwrap(), vec![0; 4096]);
    assert_eq!(load_range(&fs, f, 0..3 * BLOCK), 2 * BLOCK);
    assert_eq!(content(&fs, f), want);
}

#[test]
fn holes_are_loaded_without_blocks() {
    for (size, holes) in [
        (5 * MIB, once(0..5 * MIB).collect()),
        (5 * MIB, vec![0..2 * MIB, 3 * MIB..5 * MIB]),
        (5 * MIB - 9, vec![BLOCK..2 * MIB + BLOCK, 4 * MIB..5 * MIB - 9]),
        (100, once(0..100).collect()),
        (1 << 40, vec![0..1 << 39, (1 << 39) + BLOCK..1 << 40]),
    ] as [(u64, Vec<Range<u64>>); 5]
    {
        let (fs, f) = with_file(16 << 20, size);
        for hole in &holes {
            fs.load_hole(f, hole.clone()).unwrap();
            assert_eq!(read(&fs, f, hole.start..hole.start + 8).unwrap(), [0; 8]);
        }
        let fs = remount(fs);
        let (mut at, mut between) = (0, vec![]);
        for hole in holes.iter().chain(once(&(size..size))) {
            between.extend((at < hole.start).then_some(at..hole.start));
            at = hole.end;
        }
        assert_eq!(absent(&fs, f), between);
        assert!(is_clean(&fs, f) && dirty(&fs, f).is_empty());
        for range in between.into_iter().filter(|range| range.end - range.start < 8 * MIB) {
            load_range(&fs, f, range.clone());
            assert_eq!(read(&fs, f, range.clone()).unwrap(), below(range));
        }
        assert_eq!(absent(&fs, f), []);
        fs.load_hole(f, 0..size).unwrap();
        assert_eq!(read(&fs, f, size - 1..size + 1).unwrap(), [0; 1]);
        let fs = remount(fs);
        assert!(fs.getattr(f).unwrap().blocks < 2000 * 8);
    }
}

/// A call that needs absent content changes nothing, and afterwards what it should.
#[test]
fn changes_need_their_content_and_take_marks_off() {
    type Change = fn(&Pool, Ino) -> vfs::Result<()>;
    let size = 8 * BLOCK + 100;
    let at = 2 * BLOCK;
    // Each with the range that it needs, and the range that is dirty after it.
    let changes: [(&str, Change, Range<u64>, Range<u64>); 16] = [
        ("word", |fs, f| fs.write(f, 2 * BLOCK + 8, &[0xee; 8]), at..at + BLOCK, at..at + BLOCK),
        ("byte", |fs, f| fs.write(f, 2 * BLOCK + 9, &[0xee]), at..at + BLOCK, at..at + BLOCK),
        ("line", |fs, f| fs.write(f, 2 * BLOCK + 64, &[0xee; 60]), at..at + BLOCK, at..at + BLOCK),
        (
            "record",
            |fs, f| fs.write(f, 2 * BLOCK + 9, &[0xee; 900]),
            at..at + BLOCK,
            at..at + BLOCK,
        ),
        ("leaf", |fs, f| fs.write(f, 2 * BLOCK + 9, &[0xee; 3000]), at..at + BLOCK, at..at + BLOCK),
        ("block", |fs, f| fs.write(f, 2 * BLOCK, &[0xee; 4096]), at..at + BLOCK, at..at + BLOCK),
        (
            "blocks",
            |fs, f| fs.write(f, 2 * BLOCK, &[0xee; 12288]),
            at..at + 3 * BLOCK,
            at..at + 3 * BLOCK,
        ),
        (
            "ragged blocks",
            |fs, f| fs.write(f, 2 * BLOCK + 9, &[0xee; 8192]),
            at..at + 3 * BLOCK,
            at..at + 3 * BLOCK,
        ),
        (
            "append",
            |fs, f| fs.append(f, &[0xee; 50]).map(drop),
            8 * BLOCK..size,
            8 * BLOCK..size + 50,
        ),
        (
            "append blocks",
            |fs, f| fs.append(f, &[0xee; 9000]).map(drop),
            8 * BLOCK..size,
            8 * BLOCK..size + 9000,
        ),
        (
            "write far behind",
            |fs, f| fs.write(f, 12 * BLOCK, &[0xee; 4096]),
            8 * BLOCK..size,
            8 * BLOCK..13 * BLOCK,
        ),
        (
            "write across",
            |fs, f| fs.write(f, 7 * BLOCK, &[0xee; 8192]),
            7 * BLOCK..size,
            7 * BLOCK..9 * BLOCK,
        ),
        (
            "zero",
            |fs, f| fs.fallocate(f, Fallocate::ZeroRange { keep_size: true }, 2 * BLOCK + 1, 4096),
            at..at + 2 * BLOCK,
            at..at + 2 * BLOCK,
        ),
        (
            "cut",
            |fs, f| {
                let set = SetAttr { size: Some(2 * BLOCK + 5), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, f, &set).map(drop)
            },
            at..at + BLOCK,
            at..at + 5,
        ),
        (
            "grow",
            |fs, f| {
                let set = SetAttr { size: Some(20 * BLOCK), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, f, &set).map(drop)
            },
            8 * BLOCK..size,
            8 * BLOCK..9 * BLOCK,
        ),
        (
            "copy",
            |fs, f| fs.copy_range((f, 0), (f, 2 * BLOCK), 4096).map(drop),
            0..3 * BLOCK,
            at..at + BLOCK,
        ),
    ];
    for (name, change, needed, becomes_dirty) in changes {
        let (fs, f) = with_file(16 << 20, size);
        let plain = fs.create(&Caller::ROOT, ROOT, b"plain", &FILE).unwrap().ino;
        fs.write(plain, 0, &below(0..size)).unwrap();
        change(&fs, plain).unwrap();
        // All of the file is absent, or all but what is needed, or but a block of it.
        let outside = [0..needed.start, needed.end..size];
        for loaded in [&[][..], &outside[..]] {
            for range in loaded.iter().filter(|range| !range.is_empty()) {
                load_range(&fs, f, range.clone());
            }
            let before = (fs.getattr(f).unwrap(), fs.residence(f).unwrap(), absent(&fs, f));
            assert_eq!(change(&fs, f), Err(ABSENT), "{name}");
            let after = (fs.getattr(f).unwrap(), fs.residence(f).unwrap(), absent(&fs, f));
            assert_eq!(before, after, "{name} changed something");
        }
        for range in outside.into_iter().filter(|range| !range.is_empty()) {
            fs.evict_content(f, range).unwrap();
        }
        load_range(&fs, f, needed.start - needed.start % BLOCK..needed.end);
        assert!(is_clean(&fs, f) && dirty(&fs, f).is_empty());
        change(&fs, f).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!is_clean(&fs, f), "{name}");
        // A hole behind the old end is not dirty.
        let found = dirty(&fs, f);
        assert_eq!(found.first().map(|range| range.start), Some(becomes_dirty.start), "{name}");
        assert!(found.last().unwrap().end <= becomes_dirty.end, "{name}: {found:?}");
        let fs = remount(fs);
        assert_eq!(dirty(&fs, f), found, "{name}");
        assert!(!is_clean(&fs, f), "{name}");
        for range in absent(&fs, f) {
            load_range(&fs, f, range);
        }
        assert_eq!(content(&fs, f), content(&fs, plain), "{name}");
        // Dirty blocks stay.
        fs.evict_content(f, 0..u64::MAX).unwrap();
        assert_eq!(dirty(&fs, f), found, "{name}");
        clean(&fs, f);
        assert_eq!(dirty(&fs, f), [], "{name}");
        let fs = remount(fs);
        assert_eq!(dirty(&fs, f), [], "{name}");
        assert!(is_clean(&fs, f));
    }
}

#[test]
fn truncating_to_nothing_needs_no_content() {
    for size in SIZES {
        for loaded in [0, size.min(BLOCK), size] {
            let (fs, f) = with_file(32 << 20, size);
            let idle = fs.statfs().blocks_free;
            load_range(&fs, f, 0..loaded);
            resize(&fs, f, 0);
            assert_eq!(fs.statfs().blocks_free, idle);
            assert_eq!(absent(&fs, f), []);
            let fs = remount(fs);
            resize(&fs, f, size);
            assert_eq!(absent(&fs, f), []);
            assert_eq!(content(&fs, f), vec![0; size as usize]);
        }
    }
}

/// Sizes at which an absent subtree would reach across the new end.
#[test]
fn an_end_moves_only_where_the_tree_is_present() {
    let size = 5 * MIB;
    for end in [3 * MIB, 2 * MIB, 2 * MIB + 8 * BLOCK, MIB + 1] {
        let (fs, f) = with_file(32 << 20, size);
        let set = SetAttr { size: Some(end), ..SetAttr::default() };
        assert_eq!(fs.setattr(&Caller::ROOT, f, &set), Err(ABSENT));
        let last = end - 1 - (end - 1) % BLOCK;
        load_range(&fs, f, last..last + BLOCK);
        fs.setattr(&Caller::ROOT, f, &set).unwrap();
        let fs = remount(fs);
        assert_eq!(absent(&fs, f), std::slice::from_ref(&(0..last)));
        resize(&fs, f, size);
        fs.write(f, 4 * MIB, b"more").unwrap();
        let fs = remount(fs);
        assert_eq!(absent(&fs, f), std::slice::from_ref(&(0..last)));
        load_range(&fs, f, 0..last);
        let mut want = below(0..end);
        want.resize(size as usize, 0);
        want[4 << 20..][..4].copy_from_slice(b"more");
        assert_eq!(content(&fs, f), want);
        fs.unlink(ROOT, b"f").unwrap();
        remount(fs);
    }
    // The last pointer block covers more than the file.
    let (fs, f) = with_file(32 << 20, 3 * MIB);
    assert_eq!(fs.append(f, &[1; 4096]), Err(ABSENT));
    assert_eq!(fs.write(f, 7 * MIB, &[1; 4096]), Err(ABSENT));
    load_range(&fs, f, 0..BLOCK);
    assert_eq!(fs.write(f, 7 * MIB, &[1; 4096]), Err(ABSENT));
    load_range(&fs, f, 3 * MIB - BLOCK..3 * MIB);
    fs.evict_content(f, 3 * MIB - BLOCK..3 * MIB).unwrap();
    assert_eq!(fs.write(f, 7 * MIB, &[1; 4096]), Err(ABSENT), "the subtree is absent again");
    load_range(&fs, f, 3 * MIB - BLOCK..3 * MIB);
    fs.write(f, 7 * MIB, &[1; 4096]).unwrap();
    assert_eq!(absent(&fs, f), std::slice::from_ref(&(BLOCK..3 * MIB - BLOCK)));
    remount(fs);
}

#[test]
fn shifts_and_searches_need_all_content() {
    let size = 8 * BLOCK;
    let (fs, f) = with_file(16 << 20, size);
    load_range(&fs, f, 0..7 * BLOCK);
    assert_eq!(fs.fallocate(f, Fallocate::Collapse, BLOCK, BLOCK), Err(ABSENT));
    assert_eq!(fs.fallocate(f, Fallocate::Insert, BLOCK, BLOCK), Err(ABSENT));
    assert_eq!(fs.seek(f, 0, Seek::Hole), Err(ABSENT));
    assert_eq!(fs.seek(f, 0, Seek::Data), Ok(0));
    assert!(is_clean(&fs, f));
    load_range(&fs, f, 7 * BLOCK..size);
    assert_eq!(fs.seek(f, 0, Seek::Hole), Ok(size));
    fs.fallocate(f, Fallocate::Collapse, BLOCK, BLOCK).unwrap();
    assert_eq!(dirty(&fs, f), std::slice::from_ref(&(0..7 * BLOCK)));
    fs.fallocate(f, Fallocate::Insert, BLOCK, 2 * BLOCK).unwrap();
    assert_eq!(dirty(&fs, f), [0..BLOCK, 3 * BLOCK..9 * BLOCK]);
    assert_eq!(fs.seek(f, 0, Seek::Hole), Ok(BLOCK));
    let want = [below(0..BLOCK), vec![0; 8192], below(2 * BLOCK..size)].concat();
    assert_eq!(content(&fs, f), want);
    let fs = remount(fs);
    assert_eq!(content(&fs, f), want);
}

#[test]
fn a_change_since_the_version_prevents_a_mark() {
    let (fs, f) = with_file(16 << 20, 2 * BLOCK);
    load_range(&fs, f, 0..2 * BLOCK);
    fs.write(f, 0, b"one").unwrap();
    let version = fs.version(f).unwrap();
    fs.write(f, BLOCK, b"two").unwrap();
    assert_eq!(fs.clean_content(f, 0..2 * BLOCK, version), Ok(None));
    assert_eq!(fs.clean_inode(f, version, 9), Ok(None));
    assert_eq!(dirty(&fs, f), std::slice::from_ref(&(0..2 * BLOCK)));
    let version = fs.version(f).unwrap();
    // Blocks that are not all in the range stay dirty.
    let next = fs.clean_content(f, 1..2 * BLOCK - 1, version).unwrap().unwrap();
    assert_eq!(dirty(&fs, f), std::slice::from_ref(&(0..2 * BLOCK)));
    let next = fs.clean_content(f, 1..2 * BLOCK, next).unwrap().unwrap();
    assert_eq!(fs.clean_content(f, 0..BLOCK, version), Ok(None));
    assert_eq!(fs.clean_content(f, 0..BLOCK, next), Ok(None), "the attempt counts as a change");
    let next = fs.version(f).unwrap();
    assert_eq!(dirty(&fs, f), std::slice::from_ref(&(0..BLOCK)));
    fs.clean_inode(f, next, 9).unwrap().unwrap();
    let residence = fs.residence(f).unwrap();
    assert!(residence.is_clean);
    let fs = remount(fs);
    assert_eq!(fs.residence(f).unwrap(), residence);
    assert_eq!(dirty(&fs, f), std::slice::from_ref(&(0..BLOCK)));
}

#[test]
fn objects_are_loaded_with_all_that_they_have() {
    let fs = mount(format(16 << 20, true));
    assert!(fs.residence(ROOT).unwrap().are_names_absent);
    assert_eq!(fs.lookup(ROOT, b"none"), Err(ABSENT));
    let xattrs = [(b"user.a".to_vec(), b"value".to_vec())];
    let long = [9; vfs::IDENTITY_MAX];
    let all = [
        (attr(FileKind::File, 12_345), &b""[..]),
        (attr(FileKind::Symlink, 6), b"target"),
        (Attr { nlink: 5, ..attr(FileKind::Dir, 0) }, b""),
        (Attr { rdev: 0x103, ..attr(FileKind::Char, 0) }, b""),
        (attr(FileKind::Fifo, 0), b""),
        (attr(FileKind::Socket, 0), b""),
    ];
    let before = fs.getattr(ROOT).unwrap();
    for (i, (attr, target)) in all.iter().enumerate() {
        for (suffix, xattrs) in [("", &[][..]), ("x", &xattrs[..])] {
            let name = format!("{i}{suffix}");
            let object = LoadedObject { attr: *attr, identity: &long, stamp: 5, target, xattrs };
            fs.load_name(ROOT, name.as_bytes(), &object).unwrap();
            assert_eq!(fs.load_name(ROOT, name.as_bytes(), &object), Err(Errno::EXIST));
        }
    }
    // More than a block of entries; the directory has no other times for that.
    for i in 0..100 {
        load(&fs, ROOT, &format!("more{i}"), attr(FileKind::File, 0));
    }
    let after = fs.getattr(ROOT).unwrap();
    assert_eq!((before.mtime, before.ctime), (after.mtime, after.ctime));
    assert_eq!(fs.lookup(ROOT, b"none"), Err(ABSENT));
    fs.finish_names(ROOT).unwrap();
    assert_eq!(fs.lookup(ROOT, b"none"), Err(Errno::NOENT));
    let object = object(attr(FileKind::File, 0));
    assert_eq!(fs.load_name(ROOT, b"late", &object), Err(Errno::INVAL));
    let check = |fs: &Pool| {
        assert_eq!(fs.getattr(ROOT).unwrap().nlink, 4);
        for (i, (attr, target)) in all.iter().enumerate() {
            for (suffix, xattrs) in [("", &[][..]), ("x", &xattrs[..])] {
                let found = fs.lookup(ROOT, format!("{i}{suffix}").as_bytes()).unwrap();
                let ino = found.ino;
                let Attr { generation, blocks, atime, .. } = found;
                let size = if found.kind == FileKind::Dir { found.size } else { attr.size };
                assert_eq!(found, Attr { ino, generation, blocks, atime, size, ..*attr });
                let residence = fs.residence(ino).unwrap();
                assert!(residence.is_clean && residence.identity == long);
                assert_eq!(residence.are_names_absent, attr.kind == FileKind::Dir);
                if !target.is_empty() {
                    assert_eq!(fs.readlink(ino).unwrap(), *target);
                }
                let names: Vec<_> = xattrs.iter().map(|(name, _)| name.clone()).collect();
                assert_eq!(fs.listxattr(ino).unwrap(), names);
                fs.forget(ino, 1);
            }
        }
    };
    check(&fs);
    for i in 0..all.len() {
        for suffix in ["", "x"] {
            let ino = fs.peek(ROOT, format!("{i}{suffix}").as_bytes()).unwrap().ino;
            fs.forget(ino, 1);
        }
    }
    let fs = remount(fs);
    check(&fs);
}

#[test]
fn calls_on_absent_names_change_nothing() {
    let fs = pool(16 << 20);
    clean_root(&fs);
    assert!(fs.evict_names(ROOT).unwrap());
    let here = load_dir(&fs, ROOT, "here");
    let gone = load_dir(&fs, ROOT, "gone");
    fs.finish_names(ROOT).unwrap();
    let f = load(&fs, here, "f", attr(FileKind::File, 10));
    let sub = load_dir(&fs, here, "sub");
    fs.finish_names(here).unwrap();
    let g = load(&fs, gone, "g", attr(FileKind::File, 10));
    let state = || {
        [ROOT, here, gone, f, sub, g].map(|ino| {
            let attr = fs.getattr(ino).unwrap();
            (Attr { atime: Timestamp(0), ..attr }, fs.residence(ino).unwrap())
        })
    };
    let before = state();
    let root = &Caller::ROOT;
    assert_eq!(fs.lookup(gone, b"x"), Err(ABSENT));
    assert_eq!(fs.peek(gone, b"x"), Err(ABSENT));
    assert_eq!(fs.peek(gone, b"g").unwrap().ino, g, "what is there is right");
    assert_eq!(fs.create(root, gone, b"x", &FILE), Err(ABSENT));
    assert_eq!(fs.create(root, gone, b"x", &DIR), Err(ABSENT));
    assert_eq!(fs.link(f, gone, b"x"), Err(ABSENT));
    assert_eq!(fs.unlink(gone, b"g"), Err(ABSENT));
    assert_eq!(fs.unlink(gone, b"x"), Err(ABSENT));
    assert_eq!(fs.rmdir(gone, b"x"), Err(ABSENT));
    assert_eq!(fs.rmdir(here, b"sub"), Err(ABSENT), "it need not be empty");
    assert_eq!(fs.readdir(gone, 0, &mut |_| true), Err(ABSENT));
    for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::NOREPLACE] {
        assert_eq!(fs.rename((here, b"f"), (gone, b"x"), flags), Err(ABSENT));
        assert_eq!(fs.rename((gone, b"g"), (here, b"x"), flags), Err(ABSENT));
        assert_eq!(fs.rename((gone, b"x"), (here, b"x"), flags), Err(ABSENT));
        assert_eq!(fs.rename((gone, b"g"), (gone, b"x"), flags), Err(ABSENT));
    }
    assert_eq!(
        fs.rename((ROOT, b"gone"), (here, b"sub"), RenameFlags::empty()),
        Err(ABSENT),
        "the replaced directory need not be empty"
    );
    assert_eq!(before, state());
    // The directory itself may change.
    fs.rename((ROOT, b"gone"), (here, b"moved"), RenameFlags::empty()).unwrap();
    fs.setxattr(gone, b"user.x", b"y", SetXattr::Any).unwrap();
    assert!(!is_clean(&fs, ROOT) && !is_clean(&fs, here) && !is_clean(&fs, gone));
    assert!(is_clean(&fs, f) && is_clean(&fs, sub) && is_clean(&fs, g));
    let fs = remount(fs);
    assert!(!is_clean(&fs, ROOT) && !is_clean(&fs, here) && !is_clean(&fs, gone));
    assert!(fs.residence(gone).unwrap().are_names_absent);
    fs.finish_names(gone).unwrap();
    fs.finish_names(sub).unwrap();
    fs.unlink(gone, b"g").unwrap();
    fs.rmdir(here, b"sub").unwrap();
    remount(fs);
}

#[test]
fn links_are_counted_where_they_are_absent() {
    let fs = mount(format(16 << 20, true));
    let (a, b) = (load_dir(&fs, ROOT, "a"), load_dir(&fs, ROOT, "b"));
    fs.finish_names(ROOT).unwrap();
    let f = load(&fs, a, "f", Attr { nlink: 3, ..attr(FileKind::File, 0) });
    fs.finish_names(a).unwrap();
    let state = |fs: &Pool| (fs.getattr(f).unwrap().nlink, fs.residence(f).unwrap().absent_links);
    assert_eq!(state(&fs), (3, 2));
    assert_eq!(fs.peek(a, b"f").unwrap().nlink, 3);
    assert_eq!(fs.unlink(a, b"f"), Err(ABSENT), "other names would lose their content");
    let other = fs.create(&Caller::ROOT, a, b"other", &FILE).unwrap().ino;
    assert_eq!(fs.rename((a, b"other"), (a, b"f"), RenameFlags::empty()), Err(ABSENT));
    fs.rename((a, b"other"), (a, b"f"), RenameFlags::EXCHANGE).unwrap();
    fs.rename((a, b"other"), (a, b"f"), RenameFlags::EXCHANGE).unwrap();
    fs.forget(other, 1);
    assert_eq!(fs.load_link(a, b"g", f), Err(Errno::INVAL), "its names are there");
    fs.load_link(b, b"g", f).unwrap();
    assert_eq!(fs.load_link(b, b"g", f), Err(Errno::EXIST));
    assert_eq!(fs.load_link(b, b"d", a), Err(Errno::PERM));
    assert_eq!(state(&fs), (3, 1));
    let fs = remount(fs);
    assert_eq!(state(&fs), (3, 1));
    fs.unlink(a, b"f").unwrap();
    assert_eq!(state(&fs), (2, 1));
    fs.load_link(b, b"h", f).unwrap();
    fs.finish_names(b).unwrap();
    assert_eq!(state(&fs), (2, 0));
    fs.unlink(b, b"h").unwrap();
    fs.unlink(b, b"g").unwrap();
    // A name outside of the tree is never loaded.
    assert_eq!(fs.getattr(f), Err(Errno::STALE));
    let fs = remount(fs);
    let c = load_dir_in_new(&fs);
    let f = load(&fs, c, "f", Attr { nlink: 2, ..attr(FileKind::File, 0) });
    fs.finish_names(c).unwrap();
    assert_eq!(fs.unlink(c, b"f"), Err(ABSENT));
    fs.finish_links(f).unwrap();
    assert_eq!(fs.getattr(f).unwrap().nlink, 1);
    fs.unlink(c, b"f").unwrap();
    remount(fs);
}

/// Returns the directory `b`, made absent again.
fn load_dir_in_new(fs: &Pool) -> Ino {
    let b = fs.peek(ROOT, b"b").unwrap().ino;
    clean(fs, b"b");
    assert!(fs.evict_names(b).unwrap());
    return b;

    fn clean(fs: &Pool, name: &[u8]) {
        let dir = fs.peek(ROOT, name).unwrap().ino;
        let version = fs.version(dir).unwrap();
        fs.clean_inode(dir, version, 9).unwrap().unwrap();
    }
}

#[test]
fn names_are_evicted_from_below() {
    let fs = mount(format(16 << 20, true));
    let idle = fs.statfs();
    clean_root(&fs);
    assert!(!fs.evict_names(ROOT).unwrap(), "they are absent");
    let dir = load_dir(&fs, ROOT, "dir");
    let top = load(&fs, ROOT, "top", attr(FileKind::File, 9000));
    fs.finish_names(ROOT).unwrap();
    let sub = load_dir(&fs, dir, "sub");
    for i in 0..200 {
        load(&fs, dir, &format!("f{i}"), attr(FileKind::File, 5000));
    }
    fs.finish_names(dir).unwrap();
    load(&fs, sub, "last", attr(FileKind::File, 5000));
    fs.finish_names(sub).unwrap();
    load_range(&fs, top, 0..9000);
    assert!(!fs.evict_names(ROOT).unwrap(), "a directory in it is whole");
    assert!(!fs.evict_names(dir).unwrap(), "a directory in it is whole");
    let held = fs.lookup(sub, b"last").unwrap().ino;
    assert!(!fs.evict_names(sub).unwrap(), "a file is in use");
    fs.forget(held, 1);
    assert!(fs.evict_names(sub).unwrap());
    assert!(!fs.evict_names(sub).unwrap(), "they are absent");
    assert_eq!(fs.lookup(sub, b"last"), Err(ABSENT));
    let f7 = fs.peek(dir, b"f7").unwrap().ino;
    load_range(&fs, f7, 0..5000);
    fs.write(f7, 1, b"x").unwrap();
    assert!(!fs.evict_names(dir).unwrap(), "a file is dirty");
    let version = fs.version(f7).unwrap();
    fs.clean_inode(f7, version, 9).unwrap().unwrap();
    assert!(!fs.evict_names(dir).unwrap(), "its content is dirty");
    clean(&fs, f7);
    let (attr_before, fs) = (fs.getattr(dir).unwrap(), remount(fs));
    assert!(fs.evict_names(dir).unwrap());
    assert_eq!(fs.getattr(dir).unwrap(), attr_before, "also links and size");
    assert_eq!(fs.lookup(dir, b"f7"), Err(ABSENT));
    let fs = remount(fs);
    assert_eq!(fs.lookup(dir, b"f7"), Err(ABSENT));
    assert_eq!(fs.getattr(dir).unwrap().nlink, 3);
    assert!(fs.evict_names(ROOT).unwrap());
    let fs = remount(fs);
    let left = fs.statfs();
    // Those of the inode file.
    assert!(idle.blocks_free - left.blocks_free <= 7, "{idle:?} {left:?}");
    assert!(fs.residence(ROOT).unwrap().are_names_absent);
    load_dir(&fs, ROOT, "dir");
    remount(fs);
}

#[test]
fn new_inodes_and_changed_ones_are_dirty() {
    let fs = pool(16 << 20);
    clean_root(&fs);
    let root = &Caller::ROOT;
    let f = fs.create(root, ROOT, b"f", &FILE).unwrap().ino;
    let residence = fs.residence(f).unwrap();
    assert_eq!(residence, vfs::Residence::default());
    assert!(!is_clean(&fs, ROOT) && fs.residence(ROOT).unwrap().identity == b"the root");
    fs.set_identity(f, b"f").unwrap();
    type Change = fn(&Pool, Ino);
    let changes: [Change; 5] = [
        |fs, f| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, f, &set).unwrap();
        },
        |fs, f| fs.setxattr(f, b"user.a", b"b", SetXattr::Any).unwrap(),
        |fs, f| fs.removexattr(f, b"user.a").unwrap(),
        |fs, f| fs.forget(fs.link(f, ROOT, b"g").unwrap().ino, 1),
        |fs, _| fs.unlink(ROOT, b"g").unwrap(),
    ];
    for change in changes {
        clean(&fs, f);
        assert!(is_clean(&fs, f));
        change(&fs, f);
        assert!(!is_clean(&fs, f));
    }
    clean(&fs, f);
    fs.rename((ROOT, b"f"), (ROOT, b"h"), RenameFlags::empty()).unwrap();
    assert!(!is_clean(&fs, f), "its ctime changed");
    fs.write(f, 0, &[1; 5000]).unwrap();
    assert_eq!(dirty(&fs, f), std::slice::from_ref(&(0..5000)));
    remount(fs);
}

/// The place of the root word of an inode.
fn root_word(region: &Region, ino: Ino) -> u64 {
    use bpfs::layout::{FIRST_INODES, INODE};
    assert!(region.len() > 0 && ino.0 < 32);
    FIRST_INODES.at(ino.0 * INODE).get()
}

/// Words that only a pool with a backing store may have are damage elsewhere, and so are those in
/// places where no pool has them.
#[test]
fn marks_in_the_wrong_place_are_damage() {
    for (is_backed, is_dir, word) in
        [(false, false, 8), (false, false, 16), (true, true, 8), (true, true, 16)]
    {
        let fs = mount(format(16 << 20, is_backed));
        if is_backed {
            fs.finish_names(ROOT).unwrap();
        }
        let f =
            fs.create(&Caller::ROOT, ROOT, b"f", if is_dir { &DIR } else { &FILE }).unwrap().ino;
        match is_dir {
            true => drop(fs.create(&Caller::ROOT, f, b"name", &FILE).unwrap()),
            false => fs.write(f, 0, &[1; 100]).unwrap(),
        }
        if !is_backed {
            assert_eq!(fs.residence(f), Err(Errno::OPNOTSUPP));
            assert_eq!(fs.absent_range(f, 0), Err(Errno::OPNOTSUPP));
            assert_eq!(fs.load_content(f, 0, &[1; 4096]), Err(Errno::OPNOTSUPP));
            assert_eq!(fs.evict_content(f, 0..4096), Err(Errno::OPNOTSUPP));
            assert_eq!(fs.clean_content(f, 0..4096, 0), Err(Errno::OPNOTSUPP));
            assert_eq!(fs.evict_names(ROOT), Err(Errno::OPNOTSUPP));
        }
        let region = fs.into_medium();
        let at = root_word(&region, f);
        let old = region.load_u64(at);
        region.store_u64(at, if word == 8 { 8 } else { old | word });
        let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
        assert_eq!(report.problems.len(), 1, "{is_backed} {word}: {:?}", report.problems);
    }
}
