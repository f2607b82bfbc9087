//! Tests damaged pools: flipped bits, wild and cyclic pointers, blocks with two owners, torn
//! directories, truncation. Nothing may panic, hang or access memory outside of the pool. `check`
//! must report the damage, and `check --repair` must end with a pool that mounts, if the damage can
//! be repaired.
//!
//! `KEEPSTONE_HOSTILE=n` runs n images instead of the default. A failure prints its seed;
//! `KEEPSTONE_HOSTILE_SEED=s` runs only the image of that seed.

use crate::{DIR, Engine, FILE, Fs, mount};
use namespace::layout::{BLOCK, Word};
use pmem::{Medium as _, Region};
use pool::{CheckOptions, Error, FormatOptions, MountOptions};
use rng::Rng;
use vfs::{
    Caller, Fallocate, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, Seek,
    SetAttr, SetXattr,
};

const BYTES: u64 = 2 << 20;

/// The name of a snapshot.
const SNAPSHOT: &str = "hostile";

/// Returns the image of a pool with files of all kinds. With `shares`, some share blocks, and there
/// is a snapshot, if the engine can do that.
fn populated<E: Engine>(shares: bool) -> Vec<u8> {
    let region = Region::anonymous(BYTES).unwrap();
    E::format(&region, &FormatOptions { label: "hostile".into(), ..FormatOptions::default() })
        .unwrap();
    let fs = mount::<E, _>(region);
    let make = |dir: Ino, name: &str, node: &NewNode<'_>| {
        fs.create(&Caller::ROOT, dir, name.as_bytes(), node).unwrap().ino
    };
    let d = make(ROOT, "dir", &DIR);
    let sub = make(d, "sub", &DIR);
    for i in 0..150 {
        let f = make(if i % 2 == 0 { d } else { sub }, &format!("a-file-with-number-{i}"), &FILE);
        fs.write(f, 0, &vec![i as u8; 40 * i]).unwrap();
    }
    let big = make(ROOT, "big", &FILE);
    fs.write(big, 0, &vec![9; 100_000]).unwrap();
    fs.write(big, 1 << 40, b"far away").unwrap();
    fs.link(big, sub, b"another name").unwrap();
    if shares && fs.limits().clones {
        for name in ["clone", "other clone"] {
            let clone = make(d, name, &FILE);
            fs.clone_range((big, 0), (clone, 0), 0).unwrap();
            fs.write(clone, 5000, b"only here").unwrap();
        }
        fs.create_snapshot(SNAPSHOT).unwrap();
        fs.unlink(d, b"other clone").unwrap();
        fs.write(big, 90_000, b"only now").unwrap();
        fs.clone_range((big, 4096), (big, 200 * BLOCK), 10 * BLOCK).unwrap();
    }
    make(ROOT, "link", &NewNode { kind: NewKind::Symlink(b"dir/sub"), mode: 0o777, umask: 0 });
    make(ROOT, "fifo", &NewNode { kind: NewKind::Fifo, mode: 0o600, umask: 0 });
    fs.setxattr(big, b"user.large", &vec![1; 9000], SetXattr::Any).unwrap();
    fs.setxattr(d, b"user.small", b"value", SetXattr::Any).unwrap();
    let region = fs.into_medium();
    let mut image = vec![0; BYTES as usize];
    region.read(0, &mut image);
    image
}

/// Damages an image in a few places.
fn damage<E: Engine>(image: &mut [u8], rng: &mut Rng) {
    let blocks = BYTES / BLOCK;
    for _ in 0..=rng.below(4) {
        // Most damage goes to metadata.
        let at = match rng.below(6) {
            0 => rng.below(BYTES / 8) * 8,
            1 => rng.below(140) * BLOCK + rng.below(512) * 8,
            2 => rng.below(140) * BLOCK + rng.below(16) * 16 + rng.below(2) * 8,
            _ => E::weak_spot(&mut |n| rng.below(n)),
        } as usize;
        let old = u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        let new = match rng.below(8) {
            0 => old ^ 1 << rng.below(64),
            1 => rng.next(),
            2 | 3 => E::wild_word(blocks, &mut |n| rng.below(n)),
            4 => at as u64 / BLOCK * BLOCK,
            5 => u64::MAX,
            6 => rng.below(300),
            _ => 0,
        };
        image[at..at + 8].copy_from_slice(&new.to_le_bytes());
    }
    if rng.below(4) == 0 {
        E::forge(image, &mut |n| rng.below(n));
    }
    if rng.below(10) == 0 {
        let (from, to) = (rng.below(200) * BLOCK, rng.below(200) * BLOCK);
        image.copy_within(from as usize..(from + BLOCK) as usize, to as usize);
    }
}

fn region_of(image: &[u8]) -> Region {
    let region = Region::anonymous(image.len() as u64).unwrap();
    region.write_nt(0, image);
    let _ = region.fence();
    region
}

/// Calls all operations on all reachable files. Results do not matter, but the calls must return.
fn exercise(fs: &dyn FileSystem, rng: &mut Rng) {
    let mut dirs = vec![ROOT];
    let mut nodes = vec![];
    let mut steps = 0;
    while let Some(dir) = dirs.pop() {
        let mut names = vec![];
        let _ = fs.readdir(dir, 0, &mut |e| {
            names.push((e.ino, e.name.to_vec(), e.kind));
            names.len() < 400
        });
        for (ino, name, kind) in names {
            steps += 1;
            if steps > 1500 || name == b"." || name == b".." {
                continue;
            }
            if fs.lookup(dir, &name).is_ok() && kind == vfs::FileKind::Dir {
                dirs.push(ino);
            }
            nodes.push((dir, name, ino));
        }
    }
    let mut buf = vec![0; 70_000];
    let first = nodes.first().map_or(ROOT, |(_, _, ino)| *ino);
    for (dir, name, ino) in nodes {
        let ino = if rng.below(20) == 0 { Ino(rng.below(1 << 34)) } else { ino };
        let off = [0, 100, 4096, 50_000, 1 << 40, (1 << 48) - 5][rng.below(6) as usize];
        match rng.below(15) {
            14 => drop(fs.clone_range((ino, 0), (first, off - off % BLOCK), 0)),
            0 => drop(fs.read(ino, off, &mut buf)),
            1 => drop(fs.write(ino, off, &buf[..rng.below(9000) as usize])),
            2 => drop(fs.setattr(
                &Caller::ROOT,
                ino,
                &SetAttr { size: Some(off), ..SetAttr::default() },
            )),
            3 => drop(fs.unlink(dir, &name)),
            4 => drop(fs.rename((dir, &name), (ROOT, b"renamed"), RenameFlags::empty())),
            5 => drop(fs.rename((dir, &name), (dir, b"x"), RenameFlags::empty())),
            6 => drop(fs.fallocate(ino, Fallocate::PunchHole, off, 100_000)),
            7 => drop(fs.fallocate(ino, Fallocate::Collapse, 0, 4096)),
            8 => drop(fs.fallocate(ino, Fallocate::Insert, 4096, 8192)),
            9 => drop((fs.listxattr(ino), fs.getxattr(ino, b"user.large"))),
            10 => drop(fs.setxattr(ino, b"user.new", b"v", SetXattr::Any)),
            11 => {
                drop((fs.readlink(ino), fs.seek(ino, 0, Seek::Data), fs.seek(ino, 0, Seek::Hole)))
            }
            12 => drop(fs.create(&Caller::ROOT, dir, b"fresh", &FILE)),
            _ => drop(fs.rmdir(dir, &name)),
        }
    }
}

/// Makes and deletes snapshots, and counts their blocks. As with [`exercise`], results do not
/// matter.
fn exercise_snapshots<E: Engine>(fs: &Fs<E, &Region>) {
    let _ = fs.create_snapshot("more");
    let _ = fs.snapshots(true);
    let _ = fs.delete_snapshot(SNAPSHOT);
    let _ = fs.create_snapshot(SNAPSHOT);
    let _ = fs.delete_snapshot("more");
}

fn one<E: Engine>(image: &[u8], seed: u64) {
    let mut rng = Rng::new(seed);
    let mut image = image.to_vec();
    damage::<E>(&mut image, &mut rng);
    try_out::<E>(&image, &mut rng);
}

/// Checks, mounts, exercises and repairs an image.
fn try_out<E: Engine>(image: &[u8], rng: &mut Rng) {
    let region = region_of(image);
    let check = |repair| E::check(&region, &CheckOptions { repair, threads: Some(1) });
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let sound = match check(false) {
        Err(Error::NotAPool(_) | Error::Unusable(_)) => return,
        Err(e) => panic!("check failed: {e}"),
        Ok(report) => report.clean(),
    };
    match Fs::<E, &Region>::mount(&region, &read_only) {
        Ok(fs) => exercise(&fs, rng),
        // An interrupted operation has to be finished by a writable mount first.
        Err(Error::Unusable(_)) => {}
        Err(e) => panic!("read-only mount: {e}"),
    }
    let of_snapshot = MountOptions { snapshot: Some(SNAPSHOT.to_owned()), ..read_only };
    if let Ok(fs) = Fs::<E, &Region>::mount(&region, &of_snapshot) {
        exercise(&fs, rng);
    }
    let mut before = vec![0; image.len()];
    region.read(0, &mut before);
    assert!(before == *image, "a check or a read-only mount wrote to the pool");

    let options = MountOptions { threads: Some(1), ..MountOptions::default() };
    match Fs::<E, &Region>::mount(&region, &options) {
        Ok(fs) => {
            assert!(sound, "a damaged pool was mounted for writing");
            exercise(&fs, rng);
            exercise_snapshots::<E>(&fs);
        }
        Err(Error::Damaged(problems)) => {
            assert!(!sound && !problems.is_empty());
            // Each round repairs at least one word, and may uncover further damage behind it.
            for round in 0.. {
                let report = check(true).unwrap();
                let repaired = report.problems.iter().filter(|p| p.repaired).count();
                if report.clean() {
                    break;
                }
                if repaired == 0 {
                    // No word repairs some problems; then the pool must not mount for writing.
                    assert!(Fs::<E, &Region>::mount(&region, &options).is_err());
                    return;
                }
                assert!(round < 400, "repair does not end: {:?}", report.problems);
            }
            let fs = Fs::<E, &Region>::mount(&region, &options).expect("it was repaired");
            exercise_snapshots::<E>(&fs);
            exercise(&fs, rng);
        }
        Err(e) => panic!("mount: {e}"),
    }
    // A pool that mounted for writing was sound, and operations must keep it sound.
    let report = check(false).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}

/// Tests pools with damaged words.
pub fn damaged_images<E: Engine>() {
    let images = [false, true].map(populated::<E>);
    let env = |name: &str| std::env::var(name).ok().map(|v| v.parse().expect("a number"));
    let seeds = match env("KEEPSTONE_HOSTILE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("KEEPSTONE_HOSTILE").unwrap_or(1500),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| one::<E>(&images[(seed % 2) as usize], seed));
        assert!(run.is_ok(), "rerun with KEEPSTONE_HOSTILE_SEED={seed}");
    }
}

/// Tests sizes and modes that no program can have made: a check must find and repair them, and a
/// read must refuse them.
pub fn impossible_inodes<E: Engine>() {
    let (target, link) = ([b'x'; 1234], u64::from(FileKind::Symlink.mode_bits()) | 0o777);
    let fifo = u64::from(FileKind::Fifo.mode_bits()) | 0o600;
    let damages = [
        (link, Word::Size, 1 << 45),
        (link, Word::Size, 4096),
        (link, Word::Size, 0),
        (link, Word::Mode, link | 1 << 20),
        (fifo, Word::Size, 5),
        (fifo, Word::Mode, 0o150_600),
    ];
    for (mode, word, value) in damages {
        let region = Region::anonymous(BYTES).unwrap();
        E::format(&region, &FormatOptions::default()).unwrap();
        let fs = mount::<E, _>(region);
        let kinds = [("link", NewKind::Symlink(&target)), ("fifo", NewKind::Fifo)];
        for (name, kind) in kinds {
            let node = NewNode { kind, mode: 0o600, umask: 0 };
            fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &node).unwrap();
        }
        let region = fs.into_medium();
        let at = |word: Word, at: u64| region.load_u64(at + word as u64);
        let is_it = |record: &u64| {
            let size = if mode == link { 1234 } else { 0 };
            at(Word::Mode, *record) & 0o37_777_770_000 == mode & !0o7777
                && at(Word::Size, *record) == size
        };
        let record = (0..BYTES).step_by(128).find(is_it).expect("it was made");
        let above = if matches!(word, Word::Mode) { at(Word::Mode, record) >> 32 << 32 } else { 0 };
        region.store_u64(record + word as u64, above | value);
        let check = |repair| E::check(&region, &CheckOptions { repair, threads: Some(1) }).unwrap();
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let name: &[u8] = if mode == link { b"link" } else { b"fifo" };
        assert!(!check(false).clean(), "{mode:o} {value:#x}");
        let fs = Fs::<E, &Region>::mount(&region, &options).unwrap();
        let read = fs.lookup(ROOT, name).and_then(|entry| fs.readlink(entry.ino));
        assert!(read.is_err(), "{mode:o} {value:#x}: {read:?}");
        drop(fs);
        check(true);
        assert!(check(false).clean(), "{mode:o} {value:#x}");
    }
}

/// Tests that `info` and `mount` refuse a truncated pool.
pub fn truncated_images<E: Engine>() {
    let image = populated::<E>(false);
    for len in [0, 1, 64, 4095, 4096, 64 * 4096 - 1, image.len() - 1, image.len() / 2] {
        let region = Region::anonymous((len as u64).max(1)).unwrap();
        let n = len.min(region.len() as usize);
        region.write(0, &image[..n]);
        let fits = region.len() >= BYTES;
        assert_eq!(E::info(&region).is_ok(), fits, "{len} bytes");
        assert_eq!(Fs::<E>::mount(region, &MountOptions::default()).is_ok(), fits, "{len} bytes");
    }
}

/// Tests garbage in blocks of a pool, or in everything behind its superblock.
pub fn garbage<E: Engine>() {
    let images = [false, true].map(populated::<E>);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut image = images[(seed / 2 % 2) as usize].clone();
        let (first, count) = match seed % 3 {
            0 => (1, BYTES / BLOCK - 1),
            1 => (1 + rng.below(40), 1 + rng.below(30)),
            _ => (1 + rng.below(150), 1),
        };
        let (start, end) = ((first * BLOCK) as usize, ((first + count) * BLOCK) as usize);
        for word in image[start..end].chunks_exact_mut(8) {
            let value = match seed % 2 {
                0 => rng.next(),
                _ => E::wild_word(BYTES / BLOCK, &mut |n| rng.below(n)),
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
        let run = std::panic::catch_unwind(|| try_out::<E>(&image, &mut Rng::new(seed)));
        assert!(run.is_ok(), "seed {seed}");
    }
}
