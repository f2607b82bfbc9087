//! Reading without a copy.

use bpfs::{Bpfs, Engine as _, FormatOptions, MountOptions};
use pmem::Region;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Caller, Fallocate, FileSystem as _, Ino, NewKind, NewNode, ROOT};

fn pool() -> Bpfs<Region> {
    let region = Region::anonymous(16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Bpfs::mount(region, &MountOptions::default()).unwrap()
}

fn file(fs: &Bpfs<Region>, name: &[u8], content: &[u8]) -> Ino {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let ino = fs.create(&Caller::ROOT, ROOT, name, &node).unwrap().ino;
    fs.write(ino, 0, content).unwrap();
    ino
}

fn copy(fs: &Bpfs<Region>, ino: Ino, offset: u64, count: u64) -> Vec<u8> {
    let buf = fs.get_read_buf(ino, offset, count).unwrap();
    buf.iter().map(|b| b.load(Relaxed)).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 251) as u8).collect()
}

#[test]
fn it_is_what_read_gives() {
    let fs = pool();
    let content = pattern(1 << 20);
    let ino = file(&fs, b"f", &content);
    assert_eq!(copy(&fs, ino, 0, 1 << 20), content, "an empty pool gives contiguous space");
    assert_eq!(copy(&fs, ino, 5000, 3000), content[5000..8000]);
    assert_eq!(copy(&fs, ino, (1 << 20) - 10, 4096), content[(1 << 20) - 10..]);
    assert!(copy(&fs, ino, 1 << 20, 1).is_empty());
    assert!(copy(&fs, ino, u64::MAX, 1).is_empty());

    let sparse = file(&fs, b"g", b"x");
    fs.write(sparse, 20_000, b"end").unwrap();
    assert_eq!(copy(&fs, sparse, 9000, 100), [0; 100]);
    assert_eq!(copy(&fs, sparse, 9000, 1 << 20).len(), 3288, "a hole is given block by block");
    let mut whole = Vec::new();
    while (whole.len() as u64) < 20_003 {
        whole.extend(copy(&fs, sparse, whole.len() as u64, 1 << 20));
    }
    let mut read = vec![0; 20_003];
    fs.read(sparse, 0, &mut read).unwrap();
    assert_eq!(whole, read);
    assert_eq!(fs.get_read_buf(ROOT, 0, 1).err(), Some(vfs::Errno::ISDIR));
}

#[test]
fn pieces_of_a_scattered_file_make_up_the_file() {
    let fs = pool();
    // Beyond one pointer block, with replaced blocks and holes where pieces have to end.
    let content = pattern(3 << 20);
    let ino = file(&fs, b"f", &content);
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
            whole.extend(copy(&fs, ino, start + whole.len() as u64, 3 << 20));
        }
        assert!(whole == read[start as usize..], "from {start} on");
    }
}

#[test]
fn what_is_held_is_not_used_again() {
    let fs = pool();
    let content = pattern(64 << 10);
    let ino = file(&fs, b"f", &content);
    let free = fs.statfs().blocks_free;
    let held = fs.get_read_buf(ino, 0, 64 << 10).unwrap();
    assert_eq!(held.len(), 64 << 10);
    // Replaced, removed, and all space taken and given back twice.
    fs.write(ino, 64, &[0xee; 64]).unwrap();
    for _ in 0..3 {
        fs.write(ino, 0, &vec![0xee; 64 << 10]).unwrap();
    }
    fs.unlink(ROOT, b"f").unwrap();
    fs.forget(ino, 1);
    for round in 0..2 {
        let name = format!("filler{round}");
        let filler = file(&fs, name.as_bytes(), b"");
        while fs.append(filler, &[0x55; 32 << 10]).is_ok() {}
        fs.unlink(ROOT, name.as_bytes()).unwrap();
        fs.forget(filler, 1);
    }
    assert!(held.iter().zip(&content).all(|(b, c)| b.load(Relaxed) == *c));
    assert!(fs.statfs().blocks_free < free);
    drop(held);
    assert_eq!(fs.statfs().blocks_free, free + 16 + 1, "the file and its pointer block are gone");
}
