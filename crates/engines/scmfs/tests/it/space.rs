//! The places of new blocks: small requests break no whole unit of 2 MiB while broken ones are left
//! (space-P4).

use crate::common::{OnDemand, Scmfs};
use pool::Engine as _;
use rng::Rng;
use scmfs::layout::{BLOCK, EXTENT};
use suite::{Engine, FILE, Fs, check_and_remount, content, create, mounted};
use vfs::{FileSystem as _, Ino, Mappings, ROOT};

/// Returns the number of free units of 2 MiB that are whole.
fn whole<E: Engine>(fs: &Fs<E>) -> u64 {
    fs.free_space().huge_bytes / EXTENT
}

fn file_of<E: Engine>(fs: &Fs<E>, name: &str, blocks: u64) -> Ino {
    let ino = create::<E>(fs, ROOT, name, &FILE);
    fs.write(ino, 0, &vec![7; (blocks * BLOCK) as usize]).unwrap();
    ino
}

/// Returns the number of runs of the pool in which a file lies.
fn runs<E: Engine>(fs: &Fs<E>, ino: Ino) -> usize {
    let size = fs.getattr(ino).unwrap().size;
    let (mut at, mut runs, mut end) = (0, 0, 0);
    while at < size {
        let piece = fs.get_read_buf(ino, at, size - at).unwrap();
        let start = piece.as_ptr() as u64;
        runs += usize::from(start != end);
        end = start + piece.len() as u64;
        at += piece.len() as u64;
    }
    runs
}

/// Returns a pool with two broken units, in which about 200 and 312 contiguous blocks are free. It
/// has a file of 300 blocks with another one behind it.
fn broken<E: Engine>() -> (Fs<E>, Ino) {
    let fs = mounted::<E>(64 << 20);
    let f = file_of::<E>(&fs, "f", 300);
    file_of::<E>(&fs, "behind", 10);
    file_of::<E>(&fs, "second", 200);
    assert_eq!(whole::<E>(&fs), 30, "two of 32 are broken");
    (fs, f)
}

fn an_append_finds_its_place_in_a_broken_unit<E: Engine>() {
    let (fs, f) = broken::<E>();
    fs.append(f, &[8; BLOCK as usize]).unwrap();
    assert_eq!((whole::<E>(&fs), runs::<E>(&fs, f)), (30, 1));
    assert_eq!(content(&fs, f)[300 * BLOCK as usize..], [8; BLOCK as usize]);
    check_and_remount::<E>(fs);
}

#[test]
fn an_append_breaks_no_unit_while_others_are_left() {
    an_append_finds_its_place_in_a_broken_unit::<Scmfs>();
    an_append_finds_its_place_in_a_broken_unit::<OnDemand>();
}

/// Each block would be the first of an extent that could grow.
#[test]
fn a_sparse_file_breaks_no_unit_while_others_are_left() {
    let (fs, _) = broken::<Scmfs>();
    let sparse = create::<Scmfs>(&fs, ROOT, "sparse", &FILE);
    for i in 1..60 {
        fs.write(sparse, i * EXTENT, b"x").unwrap();
    }
    assert_eq!(whole::<Scmfs>(&fs), 30);
    check_and_remount::<Scmfs>(fs);
}

fn what_is_appended_to_is_in_few_runs<E: Engine>(most: usize) {
    let (fs, f) = broken::<E>();
    for i in 0..4000u64 {
        fs.append(f, &[i as u8; BLOCK as usize]).unwrap();
        if i % 16 == 0 {
            file_of::<E>(&fs, &format!("other{i}"), 1);
        }
    }
    let found = runs::<E>(&fs, f);
    assert!(found <= most, "{found} runs");
    check_and_remount::<E>(fs);
}

#[test]
fn a_file_that_grows_by_appends_is_in_few_runs() {
    what_is_appended_to_is_in_few_runs::<Scmfs>(4);
    what_is_appended_to_is_in_few_runs::<OnDemand>(12);
}

/// Mappings of this process.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// A single mapping covers the pool, regardless of the number of pieces of files and free space.
/// (Programs that map files for themselves have additional mappings.)
#[test]
fn an_aged_pool_takes_as_many_mappings_as_a_new_one() {
    let fs = mounted::<Scmfs>(64 << 20);
    let mut rng = Rng::new(3);
    let mut buf = vec![0; 1 << 20];
    let mut before = 0;
    for step in 0..600u64 {
        let name = format!("f{}", step % 60);
        let _ = fs.unlink(ROOT, name.as_bytes());
        let ino = create::<Scmfs>(&fs, ROOT, &name, &FILE);
        for _ in 0..4 {
            let len = 1 + rng.below(200_000) as usize;
            fs.write(ino, rng.below(1 << 20), &buf[..len]).unwrap();
            fs.append(ino, &buf[..len / 8 + 1]).unwrap();
            fs.read(ino, 0, &mut buf).unwrap();
            let lent = fs.get_read_buf(ino, 0, 1 << 20).unwrap();
            assert!(!lent.is_empty());
        }
        fs.map_range(ino, 0..BLOCK, true).unwrap();
        fs.unmap_range(ino, true, true);
        fs.forget(ino, 1);
        // By now, threads and the allocator have all mappings that they need.
        if step == 100 {
            before = mappings();
        }
    }
    let after = mappings();
    assert!(after <= before + 4, "{before}, then {after}");
    check_and_remount::<Scmfs>(fs);
}
