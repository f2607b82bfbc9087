//! Pre-zeroed pointer blocks are free blocks.

use crate::common::Bpfs;
use suite::{DIR, FILE, create};
use vfs::{Caller, FileSystem as _, ROOT, Seek, SetAttr};

/// Files of two blocks come and go: their blocks of pointers are kept to be used again.
#[test]
fn zeroed_pointer_blocks_are_free_and_null() {
    let fs = suite::mounted::<Bpfs>(8 << 20);
    let d = create::<Bpfs>(&fs, ROOT, "d", &DIR);
    // Large enough to have pointers behind the first line, then shrunk.
    let shrunk = create::<Bpfs>(&fs, d, "shrunk", &FILE);
    fs.write(shrunk, 0, &[9; 300_000]).unwrap();
    let resize = |f, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, f, &set).unwrap();
    };
    resize(shrunk, 5000);
    let (files, mut idle) = (40, None);
    for round in 1..4 {
        for i in 0..files {
            let f = create::<Bpfs>(&fs, d, &format!("f{i}"), &FILE);
            fs.write(f, 0, &[round; 5000]).unwrap();
            assert_eq!(fs.getattr(f).unwrap().blocks, 3 * 8);
            // The pointers behind the first line are null.
            fs.write(f, 200_000, &[round]).unwrap();
            assert_eq!(fs.seek(f, 8192, Seek::Data), Ok(196_608));
            resize(f, 8192);
        }
        for i in 0..files {
            fs.unlink(d, format!("f{i}").as_bytes()).unwrap();
        }
        // The first round makes the inode file larger.
        assert_eq!(fs.statfs(), *idle.get_or_insert_with(|| fs.statfs()));
        fs.unlink(d, b"shrunk").unwrap();
        let shrunk = create::<Bpfs>(&fs, d, "shrunk", &FILE);
        fs.write(shrunk, 0, &[9; 5000]).unwrap();
    }
    // Another thread finds these blocks when no others are left.
    std::thread::scope(|s| {
        s.spawn(|| suite::limits::fill(&fs, d));
    });
    assert!(fs.statfs().blocks_free < 2, "{:?}", fs.statfs());
    suite::check_and_remount::<Bpfs>(fs);
}
