//! Compares every kind of device with a model: an array of bytes.

use pmbd::atomic::{Atomic, Geometry};
use pmbd::raw::Raw;
use pmbd::{BlockDevice, Buffering, Durability, Error, Options, Protection, Scheme, Zeroing};
use pmem::Region;
use proptest::prelude::*;
use rng::Rng;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SIZE: u64 = 200 * 512;
const ZEROING: Zeroing = Zeroing { keep_space: false, only_fast: false };

struct Bed {
    device: Arc<dyn BlockDevice>,
    options: Options,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Bed {
    fn new(options: Options) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("disk");
        pmbd::create(&path, SIZE, options.atomic).unwrap();
        let device = pmbd::open(&path, &options).unwrap();
        Self { device, options, path, _dir: dir }
    }

    fn reopen(self) -> Self {
        let Self { device, options, path, _dir } = self;
        drop(device);
        let device = pmbd::open(&path, &options).unwrap();
        Self { device, options, path, _dir }
    }
}

/// Returns configurations of buffers with room for few pages, so that writers have to wait.
fn bufferings() -> [Buffering; 3] {
    let one = Buffering { buffers: 1, bytes: 6 * 4096, ..Buffering::default() };
    [one, Buffering { batching: false, ..one }, Buffering { buffers: 2, ..one }]
}

/// Returns options in which each kind of device has each scheme and each protection at least once.
fn kinds() -> Vec<Options> {
    let mut kinds = Vec::new();
    for (atomic, checksums) in [(None, false), (Some(512), true), (Some(512), false)] {
        for scheme in Scheme::ALL {
            kinds.push(Options { atomic, checksums, scheme, ..Options::default() });
        }
        for protection in Protection::ALL {
            if protection.available() {
                let thin = atomic.is_none();
                kinds.push(Options { atomic, checksums, protection, thin, ..Options::default() });
            }
        }
    }
    kinds
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u8, bool),
    Zero(u64, u64, bool),
    Discard(u64, u64),
    Barrier,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0u64..200, 1u64..80).prop_map(|(first, n)| (first, n.min(200 - first)));
    prop_oneof![
        6 => (range(), any::<u8>(), any::<bool>()).prop_map(|((o, n), b, f)| Op::Write(o, n, b, f)),
        2 => (range(), any::<bool>()).prop_map(|((o, n), f)| Op::Zero(o, n, f)),
        1 => range().prop_map(|(o, n)| Op::Discard(o, n)),
        1 => Just(Op::Barrier),
        1 => Just(Op::Reopen),
    ]
}

fn content(sectors: u64, byte: u8) -> Vec<u8> {
    (0..sectors * 512).map(|i| byte.wrapping_add((i / 100) as u8)).collect()
}

fn when(now: bool) -> Durability {
    if now { Durability::Now } else { Durability::AtBarrier }
}

fn run(mut bed: Bed, ops: &[Op]) {
    let mut model = vec![0; SIZE as usize];
    for op in ops {
        match *op {
            Op::Write(o, n, byte, now) => {
                let data = content(n, byte);
                bed.device.write(o * 512, &data, when(now)).unwrap();
                model[(o * 512) as usize..][..data.len()].copy_from_slice(&data);
            }
            Op::Zero(o, n, now) => {
                bed.device.write_zeroes(o * 512, n * 512, ZEROING, when(now)).unwrap();
                model[(o * 512) as usize..][..(n * 512) as usize].fill(0);
            }
            Op::Discard(o, n) => {
                bed.device.discard(o * 512, n * 512).unwrap();
                // Each byte may be as before, or zero.
                let range = (o * 512) as usize..((o + n) * 512) as usize;
                let mut got = vec![0; range.len()];
                bed.device.read(o * 512, &mut got).unwrap();
                assert!(got.iter().zip(&model[range.clone()]).all(|(a, b)| a == b || *a == 0));
                model[range].copy_from_slice(&got);
            }
            Op::Barrier => bed.device.barrier().unwrap(),
            Op::Reopen => bed = bed.reopen(),
        }
        let mut got = vec![0; SIZE as usize];
        bed.device.read(0, &mut got).unwrap();
        assert!(got == model, "{:?} after {op:?}", bed.options);
        check_extents(&*bed.device, &model);
        if let Some(bytes) = bed.device.bytes(512, 1024) {
            assert!(bytes.iter().zip(&model[512..]).all(|(a, b)| a.load(Relaxed) == *b));
        }
    }
}

fn check_extents(device: &dyn BlockDevice, model: &[u8]) {
    let mut next = 0;
    let each = &mut |e: pmbd::DeviceExtent| {
        assert_eq!(e.off, next);
        next += e.len;
        let bytes = &model[e.off as usize..next as usize];
        assert!(!e.zero || bytes.iter().all(|b| *b == 0));
        true
    };
    device.extents(0, SIZE, each).unwrap();
    assert_eq!(next, SIZE);
}

#[test]
fn devices_of_tebibytes_have_address_space() {
    const LEN: u64 = 12 << 40;
    for protection in Protection::ALL.into_iter().filter(|protection| protection.available()) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
        let options = Options { protection, ..Options::default() };
        let device = pmbd::open(&path, &options).unwrap_or_else(|e| panic!("{protection}: {e}"));
        assert_eq!(device.size(), LEN);
        device.write(LEN - 4096, &[7; 4096], Durability::Now).unwrap();
        let mut block = [0; 4096];
        device.read(LEN - 4096, &mut block).unwrap();
        assert_eq!(block, [7; 4096], "{protection}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn every_kind_does_what_an_array_does(ops in prop::collection::vec(op(), 1..25)) {
        for options in kinds() {
            run(Bed::new(options), &ops);
        }
        let options = Options { protection: Protection::Pages, ..Options::default() };
        for buffering in bufferings() {
            run(Bed::new(Options { buffering: Some(buffering), ..options }), &ops);
        }
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let atomic = Options { atomic: Some(512), ..Options::default() };
    let buffered = bufferings().map(|how| Options { buffering: Some(how), ..atomic });
    for options in kinds().into_iter().chain(buffered) {
        let Bed { device, path, _dir, .. } = Bed::new(options);
        let mut buf = [0; 1024];
        for off in [SIZE - 512, SIZE, u64::MAX - 511, u64::MAX] {
            let far = |r: Result<(), Error>| assert!(matches!(r, Err(Error::OutOfRange { .. })));
            far(device.read(off, &mut buf));
            far(device.write(off, &buf, Durability::Now));
            far(device.write_zeroes(off, 1024, ZEROING, Durability::Now));
            far(device.discard(off, 1024));
            far(device.prefetch(off, 1024));
            far(device.extents(off, 1024, &mut |_| true));
            assert!(device.bytes(off, 1024).is_none());
        }
        if options.atomic.is_some() {
            let off_blocks = |r: Result<(), Error>| {
                assert!(matches!(r, Err(Error::Misaligned { block: 512, .. })))
            };
            off_blocks(device.write(100, &buf, Durability::Now));
            off_blocks(device.write(512, &buf[..100], Durability::Now));
            off_blocks(device.read(100, &mut buf));
            off_blocks(device.read(512, &mut buf[..100]));
        }
        device.write(512, b"", Durability::Now).unwrap();
        device.read(SIZE, &mut []).unwrap();
        drop(device);
        let device = pmbd::open(&path, &Options { read_only: true, ..options }).unwrap();
        assert!(matches!(device.write(0, &buf, Durability::Now), Err(Error::ReadOnly)));
        assert!(matches!(device.discard(0, 512), Err(Error::ReadOnly)));
        assert!(device.read(0, &mut buf).is_ok() && device.is_read_only());
    }
}

#[test]
fn options_that_contradict_the_region_say_which_would_do() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (raw, atomic) = (dir.path().join("raw"), dir.path().join("atomic"));
    pmbd::create(&raw, SIZE, None).unwrap();
    pmbd::create(&atomic, SIZE, Some(4096)).unwrap();
    let said = |path, atomic, checksums| {
        let options = Options { atomic, checksums, ..Options::default() };
        pmbd::open(path, &options).err().expect("a contradiction").to_string()
    };
    assert!(said(&raw, Some(4096), false).contains("format it first"));
    assert!(said(&raw, None, true).contains("--atomic"));
    assert!(said(&atomic, Some(512), false).contains("leave out --atomic"));
    let device = pmbd::open(&atomic, &Options { checksums: true, ..Options::default() }).unwrap();
    assert_eq!(device.block_sizes().atomic, 4096, "the region says what it is");
    drop(device);
    // If it were opened as a raw device, writes would overwrite the map.
    let mut bytes = std::fs::read(&atomic).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&atomic, bytes).unwrap();
    assert!(said(&atomic, None, false).contains("checksum of its superblock"));
    for block in [0, 256, 1000, 32 << 10] {
        let error = pmbd::create(dir.path().join("bad"), SIZE, Some(block)).unwrap_err();
        assert!(error.to_string().contains("power of two"), "{error}");
    }
    let size = pmbd::format(&raw, 512).unwrap();
    assert!(size > 0 && size < SIZE);
    assert!(pmbd::open(&raw, &Options { atomic: Some(512), ..Options::default() }).is_ok());
}

/// Threads write and read the same few blocks: each read finds the content of one write in a block.
#[test]
fn atomic_blocks_are_never_seen_torn() {
    for options in [Protection::None, Protection::best(), Protection::Chunk].map(|protection| {
        Options { protection, atomic: Some(4096), checksums: true, ..Options::default() }
    }) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("disk");
        pmbd::create(&path, 64 * 4096, Some(4096)).unwrap();
        let device = pmbd::open(&path, &options).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (device, stop) = (&device, &stop);
            for t in 0..2u64 {
                s.spawn(move || {
                    for i in 0..3000u64 {
                        let data = vec![(i * 2 + t) as u8; 2 * 4096];
                        device.write(i % 3 * 4096, &data, Durability::AtBarrier).unwrap();
                        if i % 50 == 0 {
                            device.discard(i % 5 * 4096, 4096).unwrap();
                            device.barrier().unwrap();
                        }
                    }
                    stop.store(true, Relaxed);
                });
            }
            s.spawn(move || {
                let mut buf = vec![0; 5 * 4096];
                while !stop.load(Relaxed) {
                    device.read(0, &mut buf).unwrap();
                    for block in buf.chunks(4096) {
                        assert!(block.iter().all(|b| *b == block[0]), "a torn block");
                    }
                }
            });
        });
        assert_eq!(device.stats().damaged_blocks, 0);
    }
}

#[test]
fn damage_is_found_and_named() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk");
    pmbd::create(&path, 64 * 4096, Some(4096)).unwrap();
    let options = Options { atomic: Some(4096), checksums: true, ..Options::default() };
    pmbd::open(&path, &options).unwrap().write(9 * 4096, &[5; 4096], Durability::Now).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.chunks(4096).rposition(|b| b == [5; 4096]).unwrap() * 4096;
    bytes[at + 100] = 6;
    std::fs::write(&path, bytes).unwrap();
    let device = pmbd::open(&path, &options).unwrap();
    let mut buf = [0; 4096];
    let error = device.read(9 * 4096, &mut buf).unwrap_err();
    assert!(matches!(error, Error::Damaged { block: 9, .. }), "{error}");
    assert_eq!(device.stats().damaged_blocks, 1);
    device.read(8 * 4096, &mut buf).unwrap();
    device.write(9 * 4096, &[7; 4096], Durability::Now).unwrap();
    device.read(9 * 4096, &mut buf).unwrap();
}

/// Checks the stores, flushes and fences of requests.
#[test]
fn requests_cost_what_they_should() {
    let cost = |device: &dyn BlockDevice, request: &dyn Fn(&dyn BlockDevice)| {
        request(device); // leaves something to replace
        let before = device.stats().medium;
        request(device);
        let t = device.stats().medium - before;
        (t.nt_bytes, t.bytes_stored, t.words_stored, t.lines_flushed, t.fences)
    };
    let raw = |scheme| Raw::new(Region::anonymous(1 << 20).unwrap(), scheme, false).unwrap();
    let write: &dyn Fn(&dyn BlockDevice) =
        &|d| d.write(0, &[1; 4096], Durability::AtBarrier).unwrap();
    let fua: &dyn Fn(&dyn BlockDevice) = &|d| d.write(0, &[1; 4096], Durability::Now).unwrap();
    let barrier: &dyn Fn(&dyn BlockDevice) = &|d| d.barrier().unwrap();
    for now in [write, fua] {
        assert_eq!(cost(&raw(Scheme::Nt), now), (4096, 0, 0, 0, 1));
        assert_eq!(cost(&raw(Scheme::Clwb), now), (0, 4096, 0, 64, 1));
        assert_eq!(cost(&raw(Scheme::Clflush), now), (0, 4096, 0, 64, 1));
    }
    assert_eq!(cost(&raw(Scheme::Nt), barrier), (0, 0, 0, 0, 0));
    assert_eq!(cost(&raw(Scheme::Clwb), barrier), (0, 0, 0, 0, 0));
    assert_eq!(cost(&raw(Scheme::Wb), write), (0, 4096, 0, 0, 0));
    assert_eq!(cost(&raw(Scheme::Wb), fua), (0, 4096, 0, 64, 1));
    assert_eq!(cost(&raw(Scheme::Wb), barrier), (0, 0, 0, 0, 1));
    assert_eq!(
        cost(&raw(Scheme::Wb), &|d| {
            write(d);
            write(d);
            barrier(d)
        }),
        (0, 8192, 0, 64, 1)
    );

    let region = Region::anonymous(1 << 20).unwrap();
    format(&region);
    let atomic = Atomic::open(&region, Scheme::Nt, true, false).unwrap();
    assert_eq!(cost(&atomic, write), (4096, 0, 1, 1, 2));
    assert_eq!(cost(&atomic, &|d| d.discard(0, 4096).unwrap()), (0, 0, 1, 1, 1));
    // Eight blocks of one line of the map: still one line flushed and two fences.
    let eight: &dyn Fn(&dyn BlockDevice) =
        &|d| d.write(0, &[1; 8 * 4096], Durability::Now).unwrap();
    assert_eq!(cost(&atomic, eight), (8 * 4096, 0, 8, 1, 2));
}

/// Formats a medium without a file.
fn format(region: &Region) {
    let geometry = Geometry::within(4096, pmem::Medium::len(region)).unwrap();
    pmbd::atomic::format(region, &geometry);
}

/// Regions of garbage: an error or a device, never a panic.
#[test]
fn hostile_regions_are_refused_or_harmless() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk");
    pmbd::create(&path, 64 * 512, Some(512)).unwrap();
    let options = Options { atomic: Some(512), checksums: true, ..Options::default() };
    let device = pmbd::open(&path, &options).unwrap();
    device.write(0, &[3; 64 * 512], Durability::Now).unwrap();
    drop(device);
    let sound = std::fs::read(&path).unwrap();
    let mut rng = Rng::new(1);
    let (mut refused, mut opened) = (0, 0);
    for _ in 0..600 {
        let mut bytes = sound.clone();
        for _ in 0..3 {
            let x = rng.next();
            // The superblock, or the map, or anywhere.
            let within = [64, 4096 + 64 * 8, bytes.len()][x as usize % 3];
            let at = (x >> 8) as usize % within;
            match x >> 60 {
                0..4 => bytes[at] = (x >> 40) as u8,
                4..8 => bytes.copy_within(4096..4104, at.min(4096 + 63 * 8) & !7),
                8..12 => bytes[at & !7..(at & !7) + 8].fill(0xff),
                _ => bytes[at] ^= 1 << (x >> 40 & 7),
            }
        }
        if rng.one_in(256) {
            bytes.truncate(5000);
        }
        std::fs::write(&path, &bytes).unwrap();
        let Ok(device) = pmbd::open(&path, &options) else {
            refused += 1;
            continue;
        };
        opened += 1;
        let mut buf = vec![0; 512];
        for block in 0..device.size() / 512 {
            let _ = device.read(block * 512, &mut buf);
            let _ = device.extents(block * 512, 512, &mut |_| true);
        }
        device.write(0, &vec![4; device.size() as usize], Durability::Now).unwrap();
    }
    assert!(refused > 50 && opened > 50, "{refused} refused, {opened} opened");
}

/// A map in which a few words are wrong: the error names them, the other blocks can be read, and a
/// repair does not touch those.
#[test]
fn a_damaged_map_loses_what_is_damaged_and_nothing_else() {
    const BLOCKS: u64 = 64;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk");
    pmbd::create(&path, BLOCKS * 512, Some(512)).unwrap();
    let options = Options::default();
    let content = |block: u64| [if block < 8 { 7 } else { block as u8 }; 512];
    let device = pmbd::open(&path, &options).unwrap();
    for block in 0..BLOCKS {
        device.write(block * 512, &content(block), Durability::Now).unwrap();
    }
    drop(device);
    let mut bytes = std::fs::read(&path).unwrap();
    let word = |block: u64| (4096 + block * 8) as usize..(4104 + block * 8) as usize;
    bytes[word(9)].fill(0xee);
    // Words 0 and 3 are equal, so both are right. Words 20 and 30 differ in the checksum, so only
    // one is right.
    bytes.copy_within(word(0), word(3).start);
    bytes.copy_within(word(20), word(30).start);
    bytes[word(30).start] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let error = pmbd::open(&path, &options).err().unwrap().to_string();
    for part in ["blocks 0 and 3 have", "word of block 9,", "blocks 20 and 30 have", "bdev check"] {
        assert!(error.contains(part), "{error}");
    }
    let lost = [9, 30];
    let reads = |device: &dyn BlockDevice| {
        for block in 0..BLOCKS {
            let mut found = [0; 512];
            match device.read(block * 512, &mut found) {
                Ok(()) => assert_eq!(found, content(block), "block {block}"),
                Err(e) => assert!(lost.contains(&block), "block {block}: {e}"),
            }
        }
        let mut all = 0;
        device
            .extents(0, BLOCKS * 512, &mut |e| {
                all += e.len;
                true
            })
            .unwrap();
        assert_eq!(all, BLOCKS * 512);
    };
    reads(&*pmbd::open(&path, &Options { read_only: true, ..options }).unwrap());

    let blocks = |report: &pmbd::atomic::CheckReport| {
        report.problems.iter().map(|p| p.block).collect::<Vec<_>>()
    };
    let found = pmbd::check(&path, false).unwrap().unwrap();
    assert_eq!(blocks(&found), [0, 3, 9, 20, 30]);
    assert!(found.problems.iter().all(|p| p.repair.is_none()));
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "looking changes nothing");
    let repaired = pmbd::check(&path, true).unwrap().unwrap();
    assert_eq!(blocks(&repaired), [0, 3, 9, 20, 30]);
    assert!(repaired.problems.iter().all(|p| p.repair.is_some()), "{repaired:?}");
    let again = pmbd::check(&path, true).unwrap().unwrap();
    assert_eq!((blocks(&again), again.lost, again.used), (vec![], 2, BLOCKS - 2));

    let device = pmbd::open(&path, &options).unwrap();
    reads(&*device);
    for block in lost {
        assert!(device.read(block * 512, &mut [0; 512]).is_err());
        device.write(block * 512, &content(block), Durability::Now).unwrap();
    }
    // No space was lost, and no data block is shared.
    for _ in 0..3 {
        let mut all = vec![0; (BLOCKS * 512) as usize];
        device.read(0, &mut all).unwrap();
        device.write(0, &all, Durability::Now).unwrap();
    }
    reads(&*device);
    drop(device);
    let sound = pmbd::check(&path, false).unwrap().unwrap();
    assert_eq!((blocks(&sound), sound.lost), (vec![], 0));
}

/// Contiguous pages reach the device by one request, which lifts protection once.
#[test]
fn buffers_make_one_window_of_contiguous_pages() {
    const PAGES: u64 = 64;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk");
    pmbd::create(&path, PAGES * 4096, None).unwrap();
    let windows = |buffering: Option<Buffering>| {
        let options = Options { protection: Protection::Pages, buffering, ..Options::default() };
        let device = pmbd::open(&path, &options).unwrap();
        for page in (0..PAGES).rev() {
            device.write(page * 4096, &[1; 4096], Durability::AtBarrier).unwrap();
        }
        device.barrier().unwrap();
        device.stats().windows_opened
    };
    let one = Buffering { buffers: 1, ..Buffering::default() };
    assert_eq!(windows(None), PAGES);
    assert_eq!(windows(Some(Buffering { batching: false, ..one })), PAGES);
    assert_eq!(windows(Some(one)), 1);
}

/// Threads write the same pages through small buffers, with barriers: the last data that each wrote
/// to its own part is there.
#[test]
fn buffers_lose_nothing_under_load() {
    for buffering in bufferings() {
        let bed = Bed::new(Options { buffering: Some(buffering), ..Options::default() });
        std::thread::scope(|s| {
            for t in 0..3u64 {
                let device = &bed.device;
                s.spawn(move || {
                    for i in 0..300u64 {
                        for page in 0..SIZE / 4096 {
                            let off = page * 4096 + t * 512;
                            device.write(off, &[i as u8; 512], Durability::AtBarrier).unwrap();
                            let mut back = [0; 512];
                            device.read(off, &mut back).unwrap();
                            assert_eq!(back, [i as u8; 512]);
                        }
                        if i % 50 == t {
                            device.barrier().unwrap();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn raw_devices_grow_while_they_are_used() {
    for options in kinds() {
        let bed = Bed::new(options);
        let device = &bed.device;
        let data = vec![7; SIZE as usize];
        device.write(0, &data, Durability::AtBarrier).unwrap();
        if options.atomic.is_some() {
            assert!(matches!(device.grow(4 << 20), Err(Error::NotSupported)));
            continue;
        }
        assert!(device.grow(SIZE - 1).is_err() && device.grow(1 << 50).is_err());
        device.grow(SIZE).unwrap();
        device.grow(4 << 20).unwrap();
        let mut got = vec![1; 4 << 20];
        device.read(0, &mut got).unwrap();
        assert!(got[..SIZE as usize] == data && got[SIZE as usize..].iter().all(|b| *b == 0));
        device.write((4 << 20) - 5, b"there", Durability::AtBarrier).unwrap();
        device.barrier().unwrap();
        assert!(device.write((4 << 20) - 5, b"beyond", Durability::Now).is_err());
        let bed = bed.reopen();
        assert_eq!(bed.device.size(), 4 << 20);
        let mut end = [0; 5];
        bed.device.read((4 << 20) - 5, &mut end).unwrap();
        assert_eq!(&end, b"there", "{options:?}");
    }
}

#[test]
fn thin_devices_give_space_back() {
    const LEN: u64 = 1 << 20;
    let zeroing = |keep_space, only_fast| Zeroing { keep_space, only_fast };
    for (dir, protection) in [
        ("/dev/shm", Protection::None),
        ("/dev/shm", Protection::Chunk),
        ("/dev/shm", Protection::Window),
        ("/var/tmp", Protection::None),
    ] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("disk");
        pmbd::create(&path, LEN, None).unwrap();
        let taken = || path.metadata().unwrap().blocks() * 512;
        let open = |thin| pmbd::open(&path, &Options { protection, thin, ..Options::default() });
        let fill = |device: &dyn BlockDevice| device.write(0, &[7; LEN as usize], Durability::Now);

        let device = open(false).unwrap();
        fill(&*device).unwrap();
        let all = taken();
        device.discard(0, LEN).unwrap();
        device.write_zeroes(0, LEN, zeroing(false, false), Durability::Now).unwrap();
        let slow = device.write_zeroes(0, LEN, zeroing(false, true), Durability::Now);
        assert!(matches!(slow, Err(Error::NotSupported)));
        assert_eq!(taken(), all);
        drop(device);

        let device = open(true).unwrap();
        fill(&*device).unwrap();
        device.discard(4096, LEN - 4096).unwrap();
        let left = taken();
        assert!(left < all / 4, "{left} of {all} bytes are left");
        let mut parts = Vec::new();
        let each = &mut |e: pmbd::DeviceExtent| {
            parts.push((e.off, e.len, e.zero, e.allocated));
            true
        };
        device.extents(0, LEN, each).unwrap();
        assert_eq!(parts, [(0, 4096, false, true), (4096, LEN - 4096, true, false)]);

        // Whole pages are given back, the rest is zeroed; and only if space need not be kept.
        fill(&*device).unwrap();
        device.write_zeroes(512, LEN - 1024, zeroing(true, false), Durability::AtBarrier).unwrap();
        assert_eq!(taken(), all);
        device.write_zeroes(512, LEN - 1024, zeroing(false, true), Durability::AtBarrier).unwrap();
        assert!(taken() <= left + 4096);
        device.barrier().unwrap();
        let mut got = vec![1; LEN as usize];
        device.read(0, &mut got).unwrap();
        let (zeros, ends) = (&got[512..LEN as usize - 512], [got[511], got[LEN as usize - 512]]);
        assert!(zeros.iter().all(|b| *b == 0) && ends == [7, 7]);

        // It takes space again.
        fill(&*device).unwrap();
        device.read(0, &mut got).unwrap();
        assert!(got.iter().all(|b| *b == 7) && taken() == all);
    }
}
