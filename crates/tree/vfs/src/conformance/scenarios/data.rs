//! Reading, writing, appending, truncating.

use super::{assert_bytes, attr, contents, dir, fails, file, file_with, others, pattern, truncate};
use crate::{Errno, FileSystem, SetAttr, StatFs};

super::table!("data":
    what_is_written_is_read,
    reads_end_at_the_end,
    gaps_read_as_zeros,
    overwriting_leaves_the_rest,
    writes_of_every_alignment,
    large_writes_work,
    empty_writes_are_nothing,
    appends_tell_their_offset,
    appends_fill_blocks_of_any_size,
    the_largest_file_is_limited,
    only_files_have_contents,
    truncation_cuts,
    truncation_extends_with_zeros,
    cut_bytes_never_come_back,
    truncation_is_limited,
    sizes_grow_through_every_level,
    files_do_not_share_contents,
    fsync_works_everywhere,
    statfs_is_plausible,
    writing_takes_space,
);

const BLOCK: usize = 4096;

fn what_is_written_is_read(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fs.write(ino, 0, b"hello, world").unwrap();
    assert_eq!(attr(fs, ino).size, 12);
    assert_eq!(contents(fs, ino), b"hello, world");
    let mut part = [0; 5];
    assert_eq!(fs.read(ino, 7, &mut part), Ok(5));
    assert_eq!(&part, b"world");
}

fn reads_end_at_the_end(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    let mut buf = [0xee; 8];
    assert_eq!(fs.read(ino, 1, &mut buf), Ok(2));
    assert_eq!(&buf[..2], b"bc");
    for offset in [3, 4, 4096, fs.limits().file_size, u64::MAX] {
        assert_eq!(fs.read(ino, offset, &mut buf), Ok(0));
    }
    assert_eq!(fs.read(ino, 0, &mut []), Ok(0));
}

fn gaps_read_as_zeros(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"start");
    fs.write(ino, 50_000, b"end").unwrap();
    let mut want = b"start".to_vec();
    want.resize(50_000, 0);
    want.extend(b"end");
    assert_bytes(&contents(fs, ino), &want);
}

fn overwriting_leaves_the_rest(fs: &dyn FileSystem) {
    let mut want = pattern(3 * BLOCK);
    let ino = file_with(fs, b"f", &want);
    for (offset, len) in [(0, 1), (100, 8), (4090, 12), (4096, 4096), (5000, 7000), (12287, 1)] {
        let new = vec![0x5a; len];
        fs.write(ino, offset as u64, &new).unwrap();
        want[offset..offset + len].copy_from_slice(&new);
        assert_bytes(&contents(fs, ino), &want);
    }
    assert_eq!(attr(fs, ino).size, 3 * BLOCK as u64);
}

fn writes_of_every_alignment(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let mut want: Vec<u8> = Vec::new();
    let data = pattern(2 * BLOCK + 40);
    let edges = [0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 4087, 4088, 4095, 4096, 4097, 8191, 8192];
    for (turn, offset) in edges.into_iter().enumerate() {
        for len in [1, 7, 8, 9, 64, 4095, 4096, 4097, 8200] {
            let new = &data[turn..][..len];
            fs.write(ino, offset as u64, new).unwrap();
            want.resize(want.len().max(offset + len), 0);
            want[offset..offset + len].copy_from_slice(new);
        }
        assert_bytes(&contents(fs, ino), &want);
    }
}

fn large_writes_work(fs: &dyn FileSystem) {
    let data = pattern(3 * 1024 * 1024 + 77);
    let ino = file(fs, b"f");
    fs.write(ino, 1000, &data).unwrap();
    let got = contents(fs, ino);
    assert_bytes(&got[..1000], &[0; 1000]);
    assert_bytes(&got[1000..], &data);
    fs.write(ino, 500, &data[..2 * 1024 * 1024]).unwrap();
    assert_bytes(&contents(fs, ino)[500..500 + 2 * 1024 * 1024], &data[..2 * 1024 * 1024]);
}

fn empty_writes_are_nothing(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    super::age(fs, ino);
    fs.write(ino, 1, b"").unwrap();
    fs.write(ino, 1_000_000, b"").unwrap();
    fs.write(ino, u64::MAX, b"").unwrap();
    assert_eq!(fs.append(ino, b""), Ok(3));
    assert_eq!(attr(fs, ino).size, 3);
    assert_eq!(super::renewed(fs, ino), (false, false));
}

fn appends_tell_their_offset(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    assert_eq!(fs.append(ino, b"one"), Ok(0));
    assert_eq!(fs.append(ino, b"two"), Ok(3));
    truncate(fs, ino, 5000).unwrap();
    assert_eq!(fs.append(ino, b"three"), Ok(5000));
    assert_eq!(attr(fs, ino).size, 5005);
    assert_eq!(&contents(fs, ino)[4998..], b"\0\0three");
}

fn appends_fill_blocks_of_any_size(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let mut want = Vec::new();
    for len in [1, 100, 3995, 1, 4095, 4096, 4097, 12_288, 5, 300_000] {
        let data = pattern(len);
        assert_eq!(fs.append(ino, &data), Ok(want.len() as u64));
        want.extend(data);
    }
    assert_bytes(&contents(fs, ino), &want);
}

fn the_largest_file_is_limited(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fs.write(ino, fs.limits().file_size - 3, b"end").unwrap();
    assert_eq!(attr(fs, ino).size, fs.limits().file_size);
    let mut buf = [0xee; 8];
    assert_eq!(fs.read(ino, fs.limits().file_size - 5, &mut buf), Ok(5));
    assert_eq!(&buf[..5], b"\0\0end");
    fails(fs.write(ino, fs.limits().file_size, b"x"), Errno::FBIG);
    fails(fs.write(ino, fs.limits().file_size - 1, b"xy"), Errno::FBIG);
    fails(fs.write(ino, u64::MAX, b"xy"), Errno::FBIG);
    fails(fs.append(ino, b"x"), Errno::FBIG);
    assert_eq!(fs.read(ino, fs.limits().file_size - 3, &mut buf), Ok(3));
    assert_eq!(&buf[..3], b"end");
    let small = file(fs, b"g");
    fails(fs.write(small, fs.limits().file_size, b"x"), Errno::FBIG);
    assert_eq!(attr(fs, small).size, 0);
}

fn only_files_have_contents(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    for (ino, errno) in
        others(fs).into_iter().map(|ino| (ino, Errno::INVAL)).chain([(d, Errno::ISDIR)])
    {
        fails(fs.read(ino, 0, &mut [0; 8]), errno);
        fails(fs.write(ino, 0, b"x"), errno);
        fails(fs.write(ino, 0, b""), errno);
        fails(fs.append(ino, b"x"), errno);
        fails(truncate(fs, ino, 0), errno);
    }
}

fn truncation_cuts(fs: &dyn FileSystem) {
    let data = pattern(10 * BLOCK);
    let ino = file_with(fs, b"f", &data);
    for size in [40_000, 39_999, 8193, 8192, 8191, 100, 1, 0] {
        assert_eq!(truncate(fs, ino, size as u64).unwrap().size, size as u64);
        assert_bytes(&contents(fs, ino), &data[..size]);
    }
}

fn truncation_extends_with_zeros(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    for size in [4, 4096, 4097, 3_000_000] {
        truncate(fs, ino, size).unwrap();
        let mut want = b"abc".to_vec();
        want.resize(size as usize, 0);
        assert_bytes(&contents(fs, ino), &want);
    }
}

fn cut_bytes_never_come_back(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    for cut in [1, 100, 4095, 4096, 4097, 10_000] {
        fs.write(ino, 0, &[0xaa; 20_000]).unwrap();
        truncate(fs, ino, cut as u64).unwrap();
        truncate(fs, ino, 20_000).unwrap();
        let mut want = vec![0xaa; cut];
        want.resize(20_000, 0);
        assert_bytes(&contents(fs, ino), &want);
        fs.write(ino, 0, &[0xaa; 20_000]).unwrap();
        truncate(fs, ino, cut as u64).unwrap();
        fs.write(ino, 15_000, b"x").unwrap();
        want.truncate(15_000);
        want.push(b'x');
        assert_bytes(&contents(fs, ino), &want);
    }
}

fn truncation_is_limited(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abc");
    fails(truncate(fs, ino, fs.limits().file_size + 1), Errno::FBIG);
    fails(truncate(fs, ino, u64::MAX), Errno::FBIG);
    let set = SetAttr { perm: Some(0o600), size: Some(u64::MAX), ..SetAttr::default() };
    fails(super::setattr(fs, ino, set), Errno::FBIG);
    let unchanged = attr(fs, ino);
    assert_eq!((unchanged.size, unchanged.perm), (3, 0o644));
    assert_eq!(truncate(fs, ino, fs.limits().file_size).unwrap().size, fs.limits().file_size);
    let mut buf = [0xee; 4];
    assert_eq!(fs.read(ino, fs.limits().file_size / 2, &mut buf), Ok(4));
    assert_eq!(buf, [0; 4]);
    truncate(fs, ino, 2).unwrap();
    assert_eq!(contents(fs, ino), b"ab");
}

/// A tree of 4 KiB blocks gets higher at powers of 512 blocks.
fn sizes_grow_through_every_level(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let edges = [12, 21, 30, 39, 47].iter().map(|bits| 1u64 << bits);
    let edges: Vec<u64> = edges.filter(|edge| edge + 2 <= fs.limits().file_size).collect();
    for &edge in &edges {
        fs.write(ino, edge - 2, b"1234").unwrap();
        assert_eq!(attr(fs, ino).size, edge + 2);
    }
    for &edge in edges.iter().rev() {
        let mut buf = [0xee; 6];
        let len = fs.read(ino, edge - 3, &mut buf).unwrap();
        assert_eq!(&buf[..len], &b"\x001234\0"[..len]);
        truncate(fs, ino, edge).unwrap();
        assert_eq!(fs.read(ino, edge - 3, &mut buf), Ok(3));
        assert_eq!(&buf[..3], b"\x0012");
    }
}

fn files_do_not_share_contents(fs: &dyn FileSystem) {
    let inos: Vec<_> = (0..20u8).map(|i| file(fs, &[b'a' + i])).collect();
    for round in 0..3usize {
        for (i, &ino) in inos.iter().enumerate() {
            fs.write(ino, (round * 5000) as u64, &vec![i as u8 + 1; 5000]).unwrap();
        }
    }
    for (i, &ino) in inos.iter().enumerate() {
        assert_bytes(&contents(fs, ino), &vec![i as u8 + 1; 15_000]);
    }
}

fn fsync_works_everywhere(fs: &dyn FileSystem) {
    let mut inos = others(fs);
    inos.extend([fs.root(), file(fs, b"f"), dir(fs, b"d")]);
    for ino in inos {
        fs.fsync(ino).unwrap();
    }
}

fn statfs_is_plausible(fs: &dyn FileSystem) {
    let StatFs { block_size, blocks, blocks_free, blocks_available, inodes, inodes_free } =
        fs.statfs();
    assert!(blocks_available <= blocks_free);
    assert!(block_size.is_power_of_two());
    assert!(blocks > 0 && blocks_free <= blocks);
    assert!(inodes > 0 && inodes_free < inodes);
}

fn writing_takes_space(fs: &dyn FileSystem) {
    let before = fs.statfs();
    let ino = file_with(fs, b"f", &pattern(1 << 20));
    let after = fs.statfs();
    let taken = (before.blocks_free - after.blocks_free) * u64::from(after.block_size);
    assert!(taken >= 1 << 20, "{taken}");
    assert!(attr(fs, ino).blocks >= 2048, "{}", attr(fs, ino).blocks);
}
