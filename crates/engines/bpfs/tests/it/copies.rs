//! Copies of directory trees in one step: what they contain, cost and leave.

use bpfs::layout::{BLOCK, INODE};
use bpfs::{Bpfs, CheckOptions, Engine, FormatOptions, MountOptions};
use pmem::{Medium, Region};
use pool::{TreeSource, clone_tree};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use suite::flushed;
use vfs::script::{Driver, parse};
use vfs::tree::{diff, subtree, tree};
use vfs::{
    Caller, Cloned, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags,
    Timestamp, remove_tree,
};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

/// All kinds of inodes, names of one inode in several directories, attributes, holes, trees of
/// several heights, free entries.
const TREE: &str = "mkdir /src mode=750; create /src/a mode=6755; write /src/a 0 5000; \
    link /src/a /src/b; mkdir /src/d; create /src/d/c; write /src/d/c 100000 10; link /src/a /src/d/too; \
    symlink /src/d/l 20; mkfifo /src/p; mknod /src/n 259; setxattr /src user.x 10; setxattr /src/a user.y 3000; \
    setxattr /src/a user.z 3000; setxattr /src/a security.capability 20; \
    chown /src/d 7 8; utimes /src/a; utimes /src/d; mkdir /src/d/e; mkdir /src/d/e/f; create /src/empty; \
    create /src/hole; truncate /src/hole 9000000; create /src/gone; create /src/last; unlink /src/gone; \
    write /src/last 3000000 9000; utimes /src; mkdir /to mode=2777";

fn mounted(bytes: u64) -> Bpfs<Region> {
    let region = flushed(false).anonymous(bytes).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Bpfs::mount(region, &options()).unwrap()
}

fn options() -> MountOptions {
    MountOptions { clock: || Timestamp(7), ..MountOptions::default() }
}

fn run(fs: &dyn FileSystem, ops: &str) {
    let mut driver = Driver::new(fs);
    for (salt, op) in (1..).zip(parse(ops).unwrap()) {
        driver.run(&op, salt).unwrap_or_else(|e| panic!("{op}: {e}"));
    }
    driver.close_all();
}

fn ino(fs: &dyn FileSystem, of: &str) -> Ino {
    vfs::path::at(fs, of.as_bytes(), |dir, name| fs.peek(dir, name)).unwrap().ino
}

/// Free blocks and inodes in use.
fn usage(fs: &Bpfs<Region>) -> (u64, u64) {
    let s = fs.statfs();
    (s.blocks_free, s.inodes - s.inodes_free)
}

/// Mounts the pool again, without finding a fault.
fn again(fs: Bpfs<Region>) -> Bpfs<Region> {
    let region = fs.into_medium();
    let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    Bpfs::mount(region, &options()).unwrap()
}

#[test]
fn a_copy_equals_its_source() {
    let fs = mounted(64 << 20);
    run(&fs, TREE);
    let (src, to) = (ino(&fs, "/src"), ino(&fs, "/to"));
    let copied = fs.copy_tree(&TreeSource::Dir(src), (to, b"copy")).unwrap();
    let bytes = 5000 + 100_010 + 9_000_000 + 3_009_000;
    assert_eq!(copied, Cloned { files: 5, dirs: 4, others: 3, bytes });
    fs.create_snapshot("s").unwrap();
    fs.copy_tree(&TreeSource::Snapshot("s"), (to, b"of-all")).unwrap();
    let of = |fs: &Bpfs<Region>, path: &str| subtree(fs, ino(fs, path)).unwrap();
    let check = |fs: &Bpfs<Region>| {
        for copy in ["/to/copy", "/to/of-all/src"] {
            assert_eq!(diff(&of(fs, "/src"), &of(fs, copy)), None, "{copy}");
            for path in ["", "/a", "/d", "/d/c", "/d/l", "/p", "/hole"] {
                let attr = |of: String| fs.getattr(ino(fs, &of)).unwrap();
                let (ours, theirs) = (attr(format!("{copy}{path}")), attr(format!("/src{path}")));
                let times = |attr: vfs::Attr| (attr.mtime, attr.atime, attr.blocks, attr.nlink);
                assert_eq!(times(ours), times(theirs), "{path}");
            }
        }
        assert_eq!(diff(&of(fs, "/to/copy"), &of(fs, "/to/of-all/to/copy")), None);
    };
    check(&fs);
    let fs = again(fs);
    check(&fs);
    // Neither sees changes of the other.
    let before = of(&fs, "/src");
    run(
        &fs,
        "write /to/copy/a 0 8; append /to/copy/last 5000; setxattr /to/copy/d user.y 40; unlink /to/copy/d/l; \
        create /to/copy/d/new; rmdir /to/copy/d/e/f; create /to/copy/gone; rename /to/copy/empty /to/copy/d/empty",
    );
    assert_eq!(of(&fs, "/src"), before);
    let fs = again(fs);
    assert_eq!(of(&fs, "/src"), before);
    // A name outside of the tree is no name of the copy.
    run(&fs, "link /src/last /outside");
    fs.copy_tree(&TreeSource::Dir(ino(&fs, "/src")), (ROOT, b"copy")).unwrap();
    assert_eq!(fs.getattr(ino(&fs, "/copy/last")).unwrap().nlink, 1);
}

#[test]
fn a_removed_copy_leaves_nothing() {
    let fs = mounted(64 << 20);
    run(&fs, TREE);
    let src = TreeSource::Dir(ino(&fs, "/src"));
    // The first one may grow the inode file, and a directory.
    fs.copy_tree(&src, (ROOT, b"copy")).unwrap();
    remove_tree(&fs, ROOT, b"copy").unwrap();
    let before = usage(&fs);
    for _ in 0..3 {
        fs.copy_tree(&src, (ROOT, b"copy")).unwrap();
        assert_ne!(usage(&fs), before);
        remove_tree(&fs, ROOT, b"copy").unwrap();
        assert_eq!(usage(&fs), before);
    }
    // The source goes first.
    fs.copy_tree(&src, (ROOT, b"copy")).unwrap();
    let copy = subtree(&fs, ino(&fs, "/copy")).unwrap();
    remove_tree(&fs, ROOT, b"src").unwrap();
    let fs = again(fs);
    assert_eq!(diff(&copy, &subtree(&fs, ino(&fs, "/copy")).unwrap()), None);
}

/// The traffic of a copy: 128 bytes for each inode, and the blocks of its directory.
#[test]
fn costs() {
    let fs = mounted(256 << 20);
    let copy = |fs: &Bpfs<Region>, from: Ino, name: &str| {
        let before = fs.medium().counters().snapshot();
        fs.copy_tree(&TreeSource::Dir(from), (ROOT, name.as_bytes())).unwrap();
        let d = fs.medium().counters().snapshot() - before;
        (d.nt_bytes, d.lines_flushed, d.fences)
    };
    for files in [10_u64, 1000, 3000] {
        let dir = fs.create(&Caller::ROOT, ROOT, format!("{files}").as_bytes(), &DIR).unwrap().ino;
        for i in 0..files {
            let made = fs.create(&Caller::ROOT, dir, format!("file {i:05}").as_bytes(), &FILE);
            fs.write(made.unwrap().ino, 0, &[1; 100]).unwrap();
        }
        // Makes the slots of the inodes.
        copy(&fs, dir, "copy");
        remove_tree(&fs, ROOT, b"copy").unwrap();
        let blocks = fs.getattr(dir).unwrap().blocks * 512;
        let (nt, lines, fences) = copy(&fs, dir, "copy");
        assert_eq!(nt, (files + 1) * INODE + blocks, "{files} files");
        assert!(lines <= 4 && fences == 2, "{files} files: {lines} lines, {fences} fences");
        remove_tree(&fs, ROOT, b"copy").unwrap();
    }
    // Slots for as many inodes again: some fences for all of them.
    let dir = ino(&fs, "/3000");
    copy(&fs, dir, "first");
    let (nt, _, fences) = copy(&fs, dir, "second");
    let blocks = fs.getattr(dir).unwrap().blocks * 512;
    let slots = (3001 * INODE).next_multiple_of(BLOCK) + BLOCK;
    assert!(nt <= 3001 * INODE + blocks + slots + 4 * BLOCK && fences <= 8, "{nt} {fences}");
}

/// A copy that finds no space, at any step, takes nothing.
#[test]
fn a_copy_without_space_leaves_nothing() {
    let fs = mounted(4 << 20);
    run(&fs, TREE);
    for i in 0..200 {
        let made =
            fs.create(&Caller::ROOT, ino(&fs, "/src/d"), format!("{i:0200}").as_bytes(), &FILE);
        fs.forget(made.unwrap().ino, 1);
    }
    let src = TreeSource::Dir(ino(&fs, "/src"));
    fs.copy_tree(&src, (ROOT, b"copy")).unwrap();
    remove_tree(&fs, ROOT, b"copy").unwrap();
    let fill = fs.create(&Caller::ROOT, ROOT, b"fill", &FILE).unwrap().ino;
    while fs.append(fill, &[1; 4096]).is_ok() {}
    let mut failed = 0;
    loop {
        let before = usage(&fs);
        match fs.copy_tree(&src, (ROOT, b"copy")) {
            Err(Errno::NOSPC) => failed += 1,
            copied => {
                copied.unwrap();
                break;
            }
        }
        assert_eq!(usage(&fs), before);
        assert_eq!(fs.peek(ROOT, b"copy").unwrap_err(), Errno::NOENT);
        let size = fs.getattr(fill).unwrap().size;
        let set = vfs::SetAttr { size: Some(size - BLOCK), ..vfs::SetAttr::default() };
        fs.setattr(&Caller::ROOT, fill, &set).unwrap();
    }
    assert!(failed > 5, "{failed}");
    let fs = again(fs);
    let of = |path| subtree(&fs, ino(&fs, path)).unwrap();
    assert_eq!(diff(&of("/src"), &of("/copy")), None);
}

/// A thin pool takes space for a copy while that is made.
#[test]
fn a_thin_pool_makes_room_for_a_copy() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = pmem::OpenOptions { sparse: true, ..flushed(false) };
    let region = options.create(dir.path().join("pool"), 64 << 20).unwrap();
    let format = FormatOptions { is_thin: true, ..FormatOptions::default() };
    bpfs::format(&region, &format).unwrap();
    let fs = Bpfs::mount(region, &self::options()).unwrap();
    let dir = fs.create(&Caller::ROOT, ROOT, b"dir", &DIR).unwrap().ino;
    for i in 0..300 {
        let sub = fs.create(&Caller::ROOT, dir, format!("{i}").as_bytes(), &DIR).unwrap().ino;
        for name in 0..100 {
            let file = fs.create(&Caller::ROOT, sub, format!("{name}").as_bytes(), &FILE).unwrap();
            fs.forget(file.ino, 1);
        }
        fs.forget(sub, 1);
    }
    for i in 0..3 {
        let copied = fs.copy_tree(&TreeSource::Dir(dir), (ROOT, format!("{i}").as_bytes()));
        assert_eq!((copied.unwrap().files, copied.unwrap().dirs), (30_000, 301));
    }
    let of = |path| subtree(&fs, ino(&fs, path)).unwrap();
    assert_eq!(diff(&of("/dir"), &of("/2")), None);
    again(fs);
}

#[test]
fn errors_change_nothing() {
    let fs = mounted(64 << 20);
    run(&fs, TREE);
    let (src, to) = (ino(&fs, "/src"), ino(&fs, "/to"));
    fs.create_snapshot("s").unwrap();
    let state = tree(&fs).unwrap();
    // Makes slots.
    fs.copy_tree(&TreeSource::Dir(src), (ROOT, b"copy")).unwrap();
    remove_tree(&fs, ROOT, b"copy").unwrap();
    let before = usage(&fs);
    let long = [b'x'; 256];
    let file = ino(&fs, "/src/a");
    for (from, place, errno) in [
        (TreeSource::Dir(src), (ROOT, &b"to"[..]), Errno::EXIST),
        (TreeSource::Dir(src), (file, b"n"), Errno::NOTDIR),
        (TreeSource::Dir(src), (to, &long), Errno::NAMETOOLONG),
        (TreeSource::Dir(src), (Ino(500), b"n"), Errno::STALE),
        (TreeSource::Dir(file), (to, b"n"), Errno::NOTDIR),
        (TreeSource::Dir(Ino(500)), (to, b"n"), Errno::STALE),
        (TreeSource::Snapshot("none"), (to, b"n"), Errno::NOENT),
    ] {
        assert_eq!(fs.copy_tree(&from, place).unwrap_err(), errno, "{from:?}");
        assert_eq!(usage(&fs), before, "{from:?}");
    }
    let below = clone_tree(&fs, src, (ino(&fs, "/src/d"), b"n"), 1, &mut |_| true);
    assert_eq!(below, Err(Errno::INVAL));
    assert_eq!(clone_tree(&fs, src, (src, b"n"), 1, &mut |_| true), Err(Errno::INVAL));
    let fs = again(fs);
    assert_eq!(tree(&fs).unwrap(), state);
    let file = ino(&fs, "/src/a");
    let to = (ino(&fs, "/to"), &b"a"[..]);
    let cloned = clone_tree(&fs as &dyn Engine, file, to, 1, &mut |_| true).unwrap();
    assert_eq!((cloned.files, cloned.dirs), (1, 0));
}

/// Other threads change the source meanwhile.
#[test]
fn a_source_may_change_meanwhile() {
    let fs = mounted(128 << 20);
    run(&fs, TREE);
    let (src, d) = (ino(&fs, "/src"), ino(&fs, "/src/d"));
    fs.copy_tree(&TreeSource::Dir(src), (ROOT, b"copy")).unwrap();
    remove_tree(&fs, ROOT, b"copy").unwrap();
    let ended = AtomicBool::new(false);
    let change = |n: u32| {
        let names = [format!("x{n}"), format!("y{n}"), format!("z{n}")];
        let [x, y, z] = names.each_ref().map(|name| name.as_bytes());
        while !ended.load(Relaxed) {
            let file = fs.create(&Caller::ROOT, src, x, &FILE).unwrap().ino;
            fs.write(file, 0, &vec![n as u8; 20_000]).unwrap();
            fs.forget(fs.link(file, d, y).unwrap().ino, 1);
            let dir = fs.create(&Caller::ROOT, src, z, &DIR).unwrap().ino;
            fs.rename((src, x), (dir, x), RenameFlags::empty()).unwrap();
            fs.setxattr(file, b"user.x", &[n as u8; 300], vfs::SetXattr::Any).unwrap();
            fs.write(file, 4096, &vec![n as u8; 4096]).unwrap();
            fs.rename((src, z), (d, z), RenameFlags::empty()).unwrap();
            fs.rename((d, z), (src, z), RenameFlags::empty()).unwrap();
            fs.unlink(dir, x).unwrap();
            fs.rmdir(src, z).unwrap();
            fs.forget(dir, 1);
            fs.unlink(d, y).unwrap();
            fs.forget(file, 1);
        }
    };
    std::thread::scope(|s| {
        for n in 1..3 {
            s.spawn(move || change(n));
        }
        for i in 0..300 {
            let name = format!("copy {i}");
            fs.copy_tree(&TreeSource::Dir(src), (ROOT, name.as_bytes())).unwrap();
            let copy = subtree(&fs, ino(&fs, &name)).unwrap();
            for (path, node) in copy.nodes() {
                let is_ours = path.ends_with(b"a") || path.ends_with(b"last");
                assert!(!is_ours || node.kind == FileKind::File);
            }
            if i % 50 != 0 {
                remove_tree(&fs, ROOT, name.as_bytes()).unwrap();
            }
        }
        ended.store(true, Relaxed);
    });
    let fs = again(fs);
    let before = usage(&fs);
    for i in (0..300).step_by(50) {
        remove_tree(&fs, ROOT, format!("copy {i}").as_bytes()).unwrap();
    }
    assert!(usage(&fs).0 > before.0);
    let now = usage(&fs);
    assert_eq!(usage(&again(fs)), now);
}
