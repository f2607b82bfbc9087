//! Options of a mount, and of a file: how writes reach the medium, and whether order is kept. Also
//! the pool's record of its last use.

use crate::common::Scmfs;
use pmem::{Domain, Medium as _, OpenOptions, Region};
use pool::{CheckOptions, Consistency, Error, FormatOptions, MountOptions, PastCache, WritePolicy};
use scmfs::layout::{BLOCK, POOL_USAGE, usage};
use suite::{Engine as _, FILE, Fs, PoolFile, create, formatted, mount, open_shared, place};
use vfs::{Errno, FileSystem as _, Ino, ROOT, SetXattr};

type Pool = Fs<Scmfs>;

const CACHE: &[u8] = b"user.keepstone.cache";

/// Blocks of a file in which long writes bypass the cache by default.
const LONG: usize = 1024;

fn options(write_policy: WritePolicy, consistency: Consistency) -> MountOptions {
    MountOptions { write_policy, consistency, threads: Some(1), ..MountOptions::default() }
}

fn through() -> MountOptions {
    options(WritePolicy::Through, Consistency::Metadata)
}

fn unordered() -> MountOptions {
    options(WritePolicy::Auto, Consistency::None)
}

fn open(region: Region, o: &MountOptions) -> Pool {
    Pool::mount(region, o).unwrap()
}

fn attach(pool: &PoolFile, o: &MountOptions) -> Pool {
    let region = open_shared(&pool.0);
    let place = place::<Scmfs>(&region).unwrap();
    Pool::attach(region, &place, o).unwrap()
}

fn file(fs: &Pool, name: &str, blocks: usize) -> Ino {
    let ino = create::<Scmfs>(fs, ROOT, name, &FILE);
    fs.write(ino, 0, &vec![1; blocks * 4096]).unwrap();
    ino
}

fn named(fs: &Pool, name: &str) -> Ino {
    fs.peek(ROOT, name.as_bytes()).unwrap().ino
}

/// Returns the number of blocks that an fsync flushes.
fn flushed_by_sync(fs: &Pool, ino: Ino) -> u64 {
    let before = fs.medium().counters().snapshot();
    fs.fsync(ino).unwrap();
    (fs.medium().counters().snapshot() - before).lines_flushed / 64
}

/// Returns whether an overwrite of this length bypasses the cache, with nothing left to flush.
fn is_through(fs: &Pool, ino: Ino, len: usize) -> bool {
    let before = fs.medium().counters().snapshot();
    fs.write(ino, 100, &vec![7; len]).unwrap();
    let d = fs.medium().counters().snapshot() - before;
    let dirty = flushed_by_sync(fs, ino);
    assert_eq!(d.nt_bytes + d.bytes_stored, len as u64, "one way or the other");
    assert_eq!(d.nt_bytes == 0, dirty > 0, "what went past the cache is durable");
    assert!(d.nt_bytes == 0 || d.fences > 0, "and on return");
    d.nt_bytes > 0
}

#[test]
fn the_mount_says_how_writes_go() {
    let (short, long) = (100, 100_000);
    for (policy, want) in [
        (WritePolicy::Auto, [false, true]),
        (WritePolicy::Cached, [false, false]),
        (WritePolicy::Through, [true, true]),
    ] {
        let fs = open(formatted::<Scmfs>(16 << 20), &options(policy, Consistency::Metadata));
        let f = file(&fs, "f", LONG);
        assert_eq!([short, long].map(|len| is_through(&fs, f, len)), want, "{policy}");
    }
}

#[test]
fn a_file_says_how_writes_to_it_go() {
    let fs = open(formatted::<Scmfs>(16 << 20), &MountOptions::default());
    let (f, g) = (file(&fs, "f", LONG), file(&fs, "g", LONG));
    let set = |value: &[u8]| fs.setxattr(f, CACHE, value, SetXattr::Any);
    assert_eq!(set(b"throughout"), Err(Errno::INVAL));
    assert_eq!(fs.getxattr(f, CACHE), Err(Errno::NODATA), "nothing was set");
    set(b"through").unwrap();
    assert!(is_through(&fs, f, 100) && !is_through(&fs, g, 100), "this file only");
    set(b"cached").unwrap();
    assert!(!is_through(&fs, f, 100_000) && is_through(&fs, g, 100_000));
    fs.removexattr(f, CACHE).unwrap();
    assert!(is_through(&fs, f, 100_000), "as the mount says");

    // The choice survives a remount and a recovery, and overrides the mount's option.
    set(b"auto").unwrap();
    fs.setxattr(g, CACHE, b"through", SetXattr::Any).unwrap();
    fs.setxattr(g, b"user.other", b"throughout", SetXattr::Any).unwrap();
    let fs = open(fs.into_medium(), &through());
    let h = file(&fs, "h", 30);
    for _ in 0..2 {
        fs.sync().unwrap();
        assert!(!is_through(&fs, f, 100) && is_through(&fs, g, 100) && is_through(&fs, h, 100));
        fs.rehearse_recovery().unwrap();
    }
    // The next file with this inode number has no choice.
    fs.unlink(ROOT, b"f").unwrap();
    let next = file(&fs, "next", 1);
    assert!(next != f || is_through(&fs, next, 100));
}

/// Earlier writes through the cache are still flushed.
#[test]
fn a_file_that_chooses_later_loses_nothing() {
    let fs = open(formatted::<Scmfs>(16 << 20), &MountOptions::default());
    let f = file(&fs, "f", 3);
    fs.write(f, 0, b"through the cache").unwrap();
    fs.setxattr(f, CACHE, b"through", SetXattr::Any).unwrap();
    fs.write(f, 4096, b"past it").unwrap();
    assert_eq!(flushed_by_sync(&fs, f), 1);
}

#[test]
fn what_a_file_says_wrongly_nobody_has_chosen() {
    let fs = open(formatted::<Scmfs>(16 << 20), &MountOptions::default());
    let f = file(&fs, "f", 3);
    fs.setxattr(f, CACHE, b"through", SetXattr::Any).unwrap();
    let region = fs.into_medium();
    let at = (0..region.len() / 8).map(|i| i * 8).find(|at| {
        let mut bytes = [0; 64];
        region.read((*at).min(region.len() - 64), &mut bytes);
        bytes.windows(7).any(|bytes| bytes == b"through")
    });
    let mut bytes = [0; 64];
    region.read(at.unwrap(), &mut bytes);
    let nth = bytes.windows(7).position(|bytes| bytes == b"through").unwrap() as u64;
    region.write(at.unwrap() + nth, b"thorugh");
    let fs = open(region, &MountOptions::default());
    assert_eq!(fs.getxattr(f, CACHE).unwrap(), b"thorugh");
    assert!(!is_through(&fs, f, 100));
}

#[test]
fn who_joins_does_as_the_first_says() {
    let pool = PoolFile::new::<Scmfs>("options", 16 << 20);
    let one = attach(&pool, &through());
    let other = attach(&pool, &options(WritePolicy::Cached, Consistency::Metadata));
    let f = file(&one, "f", 3);
    assert!(is_through(&one, f, 100) && is_through(&other, f, 100));
}

// --- the pool's record of its use ----------------------------------------------------------------

fn said(region: &Region) -> u64 {
    region.load_u64(POOL_USAGE.get())
}

#[test]
fn after_a_clean_unmount_contents_are_durable() {
    let fs = mount::<Scmfs, _>(formatted::<Scmfs>(16 << 20));
    let f = file(&fs, "f", 10);
    fs.write(f, 0, b"not synced").unwrap();
    fs.close().unwrap();
    assert_eq!(fs.write(f, 0, b"x"), Err(Errno::ROFS), "it was closed");
    let region = fs.into_medium();
    assert_eq!(said(&region), usage::CLOSED);
    assert!(Scmfs::check(&region, &CheckOptions::default()).unwrap().clean());
    assert_eq!(said(&region), usage::CLOSED, "a check that repairs nothing does not use it");
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = open(region, &read_only);
    fs.close().unwrap();
    let region = fs.into_medium();
    assert_eq!(said(&region), usage::CLOSED, "nor does who only reads");

    let fs = mount::<Scmfs, _>(region);
    assert_eq!(said(fs.medium()), usage::IN_USE);
    assert_eq!(flushed_by_sync(&fs, f), 0);
    fs.write(f, 5000, b"x").unwrap();
    assert_eq!(flushed_by_sync(&fs, f), 1, "what is new");
    // After a death inside an operation this is unknown.
    fs.rehearse_recovery().unwrap();
    // The process was killed.
    let fs = mount::<Scmfs, _>(fs.into_medium());
    assert_eq!(flushed_by_sync(&fs, f), 10, "nobody knows");
}

#[test]
fn the_last_of_several_processes_closes_the_pool() {
    let pool = PoolFile::new::<Scmfs>("closed", 16 << 20);
    let (one, other) = (attach(&pool, &through()), attach(&pool, &through()));
    let f = file(&one, "f", 10);
    one.close().unwrap();
    drop(one);
    let read = || said(&open_shared(&pool.0));
    assert_eq!(read(), usage::IN_USE, "others use it");
    other.write(f, 0, b"x").unwrap();
    other.rehearse_recovery().unwrap();
    assert_eq!(flushed_by_sync(&other, f), 10, "nobody knows after a death");
    other.close().unwrap();
    drop(other);
    assert_eq!(read(), usage::CLOSED);

    let (one, other) = (attach(&pool, &through()), attach(&pool, &through()));
    assert_eq!(read(), usage::IN_USE);
    let f = named(&one, "f");
    assert_eq!((flushed_by_sync(&one, f), flushed_by_sync(&other, f)), (0, 0));
    one.rehearse_recovery().unwrap();
    assert_eq!(flushed_by_sync(&other, f), 10, "a recovery believes nothing");
}

#[test]
fn pools_of_version_1_say_nothing() {
    let region = formatted::<Scmfs>(16 << 20);
    // A pool as an older program makes it: version and checksum cover everything before the words
    // of the inode table.
    let mut bytes = [0; 192];
    region.read(0, &mut bytes);
    bytes[8] = 1;
    bytes[48..56].fill(0);
    let mut summed = bytes;
    summed[64..80].fill(0);
    bytes[48..56].copy_from_slice(&scmfs::layout::fnv1a(&summed).to_le_bytes());
    region.write(0, &bytes);
    assert_eq!(Scmfs::info(&region).unwrap().version, 1);

    let fs = mount::<Scmfs, _>(region);
    let f = file(&fs, "f", 10);
    fs.close().unwrap();
    let region = fs.into_medium();
    assert_eq!(said(&region), 0, "and the checksum is of it");
    let fs = mount::<Scmfs, _>(region);
    assert_eq!(flushed_by_sync(&fs, f), 10);
    match Pool::mount(fs.into_medium(), &unordered()) {
        Err(Error::Unusable(why)) => assert!(why.contains("version 2"), "{why}"),
        _ => panic!("it could not say so"),
    }
}

#[test]
fn where_writes_begin_to_go_past_the_cache_can_be_chosen() {
    const FILE: u64 = 40 << 12;
    for write in [4096, 64 << 10] {
        for file_bytes in [FILE + 1, FILE] {
            let past_cache = PastCache { write, file: file_bytes };
            let fs = open(
                formatted::<Scmfs>(16 << 20),
                &MountOptions { past_cache, ..MountOptions::default() },
            );
            let f = file(&fs, "f", 40);
            assert!(!is_through(&fs, f, write as usize - 1));
            assert_eq!(is_through(&fs, f, write as usize), file_bytes == FILE);
        }
    }
}

#[test]
fn nobody_waits_for_a_disk_who_does_not_sync() {
    let region = OpenOptions { domain: Some(Domain::PageCache), ..OpenOptions::default() };
    let region = region.anonymous(16 << 20).unwrap();
    Scmfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = open(region, &MountOptions::default());
    let f = file(&fs, "f", LONG);
    assert!(!is_through(&fs, f, 100_000));
    fs.setxattr(f, CACHE, b"through", SetXattr::Any).unwrap();
    assert!(is_through(&fs, f, 100));
}

#[test]
fn what_no_pool_says_is_damage() {
    let region = formatted::<Scmfs>(16 << 20);
    region.store_u64(POOL_USAGE.get(), 77);
    match Fs::<Scmfs, &Region>::mount(&region, &MountOptions::default()) {
        Err(Error::Damaged(problems)) => assert!(problems[0].what.contains("0x4d")),
        _ => panic!("nobody said that"),
    }
    let check = |repair| Scmfs::check(&region, &CheckOptions { repair, threads: Some(1) }).unwrap();
    assert!(!check(false).clean());
    assert!(check(true).problems.iter().all(|problem| problem.repaired));
    assert!(check(false).clean());
    mount::<Scmfs, _>(region);
}

// --- without order -------------------------------------------------------------------------------

#[test]
fn without_consistency_nothing_is_flushed_before_the_end() {
    let fs = open(formatted::<Scmfs>(16 << 20), &unordered());
    assert_eq!(said(fs.medium()), usage::UNORDERED);
    let before = fs.medium().counters().snapshot();
    let f = file(&fs, "f", 10);
    fs.write(f, 0, b"x").unwrap();
    fs.rename((ROOT, b"f"), (ROOT, b"g"), vfs::RenameFlags::empty()).unwrap();
    fs.fsync(f).unwrap();
    let d = fs.medium().counters().snapshot() - before;
    assert_eq!((d.lines_flushed, d.fences), (0, 0));
    let used = fs.mount_report().blocks_used;
    fs.close().unwrap();
    let d = fs.medium().counters().snapshot() - before;
    assert!(d.lines_flushed > (used + 10) * BLOCK / 64, "all of it: {}", d.lines_flushed);
    let region = fs.into_medium();
    assert_eq!(said(&region), usage::CLOSED);
    let fs = mount::<Scmfs, _>(region);
    assert_eq!(flushed_by_sync(&fs, named(&fs, "g")), 0);
    fs.write(f, 0, b"y").unwrap();
    assert_eq!(flushed_by_sync(&fs, f), 1, "order is kept again");
}

#[test]
fn a_pool_without_order_that_was_not_unmounted_says_so() {
    let fs = open(formatted::<Scmfs>(16 << 20), &unordered());
    file(&fs, "f", 10);
    // The process was killed.
    let region = fs.into_medium();
    for o in [MountOptions::default(), unordered()] {
        let Err(err) = Fs::<Scmfs, &Region>::mount(&region, &o) else { panic!("it pretends") };
        let text = err.to_string();
        assert!(text.contains("consistency=none") && text.contains("check --repair"), "{text}");
    }
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    assert_eq!(
        Fs::<Scmfs, &Region>::mount(&region, &read_only).unwrap().mount_report().problems,
        1
    );
    let check = |repair| Scmfs::check(&region, &CheckOptions { repair, threads: Some(1) }).unwrap();
    assert_eq!(check(false).problems.len(), 1);
    assert_eq!(said(&region), usage::UNORDERED);
    assert!(check(true).problems.iter().all(|problem| problem.repaired));
    region.set_ordered(true);
    let fs = mount::<Scmfs, _>(region);
    assert_eq!(flushed_by_sync(&fs, named(&fs, "f")), 10, "nobody knows");
}

#[test]
fn who_joins_keeps_no_order_either() {
    let pool = PoolFile::new::<Scmfs>("unordered", 16 << 20);
    let (one, other) = (attach(&pool, &unordered()), attach(&pool, &MountOptions::default()));
    let before = other.medium().counters().snapshot();
    let f = file(&other, "f", 3);
    other.fsync(f).unwrap();
    let d = other.medium().counters().snapshot() - before;
    assert_eq!((d.lines_flushed, d.fences), (0, 0));
    one.rehearse_recovery().unwrap();
    other.close().unwrap();
    drop(other);
    assert_eq!(said(one.medium()), usage::UNORDERED);
    one.close().unwrap();
    drop(one);
    assert_eq!(said(&open_shared(&pool.0)), usage::CLOSED);
}
