//! Threads that open, duplicate, pass on and close the same descriptors, or change the working
//! directory, while other threads use them.

use crate::common::{TestEngine, TestWorld, done, on_each_engine, stat};
use posix::{Errno, Served};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

on_each_engine!(
    a_call_sees_one_description,
    offsets_move_atomically,
    a_relative_path_starts_where_the_last_change_led,
);

/// Descriptors for which the threads compete.
const FDS: std::ops::Range<i32> = 120..126;
const FILES: usize = 4;
const ROUNDS: u64 = 20_000;

/// Each file holds a single byte over and over. So the bytes of a read show their file: the same
/// for all of them, however often the descriptor changed meanwhile.
fn a_call_sees_one_description(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let sources: Vec<i32> = (0..FILES)
        .map(|i| {
            let fd = world.open(&format!("f{i}"), libc::O_RDWR | libc::O_CREAT);
            done(p.contents().write(fd, &[i as u8 + 1; 4096])).unwrap();
            fd
        })
        .collect();
    let stop = AtomicBool::new(false);
    let (read, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let mutators = [7u64, 11].map(|seed| {
            let (sources, world, read) = (&sources, &world, &read);
            scope.spawn(move || {
                // On a busy machine the readers may begin late.
                for i in (0..1000 * ROUNDS).take_while(|i| *i < ROUNDS || read.load(Relaxed) == 0) {
                    let random = (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
                    let fd = FDS.start + (random % FDS.len() as u64) as i32;
                    let source = sources[(random >> 8) as usize % FILES];
                    match random >> 16 & 15 {
                        0..=8 => assert_eq!(done(p.descriptors().dup2(source, fd)), Ok(fd)),
                        9..=12 => {
                            // Two threads may close the same descriptor. The second gets an error.
                            let closed = p.descriptors().close(fd);
                            let known = [
                                Served::Done(Ok(())),
                                Served::Done(Err(Errno::BADF)),
                                Served::Kernel,
                            ];
                            assert!(known.contains(&closed), "{closed:?}");
                        }
                        _ => {
                            let own = world.open(&format!("f{}", random as usize % FILES), 0);
                            done(p.descriptors().close(own)).unwrap();
                        }
                    }
                }
            })
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buf = [0; 64];
                while !stop.load(Relaxed) {
                    for fd in FDS {
                        match p.contents().pread(fd, &mut buf, 0) {
                            Served::Done(Ok(len)) => {
                                assert_eq!(len, buf.len());
                                assert!(buf.iter().all(|b| *b == buf[0] && *b != 0), "{buf:?}");
                                read.fetch_add(1, Relaxed);
                            }
                            Served::Done(Err(errno)) => panic!("{errno}"),
                            Served::Kernel => drop(refused.fetch_add(1, Relaxed)),
                        }
                    }
                }
            });
        }
        let ends = mutators.map(|mutator| mutator.join());
        stop.store(true, Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    assert!(read.load(Relaxed) > 0);
    for fd in FDS.filter(|fd| p.table().owns(*fd)) {
        done(p.descriptors().close(fd)).unwrap();
    }
    for fd in sources {
        done(p.descriptors().close(fd)).unwrap();
    }
    world.remove_all();
    assert!(world.live_inodes().is_empty(), "every hold was given back");
}

/// Appends and reads that move an offset follow one another: no bytes are lost or read twice.
fn offsets_move_atomically(engine: TestEngine) {
    const EACH: usize = 2000;
    let world = TestWorld::new(engine);
    let p = &world.process;
    let fd = world.open("a", libc::O_RDWR | libc::O_CREAT);
    std::thread::scope(|scope| {
        for id in 0..4u8 {
            scope.spawn(move || {
                for _ in 0..EACH {
                    assert_eq!(done(p.contents().write(fd, &[id; 3])), Ok(3));
                }
            });
        }
    });
    assert_eq!(done(p.contents().lseek(fd, 0, libc::SEEK_CUR)), Ok(4 * EACH as i64 * 3));
    done(p.contents().lseek(fd, 0, libc::SEEK_SET)).unwrap();
    let counts: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut buf = [0; 3];
                while done(p.contents().read(fd, &mut buf)) == Ok(3) {
                    assert!(buf.iter().all(|b| *b == buf[0]), "{buf:?}");
                    counts[buf[0] as usize].fetch_add(1, Relaxed);
                }
            });
        }
    });
    assert!(counts.iter().all(|count| count.load(Relaxed) == EACH as u64), "{counts:?}");
}

/// `mnt/f` is a file of one of three pools, depending on the working directory: outside of two, and
/// in the third. A thread that has changed the directory never finds the file of an earlier one,
/// even while other threads look up where it is.
fn a_relative_path_starts_where_the_last_change_led(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let homes = tempfile::tempdir().unwrap();
    let pools = [(); 2].map(|()| TestWorld::pool(engine));
    let outside = ["a", "b"].map(|name| homes.path().join(name));
    for (home, pool) in outside.iter().zip(&pools) {
        let mountpoint = home.join("mnt");
        std::fs::create_dir_all(&mountpoint).unwrap();
        let mountpoint = mountpoint.into_os_string().into_encoded_bytes();
        p.add_mount(TestWorld::spec(mountpoint, &world.table, pool)).unwrap();
    }
    let go = |place: usize| match outside.get(place) {
        Some(home) => {
            *world.stage.cwd.lock().unwrap() = Some(home.as_os_str().as_bytes().to_vec());
            p.working_dir().left_pool();
        }
        None => done(p.names().chdir(&world.path(""))).unwrap(),
    };
    let find = || match stat(p, libc::AT_FDCWD, b"mnt/f", 0) {
        Served::Done(found) => Some(found.unwrap().st_ino),
        Served::Kernel => None,
    };
    done(p.names().mkdir(libc::AT_FDCWD, &world.path("mnt"), 0o755)).unwrap();
    let inodes = [0, 1, 2].map(|place| {
        go(place);
        // The inode numbers of the files must differ.
        for i in 0..place {
            let name = format!("mnt/{i}");
            done(p.names().mknod(libc::AT_FDCWD, name.as_bytes(), libc::S_IFREG | 0o600, 0))
                .unwrap();
        }
        done(p.names().mknod(libc::AT_FDCWD, b"mnt/f", libc::S_IFREG | 0o600, 0)).unwrap();
        find().unwrap()
    });
    assert!(inodes[0] < inodes[1] && inodes[1] < inodes[2]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    assert!(find().is_none_or(|found| inodes.contains(&found)));
                }
            });
        }
        let changer = scope.spawn(|| {
            let mut served = 0;
            for i in 0..ROUNDS {
                let place = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % 3;
                go(place);
                let found = find();
                assert!(
                    found.is_none_or(|found| found == inodes[place]),
                    "{found:?} of {inodes:?}"
                );
                served += u64::from(found.is_some());
            }
            served
        });
        let end = changer.join();
        stop.store(true, Relaxed);
        let served = end.unwrap();
        assert!(served > ROUNDS * 9 / 10, "{served} of {ROUNDS} were served");
    });
}
