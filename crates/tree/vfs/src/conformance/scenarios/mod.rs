//! One promise of the contract per function, each on a fresh file system.

mod attrs;
mod data;
mod life;
mod listing;
mod names;
mod ranges;
mod rename;
mod xattr;

use std::fmt::Debug;

use crate::{
    Attr, Caller, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, Result, SetAttr, SetTime,
    Timestamp,
};

/// A named scenario; it panics if the promise is broken.
pub type Scenario = (&'static str, fn(&dyn FileSystem));

/// Returns all scenarios. Each wants a fresh file system with room for about 32 MiB.
pub fn scenarios() -> Vec<Scenario> {
    [
        names::SCENARIOS,
        listing::SCENARIOS,
        rename::SCENARIOS,
        life::SCENARIOS,
        data::SCENARIOS,
        ranges::SCENARIOS,
        attrs::SCENARIOS,
        xattr::SCENARIOS,
    ]
    .concat()
}

/// Makes the table of a module's scenarios, each named `module::function`.
macro_rules! table {
    ($module:literal: $($name:ident),+ $(,)?) => {
        pub(super) const SCENARIOS: &[super::Scenario] =
            &[$((concat!($module, "::", stringify!($name)), $name)),+];
    };
}
use table;

/// A user without privileges.
const USER: Caller = Caller { uid: 1000, gid: 100 };
/// A time long ago, to recognise whether a call set another.
const OLD: Timestamp = Timestamp(1_000_000_000_000_000_007);

/// Creates `name` in `dir` as the superuser, without a umask.
fn make(fs: &dyn FileSystem, dir: Ino, name: &[u8], kind: NewKind<'_>) -> Ino {
    let mode = if matches!(kind, NewKind::Dir) { 0o755 } else { 0o644 };
    fs.create(&Caller::ROOT, dir, name, &NewNode { kind, mode, umask: 0 }).unwrap().ino
}

/// Creates an empty file in the root.
fn file(fs: &dyn FileSystem, name: &[u8]) -> Ino {
    make(fs, fs.root(), name, NewKind::File)
}

/// Creates a file with contents in the root.
fn file_with(fs: &dyn FileSystem, name: &[u8], data: &[u8]) -> Ino {
    let ino = file(fs, name);
    fs.write(ino, 0, data).unwrap();
    ino
}

/// Creates a directory in the root.
fn dir(fs: &dyn FileSystem, name: &[u8]) -> Ino {
    make(fs, fs.root(), name, NewKind::Dir)
}

/// Creates one inode of each kind except file and directory, in the root.
fn others(fs: &dyn FileSystem) -> Vec<Ino> {
    let kinds: [(&[u8], _); 5] = [
        (b"symlink", NewKind::Symlink(b"target")),
        (b"fifo", NewKind::Fifo),
        (b"socket", NewKind::Socket),
        (b"char", NewKind::Char(0x103)),
        (b"block", NewKind::Block(0x800)),
    ];
    kinds.into_iter().map(|(name, kind)| make(fs, fs.root(), name, kind)).collect()
}

/// Returns the inode that `name` stands for, without keeping the reference.
fn find(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> Result<Ino> {
    let entry = fs.lookup(dir, name)?;
    fs.forget(entry.ino, 1);
    Ok(entry.ino)
}

fn exists(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> bool {
    match find(fs, dir, name) {
        Ok(_) => true,
        Err(Errno::NOENT) => false,
        Err(other) => panic!("lookup of {}: {other}", name.escape_ascii()),
    }
}

/// Returns the names in `dir` except `.` and `..`, sorted.
fn names(fs: &dyn FileSystem, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    let mut names = names.split_off(2);
    names.sort();
    names
}

fn attr(fs: &dyn FileSystem, ino: Ino) -> Attr {
    fs.getattr(ino).unwrap()
}

/// Returns everything in a file.
fn contents(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let mut buf = vec![0xee; attr(fs, ino).size as usize + 1];
    let len = fs.read(ino, 0, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

/// Returns `len` nonzero bytes that identify their offset.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 251 + i) % 255) as u8 + 1).collect()
}

/// Compares bytes without printing them all.
#[track_caller]
fn assert_bytes(got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "length");
    if let Some(at) = (0..want.len()).find(|&i| got[i] != want[i]) {
        panic!("byte {at}: {:#x} instead of {:#x}", got[at], want[at]);
    }
}

#[track_caller]
fn fails<T: Debug>(result: Result<T>, errno: Errno) {
    match result {
        Err(got) => assert_eq!(got, errno, "wrong error"),
        Ok(value) => panic!("expected {errno:?}, got {value:?}"),
    }
}

fn setattr(fs: &dyn FileSystem, ino: Ino, set: SetAttr) -> Result<Attr> {
    fs.setattr(&Caller::ROOT, ino, &set)
}

fn chmod(fs: &dyn FileSystem, ino: Ino, perm: u32) {
    setattr(fs, ino, SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
}

fn truncate(fs: &dyn FileSystem, ino: Ino, size: u64) -> Result<Attr> {
    setattr(fs, ino, SetAttr { size: Some(size), ..SetAttr::default() })
}

/// Sets all times back to [`OLD`].
fn age(fs: &dyn FileSystem, ino: Ino) {
    let old = Some(SetTime::At(OLD));
    setattr(fs, ino, SetAttr { atime: old, mtime: old, ctime: Some(OLD), ..SetAttr::default() })
        .unwrap();
}

/// Returns whether `mtime` and `ctime` are newer than [`OLD`].
fn renewed(fs: &dyn FileSystem, ino: Ino) -> (bool, bool) {
    let attr = attr(fs, ino);
    (attr.mtime > OLD, attr.ctime > OLD)
}

/// Returns the kind of an inode, for messages.
fn kind(fs: &dyn FileSystem, ino: Ino) -> FileKind {
    attr(fs, ino).kind
}
