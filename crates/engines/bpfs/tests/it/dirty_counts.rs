//! Counts of what the backing store lacks.

use crate::backed::{BLOCK, clean, clean_root, pool, remount};
use rng::Rng;
use suite::{FILE, resize};
use vfs::conformance::count_dirty;
use vfs::{Backed as _, Caller, Errno, Fallocate, FileSystem as _, ROOT, RenameFlags};

/// The counts of what is dirty are right after each of many changes, with and without names, and
/// after a recovery.
#[test]
fn what_is_dirty_is_counted() {
    let fs = pool(64 << 20);
    clean_root(&fs);
    let root = &Caller::ROOT;
    let mut files = Vec::new();
    for name in [b"a", b"b", b"c"] {
        files.push(fs.create(root, ROOT, name, &FILE).unwrap().ino);
        fs.set_identity(files[files.len() - 1], name).unwrap();
    }
    // Without a name at first.
    files.push(fs.tmpfile(root, ROOT, 0o600, 0).unwrap().ino);
    let mut rng = Rng::new(1);
    for round in 0..3000 {
        let ino = files[rng.below(files.len() as u64) as usize];
        let size = fs.getattr(ino).unwrap().size;
        let (at, len) = (rng.below(size + 3 * BLOCK), 1 + rng.below([9, 3000, 40_000][round % 3]));
        let range = at / BLOCK * BLOCK..(at + len).next_multiple_of(BLOCK);
        let block = (range.start, range.end - range.start);
        let done = match rng.below(13) {
            0 | 1 => fs.write(ino, at, &vec![7; len as usize]),
            2 => fs.append(ino, &vec![7; len as usize]).map(drop),
            3 => {
                resize(&fs, ino, at);
                Ok(())
            }
            4 => fs.fallocate(ino, Fallocate::PunchHole, at, len),
            5 => fs.fallocate(ino, Fallocate::ZeroRange { keep_size: false }, at, len),
            6 => fs.fallocate(ino, Fallocate::Allocate { keep_size: false }, at, len),
            7 => fs.fallocate(ino, Fallocate::Collapse, block.0, block.1),
            8 => fs.fallocate(ino, Fallocate::Insert, block.0, block.1),
            9 => fs.copy_range((files[0], at), (ino, range.end), len).map(drop),
            10 => {
                let version = fs.version(ino).unwrap();
                fs.clean_content(ino, range, version).map(drop)
            }
            11 if fs.residence(ino).unwrap().identity.is_empty() => Ok(()),
            11 => {
                clean(&fs, ino);
                Ok(())
            }
            _ => fs.evict_content(ino, range.clone()).map(|_| {
                // Other calls would fail because of absent content.
                let bytes = vec![9; (range.end.min(size).max(range.start) - range.start) as usize];
                fs.load_content(ino, range.start, &bytes).unwrap();
            }),
        };
        assert!(matches!(done, Ok(()) | Err(Errno::INVAL)), "{done:?}");
        assert_eq!(fs.dirty_count(), count_dirty(&fs).unwrap(), "round {round}");
        if size > 8 << 20 {
            resize(&fs, ino, 1000);
        }
        if round % 500 == 499 {
            fs.rehearse_recovery().unwrap();
            assert_eq!(fs.dirty_count(), count_dirty(&fs).unwrap(), "round {round}");
        }
        match round {
            1000 => fs.forget(fs.link(files[3], ROOT, b"d").unwrap().ino, 1),
            1500 => fs.unlink(ROOT, b"a").unwrap(),
            2000 => fs.make_dirty(files[1]).unwrap(),
            2500 => fs.rename((ROOT, b"b"), (ROOT, b"c"), RenameFlags::empty()).unwrap(),
            _ => continue,
        }
        assert_eq!(fs.dirty_count(), count_dirty(&fs).unwrap(), "after {round}");
    }
    assert!(fs.dirty_count().bytes > 0);
    files.iter().for_each(|ino| fs.forget(*ino, 1));
    remount(fs);
}
