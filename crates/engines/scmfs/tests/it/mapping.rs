//! Direct mappings: mapped blocks exist, stay at their place, and are durable when they are synced.

use crate::common::Scmfs;
use mounts::MountEvents as _;
use pmem::{Medium as _, Region};
use scmfs::layout::{BLOCK, EXTENT};
use suite::{FILE, Fs, PoolFile, attach, check_and_remount, create, mounted, resize};
use vfs::{
    Caller, Errno, Extent, Fallocate, FileSystem as _, Ino, Mappings, ROOT, SetAttr, SetTime,
    Timestamp,
};

type Pool = Fs<Scmfs>;

fn pool() -> Pool {
    mounted::<Scmfs>(64 << 20)
}

fn file(fs: &Pool, name: &str, len: u64) -> Ino {
    let ino = create::<Scmfs>(fs, ROOT, name, &FILE);
    fs.write(ino, 0, &vec![7; len as usize]).unwrap();
    ino
}

/// Returns the bytes in these extents.
fn seen(fs: &Pool, extents: &[Extent]) -> Vec<u8> {
    let mut all = Vec::new();
    for extent in extents {
        let mut bytes = vec![0; extent.len as usize];
        fs.medium().read(extent.start, &mut bytes);
        all.extend(bytes);
    }
    all
}

fn free(fs: &Pool) -> u64 {
    fs.statfs().blocks_free
}

/// Maps a range, and unmaps it again; returns its extents.
fn look(fs: &Pool, ino: Ino, len: u64) -> Vec<Extent> {
    let extents = fs.map_range(ino, 0..len, false).unwrap();
    fs.unmap_range(ino, false, true);
    extents
}

/// mapping-D4: a time that a program sets stays when a mapping ends. A later change replaces it.
#[test]
fn a_time_that_is_set_while_a_file_is_mapped_stays() {
    let fs = pool();
    let ino = file(&fs, "f", 3 * BLOCK);
    let mtime = || fs.getattr(ino).unwrap().mtime;
    let old = Timestamp(1_579_091_696_000_000_005);
    let set = || {
        let set = SetAttr { mtime: Some(SetTime::At(old)), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, ino, &set).unwrap();
    };
    let map = || drop(fs.map_range(ino, 0..BLOCK, true).unwrap());
    let unmap = || fs.unmap_range(ino, true, false);
    for _ in 0..2 {
        map();
        map();
        set();
        unmap();
        // Of the mapping that is left, and of a new one.
        map();
        unmap();
        unmap();
        assert_eq!(mtime(), old);
    }
    // Later mappings count as changes, whether their file has such a time from before or not.
    set();
    map();
    unmap();
    assert!(mtime() > old);
    let changes: [&dyn Fn(); 3] = [
        &|| fs.sync_range(ino, 0..BLOCK, true).unwrap(),
        &|| fs.write(ino, 10, b"written").unwrap(),
        &|| assert_eq!(fs.append(ino, b"written"), Ok(3 * BLOCK)),
    ];
    for change in changes {
        map();
        set();
        change();
        assert!(mtime() > old);
        let changed = mtime();
        unmap();
        assert!(mtime() >= changed);
    }
}

#[test]
fn what_is_mapped_is_what_is_read_and_written() {
    let fs = pool();
    let ino = file(&fs, "f", 3 * BLOCK - 100);
    let extents = fs.map_range(ino, 0..3 * BLOCK - 100, true).unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 3 * BLOCK);
    let tail = 3 * BLOCK as usize - 100;
    assert!(seen(&fs, &extents)[tail..].iter().all(|byte| *byte == 0), "what lies behind the end");
    fs.write(ino, 5000, b"written").unwrap();
    assert_eq!(&seen(&fs, &extents)[5000..5007], b"written");
    fs.medium().write(extents[0].start + 100, b"stored");
    let mut read = [0; 6];
    assert_eq!(fs.read(ino, 100, &mut read), Ok(6));
    assert_eq!(&read, b"stored");
    fs.unmap_range(ino, true, false);
    assert_eq!(fs.map_range(ino, 100..BLOCK, false), Err(Errno::INVAL));
    assert_eq!(fs.map_range(ROOT, 0..BLOCK, false), Err(Errno::ISDIR));
    drop(check_and_remount::<Scmfs>(fs));
}

#[test]
fn what_grows_stays_where_it_is() {
    let fs = pool();
    let ino = file(&fs, "f", BLOCK);
    let before = fs.map_range(ino, 0..BLOCK, true).unwrap();
    // Takes the free space behind the file.
    for i in 0..4 {
        file(&fs, &format!("other{i}"), 64 * BLOCK);
    }
    for _ in 0..40 {
        fs.append(ino, &[8; BLOCK as usize]).unwrap();
    }
    fs.write(ino, 3 << 20, b"far").unwrap();
    let after = fs.map_range(ino, 0..BLOCK, false).unwrap();
    assert_eq!(before, after);
    assert_eq!(seen(&fs, &before), vec![7; BLOCK as usize]);
    fs.unmap_range(ino, true, false);
    fs.unmap_range(ino, false, true);
    drop(check_and_remount::<Scmfs>(fs));
}

#[test]
fn what_is_cut_off_or_punched_out_is_zeroed_where_it_is() {
    for len in [16 * BLOCK, 2 * EXTENT + 5 * BLOCK] {
        let fs = pool();
        let ino = file(&fs, "f", len);
        let had = free(&fs);
        let extents = fs.map_range(ino, 0..len, true).unwrap();
        fs.fallocate(ino, Fallocate::PunchHole, BLOCK, len - 4 * BLOCK).unwrap();
        assert!(
            seen(&fs, &extents)[BLOCK as usize..][..(len - 4 * BLOCK) as usize]
                .iter()
                .all(|b| *b == 0)
        );
        resize(&fs, ino, BLOCK + 10);
        assert_eq!(free(&fs), had, "blocks that are mapped are nobody else's");
        assert!(seen(&fs, &extents)[BLOCK as usize + 10..].iter().all(|byte| *byte == 0));
        resize(&fs, ino, len);
        assert_eq!(fs.map_range(ino, 0..len, false).unwrap(), extents);
        fs.unmap_range(ino, false, true);
        for mode in [Fallocate::Collapse, Fallocate::Insert] {
            assert_eq!(fs.fallocate(ino, mode, BLOCK, BLOCK), Err(Errno::BUSY));
        }
        resize(&fs, ino, BLOCK);
        fs.unmap_range(ino, true, false);
        assert!(free(&fs) >= had + len / BLOCK - 1, "the last mapping has kept it");
        fs.fallocate(ino, Fallocate::Insert, 0, BLOCK).unwrap();
        drop(check_and_remount::<Scmfs>(fs));
    }
}

#[test]
fn a_mapping_beyond_the_end_has_blocks_that_go_with_it() {
    let fs = pool();
    let ino = file(&fs, "f", 10);
    let had = free(&fs);
    let extents = fs.map_range(ino, 0..EXTENT, false).unwrap();
    assert!(free(&fs) <= had - (EXTENT / BLOCK - 1));
    assert_eq!(fs.getattr(ino).unwrap().size, 10);
    assert!(seen(&fs, &extents)[10..].iter().all(|byte| *byte == 0));
    // Bytes that are appended show through the mapping.
    fs.append(ino, &[9; 3 * BLOCK as usize]).unwrap();
    assert_eq!(seen(&fs, &extents)[10..][..3 * BLOCK as usize], [9; 3 * BLOCK as usize]);
    fs.unmap_range(ino, false, true);
    assert_eq!(look(&fs, ino, BLOCK)[0].start, extents[0].start);
    assert!(free(&fs) >= had - 5);
    drop(check_and_remount::<Scmfs>(fs));
}

/// Asserts that all bytes behind the first block of a one-block file, mapped up to `len` bytes, are
/// zeros.
fn assert_zeros_behind(fs: &Pool, ino: Ino, len: u64) {
    let extents = fs.map_range(ino, 0..len, false).unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), len);
    let seen = seen(fs, &extents);
    let old = seen[BLOCK as usize..].iter().filter(|byte| **byte != 0).count();
    assert_eq!(old, 0, "old bytes behind the end");
}

#[test]
fn what_a_cut_file_keeps_is_zeros_when_it_is_mapped() {
    let fs = pool();
    let len = 64 * BLOCK;
    let ino = file(&fs, "f", len);
    let had = free(&fs);
    resize(&fs, ino, BLOCK);
    assert_zeros_behind(&fs, ino, len);
    assert_eq!(free(&fs), had);
    fs.unmap_range(ino, false, true);
    assert_eq!(free(&fs), had + 63);
    drop(check_and_remount::<Scmfs>(fs));
}

#[test]
fn what_is_pre_allocated_is_zeros_when_it_is_mapped() {
    let fs = pool();
    // All free blocks held bytes of other files before.
    let all = free(&fs) - 64;
    file(&fs, "old", all * BLOCK);
    fs.unlink(ROOT, b"old").unwrap();
    let ino = file(&fs, "f", 10);
    fs.append(ino, &[7; BLOCK as usize - 10]).unwrap();
    fs.append(ino, &[7; BLOCK as usize]).unwrap();
    resize(&fs, ino, BLOCK);
    assert_zeros_behind(&fs, ino, 16 * BLOCK);
    fs.unmap_range(ino, false, true);
    // A new file begins with the blocks of a removed one.
    for i in 0..8 {
        file(&fs, &format!("old{i}"), 16 * BLOCK);
        fs.unlink(ROOT, format!("old{i}").as_bytes()).unwrap();
    }
    let ino = file(&fs, "g", BLOCK);
    assert_zeros_behind(&fs, ino, 16 * BLOCK);
    fs.unmap_range(ino, false, true);
    drop(check_and_remount::<Scmfs>(fs));
}

#[test]
fn what_grows_while_it_is_mapped_takes_no_old_bytes_in_advance() {
    for len in [BLOCK, EXTENT] {
        let fs = pool();
        let all = free(&fs) - 64;
        file(&fs, "old", all * BLOCK);
        fs.unlink(ROOT, b"old").unwrap();
        let ino = file(&fs, "f", len);
        fs.map_range(ino, 0..BLOCK, true).unwrap();
        for _ in 0..9 {
            fs.append(ino, &[7; BLOCK as usize]).unwrap();
        }
        // A file that is cut while it is mapped keeps its blocks.
        resize(&fs, ino, len + 4 * BLOCK);
        let extents = fs.map_range(ino, 0..len + 64 * BLOCK, false).unwrap();
        let behind = &seen(&fs, &extents)[(len + 4 * BLOCK) as usize..];
        assert_eq!(behind.iter().filter(|byte| **byte != 0).count(), 0);
        fs.unmap_range(ino, false, false);
        fs.unmap_range(ino, true, true);
        drop(check_and_remount::<Scmfs>(fs));
    }
}

#[test]
fn holes_are_filled_as_long_as_they_are_modest() {
    let fs = mounted::<Scmfs>(512 << 20);
    let ino = file(&fs, "f", 10);
    resize(&fs, ino, 32 << 20);
    fs.write(ino, (16 << 20) + 5, b"middle").unwrap();
    let extents = fs.map_range(ino, 0..32 << 20, true).unwrap();
    let bytes = seen(&fs, &extents);
    assert_eq!(&bytes[(16 << 20) + 5..][..6], b"middle");
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 16);
    fs.unmap_range(ino, true, false);
    resize(&fs, ino, 1 << 30);
    assert_eq!(fs.map_range(ino, 0..1 << 30, true), Err(Errno::OPNOTSUPP));
    assert_eq!(fs.map_range(ino, 0..1 << 50, true), Err(Errno::OPNOTSUPP));
    assert!(!fs.is_mapped_directly(ino));
    drop(check_and_remount::<Scmfs>(fs));
}

#[test]
fn the_kernel_maps_or_others_do() {
    let fs = pool();
    let ino = file(&fs, "f", BLOCK);
    fs.begin_mapping(ino).unwrap();
    assert_eq!(fs.map_range(ino, 0..BLOCK, false), Err(Errno::BUSY));
    assert!(fs.is_mapped(ino));
    fs.end_mapping(ino);
    fs.map_range(ino, 0..BLOCK, false).unwrap();
    assert_eq!(fs.begin_mapping(ino), Err(Errno::BUSY));
    assert!(!fs.is_mapped(ino) && fs.is_mapped_directly(ino) && !fs.is_stored_to_directly(ino));
    fs.map_again(ino, true).unwrap();
    assert!(fs.is_stored_to_directly(ino));
    fs.unmap_range(ino, true, false);
    fs.unmap_range(ino, false, false);
    assert_eq!(fs.map_again(ino, true), Err(Errno::OPNOTSUPP));
    fs.begin_mapping(ino).unwrap();
    fs.end_mapping(ino);
}

#[test]
fn what_is_stored_through_a_mapping_is_flushed_when_it_is_synced() {
    let fs = pool();
    let len = 64 * BLOCK;
    let ino = file(&fs, "f", len);
    let flushed = |f: &dyn Fn()| {
        let lines = || fs.medium().counters().snapshot().lines_flushed;
        let before = lines();
        f();
        lines() - before
    };
    let sync = || fs.fsync(ino).unwrap();
    sync();
    fs.map_range(ino, 0..len, false).unwrap();
    assert_eq!(flushed(&sync), 0, "nothing is stored by who reads");
    fs.map_again(ino, true).unwrap();
    assert_eq!(flushed(&sync), len / 64);
    assert_eq!(flushed(&sync), len / 64, "there may have been stores since");
    assert_eq!(flushed(&|| fs.sync().unwrap()), len / 64);
    let msync = || fs.sync_range(ino, BLOCK..3 * BLOCK, false).unwrap();
    assert_eq!(flushed(&msync), 2 * BLOCK / 64);
    fs.unmap_range(ino, true, false);
    assert_eq!(flushed(&sync), len / 64, "somebody else's sync is worth the same");
    assert_eq!(flushed(&sync), 0);
    fs.map_again(ino, true).unwrap();
    fs.sync_range(ino, 0..len, false).unwrap();
    fs.unmap_range(ino, true, true);
    assert_eq!(flushed(&sync), 0, "that was durable");
    fs.unmap_range(ino, false, true);
}

/// A recovery after a death inside an operation derives everything again, but leaves blocks that
/// living processes map.
#[test]
fn a_recovery_keeps_what_is_mapped() {
    let pool = PoolFile::new::<Scmfs>("mapped", 32 << 20);
    let fs: Fs<Scmfs, Region> = attach::<Scmfs>(&pool.0);
    let ino = create::<Scmfs>(&fs, ROOT, "f", &FILE);
    fs.write(ino, 0, &[7; 100]).unwrap();
    fs.lookup(ROOT, b"f").unwrap();
    let free = |fs: &Fs<Scmfs, Region>| fs.statfs().blocks_free;
    let had = free(&fs);
    let extents = fs.map_range(ino, 0..EXTENT, true).unwrap();
    let with = free(&fs);
    fs.rehearse_recovery().unwrap();
    assert_eq!(free(&fs), with, "what is pre-allocated and mapped is not given back");
    assert!(fs.is_stored_to_directly(ino));
    assert_eq!(fs.map_range(ino, 0..EXTENT, false).unwrap(), extents);
    fs.unmap_range(ino, false, true);
    fs.unmap_range(ino, true, false);
    assert!(!fs.is_mapped_directly(ino));
    assert_eq!(free(&fs), had);
}
