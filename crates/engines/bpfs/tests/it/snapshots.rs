//! Snapshots of a pool: what they keep, the space that they take, and damage.

use bpfs::layout::{BLOCK, FIRST_INODES, INODE, snapshots};
use bpfs::{Bpfs, CheckOptions, Error, FormatOptions, MountOptions};
use pmem::{Medium, Region};
use rng::Rng;
use suite::flushed;
use vfs::script::{Driver, parse};
use vfs::tree::{Tree, tree};
use vfs::{Caller, Errno, FileSystem, NewKind, NewNode, ROOT, Timestamp};

pub const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const BYTES: u64 = 64 << 20;

/// A tree with all kinds of inodes, links, attributes, holes and a tree of height 2.
pub const SOME: &str = "mkdir /d; mkdir /d/e; create /a; write /a 0 5000; create /d/b; write /d/b 0 100; \
    create /t; write /t 0 5000; write /t 3000000 9000; create /s; clone /a 0 /s 0 0; link /a /d/a; \
    symlink /l 50; mkfifo /p; setxattr /a user.x 10; setxattr /d user.y 9000; create /empty; \
    create /h; truncate /h 9000000";

/// Changes to each part of it.
pub const CHANGES: &str = "write /a 0 8; write /a 100 200; append /a 5000; truncate /t 3000100; \
    chmod /d 700; rename /d/b /d/e/b; unlink /d/a; unlink /l; setxattr /a user.x 30; \
    setxattr /d user.z 10; punch /s 0 4096; write /h 5000 100; create /n; write /n 0 70000; \
    unlink /empty; unlink /p; append /d/e/b 10; write /s 4096 64";

fn pool() -> Bpfs<Region> {
    let region = flushed(false).anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Bpfs::mount(region, &MountOptions::default()).unwrap()
}

pub fn run(fs: &dyn FileSystem, ops: &str) {
    let mut driver = Driver::new(fs);
    for (salt, op) in (1..).zip(parse(ops).unwrap()) {
        driver.run(&op, salt).unwrap_or_else(|e| panic!("{op}: {e}"));
    }
    driver.close_all();
}

pub fn free(fs: &Bpfs<Region>) -> u64 {
    fs.statfs().blocks_free
}

/// Reads the snapshot of this name, beside other users of the pool.
fn look(medium: &Region, name: &str) -> Tree {
    let snapshot = Some(name.to_owned());
    let options = MountOptions { read_only: true, snapshot, ..MountOptions::default() };
    let fs = Bpfs::mount(medium, &options).unwrap();
    assert_eq!(fs.mount_report().problems, 0);
    tree(&fs).unwrap()
}

pub fn problems(region: &Region) -> Vec<String> {
    let report = bpfs::check(region, &CheckOptions::default(), &|_, _| {}).unwrap();
    report.problems.iter().map(ToString::to_string).collect()
}

fn names(fs: &Bpfs<Region>) -> Vec<String> {
    fs.snapshots(false).unwrap().list.into_iter().map(|snapshot| snapshot.name).collect()
}

#[test]
fn a_snapshot_keeps_the_state_of_its_creation() {
    let fs = pool();
    run(&fs, SOME);
    let first = tree(&fs).unwrap();
    fs.create_snapshot("first").unwrap();
    run(&fs, CHANGES);
    let second = tree(&fs).unwrap();
    fs.create_snapshot("second").unwrap();
    run(&fs, "unlink /a; unlink /s; unlink /t; write /n 0 8; append /d/e/b 10");
    let now = tree(&fs).unwrap();
    assert_eq!((look(fs.medium(), "first"), look(fs.medium(), "second")), (first, second));
    let region = fs.into_medium();
    assert_eq!(problems(&region), [""; 0]);
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    assert_eq!((names(&fs), tree(&fs).unwrap()), (vec!["first".into(), "second".into()], now));
}

/// Space is exact: what a snapshot takes, what it holds, and what comes back.
#[test]
fn space_is_exact() {
    let fs = pool();
    run(&fs, SOME);
    let before = free(&fs);
    for orders in [["a", "b"], ["b", "a"]] {
        fs.create_snapshot("a").unwrap();
        let copies = before - free(&fs);
        assert!(copies < 20, "inodes, directories and attributes: {copies} blocks");
        fs.create_snapshot("b").unwrap();
        assert_eq!(before - free(&fs), 2 * copies);
        for name in orders {
            let listed = fs.snapshots(true).unwrap();
            let found = listed.list.iter().find(|snapshot| snapshot.name == name).unwrap();
            let (held, free_before) = (found.held_bytes.unwrap(), free(&fs));
            fs.delete_snapshot(name).unwrap();
            assert_eq!((free(&fs) - free_before) * BLOCK, held);
        }
        assert_eq!(free(&fs), before);
    }
    fs.create_snapshot("a").unwrap();
    run(&fs, CHANGES);
    fs.create_snapshot("b").unwrap();
    run(&fs, "unlink /a; unlink /s; unlink /t; unlink /n; unlink /h");
    let all = fs.snapshots(true).unwrap();
    let one = |name: &str| all.list.iter().find(|s| s.name == name).unwrap().held_bytes.unwrap();
    assert!(all.held_bytes.unwrap() > one("a") + one("b"), "both hold the same blocks of /h");
    let free_before = free(&fs);
    fs.delete_snapshot("b").unwrap();
    assert_eq!((free(&fs) - free_before) * BLOCK, one("b"));
    fs.delete_snapshot("a").unwrap();
    assert_eq!((free(&fs) - free_before) * BLOCK, all.held_bytes.unwrap());
    let used = fs.statfs().blocks - free(&fs);
    let fs = Bpfs::mount(fs.into_medium(), &MountOptions::default()).unwrap();
    assert_eq!(fs.statfs().blocks - free(&fs), used, "the scan counts the same");
}

#[test]
fn files_without_a_name_are_not_in_it() {
    let fs = pool();
    run(&fs, "create /a; write /a 0 9000; mkdir /d");
    let (a, d) = (fs.lookup(ROOT, b"a").unwrap().ino, fs.lookup(ROOT, b"d").unwrap().ino);
    let made = fs.tmpfile(&Caller::ROOT, ROOT, 0o600, 0).unwrap().ino;
    fs.write(made, 0, &[1; 9000]).unwrap();
    fs.unlink(ROOT, b"a").unwrap();
    fs.rmdir(ROOT, b"d").unwrap();
    let before = free(&fs);
    fs.create_snapshot("s").unwrap();
    assert_eq!(before - free(&fs), 2, "the inodes, and the root directory");
    for ino in [a, d, made] {
        fs.forget(ino, 1);
    }
    assert_eq!(free(&fs), before - 2 + 8, "they go, and hold nothing");
    assert_eq!(look(fs.medium(), "s").nodes().len(), 1);
}

#[test]
fn refusals() {
    let fs = pool();
    assert_eq!(fs.delete_snapshot("none"), Err(Errno::NOENT));
    for name in ["", "a/b", "a@b", ".."] {
        assert_eq!(fs.create_snapshot(name), Err(Errno::INVAL), "{name}");
    }
    for i in 0..snapshots::COUNT {
        fs.create_snapshot(&format!("{i}")).unwrap();
    }
    assert_eq!(fs.create_snapshot("0"), Err(Errno::EXIST));
    assert_eq!(fs.create_snapshot("more"), Err(Errno::MLINK));
    fs.delete_snapshot("7").unwrap();
    fs.create_snapshot("more").unwrap();
    let writing = MountOptions { snapshot: Some("0".into()), ..MountOptions::default() };
    assert!(matches!(Bpfs::mount(fs.medium(), &writing), Err(Error::Unusable(_))));
    let none = MountOptions { read_only: true, snapshot: Some("x".into()), ..writing };
    assert!(matches!(Bpfs::mount(fs.medium(), &none), Err(Error::NoSnapshot(_))));
    let zero = MountOptions { snapshot: Some("0".into()), ..none };
    let reading = Bpfs::mount(fs.medium(), &zero).unwrap();
    assert_eq!(reading.create(&Caller::ROOT, ROOT, b"x", &FILE).map(drop), Err(Errno::ROFS));
    assert_eq!(reading.create_snapshot("x"), Err(Errno::ROFS));
    assert_eq!(reading.delete_snapshot("1"), Err(Errno::ROFS));
}

#[test]
fn a_pool_with_a_backing_store_has_none() {
    let region = Region::anonymous(BYTES).unwrap();
    let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
    bpfs::format(&region, &options).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    assert_eq!(fs.create_snapshot("a"), Err(Errno::OPNOTSUPP));
    assert_eq!(fs.snapshots(false).map(drop), Err(Errno::OPNOTSUPP));
}

#[test]
fn a_full_pool_keeps_its_state() {
    let fs = pool();
    run(&fs, SOME);
    let file = fs.create(&Caller::ROOT, ROOT, b"fill", &FILE).unwrap().ino;
    while fs.append(file, &[1; 4096]).is_ok() {}
    // A leaf with a file without a name has to be copied.
    let nameless = fs.lookup(ROOT, b"empty").unwrap().ino;
    fs.unlink(ROOT, b"empty").unwrap();
    let (before, was) = (free(&fs), tree(&fs).unwrap());
    assert_eq!(fs.create_snapshot("a"), Err(Errno::NOSPC));
    assert_eq!((free(&fs), names(&fs).len(), tree(&fs).unwrap()), (before, 0, was));
    // Nothing is shared with what was not made.
    let removed = fs.lookup(ROOT, b"t").unwrap();
    fs.forget(removed.ino, 1);
    fs.unlink(ROOT, b"t").unwrap();
    assert_eq!(free(&fs), before + removed.blocks / 8);
    fs.forget(nameless, 1);
    fs.create_snapshot("a").unwrap();
}

#[test]
fn a_pool_rolls_back() {
    let fs = pool();
    run(&fs, SOME);
    let first = tree(&fs).unwrap();
    fs.create_snapshot("first").unwrap();
    run(&fs, CHANGES);
    for i in 0..100 {
        run(&fs, &format!("create /x{i}; write /x{i} 0 5000"));
    }
    let second = tree(&fs).unwrap();
    fs.create_snapshot("second").unwrap();
    let region = fs.into_medium();
    // To an inode file that is shorter, and back.
    for (name, state) in [("first", &first), ("second", &second), ("first", &first)] {
        bpfs::roll_back(&region, name).unwrap();
        assert_eq!(problems(&region), [""; 0]);
        let fs = Bpfs::mount(&region, &MountOptions::default()).unwrap();
        assert_eq!(&tree(&fs).unwrap(), state);
        run(&fs, "create /later; write /later 0 9000; write /a 0 8; unlink /later");
    }
    assert_eq!((look(&region, "first"), look(&region, "second")), (first, second));
    assert!(matches!(bpfs::roll_back(&region, "third"), Err(Error::Errno(Errno::NOENT))));
}

/// A random byte of the table, or of a snapshot, has another value: a mount refuses the pool or
/// works, and does so again after a repair.
#[test]
fn damage_is_found_or_harmless() {
    let fs = pool();
    run(&fs, SOME);
    fs.create_snapshot("first").unwrap();
    run(&fs, CHANGES);
    fs.create_snapshot("second").unwrap();
    let region = fs.into_medium();
    let len = 2 << 20;
    let mut bytes = vec![0; len];
    region.read(0, &mut bytes);
    let root = region.load_u64(snapshots::START.get()) & !7;
    let mut rng = Rng::new(7);
    for _ in 0..400 {
        let region = Region::anonymous(BYTES).unwrap();
        region.write(0, &bytes);
        for _ in 0..=rng.below(3) {
            let at = match rng.below(3) {
                0 => snapshots::START.get() + rng.below(2 * snapshots::BYTES / 8) * 8,
                1 => root + rng.below(BLOCK / 8) * 8,
                _ => root + rng.below(32) * INODE + rng.below(2) * 40,
            };
            let old = region.load_u64(at);
            let other = match rng.below(4) {
                0 => region.load_u64(FIRST_INODES.at(rng.below(32) * INODE).get()),
                1 => old ^ 1 << rng.below(64),
                2 => rng.next(),
                _ => old.wrapping_add(BLOCK),
            };
            region.store_u64(at, other);
        }
        for repair in [false, true, true, true] {
            let options = CheckOptions { repair, ..CheckOptions::default() };
            let Ok(report) = bpfs::check(&region, &options, &|_, _| {}) else { break };
            if report.problems.is_empty() {
                let fs = Bpfs::mount(&region, &MountOptions::default()).unwrap();
                for name in names_of(&fs) {
                    let _ = look_if(&region, &name);
                    fs.delete_snapshot(&name).unwrap();
                }
                drop(fs);
                assert_eq!(problems(&region), [""; 0]);
                break;
            }
        }
    }
}

fn names_of(fs: &Bpfs<&Region>) -> Vec<String> {
    fs.snapshots(false).unwrap().list.into_iter().map(|snapshot| snapshot.name).collect()
}

/// Reads all of a snapshot that may be damaged.
fn look_if(region: &Region, name: &str) -> Option<Tree> {
    let snapshot = Some(name.to_owned());
    let options = MountOptions { read_only: true, snapshot, ..MountOptions::default() };
    tree(&Bpfs::mount(region, &options).ok()?).ok()
}

#[test]
fn a_pool_with_snapshots_becomes_longer_only() {
    let fs = pool();
    run(&fs, SOME);
    fs.create_snapshot("a").unwrap();
    let (region, half) = (fs.into_medium(), BYTES / 2);
    assert!(matches!(bpfs::resize(&region, half), Err(Error::Unformattable(_))));
    assert_eq!(bpfs::resize(&region, BYTES).unwrap(), BYTES);
    Bpfs::mount(&region, &MountOptions::default()).unwrap().delete_snapshot("a").unwrap();
    assert_eq!(bpfs::resize(&region, half).unwrap(), half);
    assert_eq!(problems(&region), [""; 0]);
}

#[test]
fn a_damaged_word_of_the_table_is_refused() {
    let region = Region::anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    region.store_u64(104, 1);
    let refused = bpfs::info(&region).unwrap_err().to_string();
    assert!(refused.contains("damaged"), "{refused}");
}

/// The costs of a snapshot: its entry. The first change of a leaf copies that.
#[test]
fn costs() {
    // A tick of the clock would store times.
    let clock = || Timestamp(1);
    let options = MountOptions { clock, ..MountOptions::default() };
    let fs = Bpfs::mount(pool().into_medium(), &options).unwrap();
    let file = fs.create(&Caller::ROOT, ROOT, b"f", &FILE).unwrap().ino;
    fs.write(file, 0, &vec![1; 8 << 20]).unwrap();
    let cost = |op: &dyn Fn()| {
        let before = fs.medium().counters().snapshot();
        op();
        let d = fs.medium().counters().snapshot() - before;
        [d.nt_bytes, d.lines_flushed, d.fences]
    };
    fs.create_snapshot("first").unwrap();
    let create = cost(&|| fs.create_snapshot("second").unwrap());
    assert_eq!(create, [0, 3, 2], "an entry of 96 bytes");
    let delete = cost(&|| fs.delete_snapshot("first").unwrap());
    assert_eq!(delete, [0, 1, 1]);
    let write = cost(&|| fs.write(file, 4096, &[2; 4096]).unwrap());
    assert_eq!(write, [5 * 4096, 2, 4], "inodes, a directory, and the path are copied");
    let again = cost(&|| fs.write(file, 8192, &[2; 4096]).unwrap());
    assert_eq!(again, [4096, 1, 2]);
}
