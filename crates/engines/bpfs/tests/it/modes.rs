//! The modes of durability: the fences of operations in each, and what an operation leaves.

use bpfs::{Bpfs, DurabilityMode, FormatOptions, MountOptions};
use pmem::{Access, Lock, Medium, OpenOptions, Region};
use std::path::PathBuf;
use suite::flushed;
use vfs::{
    Caller, Durability, Errno, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, SetAttr,
    SetXattr, Timestamp,
};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const BLOCK: usize = 4096;

fn mounted(mode: DurabilityMode, bytes: u64) -> Bpfs<Region> {
    let region = flushed(true).anonymous(bytes).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let clock = || Timestamp(1);
    let fs = Bpfs::mount(region, &MountOptions { clock, ..MountOptions::default() }).unwrap();
    fs.set_durability(mode).unwrap();
    fs
}

fn create(fs: &Bpfs<Region>, name: &str) -> Ino {
    fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino
}

/// Lines flushed and fences.
fn cost(fs: &Bpfs<Region>, op: impl FnOnce()) -> (u64, u64) {
    let before = fs.medium().counters().snapshot();
    op();
    let d = fs.medium().counters().snapshot() - before;
    (d.lines_flushed, d.fences)
}

/// An operation, with the fences that it has in `journal` and in `ordered`, in a sequence of its
/// kind.
type Row = (&'static str, u64, u64, fn(&Bpfs<Region>, Ino, u64));

const OPERATIONS: [Row; 9] = [
    ("a block by copy-on-write", 2, 1, |fs, f, i| {
        fs.write(f, i % 8 * 4096, &[3; BLOCK]).unwrap();
    }),
    ("part of a block by copy-on-write", 2, 1, |fs, f, i| {
        fs.write(f, i % 8 * 4096 + 100, &[4; 1009]).unwrap();
    }),
    ("an append", 2, 1, |fs, f, _| {
        fs.append(f, &[5; BLOCK]).unwrap();
    }),
    ("an append inside a block", 2, 1, |fs, f, _| {
        fs.append(f, &[5; 100]).unwrap();
    }),
    ("more blocks than a pending commit can free", 2, 2, |fs, f, _| {
        fs.write(f, 0, &[5; 256 * BLOCK]).unwrap();
    }),
    // The only fence of these cannot be left: it orders two commits.
    ("a word in place", 1, 1, |fs, f, i| fs.write(f, i % 8 * 8, &[6; 8]).unwrap()),
    ("a name", 1, 1, |fs, _, i| fs.forget(create(fs, &format!("c{i}")), 1)),
    // These commit by a record.
    ("a part of a block", 3, 3, |fs, f, i| {
        fs.write(f, i % 8 * 4096 + 10, &[7; 500]).unwrap();
    }),
    ("a rename", 4, 4, |fs, _, i| {
        let (from, to) = (format!("n{i}"), format!("m{i}"));
        fs.rename((ROOT, from.as_bytes()), (ROOT, to.as_bytes()), RenameFlags::empty()).unwrap();
    }),
];

#[test]
fn an_operation_with_a_fence_before_its_commit_has_one_less_in_ordered() {
    for (what, journal, ordered, op) in OPERATIONS {
        for (mode, fences) in
            [(DurabilityMode::Journal, journal), (DurabilityMode::Ordered, ordered)]
        {
            let fs = mounted(mode, 64 << 20);
            let f = create(&fs, "f");
            fs.write(f, 0, &vec![1; 256 * BLOCK]).unwrap();
            (0..12).for_each(|i| fs.forget(create(&fs, &format!("n{i}")), 1));
            fs.sync().unwrap();
            let costs: Vec<_> = (0..12).map(|i| cost(&fs, || op(&fs, f, i))).collect();
            // The first has nothing to make durable before, and some extend a directory or a tree.
            let usual = costs[1..].iter().min().unwrap();
            assert_eq!(usual.1, fences, "{what}, {mode}: {costs:?}");
            // The line of the last commit.
            let left = u64::from(fences < journal);
            assert_eq!(cost(&fs, || fs.fsync(f).unwrap()), (left, left), "{what}, {mode}");
            assert_eq!(cost(&fs, || fs.sync().unwrap()), (0, 0), "{what}, {mode}");
        }
    }
}

#[test]
fn the_lines_are_those_of_journal() {
    let lines = |mode| {
        let fs = mounted(mode, 16 << 20);
        let f = create(&fs, "f");
        fs.write(f, 0, &vec![1; 64 * BLOCK]).unwrap();
        fs.sync().unwrap();
        let writes = || (0..20).for_each(|i| fs.write(f, i * 4096, &[3; BLOCK]).unwrap());
        let (lines, fences) = cost(&fs, || {
            writes();
            fs.fsync(f).unwrap();
        });
        (lines, fences)
    };
    assert_eq!(lines(DurabilityMode::Journal), (20, 40));
    assert_eq!(lines(DurabilityMode::Ordered), (20, 21));
}

#[test]
fn programs_learn_that_they_have_to_sync() {
    let fs = mounted(DurabilityMode::Ordered, 16 << 20);
    assert_eq!(fs.durability(), Durability::OnSync);
    let f = create(&fs, "f");
    fs.write(f, 0, &[1; BLOCK]).unwrap();
    // The pending commit is durable when the mode ends.
    assert_eq!(cost(&fs, || fs.set_durability(DurabilityMode::Journal).unwrap()).1, 1);
    assert_eq!(fs.durability(), Durability::OnReturn);
    assert_eq!(cost(&fs, || fs.write(f, 0, &[1; BLOCK]).unwrap()).1, 2);
}

/// The block that a pending commit has freed is free for `statfs`, and is used when no other is.
#[test]
fn a_full_pool_uses_what_a_pending_commit_has_freed() {
    let fs = mounted(DurabilityMode::Ordered, 1 << 20);
    let f = create(&fs, "f");
    while fs.append(f, &[1; BLOCK]).is_ok() {}
    let set = SetAttr { size: Some(8 * 4096), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, f, &set).unwrap();
    let free = fs.statfs().blocks_free;
    while fs.append(f, &[1; BLOCK]).is_ok() {}
    fs.setattr(&Caller::ROOT, f, &SetAttr { size: Some(7 * 4096), ..set }).unwrap();
    // One block is free: each overwrite takes it, and the next one needs the one that it freed.
    for i in 0..20 {
        fs.write(f, i % 7 * 4096, &[2; BLOCK]).unwrap();
        assert_eq!(fs.statfs().blocks_free + 7, free + 8 - 1 + 1, "{i}");
    }
}

/// Two processes that share a pool, in flushed memory: a server that sets the mode, and a program.
fn shared(test: &str) -> (TempPool, Bpfs<Region>, Bpfs<Region>) {
    let path = PathBuf::from(format!("/dev/shm/keepstone-modes-{test}-{}", std::process::id()));
    let options = OpenOptions { lock: Some(Lock::Shared), ..flushed(true) };
    let region = flushed(true).create(&path, 16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    drop(region);
    let attach = || {
        let region = options.open(&path, Access::ReadWrite).unwrap();
        let place = bpfs::place(&region).unwrap();
        Bpfs::attach(region, &place, &MountOptions::default()).unwrap()
    };
    let (server, program) = (attach(), attach());
    server.set_durability(DurabilityMode::Ordered).unwrap();
    (TempPool(path), server, program)
}

/// A pool file that is removed at the end.
struct TempPool(PathBuf);

impl Drop for TempPool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_process_makes_durable_what_another_one_has_left() {
    let (_pool, server, program) = shared("processes");
    assert_eq!(program.durability(), Durability::OnSync, "the server has set the mode");
    let f = create(&program, "f");
    program.write(f, 0, &[1; 4 * BLOCK]).unwrap();
    program.sync().unwrap();
    let left = |fs: &Bpfs<Region>| fs.write(f, 4096, &[2; BLOCK]).unwrap();
    left(&program);
    assert_eq!(cost(&server, || server.fsync(f).unwrap()), (1, 1));
    assert_eq!(cost(&program, || program.fsync(f).unwrap()), (0, 0));
    left(&program);
    // A name, of the other process: its own fence, and one before it.
    assert_eq!(cost(&server, || server.forget(create(&server, "g"), 1)).1, 2);
    left(&program);
    assert_eq!(cost(&server, || left(&server)), (1, 1));
    assert_eq!(cost(&program, || program.fsync(f).unwrap()), (1, 1));
}

/// A recovery derives the state again, and nothing is pending then.
#[test]
fn a_recovery_forgets_what_is_pending() {
    let (_pool, fs, _) = shared("recovery");
    let f = create(&fs, "f");
    fs.write(f, 0, &[1; 3 * BLOCK]).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().blocks_free;
    fs.write(f, 4096, &[2; BLOCK]).unwrap();
    assert_eq!(fs.statfs().blocks_free, free);
    fs.rehearse_recovery().unwrap();
    assert_eq!(fs.statfs().blocks_free, free);
    assert_eq!(cost(&fs, || fs.fsync(f).unwrap()), (0, 0), "the recovery has flushed it");
    assert_eq!(fs.durability(), Durability::OnSync, "the mode stays");
    fs.write(f, 4096, &[3; BLOCK]).unwrap();
    assert_eq!(cost(&fs, || fs.fsync(f).unwrap()), (1, 1));
}

#[test]
fn there_is_no_mode_that_would_only_be_another_name() {
    let why = "writeback".parse::<DurabilityMode>().unwrap_err();
    assert!(why.contains("`ordered` costs no more"), "{why}");
    assert!("data".parse::<DurabilityMode>().unwrap_err().contains("journal, ordered"));
    assert_eq!("ordered".parse(), Ok(DurabilityMode::Ordered));
}

/// A file can have a stronger mode than its pool: own-mode-O1 to O3 in `namespace/src/own_mode.rs`.
#[test]
fn a_file_can_be_durable_on_return_in_ordered() {
    const OWN: &[u8] = vfs::DATA;
    let fs = mounted(DurabilityMode::Ordered, 64 << 20);
    let (f, other) = (create(&fs, "f"), create(&fs, "other"));
    for file in [f, other] {
        fs.write(file, 0, &vec![1; 16 * BLOCK]).unwrap();
    }
    fs.setxattr(f, b"user.x", b"1", SetXattr::Any).unwrap();
    fs.sync().unwrap();
    let has_fences = |fs: &Bpfs<Region>, file: Ino, fences: u64| {
        for op in [
            |fs: &Bpfs<Region>, f: Ino| fs.write(f, 4096, &[3; BLOCK]).unwrap(),
            |fs: &Bpfs<Region>, f: Ino| fs.write(f, 4196, &[4; 1009]).unwrap(),
            |fs: &Bpfs<Region>, f: Ino| assert!(fs.append(f, &[5; 100]).is_ok()),
        ] {
            // The first makes the last one of another file durable.
            op(fs, file);
            assert_eq!(cost(fs, || op(fs, file)).1, fences);
        }
        let left = u64::from(fences == 1);
        assert_eq!(cost(fs, || fs.fsync(file).unwrap()).1, left, "it leaves a fence, or not");
    };
    has_fences(&fs, f, 1);
    fs.setxattr(f, OWN, b"journal", SetXattr::Any).unwrap();
    has_fences(&fs, f, 2);
    has_fences(&fs, other, 1);
    // The commit that was left before is durable with the next operation on the file.
    fs.write(other, 0, &[3; BLOCK]).unwrap();
    fs.write(f, 4096, &[3; BLOCK]).unwrap();
    assert_eq!(cost(&fs, || fs.sync().unwrap()).1, 0);

    // The attribute is read when the pool is opened again, at the first operation.
    let clock = || Timestamp(1);
    let options = MountOptions { clock, ..MountOptions::default() };
    let fs = Bpfs::mount(fs.into_medium(), &options).unwrap();
    fs.set_durability(DurabilityMode::Ordered).unwrap();
    has_fences(&fs, f, 2);
    has_fences(&fs, other, 1);
    fs.removexattr(f, OWN).unwrap();
    has_fences(&fs, f, 1);

    for (file, value) in [(f, &b"ordered"[..]), (f, b"through"), (f, b""), (ROOT, b"journal")] {
        assert_eq!(fs.setxattr(file, OWN, value, SetXattr::Any), Err(Errno::INVAL));
    }
    assert_eq!(fs.getxattr(f, OWN), Err(Errno::NODATA));
}
