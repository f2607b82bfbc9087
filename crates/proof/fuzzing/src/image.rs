//! Images of pools: a small pool with one of everything, words of which the input replaces.

use crate::input::Input;
use engines::Layout;
use pmem::{Medium as _, Region};
use pool::{CheckOptions, FormatOptions, MountOptions};
use std::sync::LazyLock;
use vfs::{
    Caller, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, Seek, SetAttr, SetXattr,
};

const BYTES: u64 = 2 << 20;
/// The region in which most metadata of a new pool lies, in bytes: half of all replacements go
/// there.
const HEAD: u64 = 1 << 19;
/// Entries of a directory that are visited, and inodes in all.
const ENTRIES_MAX: usize = 200;
const NODES_MAX: usize = 400;
/// Rounds of repair. Each changes at least one word.
const ROUNDS_MAX: usize = 400;

const FILE: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'_> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

static BPFS: LazyLock<Vec<u8>> = LazyLock::new(|| populated(Layout::Bpfs));
static SCMFS: LazyLock<Vec<u8>> = LazyLock::new(|| populated(Layout::Scmfs));

/// Tests a damaged image of BPFS.
pub fn bpfs(bytes: &[u8]) {
    image(Layout::Bpfs, &BPFS, bytes);
}

/// Tests a damaged image of SCMFS.
pub fn scmfs(bytes: &[u8]) {
    image(Layout::Scmfs, &SCMFS, bytes);
}

fn options(read_only: bool) -> MountOptions {
    MountOptions { read_only, seed: Some(1), threads: Some(1), ..MountOptions::default() }
}

fn region_of(image: &[u8]) -> Region {
    let region = Region::anonymous(image.len() as u64).expect("there is memory");
    region.write(0, image);
    region
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut image = vec![0; region.len() as usize];
    region.read(0, &mut image);
    image
}

/// Formats a pool and makes one of everything in it.
fn populated(layout: Layout) -> Vec<u8> {
    let region = Region::anonymous(BYTES).expect("there is memory");
    layout.format(&region, &FormatOptions::default()).expect("it is large enough");
    let fs = engines::mount(region, &options(false)).expect("it was just formatted");
    let make = |dir: Ino, name: &str, node: &NewNode<'_>| {
        fs.create(&Caller::ROOT, dir, name.as_bytes(), node).expect("there is room").ino
    };
    let dir = make(ROOT, "dir", &DIR);
    let sub = make(dir, "sub", &DIR);
    for i in 0..60 {
        let file =
            make(if i % 2 == 0 { dir } else { sub }, &format!("a-file-with-number-{i}"), &FILE);
        fs.write(file, 0, &vec![i as u8; 100 * i]).expect("there is room");
    }
    let big = make(ROOT, "big", &FILE);
    fs.write(big, 0, &[9; 100_000]).expect("there is room");
    fs.write(big, 1 << 30, b"far away").expect("there is room");
    fs.link(big, sub, b"another name").expect("there is room");
    make(ROOT, "link", &NewNode { kind: NewKind::Symlink(b"dir/sub"), mode: 0o777, umask: 0 });
    make(ROOT, "fifo", &NewNode { kind: NewKind::Fifo, mode: 0o600, umask: 0 });
    fs.setxattr(big, b"user.large", &[1; 9000], SetXattr::Any).expect("there is room");
    fs.setxattr(dir, b"user.small", b"value", SetXattr::Any).expect("there is room");
    fs.sync().expect("memory takes it");
    bytes_of(fs.region())
}

/// Checks a damaged image, repairs it, mounts it read-only and for writing. Each replacement is an
/// offset and a word; the first byte of the input seeds the calls on what is mounted.
fn image(layout: Layout, sound: &[u8], bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut choice = input.byte();
    let mut image = sound.to_vec();
    while !input.is_empty() {
        let at = u64::from(input.u32());
        let within = if at & 1 == 0 { HEAD } else { BYTES };
        let at = ((at >> 1) * 8 % within) as usize;
        image[at..at + 8].copy_from_slice(&input.u64().to_le_bytes());
    }
    let region = region_of(&image);
    if Layout::of(&region) != Some(layout) {
        return;
    }
    let _ = engines::info(&region);
    let _ = (engines::snapshots(&region), engines::branches(&region));
    let check =
        |repair| engines::check(&region, &CheckOptions { repair, threads: Some(1) }, &|_, _| {});
    let Ok(report) = check(false) else { return };
    let is_sound = report.clean();
    if let Ok(fs) = engines::mount(region_of(&image), &options(true)) {
        exercise(&*fs, &mut choice);
        assert!(bytes_of(fs.region()) == image, "a read-only mount wrote to the pool");
    }
    assert!(bytes_of(&region) == image, "a check wrote to the pool");
    match engines::mount(region_of(&image), &options(false)) {
        Ok(fs) => {
            assert!(is_sound, "a damaged pool was mounted for writing");
            exercise(&*fs, &mut choice);
        }
        Err(_) if is_sound => {}
        Err(_) => {
            for round in 0.. {
                let Ok(report) = check(true) else { return };
                if report.clean() || !report.problems.iter().any(|problem| problem.repaired) {
                    break;
                }
                assert!(round < ROUNDS_MAX, "repair does not end: {:?}", report.problems);
            }
            if let Ok(fs) = engines::mount(region_of(&bytes_of(&region)), &options(false)) {
                exercise(&*fs, &mut choice);
            }
        }
    }
}

/// Calls everything on everything that can be reached. Results do not matter, returning does.
fn exercise(fs: &dyn FileSystem, choice: &mut u8) {
    let mut dirs = vec![ROOT];
    let mut nodes = vec![];
    while let Some(dir) = dirs.pop() {
        let mut names = vec![];
        let _ = fs.readdir(dir, 0, &mut |entry| {
            names.push((entry.ino, entry.name.to_vec(), entry.kind));
            names.len() < ENTRIES_MAX
        });
        for (ino, name, kind) in names {
            if nodes.len() > NODES_MAX || name == b"." || name == b".." {
                continue;
            }
            if fs.lookup(dir, &name).is_ok() && kind == FileKind::Dir {
                dirs.push(ino);
            }
            nodes.push((dir, name, ino));
        }
    }
    let mut buf = vec![0; 20_000];
    for (dir, name, ino) in nodes {
        *choice = choice.wrapping_mul(77).wrapping_add(31);
        let off = [0, 100, 4096, 50_000, 1 << 40, (1 << 48) - 5][usize::from(*choice) % 6];
        match *choice >> 3 & 15 {
            0 => drop(fs.write(ino, off, &buf[..9000])),
            1 => {
                let size = SetAttr { size: Some(off), ..SetAttr::default() };
                let _ = fs.setattr(&Caller::ROOT, ino, &size);
            }
            2 => drop(fs.unlink(dir, &name)),
            3 => drop(fs.rename((dir, &name), (ROOT, b"renamed"), RenameFlags::empty())),
            4 => drop((fs.listxattr(ino), fs.getxattr(ino, b"user.large"))),
            5 => drop(fs.setxattr(ino, b"user.new", b"v", SetXattr::Any)),
            6 => drop((fs.readlink(ino), fs.seek(ino, 0, Seek::Data), fs.seek(ino, 0, Seek::Hole))),
            7 => drop(fs.create(&Caller::ROOT, dir, b"fresh", &FILE)),
            8 => drop(fs.rmdir(dir, &name)),
            _ => drop(fs.read(ino, off, &mut buf)),
        }
    }
}

/// Returns inputs that replace a few words by wild ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let replace = |at: u32, word: u64| [&at.to_le_bytes()[..], &word.to_le_bytes()].concat();
    let words = [u64::MAX, 4096, 0x41, 1 << 45, 0o104_755, 0];
    let seeds = (1..40_u32).map(|i| {
        let at = i * 2 * 64 + (i % 8) * 2;
        [vec![i as u8], replace(at, words[i as usize % words.len()]), replace(at + 16, i.into())]
            .concat()
    });
    std::iter::once(vec![0]).chain(seeds).collect()
}
