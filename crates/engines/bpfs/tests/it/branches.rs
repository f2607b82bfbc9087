//! Branches of a pool: trees beside its own, their space, commits, and damage.

use crate::common;
use bpfs::layout::{BLOCK, FIRST_INODES, INODE};
use bpfs::{Bpfs, Branch, CheckOptions, FormatOptions, MountOptions};
use namespace::{POOL_BRANCHES, branches_word};
use pmem::{Medium, Pm, Region};
use pool::TreeSource;
use rng::Rng;
use suite::{PoolFile, flushed, open_shared};
use vfs::conformance::{run_all, run_generated};
use vfs::script::{Driver, parse};
use vfs::tree::{Tree, tree};
use vfs::{
    Caller, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT, Timestamp, remove_tree,
};

const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o700, umask: 0 };
const BYTES: u64 = 32 << 20;

/// A tree with all kinds of inodes, links, attributes, holes and a tree of height 2.
const SOME: &str = "mkdir /d; mkdir /d/e; create /a; write /a 0 5000; create /d/b; write /d/b 0 100; \
    create /t; write /t 0 5000; write /t 3000000 9000; create /s; clone /a 0 /s 0 0; link /a /d/a; \
    symlink /l 50; mkfifo /p; setxattr /a user.x 10; setxattr /d user.y 9000; create /empty; \
    create /h; truncate /h 9000000; chmod / 711";

/// Changes to each part of it; each alone makes another tree, or another state of an inode.
const CHANGES: &str = "write /a 0 8; write /a 100 200; append /a 5000; truncate /t 3000100; \
    chmod /d 700; rename /d/b /d/c; rename /d/b /d/e/b; unlink /d/a; unlink /l; setxattr /a user.x 30; \
    setxattr /a user.z 10; setxattr /d user.z 10; removexattr /a user.x; punch /s 0 4096; write /h 5000 100; \
    create /n; unlink /empty; unlink /p; append /d/e/b 10; write /s 4096 64; chmod / 700; \
    setall /s 100 600 9; exchange /a /s; mkdir /m; rmdir /gone; truncate /empty 10";

/// All changes have the same time, so that times tell nothing.
fn options() -> MountOptions {
    MountOptions { clock: || Timestamp(7), ..MountOptions::default() }
}

fn pool() -> Bpfs<Region> {
    Bpfs::mount(formatted(), &options()).unwrap()
}

fn formatted() -> Region {
    let region = flushed(false).anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    region
}

fn run(fs: &dyn FileSystem, ops: &str) {
    let mut driver = Driver::new(fs);
    for (salt, op) in (1..).zip(parse(ops).unwrap()) {
        driver.run(&op, salt).unwrap_or_else(|e| panic!("{op}: {e}"));
    }
    driver.close_all();
}

fn free(fs: &Bpfs<Region>) -> u64 {
    fs.statfs().blocks_free
}

fn problems(region: &Region) -> Vec<String> {
    let report = bpfs::check(region, &CheckOptions::default(), &|_, _| {}).unwrap();
    report.problems.iter().map(ToString::to_string).collect()
}

/// Opens a snapshot, beside other users of the pool.
fn look<'m>(medium: &'m Region, name: &str) -> Bpfs<&'m Region> {
    let snapshot = Some(name.to_owned());
    let fs = Bpfs::mount(medium, &MountOptions { read_only: true, snapshot, ..options() }).unwrap();
    assert_eq!(fs.mount_report().problems, 0);
    fs
}

/// Makes a branch; returns its root.
fn make(fs: &Bpfs<Region>, name: &str) -> Ino {
    let base = pool::base_of_branch(name);
    let dir = fs.branches_dir(true).unwrap().unwrap();
    fs.create_snapshot(&base).unwrap();
    fs.copy_tree(&TreeSource::Snapshot(&base), (dir, name.as_bytes())).unwrap();
    fs.peek(dir, name.as_bytes()).unwrap().ino
}

fn discard(fs: &Bpfs<Region>, name: &str) {
    let dir = fs.branches_dir(false).unwrap().unwrap();
    remove_tree(fs, dir, name.as_bytes()).unwrap();
    fs.delete_snapshot(&pool::base_of_branch(name)).unwrap();
}

fn names(medium: &Region) -> Vec<String> {
    bpfs::branches(medium).unwrap().into_iter().map(|branch| branch.name).collect()
}

/// Opens a branch of a pool that no other process uses.
fn open(region: Region, name: &str) -> Branch<Region> {
    Branch::<Region>::open(Bpfs::mount(region, &options()).unwrap(), name).unwrap()
}

/// A branch of an empty pool.
fn empty_branch() -> Box<dyn FileSystem> {
    let fs = Bpfs::mount(formatted(), &MountOptions::default()).unwrap();
    run(&fs, "create /of-the-pool; chmod / 755");
    make(&fs, "b");
    let branch = Branch::<Region>::open(fs, "b").unwrap();
    branch.unlink(ROOT, b"of-the-pool").unwrap();
    Box::new(branch)
}

#[test]
fn a_branch_is_a_file_system() {
    run_all(empty_branch);
    run_generated(empty_branch, 20, 300);
}

#[test]
fn both_trees_change_alone() {
    let fs = pool();
    run(&fs, SOME);
    let before = tree(&fs).unwrap();
    let root = make(&fs, "b");
    let changes =
        CHANGES.replace("rename /d/b /d/c; ", "").replace("rmdir /gone; truncate /empty 10", "");
    run(&fs, &changes);
    let now = tree(&fs).unwrap();
    let region = fs.into_medium();
    assert_eq!(problems(&region), [""; 0]);
    let branch = open(region, "b");
    assert_eq!(tree(&branch).unwrap(), before);
    run(
        &branch,
        "write /a 0 8; unlink /t; mkdir /of-branch; create /of-branch/f; append /d/b 5000",
    );
    let changed = tree(&branch).unwrap();
    let region = branch.into_pool().into_medium();
    assert_eq!(problems(&region), [""; 0]);
    let fs = Bpfs::mount(region, &options()).unwrap();
    assert_eq!(tree(&fs).unwrap(), now);
    assert!(fs.getattr(root).is_ok());
    assert_eq!(tree(&open(fs.into_medium(), "b")).unwrap(), changed);
}

/// Nothing leads out of a branch, and nothing of the pool into it.
#[test]
fn a_branch_has_its_own_root() {
    let fs = pool();
    run(&fs, "mkdir /d; create /f");
    let dir = fs.branches_dir(true).unwrap().unwrap();
    let root = make(&fs, "b");
    let mut listed = Vec::new();
    fs.readdir(ROOT, 0, &mut |entry| {
        listed.push((entry.name.to_vec(), entry.ino));
        true
    })
    .unwrap();
    assert!(listed.iter().all(|(_, ino)| *ino != dir && *ino != root), "{listed:?}");
    for name in ["@b", "none", "", "a/b", ".", ".."] {
        let region = Region::anonymous(BYTES).unwrap();
        copy(fs.medium(), &region);
        let pool = Bpfs::mount(region, &options()).unwrap();
        assert_eq!(Branch::<Region>::open(pool, name).map(drop), Err(Errno::NOENT), "{name:?}");
    }
    let branch = open(fs.into_medium(), "b");
    assert_eq!(branch.root(), ROOT);
    for name in [&b"."[..], b".."] {
        assert_eq!(branch.lookup(ROOT, name).unwrap().ino, ROOT);
        assert_eq!(branch.peek(ROOT, name).unwrap().ino, ROOT);
    }
    let d = branch.lookup(ROOT, b"d").unwrap().ino;
    assert_eq!(branch.lookup(d, b"..").unwrap().ino, ROOT);
    for dir in [ROOT, d] {
        let mut dots = Vec::new();
        branch
            .readdir(dir, 0, &mut |entry| {
                dots.push(entry.ino);
                dots.len() < 2
            })
            .unwrap();
        assert_eq!(dots, [dir, ROOT]);
    }
    // Nothing of the root's references ends it.
    branch.forget(ROOT, 1 << 20);
    assert_eq!(branch.getattr(ROOT).unwrap().ino, ROOT);
    assert_eq!(branch.rmdir(ROOT, b"..").map(drop), Err(Errno::NOTEMPTY));
}

/// Discarded branches give all their space back, also if snapshots were made meanwhile.
#[test]
fn space_is_exact() {
    let fs = pool();
    run(&fs, SOME);
    // The first branch makes the inode file longer, and the directory of branches.
    make(&fs, "a");
    make(&fs, "b");
    discard(&fs, "a");
    discard(&fs, "b");
    let before = free(&fs);
    for order in [["a", "b"], ["b", "a"]] {
        make(&fs, "a");
        let one = before - free(&fs);
        assert!(one < 40, "names and attributes: {one} blocks");
        make(&fs, "b");
        // Each also holds the leaves that the pool has copied since.
        let two = before - free(&fs);
        assert!(two.abs_diff(2 * one) < 8, "{one} blocks, then {two}");
        fs.create_snapshot("s").unwrap();
        order.iter().for_each(|name| discard(&fs, name));
        fs.delete_snapshot("s").unwrap();
        assert_eq!(free(&fs), before);
    }
    let root = make(&fs, "a");
    let t = fs.lookup(root, b"t").unwrap().ino;
    fs.write(t, 0, &[1; 100_000]).unwrap();
    fs.forget(t, 1);
    fs.create_snapshot("s").unwrap();
    discard(&fs, "a");
    fs.delete_snapshot("s").unwrap();
    assert_eq!(free(&fs), before);
    let fs = Bpfs::mount(fs.into_medium(), &options()).unwrap();
    assert_eq!(free(&fs), before, "a scan counts the same");
}

/// A snapshot has nothing of branches.
#[test]
fn snapshots_leave_branches_out() {
    let fs = pool();
    run(&fs, SOME);
    let (state, root) = (tree(&fs).unwrap(), make(&fs, "b"));
    fs.create_snapshot("s").unwrap();
    assert_eq!(fs.create_snapshot("b"), Err(Errno::EXIST), "a branch has the name");
    let listed: Vec<_> = fs.snapshots(false).unwrap().list.into_iter().map(|s| s.name).collect();
    assert_eq!(listed, ["s"]);
    let snapshot = look(fs.medium(), "s");
    assert_eq!(tree(&snapshot).unwrap(), state);
    assert_eq!(snapshot.getattr(root), Err(Errno::STALE));
    assert_eq!(snapshot.branches_dir(false), Err(Errno::OPNOTSUPP));
    drop(snapshot);
    assert_eq!(problems(&fs.into_medium()), [""; 0]);
}

#[test]
fn a_commit_replaces_the_tree() {
    let fs = pool();
    run(&fs, SOME);
    make(&fs, "a");
    make(&fs, "b");
    let branch = open(fs.into_medium(), "b");
    run(
        &branch,
        "write /a 0 8; unlink /t; mkdir /new; create /new/f; write /new/f 0 9000; chmod / 750; \
        setxattr / user.r 3000; chown / 5 9",
    );
    let changed = tree(&branch).unwrap();
    let fs = branch.into_pool();
    let root = fs.getattr(ROOT).unwrap();
    assert_eq!(fs.commit_branch("none", Some("@b")), Err(Errno::NOENT));
    assert_eq!(fs.commit_branch("b", Some("@none")), Err(Errno::NOENT));
    assert_eq!(fs.commit_branch("@b", Some("@b")), Err(Errno::INVAL));
    fs.commit_branch("b", Some("@b")).unwrap();
    assert_eq!(fs.unlink(ROOT, b"a"), Err(Errno::ROFS), "it has to be opened again");
    let region = fs.into_medium();
    assert_eq!(problems(&region), [""; 0]);
    let fs = Bpfs::mount(region, &options()).unwrap();
    assert_eq!(tree(&fs).unwrap(), changed);
    let now = fs.getattr(ROOT).unwrap();
    assert_eq!((now.generation, now.btime), (root.generation, root.btime));
    assert_eq!(names(fs.medium()), ["a", "b"], "the snapshot of b is left");
    fs.delete_snapshot("@b").unwrap();
    assert_eq!(names(fs.medium()), ["a"]);
    // The other branch is as before, and the pool as one without branches.
    discard(&fs, "a");
    let used = fs.statfs().blocks - free(&fs);
    let fs = Bpfs::mount(fs.into_medium(), &options()).unwrap();
    assert_eq!(fs.statfs().blocks - free(&fs), used);
    make(&fs, "c");
    assert_eq!(tree(&open(fs.into_medium(), "c")).unwrap(), changed);
}

/// Each change of the pool is found, whatever its time is.
#[test]
fn a_changed_pool_is_not_replaced() {
    for change in CHANGES.split("; ").map(str::trim) {
        let fs = pool();
        run(&fs, SOME);
        run(&fs, "mkdir /gone; create /d/e/b");
        let unrelated = change.starts_with("rename /d/b /d/e/b");
        if unrelated {
            run(&fs, "unlink /d/e/b");
        }
        make(&fs, "b");
        run(&fs, change);
        let state = tree(&fs).unwrap();
        assert_eq!(fs.commit_branch("b", Some("@b")), Err(Errno::AGAIN), "{change}");
        fs.create_snapshot("@@b").unwrap();
        assert_eq!(tree(&fs).unwrap(), state);
        fs.commit_branch("b", Some("@@b")).unwrap();
        assert_eq!(problems(&fs.into_medium()), [""; 0]);
    }
    // Reads, and files without a name, are no changes.
    let fs = pool();
    run(&fs, SOME);
    make(&fs, "b");
    let (a, made) = (fs.lookup(ROOT, b"a").unwrap().ino, fs.tmpfile(&Caller::ROOT, ROOT, 0o600, 0));
    fs.write(made.unwrap().ino, 0, &[1; 9000]).unwrap();
    fs.read(a, 0, &mut [0; 100]).unwrap();
    fs.commit_branch("b", Some("@b")).unwrap();
}

/// Other processes go on: what they hold and read of the old tree stays until they are done.
#[test]
fn a_commit_leaves_what_others_hold() {
    let file = PoolFile::new::<common::Bpfs>("commit", BYTES);
    let attach = || {
        let region = open_shared(&file.0);
        let place = bpfs::place(&region).unwrap();
        Bpfs::attach(region, &place, &options()).unwrap()
    };
    let (fs, other) = (attach(), attach());
    run(&fs, SOME);
    run(&fs, "create /large; write /large 0 100000");
    make(&fs, "b");
    let dir = fs.branches_dir(false).unwrap().unwrap();
    let root = fs.peek(dir, b"b").unwrap().ino;
    fs.unlink(root, b"large").unwrap();
    fs.create(&Caller::ROOT, root, b"of-branch", &DIR).unwrap();
    let [a, large, d] =
        [&b"a"[..], b"large", b"d"].map(|name| other.lookup(ROOT, name).unwrap().ino);
    let (place, count) = other.pin_content(large, 0, 4096).unwrap();
    let bytes = || {
        let mut bytes = vec![0; count as usize];
        other.medium().read(place.unwrap().get(), &mut bytes);
        bytes
    };
    let (before, content) = (bytes(), suite::content(&other, a));
    let version = other.version(ROOT);
    fs.commit_branch("b", Some("@b")).unwrap();
    assert_ne!(other.version(ROOT), version);
    assert!(other.peek(ROOT, b"of-branch").is_ok());
    assert_eq!(other.peek(ROOT, b"large"), Err(Errno::NOENT));
    assert_eq!(suite::content(&other, a), content);
    assert_eq!(other.getattr(a).unwrap().nlink, 0);
    assert_eq!(other.lookup(d, b"b").map(drop), Err(Errno::NOENT), "a removed directory");
    assert_eq!(other.create(&Caller::ROOT, d, b"x", &DIR).map(drop), Err(Errno::NOENT));
    fs.delete_snapshot("@b").unwrap();
    other.forget(large, 1);
    // All free blocks are written.
    run(&fs, "create /fill");
    let fill = fs.peek(ROOT, b"fill").unwrap().ino;
    while fs.append(fill, &[0xee; 4096]).is_ok() {}
    assert!(bytes() == before, "a reader has a block that was used again");
    assert_eq!(suite::content(&other, a), content);
    other.put_read_buf();
    [a, d].iter().for_each(|ino| other.forget(*ino, 1));
    run(&fs, "unlink /fill; create /later; write /later 0 9000");
    let (now, used) = (tree(&fs).unwrap(), fs.statfs().blocks_free);
    other.close().unwrap();
    drop(other);
    fs.close().unwrap();
    drop(fs);
    let region = open_shared(&file.0);
    assert_eq!(problems(&region), [""; 0]);
    let fs = Bpfs::mount(region, &options()).unwrap();
    assert_eq!((tree(&fs).unwrap(), free(&fs)), (now, used));
}

#[test]
fn contents_are_cloned_from_snapshots() {
    let fs = pool();
    run(&fs, "create /a; write /a 0 5000; write /a 3000000 9000; create /to; mkdir /d");
    let [a, to, d] = [&b"a"[..], b"to", b"d"].map(|name| fs.lookup(ROOT, name).unwrap().ino);
    fs.create_snapshot("s").unwrap();
    fs.write(to, 0, &[8; 20000]).unwrap();
    let before = (fs.content_id(a).unwrap(), fs.getattr(a).unwrap().blocks);
    fs.write(a, 0, &[9; 5000]).unwrap();
    assert_ne!(fs.content_id(a).unwrap(), before.0);
    let used = free(&fs);
    fs.clone_from_snapshot("s", a, to).unwrap();
    assert_eq!(free(&fs), used + 6, "its own blocks are free");
    let now = fs.getattr(to).unwrap();
    assert_eq!((fs.content_id(to).unwrap(), now.blocks), before);
    let snapshot = look(fs.medium(), "s");
    assert_eq!(snapshot.content_id(a).unwrap(), before.0);
    let (mut one, mut other) = (vec![1; 3_009_000], vec![2; 3_009_000]);
    snapshot.read(a, 0, &mut one).unwrap();
    fs.read(to, 0, &mut other).unwrap();
    assert!(one == other);
    drop(snapshot);
    for (name, from, onto, errno) in [
        ("none", a, to, Errno::NOENT),
        ("s", d, to, Errno::STALE),
        ("s", Ino(31), to, Errno::STALE),
        ("s", Ino(1 << 40), to, Errno::STALE),
        ("s", a, d, Errno::ISDIR),
    ] {
        assert_eq!(fs.clone_from_snapshot(name, from, onto), Err(errno));
    }
    fs.write(to, 0, &[3; 100]).unwrap();
    fs.delete_snapshot("s").unwrap();
    let fs = Bpfs::mount(fs.into_medium(), &options()).unwrap();
    assert_eq!(fs.getattr(to).unwrap().blocks, before.1);
}

/// A rollback needs the number of the directory of branches for another inode.
#[test]
fn a_pool_with_branches_does_not_roll_back() {
    let fs = pool();
    run(&fs, SOME);
    let state = tree(&fs).unwrap();
    fs.create_snapshot("s").unwrap();
    let root = make(&fs, "b");
    run(&fs, "create /x; create /y; create /z");
    let region = fs.into_medium();
    let refused = bpfs::roll_back(&region, "s").unwrap_err();
    assert!(matches!(refused, bpfs::Error::Errno(Errno::NOTEMPTY)), "{refused}");
    let fs = Bpfs::mount(region, &options()).unwrap();
    assert!(fs.getattr(root).is_ok());
    discard(&fs, "b");
    let region = fs.into_medium();
    bpfs::roll_back(&region, "s").unwrap();
    assert_eq!(problems(&region), [""; 0]);
    let fs = Bpfs::mount(region, &options()).unwrap();
    assert_eq!((tree(&fs).unwrap(), fs.branches_dir(false)), (state.clone(), Ok(None)));
    make(&fs, "b");
    assert_eq!(tree(&open(fs.into_medium(), "b")).unwrap(), state);
}

#[test]
fn a_copy_of_a_pool_has_its_branches() {
    let fs = pool();
    run(&fs, SOME);
    make(&fs, "b");
    let region = fs.into_medium();
    let start = bpfs::superblock_of_copy(&region, None).unwrap();
    region.write(0, &start);
    assert_eq!((problems(&region), names(&region)), (vec![], vec!["b".to_owned()]));
    assert_eq!(bpfs::info(&region).map(drop).map_err(|e| e.to_string()), Ok(()));
}

#[test]
fn a_pool_with_a_backing_store_has_none() {
    let region = Region::anonymous(BYTES).unwrap();
    let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
    bpfs::format(&region, &options).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    assert_eq!(fs.branches_dir(true), Err(Errno::OPNOTSUPP));
    assert_eq!(fs.commit_branch("a", Some("@a")), Err(Errno::OPNOTSUPP));
    assert_eq!(fs.clone_from_snapshot("a", ROOT, ROOT), Err(Errno::OPNOTSUPP));
    let source = TreeSource::Dir(ROOT);
    assert_eq!(fs.copy_tree(&source, (ROOT, b"a")).unwrap_err(), Errno::OPNOTSUPP);
}

/// Copies what a small pool has in use.
fn copy(from: &Region, to: &Region) {
    let mut bytes = vec![0; BYTES as usize];
    from.read(0, &mut bytes);
    to.write(0, &bytes);
}

/// Each way in which the directory of branches can be wrong is found, and repaired.
#[test]
fn damaged_branches_are_found() {
    let fs = pool();
    run(&fs, "mkdir /d; create /f");
    let dir = fs.branches_dir(true).unwrap().unwrap();
    let root = make(&fs, "b");
    let [d, f] = [&b"d"[..], b"f"].map(|name| fs.lookup(ROOT, name).unwrap().ino);
    // Entries that ordinary calls can make.
    let link = |name: &str, ino: Ino| fs.link(ino, dir, name.as_bytes()).map(drop);
    link("file", f).unwrap();
    fs.create(&Caller::ROOT, dir, b"a@b", &DIR).unwrap();
    fs.create(&Caller::ROOT, dir, &[0xff], &DIR).unwrap();
    fs.create(&Caller::ROOT, dir, &[b'x'; 63], &DIR).unwrap();
    let region = fs.into_medium();
    assert_eq!(names(&region), ["b", "file"], "the list is only a look");
    let found = problems(&region);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.iter().any(|what| what.contains("no directory but a File")), "{found:?}");
    assert!(found.iter().any(|what| what.contains("cannot have this name")), "{found:?}");
    let repair = || {
        let options = CheckOptions { repair: true, ..CheckOptions::default() };
        bpfs::check(&region, &options, &|_, _| {}).unwrap()
    };
    assert!(repair().problems.iter().all(|problem| problem.repaired));
    assert_eq!((problems(&region), names(&region)), (vec![], vec!["b".to_owned()]));
    // The word leads elsewhere.
    let word = |ino| branches_word(&Pm(&region), ino);
    for (ino, is_found) in [(ROOT, true), (f, true), (Ino(900), true), (Ino(31), true), (d, false)]
    {
        region.store_u64(POOL_BRANCHES.get(), word(ino));
        let found = problems(&region);
        assert!(!found.is_empty(), "{ino} {is_found}: {found:?}");
        let _ = (0..4).take_while(|_| !repair().problems.is_empty()).count();
        assert_eq!(problems(&region), [""; 0]);
        region.store_u64(POOL_BRANCHES.get(), word(dir));
    }
    for word in [1, u64::MAX, word(dir) ^ 1 << 40] {
        region.store_u64(POOL_BRANCHES.get(), word);
        assert!(bpfs::info(&region).unwrap_err().to_string().contains("damaged"));
    }
    // The tree of the pool names the directory of branches, or a root; a branch names it itself.
    region.store_u64(POOL_BRANCHES.get(), word(dir));
    for target in [dir, root, ROOT] {
        let fs = Bpfs::mount(Region::anonymous(BYTES).unwrap(), &options());
        assert!(fs.is_err());
        let again = Region::anonymous(BYTES).unwrap();
        copy(&region, &again);
        let fs = Bpfs::mount(&again, &options()).unwrap();
        run(&fs, "mkdir /bad");
        let at = entry_of(&fs, ROOT, b"bad");
        let generation = fs.getattr(target).unwrap().generation;
        drop(fs);
        again.store_u64(at, target.0 | u64::from(generation) << 32);
        let found = problems(&again);
        assert!(!found.is_empty(), "{target}");
        assert!(Bpfs::mount(&again, &options()).is_err());
    }
}

/// Returns the place of the word of an entry in a directory of one block.
fn entry_of(fs: &Bpfs<&Region>, dir: Ino, name: &[u8]) -> u64 {
    let at = FIRST_INODES.at(dir.0 * INODE).get();
    let block = fs.medium().load_u64(at) & !7;
    let found = (0..BLOCK / 16).map(|unit| block + unit * 16).find(|at| {
        let mut bytes = vec![0; name.len()];
        fs.medium().read(at + 16, &mut bytes);
        bytes == name && fs.medium().load_u64(*at) != 0
    });
    found.unwrap()
}

/// Random words of the directory of branches, of roots and of the table have other values: a mount
/// refuses the pool or works, and does so again after a repair.
#[test]
fn damage_is_found_or_harmless() {
    let fs = pool();
    run(&fs, SOME);
    let dir = fs.branches_dir(true).unwrap().unwrap();
    let roots = [make(&fs, "a"), make(&fs, "b")];
    let region = fs.into_medium();
    let len = 4 << 20;
    let mut bytes = vec![0; len];
    region.read(0, &mut bytes);
    drop(region);
    let mut rng = Rng::new(11);
    for _ in 0..300 {
        let region = Region::anonymous(BYTES).unwrap();
        region.write(0, &bytes);
        let inodes = region.load_u64(64);
        let leaf = |ino: Ino| match inodes & 7 {
            0 => inodes & !7,
            _ => region.load_u64((inodes & !7) + ino.0 / 32 * 8),
        };
        let inode = |ino: Ino| leaf(ino) + ino.0 % 32 * INODE;
        for _ in 0..=rng.below(2) {
            let victim = [dir, roots[0], roots[1], ROOT][rng.below(4) as usize];
            let content = region.load_u64(inode(victim)) & !7;
            let at = match rng.below(4) {
                0 => inode(victim) + rng.below(10) * 8,
                1 => POOL_BRANCHES.get(),
                2 => 256 + rng.below(2 * 96 / 8) * 8,
                _ if content < len as u64 => content + rng.below(24) * 8,
                _ => continue,
            };
            let old = region.load_u64(at);
            let other = match rng.below(4) {
                0 => region.load_u64(inode(roots[rng.below(2) as usize])),
                1 => old ^ 1 << rng.below(64),
                2 => branches_word(&Pm(&region), Ino(rng.below(100))),
                _ => old.wrapping_add(1),
            };
            region.store_u64(at, other);
        }
        for repair in [false, true, true, true, true] {
            let _ = bpfs::branches(&region);
            let check = CheckOptions { repair, ..CheckOptions::default() };
            let Ok(report) = bpfs::check(&region, &check, &|_, _| {}) else { break };
            if report.problems.is_empty() {
                for name in names(&region) {
                    let pool = Bpfs::<&Region>::mount(&region, &options()).unwrap();
                    if let Ok(branch) = Branch::<&Region>::open(pool, &name) {
                        let _: Result<Tree, _> = tree(&branch);
                    }
                }
                assert_eq!(problems(&region), [""; 0]);
                break;
            }
        }
    }
}

/// The kinds that a tree has are all in a branch.
#[test]
fn all_kinds_are_copied() {
    let fs = pool();
    run(&fs, "mkfifo /p; mknod /c 259; mksocket /s; symlink /l 20; mkdir /d; create /f");
    make(&fs, "b");
    let branch = open(fs.into_medium(), "b");
    for (name, kind) in [
        (&b"p"[..], FileKind::Fifo),
        (b"l", FileKind::Symlink),
        (b"d", FileKind::Dir),
        (b"f", FileKind::File),
    ] {
        assert_eq!(branch.peek(ROOT, name).unwrap().kind, kind);
    }
}
