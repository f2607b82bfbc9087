//! The cost of operations in traffic to PM (`docs/format/bpfs.md`, "Cost"). Counters do not jitter,
//! so they are asserted. A tick of the clock costs a line more: here it stands still.

use bpfs::{Bpfs, Engine as _, FormatOptions, MountOptions};
use pmem::{Domain, Medium, OpenOptions, Region};
use suite::flushed;
use vfs::{Caller, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, Timestamp};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

fn mounted() -> Bpfs<Region> {
    mounted_with(&flushed(false))
}

fn mounted_with(options: &OpenOptions) -> Bpfs<Region> {
    let region = options.anonymous(64 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let clock = || Timestamp(1);
    Bpfs::mount(region, &MountOptions { clock, ..MountOptions::default() }).unwrap()
}

fn create(fs: &Bpfs<Region>, dir: Ino, name: &str, node: &NewNode<'_>) -> Ino {
    fs.create(&Caller::ROOT, dir, name.as_bytes(), node).unwrap().ino
}

/// Bytes by non-temporal stores, lines flushed, fences, whole words stored.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Cost {
    nt: u64,
    lines: u64,
    fences: u64,
    words: u64,
}

/// Returns the lowest cost of several tries.
fn cost(fs: &Bpfs<Region>, mut op: impl FnMut(u64)) -> Cost {
    (0..12)
        .map(|i| {
            let before = fs.medium().counters().snapshot();
            op(i);
            let d = fs.medium().counters().snapshot() - before;
            Cost { nt: d.nt_bytes, lines: d.lines_flushed, fences: d.fences, words: d.words_stored }
        })
        .min()
        .unwrap()
}

/// A mount flushes lines that killed processes may have left unflushed, if flushing has an effect
/// on the medium.
#[test]
fn mounting() {
    for (domain, lines_of_block) in [(Domain::Volatile, 64), (Domain::CpuCache, 0)] {
        let fs = mounted_with(&OpenOptions { domain: Some(domain), ..OpenOptions::default() });
        let dir = create(&fs, ROOT, "dir", &DIR);
        for (name, len) in [("empty", 0), ("one block", 4096), ("three", 3 * 4096)] {
            let f = create(&fs, dir, name, &FILE);
            fs.write(f, 0, &vec![1; len]).unwrap();
        }
        let region = fs.into_medium();
        let before = region.counters().snapshot();
        let options = MountOptions { threads: Some(1), ..MountOptions::default() };
        let fs = Bpfs::mount(region, &options).unwrap();
        let d = fs.medium().counters().snapshot() - before;
        // The superblock, the inode file's leaf, two directories, one block of pointers.
        let lines = 5 * lines_of_block;
        assert_eq!((d.nt_bytes, d.words_stored, d.lines_flushed, d.fences), (0, 0, lines, 1));
    }
}

#[test]
fn writes() {
    let fs = mounted();
    let f = create(&fs, ROOT, "f", &FILE);
    fs.write(f, 0, &vec![1; 1 << 20]).unwrap();

    let word = cost(&fs, |i| fs.write(f, 8 * i, &[2; 8]).unwrap());
    assert_eq!(word, Cost { nt: 0, lines: 1, fences: 1, words: 1 }, "8 bytes in place");

    let page = cost(&fs, |i| fs.write(f, 4096 * i, &[3; 4096]).unwrap());
    assert_eq!(
        page,
        Cost { nt: 4096, lines: 1, fences: 2, words: 1 },
        "one block by copy-on-write"
    );

    let ragged = cost(&fs, |i| fs.write(f, 4096 * i + 100, &[4; 1009]).unwrap());
    assert_eq!(ragged, Cost { nt: 4096, lines: 1, fences: 2, words: 1 }, "part of a block");

    // The record, and its first line again; then the changed bytes.
    for (at, len, nt, lines) in [(100, 64, 128 + 64, 2), (0, 1008, 1024 + 64, 16)] {
        let data = vec![4; len];
        let recorded = cost(&fs, |i| fs.write(f, 4096 * i + at, &data).unwrap());
        assert_eq!(recorded, Cost { nt, lines, fences: 3, words: 0 }, "{len} bytes");
    }

    // The data blocks, the record and its first line again; then the lines of the pointers.
    for (blocks, nt, lines) in [(2, 64 + 64, 1), (20, 192 + 64, 3), (126, 1024 + 64, 16)] {
        let data = vec![5; blocks * 4096];
        let together = cost(&fs, |_| fs.write(f, 0, &data).unwrap());
        let want = match fs.medium().stores_lines() && blocks <= 8 {
            true => Cost { nt: data.len() as u64 + 64, lines: 0, fences: 2, words: 0 },
            false => Cost { nt: data.len() as u64 + nt, lines, fences: 4, words: 0 },
        };
        assert_eq!(together, want, "{blocks} blocks, committed by their pointers");
    }

    let many = cost(&fs, |_| fs.write(f, 0, &vec![5; 1 << 20]).unwrap());
    let pointers = 4096;
    assert_eq!(
        many,
        Cost { nt: (1 << 20) + pointers, lines: 1, fences: 2, words: 1 },
        "256 blocks and their pointer block, one commit"
    );

    let append = cost(&fs, |_| {
        let _ = fs.append(f, &[6; 4096]).unwrap();
    });
    assert_eq!(
        append,
        Cost { nt: 4096, lines: 2, fences: 2, words: 2 },
        "data, its pointer (invisible), the size"
    );

    let g = create(&fs, ROOT, "g", &FILE);
    fs.append(g, &[7; 64]).unwrap();
    let small = cost(&fs, |_| {
        let _ = fs.append(g, &[7; 64]).unwrap();
    });
    assert_eq!(small, Cost { nt: 64, lines: 1, fences: 2, words: 1 }, "append inside a block");

    let empty: Vec<_> = (0..12).map(|i| create(&fs, ROOT, &format!("e{i}"), &FILE)).collect();
    let first = cost(&fs, |i| {
        let _ = fs.append(empty[i as usize], &[7; 100]).unwrap();
    });
    assert_eq!(
        first,
        Cost { nt: 128, lines: 1, fences: 2, words: 2 },
        "the last line is written whole"
    );

    let copies: Vec<_> = (0..12).map(|i| create(&fs, ROOT, &format!("c{i}"), &FILE)).collect();
    let copied = cost(&fs, |i| {
        fs.copy_range((f, 0), (copies[i as usize], 0), 3 * 4096 - 100).unwrap();
    });
    // The data, up to the end of the last line; its pointers: a line if the block is null behind
    // it, or else a whole block.
    let data = 3 * 4096 - 64;
    assert!([data + 64, data + 4096].contains(&copied.nt) && copied.fences == 2, "{copied:?}");

    let small_file = |i| {
        let f = create(&fs, ROOT, &format!("g{i}"), &FILE);
        fs.append(f, &[7; 64]).unwrap();
        f
    };
    let files: Vec<_> = (0..12).map(small_file).collect();
    let taller = cost(&fs, |i| {
        let _ = fs.append(files[i as usize], &[8; 4096]).unwrap();
    });
    let want = Cost { nt: 2 * 4096, lines: 1, fences: 2, words: 2 };
    assert_eq!(taller, want, "data and pointers, then root and size in one line");

    fs.unlink(ROOT, b"g0").unwrap();
    let again = cost(&fs, |_| {
        let f = create(&fs, ROOT, "again", &FILE);
        fs.forget(f, 1);
        fs.unlink(ROOT, b"again").unwrap();
    });
    let again_taller = cost(&fs, |_| {
        let f = create(&fs, ROOT, "again", &FILE);
        fs.append(f, &[8; 5000]).unwrap();
        fs.forget(f, 1);
        fs.unlink(ROOT, b"again").unwrap();
    });
    let nt = again_taller.nt - again.nt;
    assert_eq!(
        nt,
        64 + 5056,
        "pointers where there were some, and data to the end of its last line"
    );
}

#[test]
fn writes_inside_a_line() {
    for without_line_stores in [false, true] {
        let fs = mounted_with(&flushed(without_line_stores));
        let f = create(&fs, ROOT, "f", &FILE);
        fs.write(f, 0, &[1; 65536]).unwrap();
        let lines = fs.medium().stores_lines();
        assert!(!(lines && without_line_stores));
        let copied = Cost { nt: 4096, lines: 1, fences: 2, words: 1 };
        let recorded = |nt, lines| Cost { nt, lines, fences: 3, words: 0 };
        let want = |otherwise| match lines {
            true => Cost { nt: 64, lines: 0, fences: 1, words: 0 },
            false => otherwise,
        };
        assert_eq!(
            cost(&fs, |i| fs.write(f, 64 * i, &[2; 64]).unwrap()),
            want(recorded(192, 1)),
            "a line"
        );
        let part = cost(&fs, |i| fs.write(f, 64 * i + 7, &[3; 9]).unwrap());
        assert_eq!(part, want(recorded(128, 1)), "part of it");
        let two = cost(&fs, |i| fs.write(f, 64 * i + 60, &[4; 9]).unwrap());
        assert_eq!(two, recorded(128, 2), "of two");
        // Readers without a copy rely on seeing only writes of a word.
        let held = fs.get_read_buf(f, 0, 1).unwrap();
        assert_eq!(cost(&fs, |i| fs.write(f, 64 * i, &[5; 64]).unwrap()), copied, "while held");
        drop(held);
    }
}

#[test]
fn names() {
    for without_line_stores in [false, true] {
        names_of(&mounted_with(&flushed(without_line_stores)));
    }
}

fn names_of(fs: &Bpfs<Region>) {
    let (a, b) = (create(fs, ROOT, "a", &DIR), create(fs, ROOT, "b", &DIR));
    for i in 0..40 {
        let f = create(fs, a, &format!("fill-{i}"), &FILE);
        fs.forget(f, 1);
        create(fs, b, &format!("fill-{i}"), &FILE);
    }

    let made = cost(fs, |i| fs.forget(create(fs, a, &format!("new-{i}"), &FILE), 1));
    assert_eq!(made.nt, 0, "create stores metadata in place only");
    assert!(made.fences == 1 && made.lines <= 4, "{made:?}");

    let gone = cost(fs, |i| fs.unlink(a, format!("new-{i}").as_bytes()).unwrap());
    assert_eq!(gone, Cost { nt: 0, lines: 1, fences: 1, words: 1 }, "unlink is one word");

    let cross = cost(fs, |i| {
        let name = format!("fill-{i}");
        let to = format!("moved-{i}");
        fs.rename((a, name.as_bytes()), (b, to.as_bytes()), RenameFlags::empty()).unwrap();
    });
    // The new name; a record of three words, and its first line again; the lines of both entries.
    assert_eq!((cross.nt, cross.lines, cross.fences), (64 + 64, 1 + 2, 4), "{cross:?}");

    let same = cost(fs, |i| {
        let (name, to) = (format!("fill-{}", 20 + i), format!("again-{i}"));
        fs.rename((b, name.as_bytes()), (b, to.as_bytes()), RenameFlags::empty()).unwrap();
    });
    let recorded = Cost { words: same.words, ..cross };
    let in_place = Cost { nt: 64, lines: 0, fences: 1, words: 0 };
    let want = if fs.medium().stores_lines() { in_place } else { recorded };
    assert_eq!(same, want, "the line, or as to another directory");

    let to = "as-long-as-two-lines-0123456789012345678901234567890123456789";
    let longer = cost(fs, |i| {
        let name = format!("moved-{i}");
        fs.rename((b, name.as_bytes()), (b, format!("{to}-{i}").as_bytes()), RenameFlags::empty())
            .unwrap();
    });
    // Its name and the header of the remaining room lie in two lines.
    assert_eq!((longer.nt, longer.lines, longer.fences), (64 + 64, 2 + 2, 4), "{longer:?}");
}
