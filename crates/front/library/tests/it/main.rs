//! A pool used as a library, with each layout.

#![allow(unsafe_code)]

use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use keepstone_library::{File, NewPool, OpenOptions, Pool};
use tempfile::TempDir;

const BLOCK: usize = 4096;

/// A pool in a directory of its own.
struct Made {
    pool: Pool,
    dir: TempDir,
}

fn made(layout: &str) -> Made {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = NewPool::new(64 << 20).layout(layout).create(dir.path().join("pool")).unwrap();
    Made { pool, dir }
}

fn each(test: impl Fn(&str, &Pool)) {
    for layout in ["bpfs", "scmfs"] {
        test(layout, &made(layout).pool);
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

#[test]
fn files_are_read_and_written_at_offsets_and_in_order() {
    each(|_, pool| {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).open(pool, "/file").unwrap();
        file.write_all(b"one two").unwrap();
        file.write_at(b"TWO", 4).unwrap();
        assert_eq!(file.stream_position().unwrap(), 7);
        file.seek(SeekFrom::End(-3)).unwrap();
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "TWO");
        assert_eq!(errno(file.seek(SeekFrom::Current(-8))), Some(libc::EINVAL));
        assert_eq!(file.append(b"!").unwrap(), 7);
        file.set_len(3).unwrap();
        file.allocate(0..BLOCK as u64).unwrap();
        file.punch_hole(0..2).unwrap();
        file.sync_all().unwrap();
        assert_eq!(&pool.read("file").unwrap()[..4], b"\0\0e\0");
        assert_eq!(file.metadata().unwrap().len(), BLOCK as u64);

        let reader = File::open(pool, "file").unwrap();
        assert_eq!(errno((&reader).write(b"no")), Some(libc::EBADF));
        let writer = OpenOptions::new().append(true).open(pool, "file").unwrap();
        assert_eq!(errno(writer.read_at(&mut [0], 0)), Some(libc::EBADF));
        (&writer).write_all(b"end").unwrap();
        assert_eq!(writer.metadata().unwrap().len(), BLOCK as u64 + 3);
        assert_eq!(errno(File::open(pool, "/")), Some(libc::EISDIR));
        assert_eq!(errno(File::open(pool, "none")), Some(libc::ENOENT));
        let again = OpenOptions::new().write(true).create_new(true).open(pool, "file");
        assert_eq!(errno(again), Some(libc::EEXIST));
        let empty = OpenOptions::new().read(true).truncate(true).open(pool, "file");
        assert_eq!(errno(empty), Some(libc::EINVAL));
    });
}

#[test]
fn names_are_made_moved_listed_and_removed() {
    each(|_, pool| {
        pool.create_dir_all("a/b/c", 0o755).unwrap();
        pool.create_dir_all("/", 0o755).unwrap();
        assert_eq!(errno(pool.create_dir("/", 0o755)), Some(libc::EEXIST));
        assert_eq!(errno(pool.create_dir("a/..", 0o755)), Some(libc::EEXIST));
        pool.write("a/b/c/file", "text").unwrap();
        pool.symlink("b/c/file", "a/link").unwrap();
        pool.hard_link("a/link", "a/hard").unwrap();
        assert_eq!(pool.read_link("a/hard").unwrap(), Path::new("b/c/file"));
        assert_eq!(pool.read_to_string("a/link").unwrap(), "text");
        pool.clone_tree("a/b", "copy").unwrap();
        assert_eq!(errno(pool.clone_tree("a", "copy")), Some(libc::EEXIST));
        pool.write("a/b/c/file", "another").unwrap();
        assert_eq!(pool.read_to_string("copy/c/file").unwrap(), "text");
        pool.rename("copy/c/file", "file").unwrap();
        pool.remove_dir("copy/c").unwrap();
        assert_eq!(errno(pool.remove_dir("a")), Some(libc::ENOTEMPTY));
        assert_eq!(errno(pool.remove_file("a")), Some(libc::EISDIR));
        pool.remove_file("a/hard").unwrap();
        assert!(pool.symlink_metadata("a/link").unwrap().is_symlink());
        assert!(pool.metadata("a/link").unwrap().is_file());
        assert!(!pool.try_exists("a/hard").unwrap());
        assert_eq!(errno(pool.create_dir_all("file/x", 0o755)), Some(libc::ENOTDIR));

        for i in 0..200 {
            pool.write(format!("a/{i}"), []).unwrap();
        }
        let entries: Vec<_> = pool.read_dir("a").unwrap().map(Result::unwrap).collect();
        assert_eq!(entries.len(), 202);
        let dirs = entries.iter().filter(|entry| entry.file_type().is_dir());
        assert_eq!(dirs.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(errno(pool.read_dir("file")), Some(libc::ENOTDIR));
    });
}

#[test]
fn branches_and_snapshots_are_made_committed_and_removed() {
    let Made { pool: scmfs, dir: _dir } = made("scmfs");
    assert_eq!(errno(scmfs.create_branch("b")), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(scmfs.create_snapshot("s")), Some(libc::EOPNOTSUPP));
    assert_eq!((scmfs.branches().unwrap(), scmfs.snapshots().unwrap()), (vec![], vec![]));
    let Made { pool, dir } = made("bpfs");
    let pool = &pool;
    let open = |name| Pool::open_branch(dir.path().join("pool"), name);
    pool.write("a", "prepared").unwrap();
    pool.write("b", "prepared").unwrap();
    assert_eq!(open("t").unwrap_err().errno(), libc::ENOENT);
    pool.create_branch("t").unwrap();
    pool.create_branch("u").unwrap();
    let names: Vec<_> = pool.branches().unwrap().iter().map(|b| b.name().to_owned()).collect();
    assert_eq!(names, ["t", "u"]);
    assert!(pool.branches().unwrap()[0].created() <= SystemTime::now());
    let branch = open("t").unwrap();
    branch.write("a", "by the branch").unwrap();
    branch.clone_tree("a", "c").unwrap();
    assert_eq!(errno(pool.discard_branch("t")), Some(libc::EBUSY));
    drop(branch);
    pool.write("a", "by the pool").unwrap();
    pool.write("b", "by the pool").unwrap();
    let refused = pool.commit_branch("t", false).unwrap();
    assert_eq!((refused.is_done(), refused.conflicts()), (false, &["/a".into()][..]));
    assert_eq!(pool.read_to_string("a").unwrap(), "by the pool");
    let done = pool.commit_branch("t", true).unwrap();
    assert_eq!((done.is_done(), done.merged()), (true, &["/b".into()][..]));
    let texts = ["a", "b", "c"].map(|name| pool.read_to_string(name).unwrap());
    assert_eq!(texts, ["by the branch", "by the pool", "by the branch"]);
    pool.discard_branch("u").unwrap();
    assert_eq!(pool.branches().unwrap(), []);

    pool.create_snapshot("s").unwrap();
    assert_eq!(errno(pool.create_branch("s")), Some(libc::EEXIST));
    assert_eq!(pool.snapshots().unwrap()[0].name(), "s");
    let mut open = OpenOptions::new().read(true).open(pool, "b").unwrap();
    pool.write("b", "after the snapshot").unwrap();
    pool.write("d", "after the snapshot").unwrap();
    pool.create_branch("u").unwrap();
    pool.roll_back("s").unwrap();
    assert_eq!(pool.read_to_string("b").unwrap(), "by the pool");
    assert_eq!(errno(pool.read_to_string("d")), Some(libc::ENOENT));
    let mut text = [0; 18];
    open.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"after the snapshot", "a file that is open keeps its content");
    assert_eq!(errno(pool.roll_back("none")), Some(libc::ENOENT));
    assert_eq!(errno(pool.roll_back("a@b")), Some(libc::EINVAL));
    assert_eq!(pool.branches().unwrap().len(), 1);
    pool.discard_branch("u").unwrap();
    pool.delete_snapshot("s").unwrap();
    for name in ["", "a@b", "."] {
        assert_eq!(errno(pool.create_snapshot(name)), Some(libc::EINVAL));
        assert_eq!(errno(pool.create_branch(name)), Some(libc::EINVAL));
    }
    // One thread at a time has the branches.
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || {
                let name = format!("thread {n}");
                for _ in 0..5 {
                    pool.create_branch(&name).unwrap();
                    pool.discard_branch(&name).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.branches().unwrap(), []);
}

#[test]
fn attributes_are_kept() {
    each(|_, pool| {
        pool.write("file", vec![1; 5000]).unwrap();
        pool.set_permissions("file", 0o640).unwrap();
        pool.set_owner("file", Some(7), None).unwrap();
        let before = SystemTime::UNIX_EPOCH - Duration::new(5, 1);
        pool.set_times("file", Some(before), None).unwrap();
        let found = pool.metadata("file").unwrap();
        assert_eq!((found.mode(), found.uid(), found.nlink()), (0o100640, 7, 1));
        assert_eq!((found.accessed(), found.len()), (before, 5000));
        assert!(found.modified() > SystemTime::UNIX_EPOCH && found.blocks() >= 8);

        assert_eq!(pool.xattr("file", "user.origin").unwrap(), None);
        pool.set_xattr("file", "user.origin", b"here").unwrap();
        assert_eq!(pool.xattr("file", "user.origin").unwrap().unwrap(), b"here");
        assert_eq!(pool.list_xattrs("file").unwrap(), ["user.origin"]);
        pool.remove_xattr("file", "user.origin").unwrap();
        assert_eq!(errno(pool.remove_xattr("file", "user.origin")), Some(libc::ENODATA));
        assert!(pool.set_xattr("file", "none", b"").is_err());

        let space = pool.space();
        assert!(space.free() < space.total() && space.available() <= space.free());
        assert!(space.total() <= 64 << 20 && space.inodes_free() < space.inodes());
        assert_eq!(pool.name_max(), 255);
    });
}

#[test]
fn maps_show_the_bytes_of_a_file_in_place() {
    each(|layout, pool| {
        let content: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        pool.write("file", &content).unwrap();
        let mut file = OpenOptions::new().read(true).write(true).open(pool, "file").unwrap();
        let map = file.map(10, 50_000).unwrap();
        let mut part = [0; 5];
        map.copy_to(&mut part, 100);
        assert_eq!(part, content[110..115]);
        // SAFETY: no other program uses the pool, and the writes below come later.
        let same = unsafe { map.as_slice() == &content[10..50_010] };
        assert!(same);
        for (offset, len) in [(0, 0), (0, 100_001), (u64::MAX, 2)] {
            assert_eq!(errno(file.map(offset, len)), Some(libc::EINVAL), "{offset} {len}");
        }
        assert_eq!(file.map_some(99_999, 10).unwrap().len(), 1);
        // The blocks stay while the map does, although the file loses them.
        file.set_len(0).unwrap();
        pool.remove_file("file").unwrap();
        pool.write("other", vec![255; 200_000]).unwrap();
        assert_eq!(map.len(), 50_000);
        if layout == "bpfs" {
            assert_eq!(map.to_vec(), content[10..50_010]);
        }
        drop(map);
        file.write_all(b"in use").unwrap();
    });
}

#[test]
fn a_map_of_a_hole_is_refused_or_made() {
    each(|layout, pool| {
        let file = OpenOptions::new().read(true).write(true).create(true).open(pool, "f").unwrap();
        file.set_len(3 * BLOCK as u64).unwrap();
        let map = file.map(0, 2 * BLOCK);
        match layout {
            "bpfs" => assert_eq!(errno(map), Some(libc::EOPNOTSUPP)),
            _ => assert_eq!(map.unwrap().to_vec(), vec![0; 2 * BLOCK]),
        }
    });
}

#[test]
fn maps_for_stores_reach_all_readers() {
    let made = made("scmfs");
    made.pool.write("file", vec![0; 3 * BLOCK]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&made.pool, "file").unwrap();
    let mut map = file.map_mut(BLOCK as u64 - 2, 10).unwrap();
    map.copy_from(b"stored", 0);
    assert_eq!(&made.pool.read("file").unwrap()[BLOCK - 2..BLOCK + 4], b"stored");
    map.sync().unwrap();
    // Maps of the same place end each for itself.
    let (mut longer, shorter) = (file.map_mut(0, 2 * BLOCK).unwrap(), file.map_mut(0, 1).unwrap());
    shorter.sync().unwrap();
    longer.copy_from(b"longer", BLOCK);
    longer.sync().unwrap();
    assert_eq!(&made.pool.read("file").unwrap()[BLOCK..BLOCK + 6], b"longer");
    assert_eq!(errno(file.map_mut(0, 4 * BLOCK)), Some(libc::EINVAL));
    let reader = File::open(&made.pool, "file").unwrap();
    assert_eq!(errno(reader.map_mut(0, 1)), Some(libc::EBADF));

    let other = self::made("bpfs");
    other.pool.write("file", b"text").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&other.pool, "file").unwrap();
    assert_eq!(errno(file.map_mut(0, 4)), Some(libc::EOPNOTSUPP));
}

#[test]
#[should_panic(expected = "bytes 3..6 of a map of 5 bytes")]
fn a_copy_behind_a_map_panics() {
    let made = made("bpfs");
    made.pool.write("file", b"12345").unwrap();
    let file = File::open(&made.pool, "file").unwrap();
    file.map(0, 5).unwrap().copy_to(&mut [0; 3], 3);
}

#[test]
fn threads_and_two_handles_share_a_pool() {
    each(|_, pool| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for i in 0..50 {
                        // All of them create the same files.
                        let log = OpenOptions::new()
                            .append(true)
                            .create(true)
                            .open(pool, format!("log-{i}"))
                            .unwrap();
                        (&log).write_all(&[thread; 7]).unwrap();
                    }
                });
            }
        });
        for i in 0..50 {
            let content = pool.read(format!("log-{i}")).unwrap();
            assert_eq!(content.len(), 28);
            assert!(content.chunks(7).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])));
        }
    });
}

#[test]
fn a_pool_is_opened_again_and_by_others() {
    for layout in ["bpfs", "scmfs"] {
        let Made { pool, dir } = made(layout);
        let path = dir.path().join("pool");
        pool.write("file", "kept").unwrap();
        let other = Pool::open(&path).unwrap();
        assert_eq!(other.read_to_string("file").unwrap(), "kept");
        let open = File::open(&pool, "file").unwrap();
        pool.close().unwrap();
        other.close().unwrap();
        let mut text = String::new();
        (&open).read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
        drop(open);
        let again = Pool::open(&path).unwrap();
        assert_eq!(again.read_to_string("file").unwrap(), "kept");
        assert_eq!(again.layout(), Some(layout));
    }
}

#[test]
fn errors_of_opening_name_the_pool_and_have_numbers() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let err = Pool::open(&path).unwrap_err();
    assert_eq!((err.errno(), err.path()), (libc::ENOENT, &*path));
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    let err = Pool::open(&path).unwrap_err();
    assert_eq!(err.errno(), libc::EINVAL);
    assert!(err.to_string().contains(path.to_str().unwrap()), "{err}");
    assert_eq!(std::io::Error::from(err).kind(), ErrorKind::InvalidInput);
    assert_eq!(NewPool::new(64 << 20).create(&path).unwrap_err().errno(), libc::EEXIST);
    let new = dir.path().join("new");
    for refused in [
        NewPool::new(5),
        NewPool::new(64 << 20).layout("model"),
        NewPool::new(64 << 20).layout("ext4"),
        NewPool::new(64 << 20).label(&"x".repeat(65)),
    ] {
        assert_eq!(refused.create(&new).unwrap_err().errno(), libc::EINVAL);
    }
    assert!(!new.exists());
}

#[test]
fn a_truncated_pool_gives_errors() {
    let Made { pool, dir } = made("bpfs");
    pool.write("file", vec![1; 1 << 20]).unwrap();
    let file = std::fs::File::options().write(true).open(dir.path().join("pool")).unwrap();
    file.set_len(1 << 16).unwrap();
    assert_eq!(errno(pool.read("file")), Some(libc::EIO));
    assert_eq!(errno(pool.sync()), Some(libc::EIO));
}
