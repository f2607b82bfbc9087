//! Pools that nobody formatted like this: flipped bits, wild and cyclic pointers, blocks with two
//! owners, torn directories, truncation. Nothing panics, hangs or reaches outside; `check` says
//! what is wrong, and `check --repair` comes to an end with a pool that mounts.
//!
//! `KEEPSTONE_HOSTILE=n` runs n images instead of the default. A failure prints its seed;
//! `KEEPSTONE_HOSTILE_SEED=s` runs that one alone.

use bpfs::layout::{BLOCK, INODE};
use bpfs::{Bpfs, CheckOptions, Error, FormatOptions, MountOptions};
use pmem::{Medium, Region};
use vfs::{
    Caller, Fallocate, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, Seek, SetAttr,
    SetXattr,
};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
const BYTES: u64 = 2 << 20;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A pool with one of everything.
fn populated() -> Vec<u8> {
    let region = Region::anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions { label: "hostile".into(), ..FormatOptions::default() })
        .unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
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
fn damage(image: &mut [u8], rng: &mut Rng) {
    let blocks = BYTES / BLOCK;
    for _ in 0..=rng.below(4) {
        // Mostly where metadata is: the superblock's roots, inodes, directory and pointer blocks.
        let used = 140;
        let at = match rng.below(6) {
            0 => 64 + rng.below(2) * 8,
            1 | 2 => BLOCK + rng.below(32) * INODE + rng.below(16) * 8,
            3 => rng.below(used) * BLOCK + rng.below(16) * 16 + rng.below(2) * 8,
            4 => rng.below(used) * BLOCK + rng.below(512) * 8,
            _ => rng.below(BYTES / 8) * 8,
        } as usize;
        let old = u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        let new = match rng.below(8) {
            0 => old ^ 1 << rng.below(64),
            1 => rng.next(),
            2 => (rng.below(blocks) * BLOCK) | rng.below(8),
            3 => BYTES + rng.below(blocks) * BLOCK,
            4 => at as u64 / BLOCK * BLOCK,
            5 => u64::MAX,
            6 => rng.below(300),
            _ => 0,
        };
        image[at..at + 8].copy_from_slice(&new.to_le_bytes());
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

/// Calls everything on everything that can be reached; results do not matter, returning does.
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
    for (dir, name, ino) in nodes {
        let ino = if rng.below(20) == 0 { Ino(rng.below(1 << 34)) } else { ino };
        let off = [0, 100, 4096, 50_000, 1 << 40, (1 << 48) - 5][rng.below(6) as usize];
        match rng.below(14) {
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

fn one(image: &[u8], seed: u64) {
    let mut rng = Rng(seed);
    let mut image = image.to_vec();
    damage(&mut image, &mut rng);
    let region = region_of(&image);
    let check =
        |repair| bpfs::check(&region, &CheckOptions { repair, threads: Some(1) }, &|_, _| {});
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let sound = match check(false) {
        Err(Error::NotAPool(_) | Error::Unusable(_)) => return,
        Err(e) => panic!("check failed: {e}"),
        Ok(report) => report.clean(),
    };
    match Bpfs::mount(&region, &read_only) {
        Ok(fs) => exercise(&fs, &mut rng),
        Err(e) => panic!("read-only mount: {e}"),
    }
    let mut before = vec![0; image.len()];
    region.read(0, &mut before);
    assert!(before == image, "a check or a read-only mount wrote to the pool");

    match Bpfs::mount(&region, &MountOptions { threads: Some(1), ..MountOptions::default() }) {
        Ok(fs) => {
            assert!(sound, "a damaged pool was mounted for writing");
            exercise(&fs, &mut rng);
        }
        Err(Error::Damaged(problems)) => {
            assert!(!sound && !problems.is_empty());
            // Each round repairs at least one word and can uncover what was behind it.
            for round in 0.. {
                let report = check(true).unwrap();
                let repaired = report.problems.iter().filter(|p| p.repaired).count();
                if report.clean() || repaired == 0 {
                    break;
                }
                assert!(round < 400, "repair does not end: {:?}", report.problems);
            }
            if let Ok(fs) = Bpfs::mount(&region, &MountOptions::default()) {
                exercise(&fs, &mut rng);
            }
        }
        Err(e) => panic!("mount: {e}"),
    }
    // Whatever the operations did, they left a pool that check understands.
    let _ = check(false).unwrap();
}

#[test]
fn damaged_images() {
    let image = populated();
    let env = |name: &str| std::env::var(name).ok().map(|v| v.parse().expect("a number"));
    let seeds = match env("KEEPSTONE_HOSTILE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("KEEPSTONE_HOSTILE").unwrap_or(1500),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| one(&image, seed));
        assert!(run.is_ok(), "rerun with KEEPSTONE_HOSTILE_SEED={seed}");
    }
}

#[test]
fn truncated_images() {
    let image = populated();
    for len in [0, 1, 64, 4095, 4096, 64 * 4096 - 1, image.len() - 1, image.len() / 2] {
        let region = Region::anonymous((len as u64).max(1)).unwrap();
        let n = len.min(region.len() as usize);
        region.write(0, &image[..n]);
        let fits = region.len() >= BYTES;
        assert_eq!(bpfs::info(&region).is_ok(), fits, "{len} bytes");
        assert_eq!(Bpfs::mount(region, &MountOptions::default()).is_ok(), fits, "{len} bytes");
    }
}
