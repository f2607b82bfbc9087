//! Limits for what files of a pool with a backing store gain (growth-G1).

use crate::backed::{BLOCK, MIB, pool, remount};
use suite::FILE;
use vfs::{Backed as _, Caller, Errno, Fallocate, FileSystem as _, ROOT};

#[test]
fn files_gain_what_the_limit_leaves() {
    let fs = pool(16 * MIB);
    let f = fs.create(&Caller::ROOT, ROOT, b"f", &FILE).unwrap().ino;
    let block = [1; BLOCK as usize];
    fs.write(f, 0, &block).unwrap();
    fs.write(f, 3 * BLOCK, &block).unwrap();
    // Two blocks, and one with their pointers.
    assert_eq!(fs.gained(), 3 * BLOCK);
    fs.limit_growth(5 * BLOCK);
    // A call that would gain more changes nothing.
    assert_eq!(fs.write(f, 4 * BLOCK, &[2; 3 * BLOCK as usize]), Err(Errno::NOSPC));
    let allocate = Fallocate::Allocate { keep_size: false };
    assert_eq!(fs.fallocate(f, allocate, 0, 5 * BLOCK), Err(Errno::NOSPC));
    let zero = Fallocate::ZeroRange { keep_size: false };
    assert_eq!(fs.fallocate(f, zero, 0, 5 * BLOCK), Err(Errno::NOSPC));
    assert_eq!((fs.getattr(f).unwrap().size, fs.gained()), (4 * BLOCK, 3 * BLOCK));
    // Holes within the file are gained, overwritten blocks are not.
    fs.write(f, 0, &[3; 4 * BLOCK as usize]).unwrap();
    assert_eq!(fs.gained(), 5 * BLOCK);
    fs.write(f, 100, &[4; 2 * BLOCK as usize]).unwrap();
    assert_eq!(fs.append(f, b"x"), Err(Errno::NOSPC));
    fs.settle(BLOCK);
    assert_eq!(fs.append(f, b"x"), Ok(4 * BLOCK));
    assert_eq!(fs.append(f, b"y"), Ok(4 * BLOCK + 1));
    assert_eq!(fs.append(f, &block), Err(Errno::NOSPC));
    remount(fs);
}
