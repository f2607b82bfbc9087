//! Tests reads without a copy.

use crate::{Engine, FILE, Fs, PoolFile, attach, has_atomic_contents, mounted};
use pool::Engine as _;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Caller, Fallocate, FileSystem as _, Ino, ROOT};

fn file<E: Engine>(fs: &Fs<E>, name: &[u8], content: &[u8]) -> Ino {
    let ino = fs.create(&Caller::ROOT, ROOT, name, &FILE).unwrap().ino;
    fs.write(ino, 0, content).unwrap();
    ino
}

fn copy<E: Engine>(fs: &Fs<E>, ino: Ino, offset: u64, count: u64) -> Vec<u8> {
    let buf = fs.get_read_buf(ino, offset, count).unwrap();
    buf.iter().map(|b| b.load(Relaxed)).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 251) as u8).collect()
}

/// Tests that a read without a copy gives the same bytes as a read with one.
pub fn it_is_what_read_gives<E: Engine>() {
    let fs = mounted::<E>(16 << 20);
    let content = pattern(1 << 20);
    let ino = file::<E>(&fs, b"f", &content);
    assert_eq!(copy::<E>(&fs, ino, 0, 1 << 20), content, "an empty pool gives contiguous space");
    assert_eq!(copy::<E>(&fs, ino, 5000, 3000), content[5000..8000]);
    assert_eq!(copy::<E>(&fs, ino, (1 << 20) - 10, 4096), content[(1 << 20) - 10..]);
    assert!(copy::<E>(&fs, ino, 1 << 20, 1).is_empty());
    assert!(copy::<E>(&fs, ino, u64::MAX, 1).is_empty());

    let sparse = file::<E>(&fs, b"g", b"x");
    fs.write(sparse, 2_000_000, b"end").unwrap();
    assert_eq!(copy::<E>(&fs, sparse, 1_000_000, 100), [0; 100]);
    assert_eq!(
        copy::<E>(&fs, sparse, 1_000_000, 1 << 20).len(),
        3520,
        "a hole is given block by block"
    );
    let mut whole = Vec::new();
    while (whole.len() as u64) < 2_000_003 {
        whole.extend(copy::<E>(&fs, sparse, whole.len() as u64, 1 << 20));
    }
    let mut read = vec![0; 2_000_003];
    fs.read(sparse, 0, &mut read).unwrap();
    assert_eq!(whole, read);
    assert_eq!(fs.get_read_buf(ROOT, 0, 1).err(), Some(vfs::Errno::ISDIR));
}

/// Tests that a fragmented file is returned in pieces, and that no piece is missing.
pub fn pieces_of_a_scattered_file_make_up_the_file<E: Engine>() {
    let fs = mounted::<E>(16 << 20);
    // The file is larger than one pointer block covers, with replaced blocks and holes at which
    // pieces have to end.
    let content = pattern(3 << 20);
    let ino = file::<E>(&fs, b"f", &content);
    for block in [0u64, 63, 64, 65, 200, 511, 512, 513, 767] {
        fs.write(ino, block * 4096 + 100, &[block as u8; 1000]).unwrap();
    }
    for block in [130u64, 131, 600] {
        fs.fallocate(ino, Fallocate::PunchHole, block * 4096, 4096).unwrap();
    }
    let mut read = vec![0; 3 << 20];
    fs.read(ino, 0, &mut read).unwrap();
    for start in [0u64, 1, 4095, 4096, 511 * 4096 + 7, (3 << 20) - 1] {
        let mut whole = Vec::new();
        while start + (whole.len() as u64) < 3 << 20 {
            whole.extend(copy::<E>(&fs, ino, start + whole.len() as u64, 3 << 20));
        }
        assert!(whole == read[start as usize..], "from {start} on");
    }
}

/// Tests that freed space which a reader reads without a copy is not reused until the reader has
/// finished.
pub fn what_is_held_is_not_used_again<E: Engine>() {
    let fs = mounted::<E>(16 << 20);
    let content = pattern(64 << 10);
    file::<E>(&fs, b"first", b"");
    let idle = fs.statfs().blocks_free;
    let ino = file::<E>(&fs, b"f", &content);
    let free = fs.statfs().blocks_free;
    let held = fs.get_read_buf(ino, 0, 64 << 10).unwrap();
    assert_eq!(held.len(), 64 << 10);
    // Replaces and removes the content, and takes and frees all space twice. An engine that
    // overwrites in place shows that to readers, so it skips the writes.
    if has_atomic_contents::<E>() {
        fs.write(ino, 64, &[0xee; 64]).unwrap();
        for _ in 0..3 {
            fs.write(ino, 0, &vec![0xee; 64 << 10]).unwrap();
        }
    }
    fs.unlink(ROOT, b"f").unwrap();
    fs.forget(ino, 1);
    for round in 0..2 {
        let name = format!("filler{round}");
        let filler = file::<E>(&fs, name.as_bytes(), b"");
        while fs.append(filler, &[0x55; 32 << 10]).is_ok() {}
        fs.unlink(ROOT, name.as_bytes()).unwrap();
        fs.forget(filler, 1);
    }
    assert!(held.iter().zip(&content).all(|(b, c)| b.load(Relaxed) == *c));
    assert!(fs.statfs().blocks_free <= free);
    drop(held);
    assert_eq!(fs.statfs().blocks_free, idle, "all of the file is gone");
}

/// Tests a recovery while freed space is still read: no file owns the space, but the recovery must
/// not count it as free before it can be reused.
pub fn what_is_held_is_not_free_after_a_recovery<E: Engine>() {
    let pool = PoolFile::new::<E>("pins", 16 << 20);
    let fs = attach::<E>(&pool.0);
    file::<E>(&fs, b"first", b"");
    let idle = fs.statfs().blocks_free;
    let content = pattern(64 << 10);
    let ino = file::<E>(&fs, b"f", &content);
    let held = fs.get_read_buf(ino, 0, 64 << 10).unwrap();
    assert_eq!(held.len(), 64 << 10);
    fs.unlink(ROOT, b"f").unwrap();
    fs.forget(ino, 1);
    let waiting = fs.statfs().blocks_free;
    assert!(waiting < idle);
    fs.rehearse_recovery().unwrap();
    assert_eq!(fs.statfs().blocks_free, waiting);
    let filler = file::<E>(&fs, b"filler", b"");
    while fs.append(filler, &[0x55; 32 << 10]).is_ok() {}
    assert!(held.iter().zip(&content).all(|(b, c)| b.load(Relaxed) == *c));
    fs.unlink(ROOT, b"filler").unwrap();
    fs.forget(filler, 1);
    drop(held);
    assert_eq!(fs.statfs().blocks_free, idle);
}
