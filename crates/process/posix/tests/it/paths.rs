//! Paths: the inodes that they lead to, and whether the kernel has to walk them.

#![allow(unsafe_code)]

use crate::common::{TestEngine, TestWorld, done, on_each_engine, stat};
use posix::{Errno, MountState, Process, Served};
use std::sync::atomic::Ordering::Relaxed;

on_each_engine!(
    what_leaves_the_mount_is_the_kernels,
    the_time_of_creation_is_for_those_who_ask,
    a_working_directory_is_the_one_that_the_kernel_is_in,
    relative_paths_lead_into_the_mount_from_outside,
    the_working_directory_goes_in_and_out,
    a_mount_in_a_mount_is_led_into_from_outside,
    links_are_followed_forty_times,
    what_other_mounts_cover_is_theirs,
    what_becomes_covered_is_noticed_when_it_is_posted,
    a_remount_stops_changes_by_names_and_by_descriptors,
    who_may_write_to_a_running_program_is_the_kernels_to_say,
    two_pools_are_two_file_systems,
    a_read_only_mount_takes_no_changes,
    a_pool_is_attached_at_its_first_use_and_a_refusal_is_final,
);

const CWD: i32 = libc::AT_FDCWD;

/// Returns the inode at a path, or `None` if the path is the kernel's.
fn find(p: &Process, dirfd: i32, path: &[u8]) -> Option<Result<u64, Errno>> {
    match stat(p, dirfd, path, 0) {
        Served::Done(result) => Some(result.map(|st| st.st_ino)),
        Served::Kernel => None,
    }
}

fn link(world: &TestWorld, target: &str, name: &str) {
    done(world.process.names().symlink(target.as_bytes(), CWD, &world.path(name))).unwrap();
}

fn mkdir(world: &TestWorld, name: &str) -> u64 {
    done(world.process.names().mkdir(CWD, &world.path(name), 0o755)).unwrap();
    find(&world.process, CWD, &world.path(name)).unwrap().unwrap()
}

fn what_leaves_the_mount_is_the_kernels(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let d = mkdir(&world, "d");
    link(&world, "/elsewhere", "away");
    link(&world, "d/../../up", "above");
    link(&world, "d/../d", "within");
    let root = String::from_utf8(world.path("")).unwrap();
    link(&world, &format!("{root}//d/."), "absolute");
    let at = |name: &str| find(p, CWD, &world.path(name));
    for name in ["away", "away/x", "..", "../x", "d/../..", "above", "d/../../d"] {
        assert_eq!(at(name), None, "{name}");
    }
    for name in ["within", "absolute", "d/.", "./d//", "absolute/../d", "within/../absolute"] {
        assert_eq!(at(name), Some(Ok(d)), "{name}");
    }
    // The link itself is ours, wherever it leads.
    let st = stat(p, CWD, &world.path("away"), libc::AT_SYMLINK_NOFOLLOW);
    assert_eq!(done(st).unwrap().st_size, 10);
    // The name of the mount point belongs to the file system above.
    assert_eq!(p.names().mkdir(CWD, &world.path(""), 0o755), Served::Kernel);
    assert_eq!(p.names().unlink(CWD, &world.path(""), libc::AT_REMOVEDIR), Served::Kernel);
    let fd = world.open("d", libc::O_RDONLY);
    assert_eq!(find(p, fd, b"../d"), Some(Ok(d)));
    assert_eq!(find(p, fd, b"../.."), None);
    assert_eq!(find(p, fd, b""), Some(Err(Errno::NOENT)));
    p.namespace_changed();
    assert_eq!(at("d"), None);
    assert_eq!(find(p, fd, b"../d"), Some(Ok(d)), "what is open stays ours");
}

/// The time of creation is in another line of the inode than the rest.
fn the_time_of_creation_is_for_those_who_ask(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let fd = world.open("f", libc::O_CREAT | libc::O_RDWR);
    let statx = |dirfd, path: &[u8], flags, mask| {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut stx = posix::Unaligned(unsafe { std::mem::zeroed() });
        done(world.process.names().statx(dirfd, path, flags, mask, || Ok(&mut stx))).unwrap();
        let posix::Unaligned(stx): posix::Unaligned<libc::statx> = stx;
        stx
    };
    for (dirfd, path, flags) in [(CWD, world.path("f"), 0), (fd, Vec::new(), libc::AT_EMPTY_PATH)] {
        let basic = statx(dirfd, &path, flags, libc::STATX_BASIC_STATS);
        assert_eq!((basic.stx_mask, basic.stx_btime.tv_sec), (libc::STATX_BASIC_STATS, 0));
        let all = statx(dirfd, &path, flags, libc::STATX_BASIC_STATS | libc::STATX_BTIME);
        assert_eq!(all.stx_mask, libc::STATX_BASIC_STATS | libc::STATX_BTIME);
        assert_eq!(all.stx_btime.tv_sec, all.stx_ctime.tv_sec);
        assert_eq!((all.stx_ino, all.stx_mode), (basic.stx_ino, basic.stx_mode));
    }
}

/// The kernel shows the path that the directory had before a program with direct access moved or
/// removed it.
fn a_working_directory_is_the_one_that_the_kernel_is_in(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let d = mkdir(&world, "d");
    let begin = || {
        *world.stage.cwd.lock().unwrap() = Some(world.path("d"));
        world.stage.cwd_ino.store(d, Relaxed);
        p.working_dir().left_pool();
    };
    let getcwd = || {
        let mut buf = [0; 99];
        done(p.names().getcwd(&mut buf)).map(|len| buf[..len].to_vec())
    };
    begin();
    assert_eq!(find(p, CWD, b"."), Some(Ok(d)));
    assert_eq!(getcwd(), Ok(world.path("d")));
    done(p.names().rename(CWD, &world.path("d"), CWD, &world.path("e"), 0)).unwrap();
    assert_ne!(mkdir(&world, "d"), d);
    begin();
    assert_eq!(find(p, CWD, b"."), None);
    assert_eq!(getcwd(), Ok(world.path("e")));
    done(p.names().unlink(CWD, &world.path("e"), libc::AT_REMOVEDIR)).unwrap();
    done(p.names().unlink(CWD, &world.path("d"), libc::AT_REMOVEDIR)).unwrap();
    begin();
    assert_eq!(find(p, CWD, b"."), None);
    assert_eq!(getcwd(), Err(Errno::NOENT));
}

/// Makes `cwd` the kernel's working directory.
fn chdir_outside(world: &TestWorld, cwd: &[u8]) {
    *world.stage.cwd.lock().unwrap() = Some(cwd.to_vec());
    world.process.working_dir().left_pool();
}

fn relative_paths_lead_into_the_mount_from_outside(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let root = find(p, CWD, &world.path(""));
    let d = mkdir(&world, "d");
    let f = world.open("d/f", libc::O_CREAT | libc::O_RDWR);
    let f = done(p.names().fstat(f)).unwrap().st_ino;
    let mountpoint = String::from_utf8(world.path("")).unwrap();
    let name = mountpoint.strip_prefix("/dev/shm/").unwrap();
    let at = |path: &str| find(p, CWD, path.as_bytes());
    let leads = |to_mount: &str| {
        assert_eq!(at(to_mount), root, "{to_mount}");
        for path in ["", "//", "/./", "/.", "/d/.."] {
            assert_eq!(at(&format!("{to_mount}{path}")), root, "{to_mount}{path}");
        }
        for (path, ino) in [("d", d), ("d/", d), ("d/f", f), ("/./d//f", f), ("d/../d/f", f)] {
            // Twice, because the second lookup finds it cached.
            assert_eq!([(); 2].map(|()| at(&format!("{to_mount}/{path}"))), [Some(Ok(ino)); 2]);
        }
        assert_eq!(at(&format!("{to_mount}/d/missing")), Some(Err(Errno::NOENT)));
        for path in ["/..", "/../x", "/d/../..", "x", "/../d"] {
            assert_eq!(at(&format!("{to_mount}{path}")), None, "{to_mount}{path}");
        }
        let (path, dir) = (format!("{to_mount}/new"), to_mount.as_bytes());
        let fd =
            done(p.contents().open(CWD, path.as_bytes(), libc::O_CREAT | libc::O_WRONLY, 0o600))
                .unwrap();
        assert_eq!(find(p, fd, b"d"), Some(Err(Errno::NOTDIR)));
        done(p.descriptors().close(fd)).unwrap();
        done(p.names().rename(CWD, path.as_bytes(), CWD, &world.path("old"), 0)).unwrap();
        done(p.names().unlink(CWD, &world.path("old"), 0)).unwrap();
        assert_eq!(p.names().unlink(CWD, dir, libc::AT_REMOVEDIR), Served::Kernel);
    };
    for (cwd, ways) in [
        ("/dev/shm", vec![name.to_owned(), format!(".//{name}"), format!("../shm/./{name}")]),
        ("/dev", vec![format!("shm/{name}"), format!("shm//./{name}"), format!("..{mountpoint}")]),
        ("/", vec![mountpoint[1..].to_owned(), format!("../../{}", &mountpoint[1..])]),
        ("/dev/shm/x/y", vec![format!("../../{name}"), format!("..//./../../shm/{name}")]),
        ("/home/user", vec![format!("../..{mountpoint}"), format!("../../../..{mountpoint}")]),
        // The text is similar, but leads elsewhere.
        (&format!("{mountpoint}.d"), vec![format!("../{name}")]),
    ] {
        chdir_outside(&world, cwd.as_bytes());
        ways.iter().for_each(|way| leads(way));
        for path in ["", ".", "..", "../..", "d", "x/../d", "../x", &format!("x/../{name}/d")] {
            assert_eq!(at(path), None, "{path} in {cwd}");
        }
    }
    let looks = world.stage.calls.lock().unwrap().iter().filter(|c| c.contains("device")).count();
    assert_eq!(looks, 7, "one for each working directory, and one at the mount point");
    let other = world.open("d", libc::O_RDONLY);
    assert_eq!(find(p, other, name.as_bytes()), Some(Err(Errno::NOENT)), "it is not in `d`");
    p.namespace_changed();
    assert_eq!(at(&format!("../{name}/d")), None);
}

fn the_working_directory_goes_in_and_out(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let d = mkdir(&world, "d");
    let name = world.dir.path().file_name().unwrap().to_str().unwrap();
    let (outside, inside) = (format!("{name}/d"), "d");
    let at = |path: &str| find(p, CWD, path.as_bytes());
    let is = |own: bool, path: &str| assert_eq!(at(path), own.then_some(Ok(d)), "{path}");
    is(false, &outside);
    chdir_outside(&world, b"/dev/shm");
    is(true, &outside);
    is(false, inside);
    // By a relative path, too.
    done(p.names().chdir(name.as_bytes())).unwrap();
    assert_eq!(at(&outside), Some(Err(Errno::NOENT)));
    is(true, inside);
    assert_eq!(at(&format!("../{outside}")), None, "out and in again");
    chdir_outside(&world, b"/elsewhere");
    is(false, &outside);
    is(true, &format!("../dev/shm/{outside}"));
    // The kernel's working directory is in the pool.
    let root = find(p, CWD, &world.path("")).unwrap().unwrap();
    world.stage.cwd_ino.store(root, Relaxed);
    chdir_outside(&world, &world.path(""));
    is(true, inside);
    // It was removed, or the root does not lead there.
    *world.stage.cwd.lock().unwrap() = None;
    p.working_dir().left_pool();
    is(false, inside);
    is(false, &outside);
    // It has a path that leads elsewhere: a mount hides the working directory.
    world.stage.device.store(1, Relaxed);
    chdir_outside(&world, b"/dev/shm");
    is(false, &outside);
    world.stage.device.store(77, Relaxed);
    is(false, &outside);
    chdir_outside(&world, b"/dev/shm");
    is(true, &outside);
    // The state of the mount is that of the table.
    world.remount(None);
    is(false, &outside);
    world.remount(Some(MountState::default()));
    is(true, &outside);
    world.remount(Some(MountState { nested: vec![world.path("d")], ..MountState::default() }));
    is(false, &outside);
}

fn a_mount_in_a_mount_is_led_into_from_outside(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    mkdir(&world, "a");
    let x = mkdir(&world, "a/x");
    let name = world.dir.path().file_name().unwrap().to_str().unwrap();
    let (mountpoint, below) = (format!("{name}/a"), format!("{name}/a/x"));
    let at = |path: &str| find(p, CWD, path.as_bytes());
    chdir_outside(&world, b"/dev/shm");
    assert_eq!(at(&below), Some(Ok(x)));
    p.add_mount(TestWorld::spec(world.path("a"), &world.table, &TestWorld::pool(engine))).unwrap();
    assert_eq!(at(&mountpoint), Some(Ok(1)), "the root of the inner pool");
    assert_eq!(at(&below), Some(Err(Errno::NOENT)));
    done(p.names().mknod(CWD, below.as_bytes(), libc::S_IFREG | 0o644, 0)).unwrap();
    let outer = format!("{name}/x");
    let moved = p.names().rename(CWD, below.as_bytes(), CWD, outer.as_bytes(), 0);
    assert_eq!(done(moved), Err(Errno::XDEV));
}

fn links_are_followed_forty_times(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let ino = mkdir(&world, "l0");
    for i in 1..=41 {
        link(&world, &format!("l{}", i - 1), &format!("l{i}"));
    }
    let at = |name: &str| find(&world.process, CWD, &world.path(name)).unwrap();
    assert_eq!(at("l40"), Ok(ino));
    assert_eq!(at("l41"), Err(Errno::LOOP));
    link(&world, "loop", "loop");
    assert_eq!(at("loop"), Err(Errno::LOOP));
    let long = [&world.path("")[..], &b"/".repeat(4096)].concat();
    assert_eq!(find(&world.process, CWD, &long), Some(Err(Errno::NAMETOOLONG)));
}

fn what_other_mounts_cover_is_theirs(engine: TestEngine) {
    let world = TestWorld::with(engine, 0, &["covered/deep"]);
    use vfs::{Caller, NewKind, NewNode};
    let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
    let make = |dir, name: &[u8]| {
        let entry = world.fs.create(&Caller::ROOT, dir, name, &node).unwrap();
        world.fs.forget(entry.ino, 1);
        entry.ino
    };
    let outer = make(world.fs.root(), b"covered");
    make(outer, b"deep");
    let at = |name: &str| find(&world.process, CWD, &world.path(name));
    assert_eq!(at("covered"), Some(Ok(outer.0)));
    for name in ["covered/deep", "covered/deep/", "covered/deep/x", "covered/deep/../.."] {
        assert_eq!(at(name), None, "{name}");
    }
}

fn what_becomes_covered_is_noticed_when_it_is_posted(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let d = mkdir(&world, "d");
    let file = world.open("f", libc::O_CREAT | libc::O_WRONLY);
    let at = |name: &str| find(p, CWD, &world.path(name));
    assert_eq!(at("d"), Some(Ok(d)));
    let nested = vec![world.path("d"), world.path("f"), world.path("missing")];
    world.remount(Some(MountState { nested, ..MountState::default() }));
    assert_eq!((at("d"), at("f"), at("d/x")), (None, None, None));
    assert_eq!(p.names().unlink(CWD, &world.path("d"), libc::AT_REMOVEDIR), Served::Kernel);
    assert_eq!(done(p.contents().write(file, b"x")), Ok(1), "what is open stays ours");
    // The mount is hidden, or was unmounted lazily.
    world.remount(None);
    assert_eq!(at("f"), None);
    assert_eq!(done(p.contents().write(file, b"x")), Ok(1));
    // A change by this process needs no announcement by the server.
    *world.table.lock().unwrap() = Some(MountState::default());
    assert_eq!(at("d"), None);
    p.mounts_changed();
    assert_eq!(at("d"), Some(Ok(d)));
}

fn a_remount_stops_changes_by_names_and_by_descriptors(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("f", libc::O_CREAT | libc::O_RDWR);
    let other = world.open("g", libc::O_CREAT | libc::O_RDWR);
    done(p.contents().write(other, b"content")).unwrap();
    world.remount(Some(MountState { flags: libc::ST_RDONLY, ..MountState::default() }));
    let name = world.path("f");
    let no = Errno::ROFS;
    assert_eq!(done(p.names().unlink(CWD, &name, 0)), Err(no));
    assert_eq!(done(p.contents().truncate(&name, 0)), Err(no));
    assert_eq!(done(p.contents().open(CWD, &name, libc::O_WRONLY, 0)), Err(no));
    assert_eq!(done(p.contents().pwrite(fd, b"x", 0)), Err(no));
    assert_eq!(done(p.contents().ftruncate(fd, 0)), Err(no));
    assert_eq!(done(p.contents().fallocate(fd, 0, 0, 1)), Err(no));
    assert_eq!(done(p.names().fchmod(fd, 0o600)), Err(no));
    assert_eq!(
        done(p.contents().copy_file_range(other, Some(&mut 0), fd, Some(&mut 0), 7, 0)),
        Err(no)
    );
    assert_eq!(done(p.names().fstatvfs(fd)).unwrap().f_flag, libc::ST_RDONLY);
    world.remount(Some(MountState::default()));
    assert_eq!(done(p.contents().pwrite(fd, b"x", 0)), Ok(1));
}

fn who_may_write_to_a_running_program_is_the_kernels_to_say(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let _ = world.open("program", libc::O_CREAT | libc::O_WRONLY);
    let path = world.path("program");
    let ino = vfs::Ino(find(p, CWD, &path).unwrap().unwrap());
    world.fs.begin_execution(ino);
    world.fs.begin_execution(ino);
    world.fs.end_execution(ino);
    world.fs.rehearse_recovery().unwrap();
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        assert_eq!(p.contents().open(CWD, &path, flags, 0), Served::Kernel);
        assert_eq!(p.contents().open(CWD, &path, flags | libc::O_CREAT, 0), Served::Kernel);
    }
    assert_eq!(p.contents().truncate(&path, 0), Served::Kernel);
    let _ = world.open("program", libc::O_RDONLY);
    world.fs.end_execution(ino);
    world.fs.end_execution(ino);
    let _ = world.open("program", libc::O_WRONLY);
}

fn two_pools_are_two_file_systems(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    mkdir(&world, "a");
    done(p.names().mknod(CWD, &world.path("f"), libc::S_IFREG | 0o644, 0)).unwrap();
    // A mount below the first.
    let inner = TestWorld::pool(engine);
    p.add_mount(TestWorld::spec(world.path("a"), &world.table, &inner)).unwrap();
    assert_eq!(find(p, CWD, &world.path("a")), Some(Ok(1)), "the root of the inner pool");
    let (from, to) = (world.path("f"), world.path("a/f"));
    assert_eq!(done(p.names().rename(CWD, &from, CWD, &to, 0)), Err(Errno::XDEV));
    assert_eq!(done(p.names().link(CWD, &from, CWD, &to, 0)), Err(Errno::XDEV));
}

fn a_read_only_mount_takes_no_changes(engine: TestEngine) {
    let world = TestWorld::with(engine, libc::ST_RDONLY, &[]);
    let p = &world.process;
    let path = world.path("x");
    let create = libc::O_CREAT | libc::O_WRONLY;
    assert_eq!(done(p.contents().open(CWD, &path, create, 0o644)), Err(Errno::ROFS));
    assert_eq!(done(p.names().mkdir(CWD, &path, 0o755)), Err(Errno::ROFS));
    assert_eq!(done(p.names().chmod(CWD, &world.path(""), 0o700, 0)), Err(Errno::ROFS));
    assert_eq!(done(p.names().access(CWD, &world.path(""), libc::W_OK, 0)), Err(Errno::ROFS));
    assert_eq!(done(p.names().access(CWD, &world.path(""), libc::R_OK, 0)), Ok(()));
}

fn a_pool_is_attached_at_its_first_use_and_a_refusal_is_final(engine: TestEngine) {
    let world = TestWorld::new(engine);
    assert_eq!(find(&world.process, CWD, b"relative"), None, "where that is, is asked once");
    let calls = world.stage.count.load(Relaxed);
    for path in ["/etc", "relative", "/dev/shm"] {
        assert_eq!(find(&world.process, CWD, path.as_bytes()), None);
    }
    assert_eq!(world.stage.count.load(Relaxed), calls, "nothing is asked for what is not ours");

    let process = Process::with_kernel(Box::new(world.stage.clone())).unwrap();
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut spec = TestWorld::spec(world.path(""), &world.table, &world.fs);
    let counter = tries.clone();
    spec.attach = Box::new(move || {
        counter.fetch_add(1, Relaxed);
        Err(Errno::ACCESS)
    });
    process.add_mount(spec).unwrap();
    for _ in 0..3 {
        assert_eq!(find(&process, CWD, &world.path("")), None);
    }
    assert_eq!(tries.load(Relaxed), 1);
}
