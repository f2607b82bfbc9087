//! The places of contents: runs as long as that is possible, tables otherwise; and that
//! pre-allocated blocks never show.

// These tests assert the blocks that are needed; `prealloc.rs` tests those that are pre-allocated.
use crate::common::OnDemand as Scmfs;
use namespace::layout::Word;
use pmem::Medium as _;
use pool::{CheckOptions, Engine as _, Error, MountOptions};
use scmfs::layout::LIMITS;
use scmfs::layout::{BLOCK, EXTENT, FANOUT, Unverified, fnv1a, journal};
use std::sync::atomic::Ordering::Relaxed;
use suite::{Engine as _, Fs, check_and_remount, content, file, mount, mounted, resize};
use vfs::{Fallocate, FileSystem as _, Ino, ROOT, Seek};

type Pool = Fs<Scmfs>;

fn pool() -> Pool {
    mounted::<Scmfs>(64 << 20)
}

fn append(fs: &Pool, ino: Ino, data: &[u8]) {
    fs.append(ino, data).unwrap();
}

/// Returns the map word of a file among the first inodes.
fn map_of(fs: &Pool, ino: Ino) -> Unverified {
    Unverified::unpack(fs.medium().load_u64(Scmfs::inode_at(ino) + Word::Root as u64))
}

/// Returns the words of a table.
fn words_of(fs: &Pool, map: Unverified) -> Vec<Unverified> {
    let Unverified::Table { block, .. } = map else { panic!("{map:?} is no table") };
    (0..FANOUT).map(|i| Unverified::unpack(fs.medium().load_u64(block * BLOCK + i * 8))).collect()
}

fn start_of(map: Unverified) -> u64 {
    let Unverified::Run { start, .. } = map else { panic!("{map:?} is no run") };
    start
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 251 + 1) as u8).collect()
}

#[test]
fn a_file_that_can_grow_in_place_stays_one_run() {
    let fs = pool();
    let f = file(&fs, "f", &[1; 4096]);
    let start = start_of(map_of(&fs, f));
    // More than the size from which on a table would be needed.
    (1..1500).for_each(|_| append(&fs, f, &[1; 4096]));
    assert_eq!(map_of(&fs, f), Unverified::Run { start, count: 1500 }, "it could grow in place");
    assert_eq!(fs.getattr(f).unwrap().blocks, 1500 * 8);
    check_and_remount::<Scmfs>(fs);
}

#[test]
fn a_file_whose_neighbour_is_taken_moves_or_becomes_a_table() {
    let fs = pool();
    let idle = fs.statfs().blocks_free;
    let (small, large) = (pattern(100 * 4096), pattern(3 << 20));
    let mut names = Vec::new();
    for (name, before) in [("small", small), ("large", large)] {
        let f = file(&fs, name, &before);
        let was = start_of(map_of(&fs, f));
        let blocks = before.len() as u64 / BLOCK;
        // Small files take the rest of broken units, until one lies behind it.
        let is_behind = |nth: &u64| {
            let other = file(&fs, &format!("{name}{nth}"), &vec![9; 250 * 4096]);
            start_of(map_of(&fs, other)) == was + blocks
        };
        let nth = (0..4).find(is_behind).expect("the lowest places are taken first");
        names.extend((0..=nth).map(|nth| format!("{name}{nth}")).chain([name.to_owned()]));
        fs.append(f, b"one more").unwrap();
        let map = map_of(&fs, f);
        if before.len() as u64 <= EXTENT {
            assert_ne!(start_of(map), was, "all of it is elsewhere");
        } else {
            assert!(matches!(map, Unverified::Table { level: 2, .. }), "{map:?}");
            let words = words_of(&fs, map);
            assert_eq!(start_of(words[0]), was, "what it has stays where it is");
            let last = words_of(&fs, words[1]);
            assert_eq!(start_of(last[0]), was + FANOUT, "what continues it is in pieces");
        }
        let mut want = before.clone();
        want.extend(b"one more");
        assert!(content(&fs, f) == want, "{name}");
    }
    let fs = check_and_remount::<Scmfs>(fs);
    names.iter().for_each(|name| fs.unlink(ROOT, name.as_bytes()).unwrap());
    // One block for the root directory.
    assert_eq!(fs.statfs().blocks_free, idle - 1);
}

#[test]
fn a_file_that_moves_stays_for_who_reads_it_without_a_copy() {
    let fs = mounted::<Scmfs>(4 << 20);
    let before = pattern(100 * 4096);
    let f = file(&fs, "f", &before);
    let was = start_of(map_of(&fs, f));
    file(&fs, "other", &vec![9; 100 * 4096]);
    let held = fs.get_read_buf(f, 0, 100 * 4096).unwrap();
    fs.append(f, b"one more").unwrap();
    assert_ne!(start_of(map_of(&fs, f)), was);
    let filler = file(&fs, "filler", b"");
    while fs.append(filler, &[0x55; 20_000]).is_ok() {}
    let is_there = held.iter().zip(&before).all(|(now, before)| now.load(Relaxed) == *before);
    assert!(is_there, "what it left is not used while it is read");
    let free = fs.statfs().blocks_free;
    drop(held);
    assert_eq!(fs.statfs().blocks_free, free + 100);
}

#[test]
fn extents_of_a_table_grow_in_place() {
    let fs = pool();
    let f = file(&fs, "f", &pattern(3 << 20));
    // The last of them lies behind `f`.
    for i in 0..3 {
        file(&fs, &format!("other{i}"), &vec![9; 250 * 4096]);
    }
    for _ in 0..1024 {
        append(&fs, f, &[1; 4096]);
    }
    let words = words_of(&fs, map_of(&fs, f));
    let used: Vec<_> = words.iter().filter(|word| **word != Unverified::Hole).collect();
    assert_eq!(used.len(), 4, "7 MiB");
    // The second word was broken where the run ended.
    for (i, word) in used.iter().enumerate() {
        let is_run = matches!(word, Unverified::Run { .. });
        assert!(is_run || i == 1, "extent {i} is in pieces: {word:?}");
    }
    check_and_remount::<Scmfs>(fs);
}

#[test]
fn the_largest_sparse_file_takes_five_blocks() {
    let fs = pool();
    let f = file(&fs, "f", b"");
    fs.write(f, LIMITS.file_size - 1, b"x").unwrap();
    assert_eq!(fs.getattr(f).unwrap().blocks, 5 * 8, "four tables and what they lead to");
    assert_eq!(fs.seek(f, 0, Seek::Data), Ok(LIMITS.file_size - BLOCK));
    let mut some = [1; 9000];
    assert_eq!(fs.read(f, 1 << 45, &mut some), Ok(9000));
    assert_eq!(some, [0; 9000]);
    let fs = check_and_remount::<Scmfs>(fs);
    let free = fs.statfs().blocks_free;
    resize(&fs, f, 0);
    assert_eq!(fs.statfs().blocks_free, free + 5);
}

#[test]
fn a_punched_hole_gives_its_blocks_back_and_reads_as_zeros() {
    let fs = pool();
    let mut model = pattern(8 << 20);
    let f = file(&fs, "f", &model);
    let free = fs.statfs().blocks_free;
    let (start, end) = ((2 << 20) + 100, (6 << 20) - 100);
    fs.fallocate(f, Fallocate::PunchHole, start as u64, (end - start) as u64).unwrap();
    model[start..end].fill(0);
    assert!(content(&fs, f) == model);
    // All blocks of two words of the table, except the partial blocks at both ends.
    let back = fs.statfs().blocks_free - free;
    assert!(back >= 512 - 2, "{back} blocks came back");
    fs.fallocate(f, Fallocate::PunchHole, 0, 8 << 20).unwrap();
    assert!(content(&fs, f).iter().all(|byte| *byte == 0));
    assert!(fs.statfs().blocks_free >= free + 2048 - 4);
    assert_eq!(fs.seek(f, 0, Seek::Data), Err(vfs::Errno::NXIO));
    check_and_remount::<Scmfs>(fs);
}

/// A way to let a file grow to a size.
type Grow = (&'static str, fn(&Pool, Ino, u64));

/// In a single run and in tables: by a size, a write far out, an allocation.
#[test]
fn what_is_cut_and_grown_again_reads_as_zeros() {
    let grow: [Grow; 4] = [
        ("a size", |fs, f, size| resize(fs, f, size)),
        ("a write", |fs, f, size| fs.write(f, size - 1, &[0]).unwrap()),
        ("an allocation", |fs, f, size| {
            let all = Fallocate::Allocate { keep_size: false };
            fs.fallocate(f, all, 0, size).unwrap();
        }),
        ("zeros", |fs, f, size| {
            let some = Fallocate::ZeroRange { keep_size: false };
            fs.fallocate(f, some, size - 10, 10).unwrap();
        }),
    ];
    for (what, grow) in grow {
        for is_table in [false, true] {
            for (cut, size) in
                [(10_000, 11_000), (10_000, 60_000), (1, 4096), (0, 3 << 20), (8192, 5 << 20)]
            {
                let fs = mounted::<Scmfs>(32 << 20);
                let f = file(&fs, "f", &[0xff; 100_000]);
                if is_table {
                    fs.write(f, 6 << 20, &[0xff; 5000]).unwrap();
                }
                resize(&fs, f, cut);
                grow(&fs, f, size);
                let mut want = vec![0xff; cut as usize];
                want.resize(size as usize, 0);
                assert!(content(&fs, f) == want, "{what}, table: {is_table}, {cut} -> {size}");
                let fs = check_and_remount::<Scmfs>(fs);
                assert!(content(&fs, f) == want, "{what}, table: {is_table}, {cut} -> {size}");
            }
        }
    }
}

#[test]
fn ranges_are_taken_out_and_put_in() {
    for len in [20_000, 200_000, 5 << 20] {
        let fs = pool();
        let mut model = pattern(len);
        let f = file(&fs, "f", &model);
        for (at, len) in [(4096, 8192), (0, 4096), (8192, 4096)] {
            fs.fallocate(f, Fallocate::Collapse, at as u64, len as u64)
                .unwrap_or_else(|e| panic!("{at} {len} {e}"));
            model.drain(at..at + len);
            assert!(content(&fs, f) == model, "without {len} at {at}");
            fs.fallocate(f, Fallocate::Insert, at as u64, 2 * len as u64).unwrap();
            model.splice(at..at, vec![0; 2 * len]);
            assert!(content(&fs, f) == model, "with {len} at {at}");
        }
        fs.append(f, b"and on").unwrap();
        model.extend(b"and on");
        let fs = check_and_remount::<Scmfs>(fs);
        assert!(content(&fs, f) == model);
    }
}

#[test]
fn small_requests_leave_whole_units_alone() {
    let fs = pool();
    let units = 64 << 20 >> 21;
    let mut broken = std::collections::BTreeSet::from([0]);
    for i in 0..12 {
        let f = file(&fs, &format!("f{i}"), &vec![1; 100 * 4096]);
        let start = start_of(map_of(&fs, f));
        broken.extend([start / FANOUT, (start + 99) / FANOUT]);
    }
    // 1200 blocks are three units; at the end of each there may be no room for another file.
    assert!(broken.len() <= 4, "{broken:?} of {units}");
}

/// Leaves a record of the redo journal as a power failure does before its words are stored.
fn leave_record(medium: &impl pmem::Medium, number: u64, words: &[(u64, u64)]) {
    let mut bytes = (words.len() as u64).to_le_bytes().to_vec();
    for (at, value) in words {
        bytes.extend(at.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    let at = (journal::START + number * journal::RECORD).get();
    medium.write(at + 8, &bytes);
    medium.store_u64(at, (fnv1a(&bytes) ^ fnv1a(&number.to_le_bytes())).max(1));
}

/// Runs and tables that are too small for the size (claims-S3).
#[test]
fn a_size_beyond_what_a_map_can_hold_is_damage() {
    for hole in [false, true] {
        let fs = pool();
        let f = file(&fs, "f", b"content");
        if hole {
            fs.write(f, 1 << 20, b"x").unwrap();
        }
        let most = if hole { EXTENT } else { BLOCK };
        assert_eq!(matches!(map_of(&fs, f), Unverified::Table { level: 1, .. }), hole);
        let before = content(&fs, f);
        let region = fs.into_medium();
        let size = Scmfs::inode_at(f) + Word::Size as u64;
        let check =
            |repair| Scmfs::check(&region, &CheckOptions { repair, threads: Some(1) }).unwrap();
        region.store_u64(size, most);
        assert!(check(false).clean(), "as long as it can be");
        region.store_u64(size, most + 1);
        let found = check(false).problems;
        assert!(found.len() == 1 && found[0].what.contains("can hold"), "{found:?}");
        assert!(check(true).problems.iter().all(|problem| problem.repaired));
        assert!(check(false).clean());
        let fs = mount::<Scmfs, _>(region);
        assert_eq!(content(&fs, f).len() as u64, most);
        assert_eq!(content(&fs, f)[..before.len()], before);
        check_and_remount::<Scmfs>(fs);
    }
}

#[test]
fn what_was_interrupted_is_finished_by_who_may_write() {
    for repairs in [false, true] {
        let fs = pool();
        let f = file(&fs, "f", b"content");
        let region = fs.into_medium();
        let word = Scmfs::inode_at(f) + Word::Root as u64;
        let right = region.load_u64(word);
        // The word that the record restores has an impossible value before.
        region.store_u64(word, u64::MAX);
        let check =
            |repair| Scmfs::check(&region, &CheckOptions { repair, threads: Some(1) }).unwrap();
        assert!(!check(false).clean());
        leave_record(&region, 5, &[(word, right), (word + 8, 7)]);

        assert!(check(false).clean(), "as it will be");
        assert_eq!(region.load_u64(word), u64::MAX, "who only looks changes nothing");
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        match Fs::<Scmfs, &pmem::Region>::mount(&region, &options) {
            Err(Error::Unusable(why)) => {
                assert!(why.contains("mount it for writing once"), "{why}");
                assert!(why.contains("check --repair"), "{why}");
            }
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("a read-only mount cannot finish it"),
        }
        if repairs {
            assert!(check(true).clean());
            Fs::<Scmfs, &pmem::Region>::mount(&region, &options).map(drop).unwrap();
        }
        let fs = mount::<Scmfs, _>(region);
        assert_eq!(content(&fs, f), b"content");
        let region = fs.into_medium();
        assert_eq!(region.load_u64(word), right);
        assert_eq!(region.load_u64((journal::START + 5 * journal::RECORD).get()), 0);
    }
}
