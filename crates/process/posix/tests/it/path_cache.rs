//! The path cache against walks, while another process changes the directories of the paths. Needs
//! root.

use crate::common::{TestEngine, TestWorld, become_user, done, on_each_engine, stat};
use posix::{Errno, Process, Served};
use rng::Rng;
use vfs::{Caller, FileKind, FileSystem, Ino, NewKind, NewNode, RenameFlags, SetAttr};

on_each_engine!(
    known_ways_are_believed_while_nothing_changes,
    a_known_directory_is_held_until_it_is_forgotten,
    threads_share_what_is_known,
);

const CWD: i32 = libc::AT_FDCWD;
const STEPS: u64 = 30_000;
const NAMES: [&str; 3] = ["a", "b", "c"];

fn find(p: &Process, dirfd: i32, path: &[u8]) -> Result<Ino, Errno> {
    match stat(p, dirfd, path, 0) {
        Served::Done(result) => result.map(|st| Ino(st.st_ino)),
        Served::Kernel => panic!("{} is ours to say", String::from_utf8_lossy(path)),
    }
}

/// Walks as a user who owns nothing, name by name.
fn walk(fs: &dyn FileSystem, start: Ino, names: &[&str]) -> Result<Ino, Errno> {
    names.iter().try_fold(start, |dir, name| {
        let attr = fs.getattr(dir)?;
        match attr.kind {
            FileKind::Dir if attr.perm & 1 == 0 => Err(Errno::ACCESS),
            FileKind::Dir => fs.peek(dir, name.as_bytes()).map(|attr| attr.ino),
            _ => Err(Errno::NOTDIR),
        }
    })
}

fn names(rng: &mut Rng) -> Vec<&'static str> {
    let len = 1 + rng.below(4);
    (0..len).map(|_| rng.pick(&NAMES)).collect()
}

/// Changes something, as another process does. Ignores changes that are not possible.
fn change(fs: &dyn FileSystem, rng: &mut Rng) {
    let mut place = || {
        let names = names(rng);
        let (name, dirs) = names.split_last().unwrap();
        let find = |at: Ino, name: &&str| fs.peek(at, name.as_bytes()).map(|attr| attr.ino);
        (dirs.iter().try_fold(fs.root(), find).unwrap_or(fs.root()), name.as_bytes())
    };
    let (dir, name) = place();
    let to = place();
    let _ = match rng.below(8) {
        0..=2 => {
            let kind = if rng.below(4) == 0 { NewKind::File } else { NewKind::Dir };
            let node = NewNode { kind, mode: 0o755, umask: 0 };
            fs.create(&Caller::ROOT, dir, name, &node).map(|entry| fs.forget(entry.ino, 1))
        }
        3 => fs.rmdir(dir, name),
        4 => fs.unlink(dir, name),
        5 => fs.rename((dir, name), to, RenameFlags::empty()),
        6 => fs.rename((dir, name), to, RenameFlags::EXCHANGE),
        _ => fs.peek(dir, name).and_then(|attr| {
            let perm = Some(if rng.below(3) == 0 { 0o600 } else { 0o755 });
            fs.setattr(&Caller::ROOT, attr.ino, &SetAttr { perm, ..SetAttr::default() }).map(drop)
        }),
    };
}

fn known_ways_are_believed_while_nothing_changes(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let (p, fs) = (&world.process, world.fs.as_ref());
    let mut rng = Rng::new(0x2545_f491_4f6c_dd1d);
    let start = world.open("", libc::O_RDONLY | libc::O_DIRECTORY);
    *world.stage.cwd.lock().unwrap() = Some(b"/dev".to_vec());
    become_user(p, (1000, 1000, &[]));
    let mut found = 0;
    for step in 0..STEPS {
        if rng.below(6) == 0 {
            change(fs, &mut rng);
        }
        if rng.below(3000) == 0 {
            world.fs.rehearse_recovery().unwrap();
        }
        let names = names(&mut rng);
        let path = names.join("/");
        let got = match rng.below(3) {
            0 => find(p, CWD, &world.path(&path)),
            1 => find(p, CWD, &world.path(&path)["/dev/".len()..]),
            _ => find(p, start, path.as_bytes()),
        };
        assert_eq!(got, walk(fs, fs.root(), &names), "step {step}: {path}");
        found += u64::from(got.is_ok());
    }
    become_user(p, (0, 0, &[]));
    assert!(found > STEPS / 10, "only {found} of {STEPS} paths led anywhere");
}

fn a_known_directory_is_held_until_it_is_forgotten(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let (p, fs) = (&world.process, world.fs.as_ref());
    done(p.names().mkdir(CWD, &world.path("d"), 0o755)).unwrap();
    let d = find(p, CWD, &world.path("d")).unwrap();
    let _ = find(p, CWD, &world.path("d/x"));
    fs.rmdir(fs.root(), b"d").unwrap();
    assert!(world.is_live(d.0), "it is cached");
    assert_eq!(find(p, CWD, &world.path("d/x")), Err(Errno::NOENT));
    assert_eq!(done(p.names().mkdir(CWD, &world.path("d/x"), 0o755)), Err(Errno::NOENT));
    p.path_walk().forget_paths();
    assert!(!world.is_live(d.0));
}

fn threads_share_what_is_known(engine: TestEngine) {
    // More directories than the cache has entries, so that they displace each other all the time.
    const DIRS: u64 = 150;
    let world = TestWorld::new(engine);
    let (p, fs) = (&world.process, world.fs.as_ref());
    let path = |i: u64| world.path(&format!("d{i}/f"));
    for i in 0..DIRS {
        done(p.names().mkdir(CWD, &world.path(&format!("d{i}")), 0o755)).unwrap();
        done(p.names().mknod(CWD, &path(i), libc::S_IFREG | 0o644, 0)).unwrap();
    }
    let all: Vec<Ino> = (0..DIRS).map(|i| find(p, CWD, &path(i)).unwrap()).collect();
    std::thread::scope(|scope| {
        let readers = [1, 2, 3].map(|thread| {
            let all = &all;
            scope.spawn(move || {
                let mut rng = Rng::new(thread * 0x9e37_79b9);
                for _ in 0..40_000 {
                    let found = find(p, CWD, &path(rng.below(DIRS))).unwrap();
                    assert!(all.contains(&found), "{found:?} is no file of these");
                }
            })
        });
        let mut rng = Rng::new(0x2545_f491);
        while readers.iter().any(|reader| !reader.is_finished()) {
            let [a, b] = [0; 2].map(|_| format!("d{}", rng.below(DIRS)));
            let (root, exchange) = (fs.root(), RenameFlags::EXCHANGE);
            let _ = fs.rename((root, a.as_bytes()), (root, b.as_bytes()), exchange);
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    });
    assert_eq!((0..DIRS).filter(|i| all.contains(&find(p, CWD, &path(*i)).unwrap())).count(), 150);
}
