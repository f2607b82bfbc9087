//! Holes, preallocation, shifting, seeking, copying.

use super::{
    age, assert_bytes, attr, contents, dir, fails, file, file_with, others, pattern, renewed,
    truncate,
};
use crate::{Errno, Fallocate, FileSystem, Ino, Seek};

super::table!("ranges":
    allocation_grows_with_zeros,
    allocation_can_keep_the_size,
    allocation_keeps_contents,
    punched_ranges_read_as_zeros,
    punching_beyond_the_end_is_nothing,
    zeroed_ranges_read_as_zeros,
    zeroing_can_grow,
    collapse_closes_the_gap,
    collapse_refuses,
    insert_opens_a_gap,
    insert_refuses,
    shifts_of_sparse_files_work,
    fallocate_refuses,
    fallocate_sets_times,
    seek_finds_data_and_holes,
    seek_in_a_file_without_holes,
    seek_refuses,
    seek_stays_sparse,
    copies_between_files,
    copies_end_at_the_source,
    copies_within_a_file,
    copies_of_every_alignment,
    copies_bring_holes_as_zeros,
    copies_refuse,
    copies_set_times,
    clones_are_copies,
    clones_of_parts,
    clones_within_a_file,
    clones_diverge,
    clones_of_sparse_files,
    clones_refuse,
    clones_set_times,
);

const BLOCK: u64 = 4096;
const GROW: Fallocate = Fallocate::Allocate { keep_size: false };
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };

fn allocation_grows_with_zeros(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    fs.fallocate(ino, GROW, 10_000, 10_001).unwrap();
    assert_eq!(attr(fs, ino).size, 20_001);
    assert_bytes(&contents(fs, ino)[3..], &[0; 19_998]);
    fs.fallocate(ino, GROW, 0, 100).unwrap();
    assert_eq!(attr(fs, ino).size, 20_001);
}

fn allocation_can_keep_the_size(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    fs.fallocate(ino, KEEP, 0, 100_000).unwrap();
    assert_eq!((attr(fs, ino).size, contents(fs, ino)), (3, b"abc".to_vec()));
    fs.append(ino, b"def").unwrap();
    fs.write(ino, 50_000, b"x").unwrap();
    let mut want = b"abcdef".to_vec();
    want.resize(50_000, 0);
    want.push(b'x');
    assert_bytes(&contents(fs, ino), &want);
    truncate(fs, ino, 4).unwrap();
    assert_eq!(contents(fs, ino), b"abcd");
}

fn allocation_keeps_contents(fs: &dyn FileSystem) {
    let data = pattern(20_000);
    let ino = file_with(fs, b"f", &data);
    fs.fallocate(ino, GROW, 100, 10_000).unwrap();
    fs.fallocate(ino, KEEP, 0, 1 << 20).unwrap();
    assert_bytes(&contents(fs, ino), &data);
}

/// Applies `mode` to ranges of a full file and compares with zeros there.
fn check_zeroing(fs: &dyn FileSystem, mode: Fallocate) {
    let mut want = pattern(64 * 1024);
    let ino = file_with(fs, b"f", &want);
    for (offset, len) in
        [(10, 20), (4000, 200), (8192, 4096), (12_000, 9000), (40_000, 24_576), (65_000, 536)]
    {
        fs.fallocate(ino, mode, offset as u64, len as u64).unwrap();
        want[offset..offset + len].fill(0);
        assert_bytes(&contents(fs, ino), &want);
    }
    fs.fallocate(ino, mode, 0, 64 * 1024).unwrap();
    assert_bytes(&contents(fs, ino), &vec![0; 64 * 1024]);
    fs.write(ino, 5000, b"again").unwrap();
    assert_eq!(&contents(fs, ino)[4999..5006], b"\0again\0");
}

fn punched_ranges_read_as_zeros(fs: &dyn FileSystem) {
    check_zeroing(fs, Fallocate::PunchHole);
}

fn zeroed_ranges_read_as_zeros(fs: &dyn FileSystem) {
    check_zeroing(fs, Fallocate::ZeroRange { keep_size: false });
}

fn punching_beyond_the_end_is_nothing(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    fs.fallocate(ino, Fallocate::PunchHole, 2, 1 << 40).unwrap();
    fs.fallocate(ino, Fallocate::PunchHole, 1 << 40, 4096).unwrap();
    assert_eq!(contents(fs, ino), b"ab\0");
}

fn zeroing_can_grow(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", &pattern(5000));
    fs.fallocate(ino, Fallocate::ZeroRange { keep_size: true }, 4000, 6000).unwrap();
    assert_eq!(attr(fs, ino).size, 5000);
    fs.fallocate(ino, Fallocate::ZeroRange { keep_size: false }, 3000, 6000).unwrap();
    let mut want = pattern(3000);
    want.resize(9000, 0);
    assert_bytes(&contents(fs, ino), &want);
}

fn collapse_closes_the_gap(fs: &dyn FileSystem) {
    let mut want = pattern(10 * 4096 + 123);
    let ino = file_with(fs, b"f", &want);
    for (first, count) in [(2usize, 1usize), (0, 3), (4, 2)] {
        fs.fallocate(ino, Fallocate::Collapse, first as u64 * BLOCK, count as u64 * BLOCK).unwrap();
        want.drain(first * 4096..(first + count) * 4096);
        assert_bytes(&contents(fs, ino), &want);
    }
    fs.append(ino, b"tail").unwrap();
    want.extend(b"tail");
    assert_bytes(&contents(fs, ino), &want);
}

fn collapse_refuses(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", &pattern(4 * 4096));
    for (offset, len) in
        [(1, 4096), (0, 100), (4095, 4097), (0, 4 * BLOCK), (3 * BLOCK, BLOCK), (8 * BLOCK, BLOCK)]
    {
        fails(fs.fallocate(ino, Fallocate::Collapse, offset, len), Errno::INVAL);
    }
    assert_bytes(&contents(fs, ino), &pattern(4 * 4096));
}

fn insert_opens_a_gap(fs: &dyn FileSystem) {
    let mut want = pattern(3 * 4096 + 55);
    let ino = file_with(fs, b"f", &want);
    for (first, count) in [(1usize, 1usize), (0, 2), (5, 3)] {
        fs.fallocate(ino, Fallocate::Insert, first as u64 * BLOCK, count as u64 * BLOCK).unwrap();
        want.splice(first * 4096..first * 4096, vec![0; count * 4096]);
        assert_bytes(&contents(fs, ino), &want);
    }
}

fn insert_refuses(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", &pattern(2 * 4096));
    for (offset, len) in [(1, 4096), (0, 100), (2 * BLOCK, BLOCK), (3 * BLOCK, BLOCK)] {
        fails(fs.fallocate(ino, Fallocate::Insert, offset, len), Errno::INVAL);
    }
    fails(fs.fallocate(ino, Fallocate::Insert, 0, fs.limits().file_size - BLOCK), Errno::FBIG);
    fails(fs.fallocate(ino, Fallocate::Insert, BLOCK, fs.limits().file_size), Errno::FBIG);
    assert_bytes(&contents(fs, ino), &pattern(2 * 4096));
}

fn shifts_of_sparse_files_work(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let far = 1u64 << 40;
    fs.write(ino, 0, b"near").unwrap();
    fs.write(ino, far, b"far").unwrap();
    fs.fallocate(ino, Fallocate::Insert, BLOCK, 1 << 30).unwrap();
    let mut buf = [0; 3];
    fs.read(ino, far + (1 << 30), &mut buf).unwrap();
    assert_eq!((&buf, attr(fs, ino).size), (b"far", far + (1 << 30) + 3));
    fs.fallocate(ino, Fallocate::Collapse, BLOCK, far + (1 << 30) - BLOCK).unwrap();
    assert_eq!(attr(fs, ino).size, BLOCK + 3);
    assert_eq!(&contents(fs, ino)[4096..], b"far");
    assert_eq!(&contents(fs, ino)[..6], b"near\0\0");
}

fn fallocate_refuses(fs: &dyn FileSystem) {
    let f = file_with(fs, b"f", b"abc");
    let d = dir(fs, b"d");
    let modes = [
        GROW,
        KEEP,
        Fallocate::PunchHole,
        Fallocate::ZeroRange { keep_size: false },
        Fallocate::Collapse,
        Fallocate::Insert,
    ];
    let special = others(fs);
    for mode in modes {
        fails(fs.fallocate(f, mode, 0, 0), Errno::INVAL);
        fails(fs.fallocate(f, mode, fs.limits().file_size, BLOCK), Errno::FBIG);
        fails(fs.fallocate(f, mode, BLOCK, fs.limits().file_size), Errno::FBIG);
        fails(fs.fallocate(f, mode, u64::MAX - 1, u64::MAX), Errno::FBIG);
        fails(fs.fallocate(d, mode, 0, BLOCK), Errno::ISDIR);
        for &ino in &special {
            fails(fs.fallocate(ino, mode, 0, BLOCK), Errno::NODEV);
        }
    }
    assert_eq!(contents(fs, f), b"abc");
}

fn fallocate_sets_times(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", &pattern(40_000));
    for mode in [GROW, Fallocate::PunchHole, Fallocate::Collapse, Fallocate::Insert] {
        age(fs, ino);
        fs.fallocate(ino, mode, BLOCK, BLOCK).unwrap();
        assert_eq!(renewed(fs, ino), (true, true), "{mode:?}");
    }
}

/// Checks the promises of `seek` at every offset of interest, given the whole contents.
fn check_seek(fs: &dyn FileSystem, ino: Ino, bytes: &[u8]) {
    let size = bytes.len() as u64;
    let zeros = |from: u64, to: u64| bytes[from as usize..to as usize].iter().all(|&b| b == 0);
    for offset in (0..size).step_by(1024).chain([1, 4095, size - 1]) {
        match fs.seek(ino, offset, Seek::Data) {
            Ok(data) => {
                assert!((offset..size).contains(&data), "data at {data} from {offset}");
                assert!(zeros(offset, data), "skipped data from {offset} to {data}");
            }
            Err(errno) => {
                assert_eq!(errno, Errno::NXIO);
                assert!(zeros(offset, size), "skipped data from {offset}");
            }
        }
        let hole = fs.seek(ino, offset, Seek::Hole).unwrap();
        assert!((offset..=size).contains(&hole), "hole at {hole} from {offset}");
        let end = (hole + 1).next_multiple_of(BLOCK).min(size);
        assert!(hole == size || zeros(hole, end), "data in the hole at {hole}");
    }
}

fn seek_finds_data_and_holes(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fs.write(ino, 10_000, &pattern(10_000)).unwrap();
    fs.write(ino, 100_000, b"x").unwrap();
    truncate(fs, ino, 150_001).unwrap();
    check_seek(fs, ino, &contents(fs, ino));
    fs.fallocate(ino, Fallocate::PunchHole, 13_000, 5_000).unwrap();
    fs.fallocate(ino, GROW, 50_000, 20_000).unwrap();
    fs.write(ino, 70_000, &[0; 9000]).unwrap();
    check_seek(fs, ino, &contents(fs, ino));
}

fn seek_in_a_file_without_holes(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", &pattern(10_000));
    for offset in [0, 1, 4096, 9999] {
        assert_eq!(fs.seek(ino, offset, Seek::Data), Ok(offset));
        assert_eq!(fs.seek(ino, offset, Seek::Hole), Ok(10_000));
    }
}

fn seek_refuses(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    let empty = file(fs, b"g");
    let d = dir(fs, b"d");
    let special = others(fs);
    for whence in [Seek::Data, Seek::Hole] {
        for offset in [3, 4, fs.limits().file_size, u64::MAX] {
            fails(fs.seek(ino, offset, whence), Errno::NXIO);
        }
        fails(fs.seek(empty, 0, whence), Errno::NXIO);
        fails(fs.seek(d, 0, whence), Errno::ISDIR);
        for &other in &special {
            fails(fs.seek(other, 0, whence), Errno::INVAL);
        }
    }
}

/// Holes may be reported as data, but walking a file of 2^47 bytes must end.
fn seek_stays_sparse(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let far = fs.limits().file_size / 2;
    fs.write(ino, far, b"x").unwrap();
    let (mut at, mut steps) = (0, 0);
    while let Ok(data) = fs.seek(ino, at, Seek::Data) {
        at = fs.seek(ino, data, Seek::Hole).unwrap();
        assert!(at > data, "{data} is data and a hole");
        steps += 1;
        assert!(steps < 10_000, "no end in sight at {at}");
    }
    assert!(at > far);
}

fn copies_between_files(fs: &dyn FileSystem) {
    let data = pattern(50_000);
    let (a, b) = (file_with(fs, b"a", &data), file(fs, b"b"));
    assert_eq!(fs.copy_range((a, 0), (b, 0), 50_000), Ok(50_000));
    assert_bytes(&contents(fs, b), &data);
    fs.write(a, 0, b"changed").unwrap();
    assert_bytes(&contents(fs, b), &data);
    assert_eq!(fs.copy_range((a, 0), (b, 100_000), 7), Ok(7));
    assert_eq!(&contents(fs, b)[99_998..], b"\0\0changed");
}

fn copies_end_at_the_source(fs: &dyn FileSystem) {
    let (a, b) = (file_with(fs, b"a", b"abcdef"), file(fs, b"b"));
    assert_eq!(fs.copy_range((a, 4), (b, 1), 100), Ok(2));
    assert_eq!(contents(fs, b), b"\0ef");
    assert_eq!(fs.copy_range((a, 0), (b, 0), u64::MAX), Ok(6));
    for (offset, len) in [(6, 1), (100, 100), (0, 0), (u64::MAX, u64::MAX)] {
        assert_eq!(fs.copy_range((a, offset), (b, 0), len), Ok(0));
    }
    assert_eq!(contents(fs, b), b"abcdef");
}

fn copies_within_a_file(fs: &dyn FileSystem) {
    let mut want = pattern(20_000);
    let a = file_with(fs, b"a", &want);
    for (from, to, len) in [(0, 5000, 5000), (10_000, 3000, 7000), (12_000, 20_000, 8000)] {
        assert_eq!(fs.copy_range((a, from as u64), (a, to as u64), len as u64), Ok(len as u64));
        want.resize(want.len().max(to + len), 0);
        want.copy_within(from..from + len, to);
        assert_bytes(&contents(fs, a), &want);
    }
    for (from, to, len) in [(0, 0, 1), (0, 10, 11), (10, 0, 11), (0, 19_999, 40_000)] {
        fails(fs.copy_range((a, from), (a, to), len), Errno::INVAL);
    }
    assert_bytes(&contents(fs, a), &want);
}

fn copies_of_every_alignment(fs: &dyn FileSystem) {
    let data = pattern(30_000);
    let a = file_with(fs, b"a", &data);
    let b = file_with(fs, b"b", &[0xaa; 40_000]);
    let mut want = vec![0xaa; 40_000];
    for (from, to, len) in [(0, 1, 4096), (1, 0, 4096), (4095, 8192, 8193), (4096, 20_001, 9999)] {
        assert_eq!(fs.copy_range((a, from as u64), (b, to as u64), len as u64), Ok(len as u64));
        want[to..to + len].copy_from_slice(&data[from..from + len]);
        assert_bytes(&contents(fs, b), &want);
    }
}

fn copies_bring_holes_as_zeros(fs: &dyn FileSystem) {
    let (a, b) = (file(fs, b"a"), file_with(fs, b"b", &[0xaa; 30_000]));
    fs.write(a, 20_000, b"x").unwrap();
    assert_eq!(fs.copy_range((a, 0), (b, 100), 20_001), Ok(20_001));
    let mut want = vec![0xaa; 30_000];
    want[100..20_100].fill(0);
    want[20_100] = b'x';
    assert_bytes(&contents(fs, b), &want);
}

fn copies_refuse(fs: &dyn FileSystem) {
    let f = file_with(fs, b"f", b"abc");
    let d = dir(fs, b"d");
    for (ino, errno) in
        others(fs).into_iter().map(|ino| (ino, Errno::INVAL)).chain([(d, Errno::ISDIR)])
    {
        fails(fs.copy_range((ino, 0), (f, 0), 1), errno);
        fails(fs.copy_range((f, 0), (ino, 0), 1), errno);
    }
    let g = file(fs, b"g");
    for offset in [fs.limits().file_size, fs.limits().file_size - 2, u64::MAX] {
        fails(fs.copy_range((f, 0), (g, offset), 3), Errno::FBIG);
    }
    assert_eq!(attr(fs, g).size, 0);
    assert_eq!(fs.copy_range((f, 0), (g, fs.limits().file_size - 3), 3), Ok(3));
}

fn copies_set_times(fs: &dyn FileSystem) {
    let (a, b) = (file_with(fs, b"a", b"abc"), file(fs, b"b"));
    age(fs, a);
    age(fs, b);
    assert_eq!(fs.copy_range((a, 3), (b, 0), 1), Ok(0));
    assert_eq!(renewed(fs, b), (false, false));
    fs.copy_range((a, 0), (b, 0), 3).unwrap();
    assert_eq!((renewed(fs, a), renewed(fs, b)), ((false, false), (true, true)));
}

/// Returns whether the file system clones; one that does not refuses to.
fn can_clone(fs: &dyn FileSystem) -> bool {
    if !fs.limits().clones {
        let (a, b) = (file_with(fs, b"source", b"abc"), file(fs, b"sink"));
        fails(fs.clone_range((a, 0), (b, 0), 0), Errno::OPNOTSUPP);
        assert_eq!(attr(fs, b).size, 0);
    }
    fs.limits().clones
}

fn clones_are_copies(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    for (size, before) in [(0, 0), (1, 0), (1, 1), (4096, 9), (49_152, 60_000), (3 << 20, 5000)] {
        let data = pattern(size);
        let a = file_with(fs, format!("a{size}-{before}").as_bytes(), &data);
        let b = file_with(fs, format!("b{size}-{before}").as_bytes(), &pattern(before));
        let was = contents(fs, b);
        fs.clone_range((a, 0), (b, 0), 0).unwrap();
        // The rest of a longer file stays.
        let mut want = data.clone();
        want.extend(was.get(size..).unwrap_or_default());
        assert_bytes(&contents(fs, b), &want);
        assert_bytes(&contents(fs, a), &data);
    }
}

fn clones_of_parts(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    let data = pattern(10 * 4096 + 5);
    let a = file_with(fs, b"a", &data);
    let mut want = vec![0xaa; 8 * 4096];
    let b = file_with(fs, b"b", &want);
    for (from, to, count) in [(1, 0, 1), (0, 3, 2), (5, 7, 3), (2, 12, 1)] {
        let (from, to, len) = (from * 4096, to * 4096, count * 4096);
        fs.clone_range((a, from as u64), (b, to as u64), len as u64).unwrap();
        want.resize(want.len().max(to + len), 0);
        want[to..to + len].copy_from_slice(&data[from..from + len]);
        assert_bytes(&contents(fs, b), &want);
    }
    // The end of the source, to the end of the file and beyond.
    fs.clone_range((a, 9 * BLOCK), (b, 12 * BLOCK), 4096 + 5).unwrap();
    want.truncate(12 * 4096);
    want.extend(&data[9 * 4096..]);
    assert_bytes(&contents(fs, b), &want);
    fs.append(b, b"more").unwrap();
    want.extend(b"more");
    assert_bytes(&contents(fs, b), &want);
    assert_bytes(&contents(fs, a), &data);
}

fn clones_within_a_file(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    let mut want = pattern(6 * 4096);
    let a = file_with(fs, b"a", &want);
    for (from, to, count) in [(0, 1, 1), (0, 4, 3), (1, 6, 1), (7, 0, 0)] {
        let (from, to, len) = (from * 4096, to * 4096, count * 4096);
        if to + len > want.len() {
            want.resize(to + len, 0);
        }
        fs.clone_range((a, from as u64), (a, to as u64), len as u64).unwrap();
        want.copy_within(from..from + len, to);
        assert_bytes(&contents(fs, a), &want);
    }
    fs.write(a, 4096 + 10, b"only here").unwrap();
    want[4106..4115].copy_from_slice(b"only here");
    assert_bytes(&contents(fs, a), &want);
}

/// After a clone, each change of one file leaves the other as it is.
fn clones_diverge(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    let changes: [fn(&dyn FileSystem, Ino); 14] = [
        |fs, f| fs.write(f, 8, b"a word").unwrap(),
        |fs, f| fs.write(f, 70, &[1; 40]).unwrap(),
        |fs, f| fs.write(f, 4096 + 100, &[2; 900]).unwrap(),
        |fs, f| fs.write(f, 8192, &[3; 4096]).unwrap(),
        |fs, f| fs.write(f, 5000, &[4; 30_000]).unwrap(),
        |fs, f| fs.append(f, &[5; 10]).map(drop).unwrap(),
        |fs, f| fs.append(f, &[5; 10_000]).map(drop).unwrap(),
        |fs, f| fs.write(f, 49_000, &[6; 3000]).unwrap(),
        |fs, f| truncate(fs, f, 20_100).map(drop).unwrap(),
        |fs, f| truncate(fs, f, 60_000).map(drop).unwrap(),
        |fs, f| fs.fallocate(f, Fallocate::PunchHole, 5000, 20_000).unwrap(),
        |fs, f| fs.fallocate(f, Fallocate::Collapse, BLOCK, 3 * BLOCK).unwrap(),
        |fs, f| {
            let mode = Fallocate::ZeroRange { keep_size: false };
            fs.fallocate(f, mode, 40_000, 20_000).unwrap();
        },
        |fs, f| truncate(fs, f, 0).map(drop).unwrap(),
    ];
    let data = pattern(50_000);
    for (i, change) in changes.into_iter().enumerate() {
        // The same change of a file that shares nothing.
        let plain = file_with(fs, format!("plain{i}").as_bytes(), &data);
        change(fs, plain);
        for of_source in [true, false] {
            let a = file_with(fs, format!("a{i}{of_source}").as_bytes(), &data);
            let b = file(fs, format!("b{i}{of_source}").as_bytes());
            fs.clone_range((a, 0), (b, 0), 0).unwrap();
            let (changed, other) = if of_source { (a, b) } else { (b, a) };
            change(fs, changed);
            assert_bytes(&contents(fs, changed), &contents(fs, plain));
            assert_bytes(&contents(fs, other), &data);
            change(fs, other);
            assert_bytes(&contents(fs, other), &contents(fs, plain));
        }
    }
}

fn clones_of_sparse_files(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    let a = file(fs, b"a");
    let far = 1u64 << 32;
    fs.write(a, 8192, b"near").unwrap();
    fs.write(a, far, b"far").unwrap();
    let b = file_with(fs, b"b", &[0xaa; 30_000]);
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    let mut buf = [1; 3];
    fs.read(b, far, &mut buf).unwrap();
    assert_eq!((&buf, attr(fs, b).size), (b"far", far + 3));
    let mut head = [1; 30_000];
    fs.read(b, 0, &mut head).unwrap();
    let mut want = [0; 30_000];
    want[8192..8196].copy_from_slice(b"near");
    assert_bytes(&head, &want);
    fs.clone_range((a, 0), (b, 1 << 33), 1 << 30).unwrap();
    fs.read(b, (1 << 33) + 8192, &mut buf).unwrap();
    assert_eq!((&buf, attr(fs, b).size), (b"nea", (1 << 33) + (1 << 30)));
}

fn clones_refuse(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    let f = file_with(fs, b"f", &pattern(10_000));
    let g = file_with(fs, b"g", &pattern(20_000));
    let d = dir(fs, b"d");
    for (ino, errno) in
        others(fs).into_iter().map(|ino| (ino, Errno::INVAL)).chain([(d, Errno::ISDIR)])
    {
        fails(fs.clone_range((ino, 0), (f, 0), 0), errno);
        fails(fs.clone_range((f, 0), (ino, 0), 0), errno);
    }
    for (from, to, len) in [
        (1, 0, BLOCK),
        (0, 1, BLOCK),
        (0, 0, 100),
        (0, 0, 10_001),
        (12_288, 0, BLOCK),
        (12_288, 0, 0),
        // It would end inside a block of the file.
        (0, 0, 10_000),
        (8192, 0, 0),
        (0, 0, u64::MAX),
    ] {
        fails(fs.clone_range((f, from), (g, to), len), Errno::INVAL);
    }
    for (from, to, len) in [(0, 0, 0), (0, 4096, 8192), (8192, 4096, 8192), (0, 8192, 0)] {
        fails(fs.clone_range((f, from), (f, to), len), Errno::INVAL);
    }
    let limit = fs.limits().file_size;
    fails(fs.clone_range((g, 0), (f, limit - BLOCK), 2 * BLOCK), Errno::FBIG);
    assert_bytes(&contents(fs, f), &pattern(10_000));
    assert_bytes(&contents(fs, g), &pattern(20_000));
}

fn clones_set_times(fs: &dyn FileSystem) {
    if !can_clone(fs) {
        return;
    }
    let (a, b) = (file_with(fs, b"a", &pattern(8192)), file(fs, b"b"));
    age(fs, a);
    age(fs, b);
    fs.clone_range((a, 8192), (b, 0), 0).unwrap();
    assert_eq!(renewed(fs, b), (false, false));
    fs.clone_range((a, 4096), (b, 0), 0).unwrap();
    assert_eq!((renewed(fs, a), renewed(fs, b)), ((false, false), (true, true)));
}
