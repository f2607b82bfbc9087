//! The cost of operations in traffic to PM (`docs/format/scmfs.md`, "How operations change it").
//! Counters do not jitter, so they are asserted. A tick of the clock costs a line more: here it
//! stands still.

// These tests assert the blocks that are needed; `prealloc.rs` tests those that are pre-allocated.
use crate::common::OnDemand as Scmfs;
use pmem::{Medium, OpenOptions};
use pool::{MountOptions, PastCache};
use suite::{DIR, Engine, FILE, Fs, PoolFile, attach, create, flushed};
use vfs::{Caller, FileSystem, Ino, ROOT, RenameFlags, SetAttr, Timestamp};

/// Bytes through the cache, bytes by non-temporal stores, lines flushed, fences, whole words
/// stored.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy, Default)]
struct Cost {
    cached: u64,
    nt: u64,
    lines: u64,
    fences: u64,
    words: u64,
}

fn mounted() -> Fs<Scmfs> {
    mounted_with(&flushed(false))
}

fn mounted_with(options: &OpenOptions) -> Fs<Scmfs> {
    let region = options.anonymous(64 << 20).unwrap();
    Scmfs::format(&region, &pool::FormatOptions::default()).unwrap();
    let clock = || Timestamp(1);
    Fs::<Scmfs>::mount(region, &MountOptions { clock, ..Scmfs::options() }).unwrap()
}

/// Returns the cost of one operation.
fn cost_of(fs: &Fs<Scmfs>, op: impl FnOnce()) -> Cost {
    let before = fs.medium().counters().snapshot();
    op();
    let d = fs.medium().counters().snapshot() - before;
    Cost {
        cached: d.bytes_stored,
        nt: d.nt_bytes,
        lines: d.lines_flushed,
        fences: d.fences,
        words: d.words_stored,
    }
}

/// Returns the lowest cost of several tries.
fn cost(fs: &Fs<Scmfs>, mut op: impl FnMut(u64)) -> Cost {
    (0..12).map(|i| cost_of(fs, || op(i))).min().unwrap()
}

fn append(fs: &Fs<Scmfs>, ino: Ino, data: &[u8]) {
    fs.append(ino, data).unwrap();
}

fn file(fs: &Fs<Scmfs>, name: &str, len: usize) -> Ino {
    let ino = create::<Scmfs>(fs, ROOT, name, &FILE);
    fs.write(ino, 0, &vec![1; len]).unwrap();
    ino
}

#[test]
fn writes() {
    let fs = mounted();
    let f = file(&fs, "f", 1 << 20);
    let page = cost(&fs, |i| fs.write(f, 4096 * i, &[3; 4096]).unwrap());
    assert_eq!(
        page,
        Cost { cached: 4096, ..Cost::default() },
        "one block in place: nothing is waited for"
    );

    let long = file(&fs, "long", PastCache::default().file as usize);
    let page = cost(&fs, |i| fs.write(long, 4096 * i, &[4; 4096]).unwrap());
    assert_eq!(page, Cost { nt: 4096, fences: 1, ..Cost::default() }, "past the cache");
    // Its date and its data are durable by the same fence.
    let old = SetAttr { mtime: Some(vfs::SetTime::At(Timestamp(7))), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, long, &old).unwrap();
    let dated = cost_of(&fs, || fs.write(long, 0, &[4; 4096]).unwrap());
    assert_eq!((dated.nt, dated.lines, dated.fences), (4096, 1, 1), "{dated:?}");

    let block = cost(&fs, |_| append(&fs, f, &[6; 4096]));
    let want = Cost { nt: 4096, lines: 1, fences: 2, words: 2, ..Cost::default() };
    assert_eq!(block, want, "data, then the map word and the size in one line");

    let g = file(&fs, "g", 64);
    let small = cost(&fs, |_| append(&fs, g, &[7; 64]));
    let want = Cost { nt: 64, lines: 1, fences: 2, words: 1, ..Cost::default() };
    assert_eq!(small, want, "in a block that it has: data, then the size");

    let empty: Vec<_> = (0..12).map(|i| file(&fs, &format!("e{i}"), 0)).collect();
    let first = cost(&fs, |i| append(&fs, empty[i as usize], &[7; 100]));
    let want = Cost { nt: 100, lines: 1, fences: 2, words: 2, ..Cost::default() };
    assert_eq!(first, want, "data, then the map word and the size in one line");

    // A table of 2 MiB, with holes.
    let t = file(&fs, "t", 1);
    fs.write(t, 2_000_000, b"x").unwrap();
    let hole = cost(&fs, |i| fs.write(t, 4096 * (20 + 2 * i), &[8; 100]).unwrap());
    let want = Cost { nt: 4096, lines: 1, fences: 2, words: 1, ..Cost::default() };
    assert_eq!(hole, want, "the block, then its word in the table");
}

#[test]
fn a_sync_flushes_what_was_written_and_no_more() {
    let fs = mounted();
    let (f, g) = (file(&fs, "f", 1 << 20), file(&fs, "g", 1 << 20));
    let fsync = |ino| cost_of(&fs, || fs.fsync(ino).unwrap());
    let flushed = |blocks: u64| Cost { lines: blocks * 64, fences: 1, ..Cost::default() };
    assert_eq!(fsync(f), Cost::default(), "what files grow by is durable");
    for block in [3, 4, 200] {
        fs.write(f, block * 4096 + 100, &[2; 64]).unwrap();
    }
    fs.write(f, 9 * 4096 - 1, &[2; 2]).unwrap();
    fs.write(g, 5000, b"another file's").unwrap();
    assert_eq!(fsync(f), flushed(5), "five blocks of this file");
    assert_eq!(fsync(f), Cost::default(), "once");
    assert_eq!(cost_of(&fs, || fs.sync().unwrap()), flushed(1), "the other one");
    assert_eq!(cost_of(&fs, || fs.sync().unwrap()), Cost::default());
    // Blocks that were cut off need no flush.
    fs.write(f, 100 * 4096, &[4; 8192]).unwrap();
    let cut = SetAttr { size: Some(100 * 4096 + 10), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, f, &cut).unwrap();
    assert_eq!(fsync(f), flushed(1));
}

/// A mount does not know which contents are durable; the first sync of a file flushes all of it.
#[test]
fn the_first_sync_after_a_mount_flushes_a_file_whole() {
    let fs = mounted();
    file(&fs, "f", 10 * 4096);
    let fs = suite::mount::<Scmfs, _>(fs.into_medium());
    let f = fs.peek(ROOT, b"f").unwrap().ino;
    let whole = Cost { lines: 10 * 64, fences: 1, ..Cost::default() };
    assert_eq!(cost_of(&fs, || fs.fsync(f).unwrap()), whole);
    assert_eq!(cost_of(&fs, || fs.fsync(f).unwrap()), Cost::default());
}

/// All processes that share a pool know which blocks are dirty. After a death inside an operation,
/// this is unknown.
#[test]
fn a_sync_flushes_what_other_processes_wrote() {
    let pool = PoolFile::new::<Scmfs>("sync", 16 << 20);
    let (one, other) = (attach::<Scmfs>(&pool.0), attach::<Scmfs>(&pool.0));
    let f = file(&one, "f", 10 * 4096);
    let blocks = |count: u64, fs: &Fs<Scmfs>| {
        let cost = cost_of(fs, || fs.fsync(f).unwrap());
        assert_eq!((cost.lines, cost.fences), (count * 64, u64::from(count > 0)));
    };
    one.write(f, 5000, &[2; 4096]).unwrap();
    blocks(2, &other);
    blocks(0, &one);
    other.write(f, 0, b"x").unwrap();
    other.rehearse_recovery().unwrap();
    blocks(10, &one);
    blocks(0, &other);
}

#[test]
fn names() {
    for without_line_stores in [false, true] {
        let fs = mounted_with(&flushed(without_line_stores));
        names_of(&fs);
    }
}

fn names_of(fs: &Fs<Scmfs>) {
    let (a, b) = (create::<Scmfs>(fs, ROOT, "a", &DIR), create::<Scmfs>(fs, ROOT, "b", &DIR));
    for i in 0..40 {
        create::<Scmfs>(fs, a, &format!("fill-{i}"), &FILE);
        create::<Scmfs>(fs, b, &format!("fill-{i}"), &FILE);
    }
    let made = cost(fs, |i| {
        create::<Scmfs>(fs, a, &format!("new-{i}"), &FILE);
    });
    // All of the inode's first line except its generation, and the name.
    let want = Cost { cached: 56 + 5, lines: 3, fences: 1, words: 5, ..Cost::default() };
    assert_eq!(made, want, "the entry, the two lines of the inode");
    let gone = cost(fs, |i| fs.unlink(a, format!("new-{i}").as_bytes()).unwrap());
    assert_eq!(
        gone,
        Cost { lines: 1, fences: 1, words: 1, ..Cost::default() },
        "unlink is one word"
    );

    let same = cost(fs, |i| {
        let (name, to) = (format!("fill-{}", 20 + i), format!("again-{i}"));
        fs.rename((b, name.as_bytes()), (b, to.as_bytes()), RenameFlags::empty()).unwrap();
    });
    // The name; a record of three words, which is a line, and is cleared; these words in place.
    let record = 8 + 3 * 16;
    let recorded = Cost { cached: 7 + record, lines: 1 + 1 + 3 + 1, fences: 4, words: 5, nt: 0 };
    let in_place = Cost { nt: 64, fences: 1, ..Cost::default() };
    assert_eq!(same, if fs.medium().stores_lines() { in_place } else { recorded }, "in one line");

    let long = "as-long-as-two-lines-0123456789012345678901234567890123456789";
    let longer = cost(fs, |i| {
        let (name, to) = (format!("fill-{}", 4 + i), format!("{long}-{i}"));
        fs.rename((b, name.as_bytes()), (b, to.as_bytes()), RenameFlags::empty()).unwrap();
    });
    assert_eq!((longer.nt, longer.fences), (0, 4), "by a record: {longer:?}");

    let cross = cost(fs, |i| {
        let (name, to) = (format!("fill-{i}"), format!("moved-{i}"));
        fs.rename((a, name.as_bytes()), (b, to.as_bytes()), RenameFlags::empty()).unwrap();
    });
    // The same, and the header of the remaining room.
    assert_eq!(cross, Cost { words: 7, ..recorded }, "between directories");
}

#[test]
fn attributes() {
    let fs = mounted();
    let files: Vec<_> = (0..12).map(|i| file(&fs, &format!("f{i}"), 100)).collect();
    let set = |what: &SetAttr| {
        cost(&fs, |i| {
            fs.setattr(&Caller::ROOT, files[i as usize], what).unwrap();
        })
    };
    // Each with the times, which are not atomic with the change itself.
    let word = Cost { lines: 1 + 1, fences: 2 + 1, words: 1 + 1, ..Cost::default() };
    assert_eq!(set(&SetAttr { perm: Some(0o6755), ..SetAttr::default() }), word, "chmod");
    // Owner and mode change together.
    let record = 8 + 2 * 16;
    let two = Cost { cached: record, lines: 1 + 2 + 1 + 1, fences: 4 + 1, words: 4 + 1, nt: 0 };
    let chown = set(&SetAttr { uid: Some(7), ..SetAttr::default() });
    assert_eq!(chown, two, "chown that takes set-user-ID bits away");
    let chown = set(&SetAttr { uid: Some(8), ..SetAttr::default() });
    assert_eq!(chown, word, "chown");
    let cut = Cost { words: 2 + 1, ..word };
    assert_eq!(
        set(&SetAttr { size: Some(50), ..SetAttr::default() }),
        cut,
        "to a size, and its times"
    );
}
