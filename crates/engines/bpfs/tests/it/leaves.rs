//! Leaves of the inode file that snapshots share: what they keep, what a change costs, and space.

use crate::common;
use crate::snapshots::{FILE, SOME, free, problems, run};
use bpfs::layout::INODES_PER_BLOCK;
use bpfs::{Bpfs, FormatOptions, MountOptions};
use namespace::{POOL_SNAPSHOTS, fnv1a};
use pmem::{Medium, Region};
use pool::TreeSource;
use suite::{PoolFile, flushed, open_shared};
use vfs::tree::{Tree, tree};
use vfs::{
    Caller, DirEntry, Errno, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, SetAttr,
    SetXattr, Timestamp, remove_tree,
};

const BYTES: u64 = 64 << 20;
const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

/// A tick of the clock would store times.
fn options() -> MountOptions {
    MountOptions { clock: || Timestamp(1), ..MountOptions::default() }
}

fn pool() -> Bpfs<Region> {
    let region = flushed(false).anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Bpfs::mount(region, &options()).unwrap()
}

fn create(fs: &Bpfs<Region>, dir: Ino, name: &str) -> Ino {
    let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), &FILE).unwrap().ino;
    fs.forget(made, 1);
    made
}

/// Opens a snapshot, beside other users of the pool.
fn open<'m>(medium: &'m Region, name: &str) -> Bpfs<&'m Region> {
    let snapshot = Some(name.to_owned());
    let fs = Bpfs::mount(medium, &MountOptions { read_only: true, snapshot, ..options() }).unwrap();
    assert_eq!(fs.mount_report().problems, 0);
    fs
}

fn look(medium: &Region, name: &str) -> Tree {
    tree(&open(medium, name)).unwrap()
}

/// Returns the number of names in the root directory of a snapshot.
fn count(medium: &Region, name: &str) -> u64 {
    let mut names = 0;
    let mut each = |_: &DirEntry<'_>| {
        names += 1;
        true
    };
    open(medium, name).readdir(ROOT, 0, &mut each).unwrap();
    names - 2
}

/// Returns bytes stored past the caches, lines flushed, and fences.
fn cost(fs: &Bpfs<Region>, op: impl FnOnce()) -> [u64; 3] {
    let before = fs.medium().counters().snapshot();
    op();
    let d = fs.medium().counters().snapshot() - before;
    [d.nt_bytes, d.lines_flushed, d.fences]
}

fn chmod(fs: &Bpfs<Region>, ino: Ino, perm: u32) {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, ino, &set).unwrap();
}

/// A creation costs the same whatever the pool has, and the first change of a leaf a copy of it.
#[test]
fn costs_do_not_depend_on_the_size() {
    let fs = pool();
    let files: Vec<_> = (0..2000).map(|i| create(&fs, ROOT, &i.to_string())).collect();
    assert_eq!(cost(&fs, || fs.create_snapshot("a").unwrap())[0], 0);
    assert_eq!(cost(&fs, || fs.create_snapshot("b").unwrap()), [0, 3, 2], "its entry");
    // The root directory is not in this leaf: one block, and the pointers above.
    let file = files[1000];
    let first = cost(&fs, || chmod(&fs, file, 0o600));
    let plain = cost(&fs, || chmod(&fs, file, 0o620));
    let copies = |blocks: u64| [blocks * 4096, plain[1] + 1, plain[2] + 2];
    assert_eq!((plain[0], first), (0, copies(2)));
    assert_eq!(cost(&fs, || chmod(&fs, file, 0o640)), plain);
    let neighbour = Ino(file.0 ^ 1);
    assert_eq!(cost(&fs, || chmod(&fs, neighbour, 0o640)), plain, "the leaf is the pool's own");
    assert_eq!(cost(&fs, || chmod(&fs, files[1500], 0o640)), copies(1));
    fs.delete_snapshot("a").unwrap();
    fs.delete_snapshot("b").unwrap();
    assert_eq!(cost(&fs, || chmod(&fs, files[200], 0o640)), plain, "nothing is shared any more");
}

/// Files without a name are in no snapshot, whenever they lost it, and give their space back.
#[test]
fn files_without_a_name_are_left_out() {
    let fs = pool();
    run(&fs, SOME);
    let kept = fs.create(&Caller::ROOT, ROOT, b"kept", &FILE).unwrap().ino;
    fs.write(kept, 0, &[1; 40_000]).unwrap();
    let start = free(&fs);
    let made = |name: &[u8]| {
        let made = fs.create(&Caller::ROOT, ROOT, name, &FILE).unwrap().ino;
        fs.write(made, 0, &[2; 50_000]).unwrap();
        made
    };
    let (before, after) = (made(b"before"), made(b"after"));
    let nameless = fs.tmpfile(&Caller::ROOT, ROOT, 0o600, 0).unwrap().ino;
    fs.write(nameless, 0, &[3; 50_000]).unwrap();
    fs.unlink(ROOT, b"before").unwrap();
    let state = tree(&fs).unwrap();
    fs.create_snapshot("a").unwrap();
    fs.unlink(ROOT, b"after").unwrap();
    for ino in [before, after, nameless] {
        fs.write(ino, 100, &[4; 9000]).unwrap();
        fs.forget(ino, 1);
    }
    assert_eq!(look(fs.medium(), "a"), state);
    fs.create_snapshot("b").unwrap();
    assert_eq!(look(fs.medium(), "b"), tree(&fs).unwrap());
    for name in ["a", "b"] {
        fs.delete_snapshot(name).unwrap();
    }
    assert_eq!(free(&fs), start);
    let fs = Bpfs::mount(fs.into_medium(), &options()).unwrap();
    assert_eq!(free(&fs), start, "a scan counts the same");
}

/// A snapshot has no inode that was removed before, also after the number was used again.
#[test]
fn removed_inodes_are_left_out() {
    let fs = pool();
    let start = free(&fs);
    for round in 0..3 {
        for i in 0..100 {
            let ino = create(&fs, ROOT, &i.to_string());
            fs.write(ino, 0, &[1; 5000]).unwrap();
        }
        let names = (0..100).filter(|i| round == 2 || i % 3 != round);
        names.for_each(|i| fs.unlink(ROOT, i.to_string().as_bytes()).unwrap());
        fs.create_snapshot(&round.to_string()).unwrap();
        for i in (0..100).filter(|i| round != 2 && i % 3 == round) {
            fs.unlink(ROOT, i.to_string().as_bytes()).unwrap();
        }
    }
    let fs = Bpfs::mount(fs.into_medium(), &options()).unwrap();
    for (name, files) in [("0", 34), ("1", 33), ("2", 0)] {
        assert_eq!(count(fs.medium(), name), files, "{name}");
    }
    // One after the other holds less.
    for name in ["1", "0", "2"] {
        fs.delete_snapshot(name).unwrap();
    }
    // The directory and the inode file have grown.
    assert!(start - free(&fs) < 8);
    assert_eq!(problems(&fs.into_medium()), [""; 0]);
}

/// Each operation on names and attributes, as the first change of its leaf.
#[test]
fn first_changes_leave_a_snapshot_as_it_is() {
    type Change = fn(&Bpfs<Region>, Ino, Ino);
    let changes: [(&str, Change); 14] = [
        ("chmod", |fs, _, file| chmod(fs, file, 0o600)),
        ("write", |fs, _, file| fs.write(file, 0, &[9; 10]).unwrap()),
        ("write a block", |fs, _, file| fs.write(file, 0, &[9; 4096]).unwrap()),
        ("append", |fs, _, file| assert!(fs.append(file, &[9; 10]).is_ok())),
        ("truncate", |fs, _, file| {
            let set = SetAttr { size: Some(10), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, file, &set).unwrap();
        }),
        ("set an attribute", |fs, _, file| {
            fs.setxattr(file, b"user.a", b"new", SetXattr::Any).unwrap();
        }),
        ("remove an attribute", |fs, _, file| fs.removexattr(file, b"user.a").unwrap()),
        ("link", |fs, dir, file| assert!(fs.link(file, dir, b"link").is_ok())),
        ("unlink", |fs, dir, _| fs.unlink(dir, b"file").unwrap()),
        ("rename", |fs, dir, _| {
            fs.rename((dir, b"file"), (ROOT, b"moved"), RenameFlags::empty()).unwrap();
        }),
        ("exchange", |fs, dir, _| {
            fs.rename((dir, b"file"), (dir, b"other"), RenameFlags::EXCHANGE).unwrap();
        }),
        ("create", |fs, dir, _| {
            create(fs, dir, "new");
        }),
        ("tmpfile", |fs, dir, _| {
            fs.forget(fs.tmpfile(&Caller::ROOT, dir, 0o600, 0).unwrap().ino, 1);
        }),
        ("clone", |fs, dir, file| {
            let other = fs.peek(dir, b"other").unwrap().ino;
            fs.clone_range((file, 0), (other, 0), 0).unwrap();
        }),
    ];
    for (what, change) in changes {
        let fs = pool();
        // A directory of several blocks, and leaves that have room.
        let dir = fs.create(&Caller::ROOT, ROOT, b"d", &DIR).unwrap().ino;
        for i in 0..150 {
            create(&fs, dir, &format!("{i:0100}"));
        }
        let (file, _) = (create(&fs, dir, "file"), create(&fs, dir, "other"));
        fs.write(file, 0, &[1; 9000]).unwrap();
        fs.setxattr(file, b"user.a", &[1; 5000], SetXattr::Any).unwrap();
        fs.unlink(dir, format!("{:0100}", 7).as_bytes()).unwrap();
        let state = tree(&fs).unwrap();
        let space = free(&fs);
        for name in ["a", "b"] {
            fs.create_snapshot(name).unwrap();
        }
        change(&fs, dir, file);
        let changed = tree(&fs).unwrap();
        assert_eq!(look(fs.medium(), "a"), state, "{what}");
        fs.delete_snapshot("a").unwrap();
        assert_eq!(look(fs.medium(), "b"), state, "{what}");
        let fs = Bpfs::mount(fs.into_medium(), &options()).unwrap();
        assert_eq!(tree(&fs).unwrap(), changed, "{what}");
        let held = fs.snapshots(true).unwrap().held_bytes.unwrap();
        let before = free(&fs);
        fs.delete_snapshot("b").unwrap();
        assert_eq!((free(&fs) - before) * 4096, held, "{what}");
        assert!(space.abs_diff(free(&fs)) < 8, "{what}");
        assert_eq!(problems(&fs.into_medium()), [""; 0], "{what}");
    }
}

/// Reads that record a time change an inode, too.
#[test]
fn accesses_are_recorded_in_a_copy() {
    let region = flushed(false).anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    fs.record_access(true, true, true);
    let file = create(&fs, ROOT, "file");
    fs.write(file, 0, &[1; 100]).unwrap();
    let link = NewNode { kind: NewKind::Symlink(b"target"), mode: 0o777, umask: 0 };
    let link = fs.create(&Caller::ROOT, ROOT, b"link", &link).unwrap().ino;
    let times = |fs: &dyn FileSystem| [ROOT, file, link].map(|ino| fs.getattr(ino).unwrap().atime);
    let before = times(&fs);
    fs.create_snapshot("a").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs.read(file, 0, &mut [0; 10]).unwrap();
    fs.readlink(link).unwrap();
    fs.readdir(ROOT, 0, &mut |_| true).unwrap();
    assert!(times(&fs).iter().zip(&before).all(|(now, then)| now > then));
    assert_eq!(times(&open(fs.medium(), "a")), before);
}

/// Threads of two processes change files whose leaves are shared, and new snapshots share them
/// again.
#[test]
fn threads_change_shared_leaves() {
    const FILES: u64 = 4 * INODES_PER_BLOCK;
    let file = PoolFile::new::<common::Bpfs>("leaves", BYTES);
    let attach = || {
        let region = open_shared(&file.0);
        let place = bpfs::place(&region).unwrap();
        Bpfs::attach(region, &place, &MountOptions::default()).unwrap()
    };
    let (one, other) = (&attach(), &attach());
    let files: Vec<_> = (0..FILES).map(|i| create(one, ROOT, &i.to_string())).collect();
    let size = |ino| one.getattr(ino).unwrap().size;
    for round in 1..8_u64 {
        let name = round.to_string();
        std::thread::scope(|s| {
            for (thread, fs) in [(0, one), (1, other), (2, one), (3, other)] {
                let files = &files;
                s.spawn(move || {
                    for (i, ino) in (0..).zip(files) {
                        if i % 4 == thread {
                            fs.append(*ino, &[thread as u8; 100]).unwrap();
                            chmod(fs, *ino, 0o600);
                            let name = format!("new{thread}");
                            let made = create(fs, ROOT, &name);
                            fs.write(made, 0, &[1; 5000]).unwrap();
                            fs.unlink(ROOT, name.as_bytes()).unwrap();
                        }
                    }
                });
            }
            if round % 2 == 0 {
                one.create_snapshot(&format!("{name}x")).unwrap();
            }
        });
        assert!(files.iter().all(|ino| size(*ino) == round * 100));
        one.create_snapshot(&name).unwrap();
    }
    for round in 1..8 {
        assert_eq!(count(one.medium(), &round.to_string()), FILES, "{round}");
    }
    let (space, held) = (free(one), one.snapshots(true).unwrap());
    for snapshot in held.list {
        other.delete_snapshot(&snapshot.name).unwrap();
    }
    assert_eq!((free(one) - space) * 4096, held.held_bytes.unwrap());
}

/// The reserve lets a file be removed from a full pool whose leaves are shared.
#[test]
fn a_full_pool_can_be_emptied() {
    let fs = pool();
    let file = create(&fs, ROOT, "file");
    fs.write(file, 0, &[1; 100_000]).unwrap();
    let fill = create(&fs, ROOT, "fill");
    while fs.append(fill, &[1; 4096]).is_ok() {}
    fs.create_snapshot("a").unwrap();
    fs.unlink(ROOT, b"file").unwrap();
    assert_eq!(fs.append(fill, &[1; 4096]), Err(Errno::NOSPC));
    fs.delete_snapshot("a").unwrap();
    fs.append(fill, &[1; 4096]).unwrap();
    assert_eq!(problems(&fs.into_medium()), [""; 0]);
}

/// A program from before made the table: its snapshots share no leaves.
#[test]
fn an_older_table_is_used() {
    let fs = pool();
    run(&fs, SOME);
    let state = tree(&fs).unwrap();
    fs.create_snapshot("a").unwrap();
    let region = fs.into_medium();
    let mut marked = [0; 24];
    region.read(32, &mut marked[..16]);
    marked[16..].copy_from_slice(b"SNAPSHOT");
    region.store_u64(POOL_SNAPSHOTS.get(), fnv1a(&marked));
    let fs = Bpfs::mount(region, &options()).unwrap();
    assert_eq!(look(fs.medium(), "a"), state);
    fs.create_snapshot("b").unwrap();
    assert_ne!(fs.medium().load_u64(POOL_SNAPSHOTS.get()), fnv1a(&marked));
    assert_eq!(problems(&fs.into_medium()), [""; 0]);
}

/// Commits of branches give the space of the old tree back, round after round.
#[test]
fn commits_give_space_back() {
    let file = PoolFile::new::<common::Bpfs>("commits", BYTES);
    let region = open_shared(&file.0);
    let place = bpfs::place(&region).unwrap();
    let fs = Bpfs::attach(region, &place, &options()).unwrap();
    (0..200).for_each(|i| {
        let ino = create(&fs, ROOT, &i.to_string());
        fs.write(ino, 0, &[1; 12_000]).unwrap();
    });
    let state = tree(&fs).unwrap();
    fs.create_snapshot("s").unwrap();
    let mut used = Vec::new();
    for round in 0..6 {
        let dir = fs.branches_dir(true).unwrap().unwrap();
        fs.create_snapshot("@b").unwrap();
        fs.copy_tree(&TreeSource::Snapshot("@b"), (dir, b"b")).unwrap();
        let file = fs.peek(ROOT, b"7").unwrap().ino;
        if round % 2 == 0 {
            fs.commit_branch("b", Some("@b")).unwrap();
        } else {
            fs.write(file, 0, &[2; 100]).unwrap();
            remove_tree(&fs, dir, b"b").unwrap();
        }
        fs.delete_snapshot("@b").unwrap();
        used.push(free(&fs));
    }
    assert_eq!(look(fs.medium(), "s"), state, "it has inodes that the pool has no more");
    assert!(used[2] >= used[5], "{used:?}");
    assert!(used[5] + 8 >= used[2], "{used:?}");
}
