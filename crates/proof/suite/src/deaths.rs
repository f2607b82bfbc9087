//! Tests deaths of a process that shares a pool, at each access to PM in each kind of operation.
//! The other processes must find the operation done or not done, every lock free, and all space
//! accounted for.
//!
//! A forked child dies by `_exit` within the medium. The crash explorer tests what a power failure
//! leaves. This test examines what a death leaves: PM has every store, but locks and derived state
//! are as they were in the middle.

#![allow(unsafe_code)]

use crate::watch::{Watch, Watched};
use crate::{Engine, Fs, PoolFile, has_atomic_contents, open_shared, place};
use pool::MountOptions;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::tree::{self, Tree};
use vfs::{
    Caller, Errno, Fallocate, FileKind, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags,
    Result, SetAttr, SetXattr,
};

const DIED: i32 = 77;

/// The number of accesses left until the process dies; 0 if it does not die.
struct Mortal(AtomicU64);

impl Mortal {
    /// Counts an access; ends the process at the last one.
    fn tick(&self) {
        let left = self.0.load(Relaxed);
        if left == 1 {
            // SAFETY: ends the process without running any more of its code.
            unsafe { libc::_exit(DIED) };
        }
        self.0.store(left.saturating_sub(1), Relaxed);
    }
}

impl Watch for Mortal {
    fn bytes(&self) {
        self.tick();
    }
    fn flush(&self, _: u64, _: u64) {
        self.tick();
    }
    fn fence(&self) {
        self.tick();
    }
}

/// A pool of any engine. Operations are functions in a table, which cannot be generic.
type Pool<'a> = dyn FileSystem + 'a;

fn node(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode { kind, mode: 0o755, umask: 0 }
}

fn make(fs: &Pool<'_>, dir: Ino, name: &str, kind: NewKind<'_>) -> Result<Ino> {
    let ino = fs.create(&Caller::ROOT, dir, name.as_bytes(), &node(kind))?.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn at(fs: &Pool<'_>, dir: Ino, name: &str) -> Ino {
    fs.peek(dir, name.as_bytes()).unwrap().ino
}

fn rename(fs: &Pool<'_>, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<()> {
    fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), flags)
}

/// The offset of the second part of a file with a hole.
const FAR: u64 = (2 << 20) + 4096;

/// Creates the files that every operation needs: two directories, and files of several sizes, one
/// of them with two names.
fn furnish(fs: &Pool<'_>, dir: Ino) -> Result<()> {
    for name in ["a", "b"] {
        make(fs, dir, name, NewKind::Dir)?;
    }
    let a = at(fs, dir, "a");
    for (name, len) in [("empty", 0), ("small", 100), ("big", 20_000)] {
        let ino = make(fs, a, name, NewKind::File)?;
        fs.write(ino, 0, &vec![7; len])?;
    }
    let sparse = make(fs, a, "sparse", NewKind::File)?;
    fs.write(sparse, 0, &[7; 5000])?;
    fs.write(sparse, FAR, &[7; 9000])?;
    let big = at(fs, a, "big");
    if fs.limits().clones {
        let copy = make(fs, a, "clone", NewKind::File)?;
        fs.clone_range((big, 0), (copy, 0), 0)?;
    }
    let linked = fs.link(big, at(fs, dir, "b"), b"big too")?;
    fs.forget(linked.ino, 1);
    fs.setxattr(big, b"user.x", b"value", SetXattr::Any)
}

type Op = (&'static str, fn(&Pool<'_>, Ino) -> Result<()>);

fn on(fs: &Pool<'_>, dir: Ino, name: &str, op: impl FnOnce(Ino) -> Result<()>) -> Result<()> {
    op(at(fs, at(fs, dir, "a"), name))
}

fn set(fs: &Pool<'_>, ino: Ino, set: SetAttr) -> Result<()> {
    fs.setattr(&Caller::ROOT, ino, &set).map(drop)
}

/// Makes files share blocks, if the engine can do that.
fn clone(fs: &Pool<'_>, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
    if fs.limits().clones { fs.clone_range(from, to, len) } else { Ok(()) }
}

/// Calls `op` with a file that shares its blocks, if the engine can do that.
fn on_clone(fs: &Pool<'_>, dir: Ino, op: impl FnOnce(Ino) -> Result<()>) -> Result<()> {
    if fs.limits().clones { on(fs, dir, "clone", op) } else { Ok(()) }
}

const OPS: &[Op] = &[
    ("create", |fs, d| make(fs, at(fs, d, "a"), "new", NewKind::File).map(drop)),
    ("mkdir", |fs, d| make(fs, at(fs, d, "a"), "new", NewKind::Dir).map(drop)),
    ("symlink", |fs, d| make(fs, d, "new", NewKind::Symlink(&[b'x'; 300])).map(drop)),
    ("create with a new block of the directory", |fs, d| {
        make(fs, at(fs, d, "b"), &"n".repeat(255), NewKind::File)?;
        (0..17).try_for_each(|i| {
            make(fs, at(fs, d, "b"), &format!("{i}{}", "m".repeat(230)), NewKind::File).map(drop)
        })
    }),
    ("link", |fs, d| {
        let small = at(fs, at(fs, d, "a"), "small");
        fs.link(small, at(fs, d, "b"), b"small too").map(|e| fs.forget(e.ino, 1))
    }),
    ("unlink", |fs, d| fs.unlink(at(fs, d, "a"), b"small")),
    ("unlink one of two", |fs, d| fs.unlink(at(fs, d, "a"), b"big")),
    ("rmdir", |fs, d| {
        make(fs, d, "c", NewKind::Dir)?;
        fs.rmdir(d, b"c")
    }),
    ("rename", |fs, d| {
        let a = at(fs, d, "a");
        rename(fs, (a, "small"), (a, "renamed"), RenameFlags::empty())
    }),
    ("rename to more than a line", |fs, d| {
        let a = at(fs, d, "a");
        rename(fs, (a, "small"), (a, &"s".repeat(70)), RenameFlags::empty())
    }),
    ("rename over what is in another line", |fs, d| {
        let a = at(fs, d, "a");
        make(fs, a, &"s".repeat(70), NewKind::File)?;
        rename(fs, (a, "small"), (a, &"s".repeat(70)), RenameFlags::empty())
    }),
    ("rename over", |fs, d| {
        let a = at(fs, d, "a");
        rename(fs, (a, "small"), (a, "big"), RenameFlags::empty())
    }),
    ("rename across", |fs, d| {
        rename(fs, (at(fs, d, "a"), "big"), (at(fs, d, "b"), "moved"), RenameFlags::empty())
    }),
    ("move a directory", |fs, d| rename(fs, (d, "a"), (at(fs, d, "b"), "a"), RenameFlags::empty())),
    ("exchange", |fs, d| {
        rename(fs, (at(fs, d, "a"), "small"), (at(fs, d, "b"), "big too"), RenameFlags::EXCHANGE)
    }),
    ("write a word", |fs, d| on(fs, d, "big", |f| fs.write(f, 4096, b"12345678"))),
    ("write in a line", |fs, d| on(fs, d, "big", |f| fs.write(f, 4100, &[8; 40]))),
    ("write in a block", |fs, d| on(fs, d, "big", |f| fs.write(f, 5000, &[1; 1000]))),
    ("write three blocks", |fs, d| on(fs, d, "big", |f| fs.write(f, 3000, &[2; 9000]))),
    ("write across the end", |fs, d| on(fs, d, "big", |f| fs.write(f, 19_000, &[3; 9000]))),
    ("append", |fs, d| on(fs, d, "small", |f| fs.append(f, &[4; 50]).map(drop))),
    ("append blocks", |fs, d| on(fs, d, "small", |f| fs.append(f, &[5; 70_000]).map(drop))),
    ("first write", |fs, d| on(fs, d, "empty", |f| fs.write(f, 0, &[6; 4096]))),
    ("write far out", |fs, d| on(fs, d, "small", |f| fs.write(f, 5 << 20, b"far"))),
    ("shrink", |fs, d| {
        on(fs, d, "big", |f| set(fs, f, SetAttr { size: Some(5000), ..SetAttr::default() }))
    }),
    ("grow", |fs, d| {
        on(fs, d, "big", |f| set(fs, f, SetAttr { size: Some(1 << 22), ..SetAttr::default() }))
    }),
    ("chmod and chown", |fs, d| {
        let both = SetAttr { perm: Some(0o640), uid: Some(7), ..SetAttr::default() };
        on(fs, d, "small", |f| set(fs, f, both))
    }),
    ("set an attribute", |fs, d| {
        on(fs, d, "small", |f| fs.setxattr(f, b"user.y", &[9; 3000], SetXattr::Any))
    }),
    ("remove an attribute", |fs, d| on(fs, d, "big", |f| fs.removexattr(f, b"user.x"))),
    ("punch", |fs, d| on(fs, d, "big", |f| fs.fallocate(f, Fallocate::PunchHole, 1000, 12_000))),
    ("write to a hole", |fs, d| on(fs, d, "sparse", |f| fs.write(f, 1 << 20, &[9; 5000]))),
    ("write what ends a hole", |fs, d| {
        on(fs, d, "sparse", |f| fs.write(f, FAR - 3000, &[9; 8000]))
    }),
    ("cut off what is behind a hole", |fs, d| {
        on(fs, d, "sparse", |f| set(fs, f, SetAttr { size: Some(100), ..SetAttr::default() }))
    }),
    ("cut off all", |fs, d| {
        on(fs, d, "sparse", |f| set(fs, f, SetAttr { size: Some(0), ..SetAttr::default() }))
    }),
    ("append behind a hole", |fs, d| on(fs, d, "sparse", |f| fs.append(f, &[5; 9000]).map(drop))),
    ("punch all", |fs, d| {
        on(fs, d, "sparse", |f| fs.fallocate(f, Fallocate::PunchHole, 0, FAR + 9000))
    }),
    ("collapse a hole", |fs, d| {
        on(fs, d, "sparse", |f| fs.fallocate(f, Fallocate::Collapse, 4096, 1 << 20))
    }),
    ("insert a hole", |fs, d| {
        on(fs, d, "sparse", |f| fs.fallocate(f, Fallocate::Insert, 4096, 1 << 20))
    }),
    ("allocate", |fs, d| {
        let all = Fallocate::Allocate { keep_size: false };
        on(fs, d, "small", |f| fs.fallocate(f, all, 0, 50_000))
    }),
    ("zero a range", |fs, d| {
        let some = Fallocate::ZeroRange { keep_size: false };
        on(fs, d, "big", |f| fs.fallocate(f, some, 1000, 30_000))
    }),
    ("copy a range", |fs, d| {
        let (small, big) = (at(fs, at(fs, d, "a"), "small"), at(fs, at(fs, d, "a"), "big"));
        fs.copy_range((big, 100), (small, 90), 9000).map(drop)
    }),
    ("clone", |fs, d| {
        let small = at(fs, at(fs, d, "a"), "small");
        on(fs, d, "big", |big| clone(fs, (big, 0), (small, 0), 0))
    }),
    ("clone a part", |fs, d| {
        let sparse = at(fs, at(fs, d, "a"), "sparse");
        on(fs, d, "big", |big| clone(fs, (big, 4096), (sparse, 1 << 20), 8192))
    }),
    ("write a word of a shared block", |fs, d| on_clone(fs, d, |f| fs.write(f, 4096, &[1; 8]))),
    ("write to shared blocks", |fs, d| on_clone(fs, d, |f| fs.write(f, 4000, &[8; 9000]))),
    ("append to a shared block", |fs, d| on_clone(fs, d, |f| fs.append(f, &[8; 50]).map(drop))),
    ("shrink a clone", |fs, d| {
        on_clone(fs, d, |f| set(fs, f, SetAttr { size: Some(5000), ..SetAttr::default() }))
    }),
    ("collapse a clone", |fs, d| {
        on_clone(fs, d, |f| fs.fallocate(f, Fallocate::Collapse, 4096, 8192))
    }),
    ("unlink a clone", |fs, d| match fs.limits().clones {
        true => fs.unlink(at(fs, d, "a"), b"clone"),
        false => Ok(()),
    }),
    ("collapse", |fs, d| on(fs, d, "big", |f| fs.fallocate(f, Fallocate::Collapse, 4096, 8192))),
    ("insert", |fs, d| on(fs, d, "big", |f| fs.fallocate(f, Fallocate::Insert, 4096, 8192))),
];

/// Removes everything in a directory.
fn clear(fs: &Pool<'_>, dir: Ino) {
    let mut names = Vec::new();
    let list = &mut |e: &vfs::DirEntry<'_>| {
        names.push((e.name.to_vec(), e.kind));
        true
    };
    fs.readdir(dir, 0, list).unwrap();
    for (name, kind) in names.into_iter().skip(2) {
        if kind == FileKind::Dir {
            clear(fs, fs.peek(dir, &name).unwrap().ino);
            fs.rmdir(dir, &name).unwrap();
        } else {
            fs.unlink(dir, &name).unwrap();
        }
    }
}

/// Runs `op` in a child that dies at its `point`th access. Returns whether the operation was
/// completed.
fn run_in_child(fs: &Pool<'_>, watch: &Mortal, dir: Ino, op: &Op, point: u64) -> bool {
    // SAFETY: the child calls the file system, which is made for that, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        watch.0.store(point, Relaxed);
        let done = (op.1)(fs, dir);
        // SAFETY: as in `Mortal::tick`.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{}: status {status:#x}", op.0);
    match libc::WEXITSTATUS(status) {
        0 => true,
        DIED => false,
        other => panic!("{}: the child failed ({other})", op.0),
    }
}

/// The tree below a directory, and the contents of some files, byte by byte.
#[derive(PartialEq, Eq)]
struct DeathsState {
    tree: Tree,
    contents: BTreeMap<&'static str, Vec<u8>>,
}

fn read(fs: &Pool<'_>, dir: Ino) -> DeathsState {
    let tree = tree::subtree(fs, dir).unwrap();
    let mut contents = BTreeMap::new();
    for name in ["empty", "small", "big", "sparse"] {
        let found = fs.peek(dir, b"a").and_then(|a| fs.peek(a.ino, name.as_bytes()));
        if let Ok(file) = found {
            let mut bytes = vec![0; file.size as usize];
            assert_eq!(fs.read(file.ino, 0, &mut bytes), Ok(bytes.len()));
            contents.insert(name, bytes);
        }
    }
    DeathsState { tree, contents }
}

/// Operations that change contents inside a file. If these are not atomic, a death in the middle
/// leaves the old or the new value of each byte.
const INSIDE: [&str; 10] = [
    "write to a hole",
    "write in a line",
    "write in a block",
    "write three blocks",
    "write across the end",
    "write what ends a hole",
    "copy a range",
    "punch",
    "punch all",
    "zero a range",
];

/// Returns whether a state lies between two others. It must have the tree of one of them, except
/// for contents, and each byte of the contents must have the value of one of them.
fn is_torn(before: &DeathsState, after: &DeathsState, now: &DeathsState) -> bool {
    let is = |other: &DeathsState| now.tree.without_content() == other.tree.without_content();
    let is_torn = |(name, bytes): (&&str, &Vec<u8>)| {
        let old = [before, after].map(|state| state.contents.get(name));
        bytes
            .iter()
            .enumerate()
            .all(|(i, byte)| old.iter().flatten().any(|old| old.get(i) == Some(byte)))
    };
    (is(before) || is(after)) && now.contents.iter().all(is_torn)
}

/// Tests the death of a child at each access of each operation.
pub fn at_every_access<E: Engine>() {
    let pool = PoolFile::new::<E>("deaths", 8 << 20);
    let region = open_shared(&pool.0);
    let place = place::<E>(&region).unwrap();
    let options = MountOptions { threads: Some(1), ..MountOptions::default() };
    let medium = Watched { region, watch: Mortal(AtomicU64::new(0)) };
    let fs = Fs::<E, Watched<Mortal>>::attach(medium, &place, &options).unwrap();
    let dir = make(&fs, ROOT, "dir", NewKind::Dir).unwrap();
    // Runs each operation once, so that it takes the space that it may keep for good: that of
    // directories and of the inode file.
    for op in OPS {
        furnish(&fs, dir).unwrap();
        (op.1)(&fs, dir).unwrap();
        clear(&fs, dir);
    }
    let idle = fs.statfs();

    let mut deaths = 0;
    for op in OPS {
        furnish(&fs, dir).unwrap();
        let before = read(&fs, dir);
        (op.1)(&fs, dir).unwrap();
        let after = read(&fs, dir);
        clear(&fs, dir);
        // These operations consist of several calls, so that each state between the calls is
        // correct, too.
        const SEVERAL: [&str; 3] = [
            "rmdir",
            "create with a new block of the directory",
            "rename over what is in another line",
        ];
        let single = !SEVERAL.contains(&op.0);
        let may_tear = INSIDE.contains(&op.0) && !has_atomic_contents::<E>();
        for point in 1.. {
            furnish(&fs, dir).unwrap();
            let completed = run_in_child(&fs, &fs.medium().watch, dir, op, point);
            let recoveries = fs.recoveries();
            fs.reap_processes().unwrap();
            let now = read(&fs, dir);
            if completed {
                assert_eq!(tree::diff(&after.tree, &now.tree), None, "{}, completed", op.0);
                clear(&fs, dir);
                break;
            }
            deaths += 1;
            assert_eq!(fs.recoveries(), recoveries + 1, "{}, access {point}", op.0);
            assert!(
                !single
                    || now == before
                    || now == after
                    || may_tear && is_torn(&before, &after, &now),
                "{}, access {point}:\nbefore: {:?}\nafter: {:?}",
                op.0,
                tree::diff(&before.tree, &now.tree),
                tree::diff(&after.tree, &now.tree),
            );
            // The operation can be done now, unless it was done.
            if now == before {
                (op.1)(&fs, dir).unwrap();
                assert_eq!(tree::diff(&after.tree, &read(&fs, dir).tree), None, "{}, again", op.0);
            }
            clear(&fs, dir);
            assert_eq!(fs.statfs(), idle, "{}, access {point}: something leaks", op.0);
        }
    }
    assert!(deaths > 300, "only {deaths} deaths");
    assert_eq!(fs.peek(ROOT, b"none").unwrap_err(), Errno::NOENT);
    eprintln!("{deaths} deaths");
}
