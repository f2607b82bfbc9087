//! Tests limits: full pools, the largest file, long names, large directories.

use crate::{
    DIR, Engine, FILE, Fs, check_and_remount, create, has_atomic_contents, mounted, open_shared,
    place,
};
use pool::{FormatOptions, MountOptions};
use rng::Rng;
use std::os::unix::fs::MetadataExt as _;
use vfs::tree::{diff, tree};
use vfs::{
    Caller, Errno, Fallocate, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, Seek, SetAttr,
    SetXattr,
};

/// Fills a pool to the last block available for data and attributes. Returns the names of the
/// files.
pub fn fill(fs: &dyn FileSystem, dir: Ino) -> Vec<String> {
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
    // A list of attributes takes exactly one block, which may be any free block.
    for name in &names {
        let ino = fs.peek(dir, name.as_bytes()).unwrap().ino;
        match fs.setxattr(ino, b"user.fill", &[1; 3000], SetXattr::Any) {
            Err(Errno::NOSPC) => return names,
            other => other.unwrap(),
        }
    }
    panic!("too few files to fill a pool with their attributes");
}

/// Tests that the derived state of the largest pool is sparse.
pub fn the_largest_pool_can_be_shared_and_takes_memory_as_it_fills<E: Engine>() {
    let dir = tempfile::Builder::new().prefix("keepstone-").tempdir_in("/dev/shm").unwrap();
    let pool = dir.path().join("pool");
    std::fs::File::create(&pool).unwrap().set_len(E::POOL_MAX).unwrap();
    let open = || open_shared(&pool);
    E::format(&open(), &FormatOptions::default()).unwrap();
    let place = place::<E>(&open()).unwrap();
    let attach = || Fs::<E>::attach(open(), &place, &MountOptions::default()).unwrap();
    let (one, two) = (attach(), attach());
    let ino = create::<E>(&one, ROOT, "file", &FILE);
    let largest = two.limits().file_size;
    two.write(ino, largest - 5, b"there").unwrap();
    assert_eq!(one.getattr(ino).unwrap().size, largest);
    let state = std::fs::metadata(crate::state_at(&place)).unwrap();
    let taken = state.blocks() * 512;
    assert!(taken < E::POOL_MAX >> 13, "an empty pool's state has {taken} bytes");
}

/// Tests that a full pool refuses calls that need space, keeps its files, and gets its space back
/// when they are removed.
pub fn a_full_pool_refuses_and_keeps<E: Engine>() {
    let fs = mounted::<E>(8 << 20);
    let d = create::<E>(&fs, ROOT, "d", &DIR);
    let f = create::<E>(&fs, d, "f", &FILE);
    fs.write(f, 0, &[1; 20_000]).unwrap();
    fs.setxattr(f, b"user.x", b"y", SetXattr::Any).unwrap();
    let names = fill(&fs, d);
    let (before, space) = (tree(&fs).unwrap(), fs.statfs());
    let size = |s| SetAttr { size: Some(s), ..SetAttr::default() };

    for _ in 0..3 {
        assert_eq!(fs.write(f, 5, &[2; 100_000]), Err(Errno::NOSPC), "across the end");
        if has_atomic_contents::<E>() {
            assert_eq!(fs.write(f, 4096, &[2; 8192]), Err(Errno::NOSPC), "inside");
        }
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
    let fs = check_and_remount::<E>(fs);
    let left = fs.statfs();
    assert!(left.blocks - left.blocks_free < 64, "{left:?}");
}

/// Tests that the free blocks in the counters of other threads are found.
pub fn what_threads_have_counted_for_themselves_is_used_before_a_pool_is_full<E: Engine>() {
    let fs = mounted::<E>(64 << 20);
    let idle = fs.statfs();
    let d = create::<E>(&fs, ROOT, "d", &DIR);
    std::thread::scope(|s| {
        for i in 0..8u8 {
            let fs = &fs;
            s.spawn(move || {
                let f = create::<E>(fs, d, &format!("f{i}"), &FILE);
                for at in 0..100 {
                    fs.write(f, at % 50 * 4096, &[i; 4096]).unwrap();
                }
            });
        }
    });
    let names = fill(&fs, d);
    assert!(fs.statfs().blocks_free < 2, "{:?}", fs.statfs());
    let fs = check_and_remount::<E>(fs);
    let d = fs.peek(ROOT, b"d").unwrap().ino;
    for name in names.iter().cloned().chain((0..8).map(|i| format!("f{i}"))) {
        fs.unlink(d, name.as_bytes()).unwrap();
    }
    fs.rmdir(ROOT, b"d").unwrap();
    let left = fs.statfs();
    assert!(idle.blocks_free - left.blocks_free < 64, "{left:?}, before {idle:?}");
}

/// Tests the last byte that a file can have.
pub fn the_largest_file<E: Engine>() {
    let fs = mounted::<E>(16 << 20);
    let f = create::<E>(&fs, ROOT, "f", &FILE);
    let largest = fs.limits().file_size;
    fs.write(f, largest - 5, b"the e").unwrap();
    assert_eq!(fs.write(f, largest - 4, b"the e"), Err(Errno::FBIG));
    assert_eq!(fs.append(f, b"x"), Err(Errno::FBIG));
    fs.write(f, 1 << 33, b"in the middle").unwrap();
    assert_eq!(fs.seek(f, 0, Seek::Data), Ok(1 << 33));
    assert_eq!(fs.seek(f, (1 << 33) + 5000, Seek::Data), Ok(largest - 4096));
    let mut buf = [9; 10];
    assert_eq!(fs.read(f, largest - 10, &mut buf), Ok(10));
    assert_eq!(&buf, b"\0\0\0\0\0the e");
    assert!(fs.getattr(f).unwrap().blocks < 200, "a sparse file takes little");
    fs.fallocate(f, Fallocate::PunchHole, 0, largest).unwrap();
    assert_eq!(fs.seek(f, 0, Seek::Data), Err(Errno::NXIO));
    check_and_remount::<E>(fs);
}

/// Tests many names of all lengths; the room of removed names must be used again.
pub fn large_directories_and_long_names<E: Engine>() {
    let fs = mounted::<E>(256 << 20);
    let d = create::<E>(&fs, ROOT, "d", &DIR);
    let name = |i: usize| format!("{:0>width$}", i, width = 1 + i * 7 % 255);
    let unique = |i: usize| format!("{i}-{}", &name(i)[..name(i).len().min(240)]);
    for i in 0..60_000 {
        create::<E>(&fs, d, &unique(i), &FILE);
    }
    assert_eq!(fs.create(&Caller::ROOT, d, &[b'n'; 256], &FILE).unwrap_err(), Errno::NAMETOOLONG);
    for i in (0..60_000).step_by(2) {
        fs.unlink(d, unique(i).as_bytes()).unwrap();
    }
    let size = fs.getattr(d).unwrap().size;
    for i in (0..60_000).step_by(2) {
        create::<E>(&fs, d, &unique(i), &FILE);
    }
    let grown = fs.getattr(d).unwrap().size;
    assert!(grown <= size + size / 10, "room of removed names is used again: {size} -> {grown}");
    let fs = check_and_remount::<E>(fs);
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

/// Tests that inode numbers are used again.
pub fn inode_numbers_do_not_creep<E: Engine>() {
    let fs = mounted::<E>(8 << 20);
    for i in 0..20_000 {
        let (a, b) = (create::<E>(&fs, ROOT, "a", &FILE), create::<E>(&fs, ROOT, "b", &FILE));
        assert!(a.0 < 64 && b.0 < 64, "round {i}: {a} {b}");
        fs.unlink(ROOT, b"a").unwrap();
        fs.unlink(ROOT, b"b").unwrap();
    }
}

/// Tests that a zeroed range has space, whether it held data, was a hole or is new, and reads as
/// zeros.
pub fn zeroed_ranges_have_space<E: Engine>() {
    const K: u64 = 1 << 10;
    let mut fs = mounted::<E>(8 << 20);
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
            let ino = create::<E>(&fs, ROOT, &format!("file{i}{keep_size}"), &FILE);
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
        fs = check_and_remount::<E>(fs);
    }
}

/// Tests that an attribute can be replaced in a full pool if the list needs no more blocks than
/// before.
pub fn a_full_pool_lets_attributes_be_replaced<E: Engine>() {
    let fs = mounted::<E>(8 << 20);
    let d = create::<E>(&fs, ROOT, "d", &DIR);
    let f = create::<E>(&fs, d, "f", &FILE);
    fs.setxattr(f, b"user.0", &[0; 100], SetXattr::Any).unwrap();
    fill(&fs, d);
    for i in 1..50 {
        assert_eq!(fs.setxattr(f, b"user.0", &[i; 200], SetXattr::Any), Ok(()));
    }
    assert_eq!(fs.setxattr(f, b"user.1", &[1; 100], SetXattr::Any), Ok(()), "in the same block");
    assert_eq!(fs.setxattr(f, b"user.2", &[2; 5000], SetXattr::Any), Err(Errno::NOSPC));
    let fs = check_and_remount::<E>(fs);
    let f = fs.peek(fs.peek(ROOT, b"d").unwrap().ino, b"f").unwrap().ino;
    assert_eq!(fs.listxattr(f), Ok(vec![b"user.0".to_vec(), b"user.1".to_vec()]));
    assert_eq!(fs.getxattr(f, b"user.0"), Ok(vec![49; 200]));
}

/// Tests that a file can be truncated in a full pool although this removes an attribute, and so the
/// list of attributes is written again.
pub fn a_full_pool_lets_files_with_attributes_be_cut<E: Engine>() {
    let fs = mounted::<E>(8 << 20);
    let d = create::<E>(&fs, ROOT, "d", &DIR);
    let f = create::<E>(&fs, d, "f", &FILE);
    fs.write(f, 0, &[1; 20_000]).unwrap();
    // The list is as long as the reserve of free blocks allows.
    fs.setxattr(f, b"user.0", &[2; 60_000], SetXattr::Any).unwrap();
    let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    fs.setxattr(f, b"security.capability", &capability, SetXattr::Any).unwrap();
    fill(&fs, d);
    let cut = SetAttr { size: Some(5000), ..SetAttr::default() };
    assert_eq!(fs.setattr(&Caller::ROOT, f, &cut).map(|attr| attr.size), Ok(5000));
    assert_eq!(fs.getxattr(f, b"security.capability"), Err(Errno::NODATA));
    assert_eq!(fs.getxattr(f, b"user.0").map(|value| value.len()), Ok(60_000));
    check_and_remount::<E>(fs);
}

/// Tests the same with a list that is longer than the reserve of free blocks, and that attributes
/// can be removed in a full pool.
pub fn a_full_pool_lets_attributes_be_removed<E: Engine>() {
    const LARGE: usize = 60_000;
    let fs = mounted::<E>(8 << 20);
    let d = create::<E>(&fs, ROOT, "d", &DIR);
    let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
    let files = ["cut", "written", "given", "plain"].map(|name| create::<E>(&fs, d, name, &FILE));
    for f in files {
        fs.write(f, 0, &[1; 20_000]).unwrap();
        for i in 0..4 {
            fs.setxattr(f, format!("user.{i}").as_bytes(), &[i; LARGE], SetXattr::Any).unwrap();
        }
        fs.setxattr(f, b"security.capability", &capability, SetXattr::Any).unwrap();
    }
    fill(&fs, d);
    let [cut, written, given, plain] = files;
    let set = SetAttr { size: Some(5000), ..SetAttr::default() };
    assert_eq!(fs.setattr(&Caller::ROOT, cut, &set).map(|attr| attr.size), Ok(5000));
    assert_eq!(fs.write(written, 8, &[2; 8]), Ok(()));
    let set = SetAttr { uid: Some(7), ..SetAttr::default() };
    assert_eq!(fs.setattr(&Caller::ROOT, given, &set).map(|attr| attr.uid), Ok(7));
    assert_eq!(fs.removexattr(plain, b"security.capability"), Ok(()));
    assert_eq!(fs.removexattr(plain, b"user.2"), Ok(()));
    assert_eq!(fs.removexattr(plain, b"user.2"), Err(Errno::NODATA));
    let attributes = |fs: &Fs<E>| {
        let d = fs.peek(ROOT, b"d").unwrap().ino;
        for name in ["cut", "written", "given", "plain"] {
            let f = fs.peek(d, name.as_bytes()).unwrap().ino;
            assert_eq!(fs.getxattr(f, b"security.capability"), Err(Errno::NODATA), "{name}");
            let left: Vec<u8> = if name == "plain" { vec![0, 1, 3] } else { vec![0, 1, 2, 3] };
            let named = |i: &u8| format!("user.{i}").into_bytes();
            assert_eq!(fs.listxattr(f), Ok(left.iter().map(named).collect()), "{name}");
            for i in left {
                assert_eq!(fs.getxattr(f, &named(&i)), Ok(vec![i; LARGE]), "{name}");
            }
        }
    };
    attributes(&fs);
    let fs = check_and_remount::<E>(fs);
    attributes(&fs);

    // With free space again, the list is written without the entries that were removed in place.
    let d = fs.peek(ROOT, b"d").unwrap().ino;
    for name in ["cut", "written"] {
        fs.unlink(d, name.as_bytes()).unwrap();
    }
    let plain = fs.peek(d, b"plain").unwrap().ino;
    let before = fs.getattr(plain).unwrap().blocks;
    fs.removexattr(plain, b"user.3").unwrap();
    assert!(fs.getattr(plain).unwrap().blocks + 2 * LARGE as u64 / 512 < before + 16);
    for i in [0, 1] {
        fs.removexattr(plain, format!("user.{i}").as_bytes()).unwrap();
    }
    assert_eq!(fs.listxattr(plain), Ok(vec![]));
    check_and_remount::<E>(fs);
}

/// Tests random calls on pools of a few hundred blocks, many of which find no space. Those calls
/// must change nothing, all others must do what the model does, and the pool must stay sound.
pub fn small_pools_that_fill_up_do_as_the_model_does<E: Engine>() {
    for blocks in [64, 150, 400] {
        let make = || -> Box<dyn FileSystem> { Box::new(mounted::<E>(blocks * 4096)) };
        vfs::conformance::run_generated(make, 25, 400);
    }
}

/// Tests writes, truncations, holes and shifts of several files on a pool that is too small for
/// them. Calls that find no space must change nothing, reads must return the written data or zeros,
/// and in the end all space must be free again. `KEEPSTONE_SEEDS` sets the number of seeds.
pub fn files_that_compete_for_space_keep_what_they_hold<E: Engine>() {
    const FILES: usize = 5;
    const BLOCK: u64 = 4096;
    let seeds = vfs::conformance::number_from_env("KEEPSTONE_SEEDS").unwrap_or(12);
    let mut refused = 0;
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        // Some seeds use files of several MiB.
        let scale = if seed % 6 == 5 { 20 } else { 1 };
        let mut fs = mounted::<E>((100 + 60 * (seed % 4)) * scale * BLOCK);
        let name = |i: usize| format!("f{i}");
        create::<E>(&fs, ROOT, "idle", &FILE);
        let idle = fs.statfs().blocks_free;
        let mut models: Vec<Vec<u8>> = vec![Vec::new(); FILES];
        (0..FILES).for_each(|i| {
            create::<E>(&fs, ROOT, &name(i), &FILE);
        });
        for step in 0..600u64 {
            let i = rng.below(FILES as u64) as usize;
            let ino = fs.peek(ROOT, name(i).as_bytes()).unwrap().ino;
            let model = &mut models[i];
            let size = model.len() as u64;
            let offset = rng.below(size + 3 * scale * BLOCK);
            let most = [100, 9000, 40 * scale * BLOCK][rng.below(3) as usize];
            let len = 1 + rng.below(most);
            let byte = 1 + (step % 255) as u8;
            let shift = |of: u64| of % (100 * scale * BLOCK) / BLOCK * BLOCK;
            let (result, after) = match rng.below(10) {
                0..=2 => {
                    let mut after = model.clone();
                    after.resize(after.len().max((offset + len) as usize), 0);
                    after[offset as usize..(offset + len) as usize].fill(byte);
                    (fs.write(ino, offset, &vec![byte; len as usize]), after)
                }
                3 | 4 => {
                    let mut after = model.clone();
                    after.resize((size + len) as usize, byte);
                    (fs.append(ino, &vec![byte; len as usize]).map(drop), after)
                }
                5 | 6 => {
                    let to = rng.below(size + 50 * scale * BLOCK);
                    let mut after = model.clone();
                    after.resize(to as usize, 0);
                    let set = SetAttr { size: Some(to), ..SetAttr::default() };
                    (fs.setattr(&Caller::ROOT, ino, &set).map(drop), after)
                }
                7 => {
                    let mut after = model.clone();
                    let end = (offset + len).min(size);
                    after[offset.min(end) as usize..end as usize].fill(0);
                    (fs.fallocate(ino, Fallocate::PunchHole, offset, len), after)
                }
                8 => {
                    let (at, len) = (shift(offset), shift(len) + BLOCK);
                    let mut after = model.clone();
                    if at + len >= size {
                        continue;
                    }
                    after.drain(at as usize..(at + len) as usize);
                    (fs.fallocate(ino, Fallocate::Collapse, at, len), after)
                }
                _ => {
                    let (at, len) = (shift(offset), shift(len) + BLOCK);
                    let mut after = model.clone();
                    if at >= size {
                        continue;
                    }
                    after.splice(at as usize..at as usize, vec![0; len as usize]);
                    (fs.fallocate(ino, Fallocate::Insert, at, len), after)
                }
            };
            match result {
                Ok(()) => *model = after,
                Err(Errno::NOSPC) => refused += 1,
                Err(e) => panic!("seed {seed}, step {step}: {e}"),
            }
            let mut found = vec![1; model.len() + 1];
            assert_eq!(fs.read(ino, 0, &mut found), Ok(model.len()), "seed {seed}, step {step}");
            assert!(found[..model.len()] == model[..], "seed {seed}, step {step}: another content");
            if step % 100 == 99 {
                fs = check_and_remount::<E>(fs);
            }
        }
        for (i, model) in models.iter().enumerate() {
            let ino = fs.peek(ROOT, name(i).as_bytes()).unwrap().ino;
            let mut found = vec![1; model.len()];
            assert_eq!(fs.read(ino, 0, &mut found), Ok(model.len()));
            assert!(found == *model, "seed {seed}: file {i} has changed with another one");
            fs.unlink(ROOT, name(i).as_bytes()).unwrap();
        }
        assert_eq!(fs.statfs().blocks_free, idle, "seed {seed}: space is lost");
        check_and_remount::<E>(fs);
    }
    assert!(refused > 20 * seeds, "only {refused} calls found no space");
}
