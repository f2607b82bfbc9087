//! Where things end: full pools, the largest file, long names, large directories.

use bpfs::{Bpfs, CheckOptions, FormatOptions, MountOptions};
use pmem::{Access, Lock, OpenOptions, Region};
use std::os::unix::fs::MetadataExt as _;
use vfs::tree::{diff, tree};
use vfs::{
    Caller, Errno, FILE_SIZE_MAX, Fallocate, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags,
    Seek, SetAttr, SetXattr,
};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

fn mounted(bytes: u64) -> Bpfs<Region> {
    let region = Region::anonymous(bytes).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Bpfs::mount(region, &MountOptions::default()).unwrap()
}

fn create(fs: &dyn FileSystem, dir: Ino, name: &str, node: &NewNode<'_>) -> Ino {
    let ino = fs.create(&Caller::ROOT, dir, name.as_bytes(), node).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

fn check_and_remount(fs: Bpfs<Region>) -> Bpfs<Region> {
    let used = fs.statfs().blocks_free;
    let region = fs.into_medium();
    let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    assert_eq!(fs.statfs().blocks_free, used, "what was free is free after a scan");
    fs
}

/// Fills a pool to the last block that data may have; returns the files.
fn fill(fs: &dyn FileSystem, dir: Ino) -> Vec<String> {
    let mut names = vec![];
    for len in [1 << 20, 64 << 10, 4096] {
        for i in 0.. {
            let name = format!("fill-{len}-{i}");
            match fs.create(&Caller::ROOT, dir, name.as_bytes(), &FILE) {
                Err(Errno::NOSPC) => break,
                other => {
                    let ino = other.unwrap().ino;
                    names.push(name);
                    let wrote = fs.write(ino, 0, &vec![i as u8; len]);
                    fs.forget(ino, 1);
                    match wrote {
                        Err(Errno::NOSPC) => break,
                        other => other.unwrap(),
                    }
                }
            }
        }
    }
    names
}

#[test]
fn the_largest_pool_can_be_shared_and_takes_memory_as_it_fills() {
    let dir = tempfile::Builder::new().prefix("keepstone-").tempdir_in("/dev/shm").unwrap();
    let pool = dir.path().join("pool");
    std::fs::File::create(&pool).unwrap().set_len(bpfs::layout::POOL_MAX).unwrap();
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let open = || options.open(&pool, Access::ReadWrite).unwrap();
    bpfs::format(&open(), &FormatOptions::default()).unwrap();
    let place = bpfs::place(&open()).unwrap();
    let attach = || Bpfs::attach(open(), &place, &MountOptions::default()).unwrap();
    let (one, two) = (attach(), attach());
    let ino = create(&one, ROOT, "file", &FILE);
    two.write(ino, FILE_SIZE_MAX - 5, b"there").unwrap();
    assert_eq!(one.getattr(ino).unwrap().size, FILE_SIZE_MAX);
    let state = std::fs::metadata(place.path.to_str().unwrap()).unwrap();
    let taken = state.blocks() * 512;
    assert!(taken < bpfs::layout::POOL_MAX >> 13, "an empty pool's state has {taken} bytes");
}

#[test]
fn a_full_pool_refuses_and_keeps() {
    let fs = mounted(8 << 20);
    let d = create(&fs, ROOT, "d", &DIR);
    let f = create(&fs, d, "f", &FILE);
    fs.write(f, 0, &[1; 20_000]).unwrap();
    fs.setxattr(f, b"user.x", b"y", SetXattr::Any).unwrap();
    let names = fill(&fs, d);
    let (before, space) = (tree(&fs).unwrap(), fs.statfs());
    let size = |s| SetAttr { size: Some(s), ..SetAttr::default() };

    for _ in 0..3 {
        assert_eq!(fs.write(f, 5, &[2; 100_000]), Err(Errno::NOSPC), "across the end");
        assert_eq!(fs.write(f, 4096, &[2; 8192]), Err(Errno::NOSPC), "inside");
        assert_eq!(fs.append(f, &[2; 300_000]), Err(Errno::NOSPC));
        assert_eq!(fs.write(f, 1 << 40, b"far away"), Err(Errno::NOSPC), "needs a taller tree");
        let grow = Fallocate::Allocate { keep_size: false };
        assert_eq!(fs.fallocate(f, grow, 0, 1 << 20), Err(Errno::NOSPC));
        assert_eq!(fs.setxattr(f, b"user.z", &[3; 50_000], SetXattr::Any), Err(Errno::NOSPC));
        let link = NewNode { kind: NewKind::Symlink(&[b't'; 3000]), mode: 0o777, umask: 0 };
        assert_eq!(fs.create(&Caller::ROOT, d, b"link", &link).unwrap_err(), Errno::NOSPC);
    }
    assert_eq!(diff(&before, &tree(&fs).unwrap()), None);
    assert_eq!(fs.statfs(), space, "refusals leak nothing");

    fs.write(f, 8, &[4; 8]).unwrap();
    fs.rename((d, names[0].as_bytes()), (ROOT, b"moved"), RenameFlags::empty()).unwrap();
    fs.fallocate(f, Fallocate::PunchHole, 100, 10_000).unwrap();
    fs.setattr(&Caller::ROOT, f, &size(3)).unwrap();
    for name in &names[1..] {
        fs.unlink(d, name.as_bytes()).unwrap();
    }
    fs.unlink(ROOT, b"moved").unwrap();
    fs.unlink(d, b"f").unwrap();
    fs.rmdir(ROOT, b"d").unwrap();
    let fs = check_and_remount(fs);
    let left = fs.statfs();
    assert!(left.blocks - left.blocks_free < 64, "{left:?}");
}

#[test]
fn what_threads_have_counted_for_themselves_is_used_before_a_pool_is_full() {
    let fs = mounted(64 << 20);
    let idle = fs.statfs();
    let d = create(&fs, ROOT, "d", &DIR);
    std::thread::scope(|s| {
        for i in 0..8u8 {
            let fs = &fs;
            s.spawn(move || {
                let f = create(fs, d, &format!("f{i}"), &FILE);
                for at in 0..100 {
                    fs.write(f, at % 50 * 4096, &[i; 4096]).unwrap();
                }
            });
        }
    });
    let names = fill(&fs, d);
    assert!(fs.statfs().blocks_free < 2, "{:?}", fs.statfs());
    let fs = check_and_remount(fs);
    let d = fs.peek(ROOT, b"d").unwrap().ino;
    for name in names.iter().cloned().chain((0..8).map(|i| format!("f{i}"))) {
        fs.unlink(d, name.as_bytes()).unwrap();
    }
    fs.rmdir(ROOT, b"d").unwrap();
    let left = fs.statfs();
    assert!(idle.blocks_free - left.blocks_free < 64, "{left:?}, before {idle:?}");
}

/// Files of two blocks come and go: their blocks of pointers are kept to be used again.
#[test]
fn zeroed_pointer_blocks_are_free_and_null() {
    let fs = mounted(8 << 20);
    let d = create(&fs, ROOT, "d", &DIR);
    // As large as to have pointers behind the first line, and then not any more.
    let shrunk = create(&fs, d, "shrunk", &FILE);
    fs.write(shrunk, 0, &[9; 300_000]).unwrap();
    let resize = |f, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, f, &set).unwrap();
    };
    resize(shrunk, 5000);
    let (files, mut idle) = (40, None);
    for round in 1..4 {
        for i in 0..files {
            let f = create(&fs, d, &format!("f{i}"), &FILE);
            fs.write(f, 0, &[round; 5000]).unwrap();
            assert_eq!(fs.getattr(f).unwrap().blocks, 3 * 8);
            // What was null behind the first line is.
            fs.write(f, 200_000, &[round]).unwrap();
            assert_eq!(fs.seek(f, 8192, Seek::Data), Ok(196_608));
            resize(f, 8192);
        }
        for i in 0..files {
            fs.unlink(d, format!("f{i}").as_bytes()).unwrap();
        }
        // The first round made the inode file larger.
        assert_eq!(fs.statfs(), *idle.get_or_insert_with(|| fs.statfs()));
        fs.unlink(d, b"shrunk").unwrap();
        let shrunk = create(&fs, d, "shrunk", &FILE);
        fs.write(shrunk, 0, &[9; 5000]).unwrap();
    }
    // Another thread finds them when nothing else is left.
    std::thread::scope(|s| {
        s.spawn(|| fill(&fs, d));
    });
    assert!(fs.statfs().blocks_free < 2, "{:?}", fs.statfs());
    check_and_remount(fs);
}

#[test]
fn the_largest_file() {
    let fs = mounted(16 << 20);
    let f = create(&fs, ROOT, "f", &FILE);
    fs.write(f, FILE_SIZE_MAX - 5, b"the e").unwrap();
    assert_eq!(fs.write(f, FILE_SIZE_MAX - 4, b"the e"), Err(Errno::FBIG));
    assert_eq!(fs.append(f, b"x"), Err(Errno::FBIG));
    fs.write(f, 1 << 33, b"in the middle").unwrap();
    assert_eq!(fs.seek(f, 0, Seek::Data), Ok(1 << 33));
    assert_eq!(fs.seek(f, (1 << 33) + 5000, Seek::Data), Ok(FILE_SIZE_MAX - 4096));
    let mut buf = [9; 10];
    assert_eq!(fs.read(f, FILE_SIZE_MAX - 10, &mut buf), Ok(10));
    assert_eq!(&buf, b"\0\0\0\0\0the e");
    assert!(fs.getattr(f).unwrap().blocks < 200, "a sparse file takes little");
    fs.fallocate(f, Fallocate::PunchHole, 0, FILE_SIZE_MAX).unwrap();
    assert_eq!(fs.seek(f, 0, Seek::Data), Err(Errno::NXIO));
    check_and_remount(fs);
}

#[test]
fn large_directories_and_long_names() {
    let fs = mounted(256 << 20);
    let d = create(&fs, ROOT, "d", &DIR);
    let name = |i: usize| format!("{:0>width$}", i, width = 1 + i * 7 % 255);
    let unique = |i: usize| format!("{i}-{}", &name(i)[..name(i).len().min(240)]);
    for i in 0..60_000 {
        create(&fs, d, &unique(i), &FILE);
    }
    assert_eq!(fs.create(&Caller::ROOT, d, &[b'n'; 256], &FILE).unwrap_err(), Errno::NAMETOOLONG);
    for i in (0..60_000).step_by(2) {
        fs.unlink(d, unique(i).as_bytes()).unwrap();
    }
    let size = fs.getattr(d).unwrap().size;
    for i in (0..60_000).step_by(2) {
        create(&fs, d, &unique(i), &FILE);
    }
    let grown = fs.getattr(d).unwrap().size;
    assert!(grown <= size + size / 10, "room of removed names is used again: {size} -> {grown}");
    let fs = check_and_remount(fs);
    let mut seen = 0;
    let mut cookie = 0;
    loop {
        let mut some = 0;
        fs.readdir(d, cookie, &mut |e| {
            cookie = e.cookie;
            some += 1;
            some < 1000
        })
        .unwrap();
        seen += some;
        if some < 1000 {
            break;
        }
    }
    assert_eq!(seen, 60_002);
    for i in (0..60_000).step_by(611) {
        assert!(fs.lookup(d, unique(i).as_bytes()).is_ok());
    }
}

#[test]
fn inode_numbers_do_not_creep() {
    let fs = mounted(8 << 20);
    for i in 0..20_000 {
        let (a, b) = (create(&fs, ROOT, "a", &FILE), create(&fs, ROOT, "b", &FILE));
        assert!(a.0 < 64 && b.0 < 64, "round {i}: {a} {b}");
        fs.unlink(ROOT, b"a").unwrap();
        fs.unlink(ROOT, b"b").unwrap();
    }
}

/// What `fallocate` promises space for has it, whether it held data, was a hole, or is new; and reads as zeros.
#[test]
fn zeroed_ranges_have_space() {
    const K: u64 = 1 << 10;
    let mut fs = mounted(8 << 20);
    for (i, (offset, len)) in [
        (0, 64 * K),
        (3 * K, 50 * K),
        (20 * K, 2 * K),
        (0, 100 * K),
        (63 * K, 8 * K),
        (70 * K, 30 * K),
    ]
    .into_iter()
    .enumerate()
    {
        for keep_size in [false, true] {
            let ino = create(&fs, ROOT, &format!("file{i}{keep_size}"), &FILE);
            let mut content = vec![0; 64 << 10];
            content[16 << 10..24 << 10].fill(7);
            fs.write(ino, 16 * K, &content[16 << 10..24 << 10]).unwrap();
            fs.setattr(&Caller::ROOT, ino, &SetAttr { size: Some(64 * K), ..SetAttr::default() })
                .unwrap();
            fs.fallocate(ino, Fallocate::ZeroRange { keep_size }, offset, len).unwrap();
            let size = if keep_size { 64 * K } else { (64 * K).max(offset + len) };
            assert_eq!(fs.getattr(ino).unwrap().size, size);
            let end = size.min(offset + len);
            if offset < end {
                let hole = fs.seek(ino, offset, Seek::Hole).unwrap();
                assert!(hole >= end, "{offset} {len}: a hole at {hole}");
            }
            content.resize(size as usize, 0);
            content[offset.min(end) as usize..end as usize].fill(0);
            let mut found = vec![1; size as usize];
            assert_eq!(fs.read(ino, 0, &mut found), Ok(found.len()));
            assert!(found == content, "{offset} {len} {keep_size}");
        }
        fs = check_and_remount(fs);
    }
}
