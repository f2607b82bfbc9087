//! Tests several threads that write one file.

use crate::{Engine, FILE, check_and_remount, mounted, resize};
use vfs::{Caller, Fallocate, FileSystem as _, ROOT};

const BLOCK: u64 = 4096;
/// The number of blocks of the file.
const BLOCKS: u64 = 700;

/// Tests that each block holds the data of one write, or zeros, and that no block is lost.
/// Meanwhile other threads write, truncate and punch the same blocks.
pub fn blocks_of_one_file_are_whole<E: Engine>() {
    let fs = mounted::<E>(64 << 20);
    let free = fs.statfs().blocks_free;
    let ino = fs.create(&Caller::ROOT, ROOT, b"f", &FILE).unwrap().ino;
    resize(&fs, ino, BLOCKS * BLOCK);
    let rng = |seed: u64| {
        let mut rng = rng::Rng::new(seed);
        move |below: u64| rng.below(below)
    };
    let write = |seed: u8| {
        let mut below = rng(seed.into());
        for i in 0..6000u32 {
            // Half of the writes go to the first few blocks, so that two threads often meet there.
            let first = below(if i % 2 == 0 { 8 } else { BLOCKS - 5 });
            let data = vec![seed * 64 + (i % 63) as u8 + 1; ((1 + below(5)) * BLOCK) as usize];
            fs.write(ino, first * BLOCK, &data).unwrap();
        }
    };
    let shape = || {
        let mut below = rng(9);
        for _ in 0..3000 {
            resize(&fs, ino, below(BLOCKS) * BLOCK);
            let at = below(BLOCKS - 5) * BLOCK;
            fs.fallocate(ino, Fallocate::PunchHole, at, (1 + below(5)) * BLOCK).unwrap();
        }
    };
    let read = || {
        let mut below = rng(10);
        for _ in 0..6000 {
            let mut data = vec![0; (5 * BLOCK) as usize];
            let have = fs.read(ino, below(8) * BLOCK, &mut data).unwrap();
            for block in data[..have].chunks(BLOCK as usize) {
                assert!(block.iter().all(|byte| *byte == block[0]), "a block of two writes");
            }
        }
    };
    std::thread::scope(|s| {
        (0..3).for_each(|seed| drop(s.spawn(move || write(seed))));
        s.spawn(shape);
        s.spawn(read);
    });
    let fs = check_and_remount::<E>(fs);
    fs.unlink(ROOT, b"f").unwrap();
    let fs = check_and_remount::<E>(fs);
    assert!(fs.statfs().blocks_free + 8 >= free, "{:?}", fs.statfs());
}
