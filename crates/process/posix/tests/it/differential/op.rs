//! The calls, as data: lines of the grammar of [`vfs::script`], with words of their own.

use std::fmt;
use std::str::FromStr;
use vfs::script::{Octal, escape, unescape};

/// The start of a relative path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The root of the tree: the path is absolute.
    Root,
    /// The working directory.
    Cwd,
    /// A descriptor of an earlier `Open`.
    Fd(usize),
}

/// A path and where it starts: `/a` in the tree, `a` in the working directory, `%0/a` in the
/// directory of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtPath(pub At, pub String);

impl fmt::Display for AtPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(at, path) = self;
        match at {
            At::Cwd => return f.write_str(&escape(path.as_bytes())),
            At::Root => {}
            At::Fd(fd) => write!(f, "%{fd}")?,
        }
        f.write_str("/")?;
        if path.is_empty() { Ok(()) } else { f.write_str(&escape(path.as_bytes())) }
    }
}

impl FromStr for AtPath {
    type Err = NotOne;

    fn from_str(word: &str) -> Result<Self, NotOne> {
        let (at, path) = match (word.strip_prefix('/'), word.strip_prefix('%')) {
            (Some(path), _) => (At::Root, path),
            (_, Some(rest)) => {
                let (fd, path) = rest.split_once('/').ok_or(NotOne)?;
                (At::Fd(number(fd)?), path)
            }
            _ => (At::Cwd, word),
        };
        Ok(Self(at, path.parse::<Text>()?.0))
    }
}

/// Any text as one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(self.0.as_bytes()))
    }
}

impl FromStr for Text {
    type Err = NotOne;

    fn from_str(word: &str) -> Result<Self, NotOne> {
        String::from_utf8(unescape(word).into_owned()).map(Self).map_err(|_| NotOne)
    }
}

/// The lengths of the parts of a vector: `1,2,3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lens(pub [usize; 3]);

impl fmt::Display for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.0;
        write!(f, "{a},{b},{c}")
    }
}

impl FromStr for Lens {
    type Err = NotOne;

    fn from_str(word: &str) -> Result<Self, NotOne> {
        let lens: Vec<_> = word.split(',').map(number).collect::<Result<_, _>>()?;
        lens.try_into().map(Self).map_err(|_| NotOne)
    }
}

/// An offset, or `-`: that of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset(pub Option<i64>);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "{at}"),
            None => f.write_str("-"),
        }
    }
}

impl FromStr for Offset {
    type Err = NotOne;

    fn from_str(word: &str) -> Result<Self, NotOne> {
        if word == "-" { Ok(Self(None)) } else { number(word).map(|at| Self(Some(at))) }
    }
}

/// Times of access and change, seconds and nanoseconds each (`1:2,3:4`), or `-`: now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times(pub Option<[(i64, i64); 2]>);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some([(a, b), (c, d)]) = self.0 else { return f.write_str("-") };
        write!(f, "{a}:{b},{c}:{d}")
    }
}

impl FromStr for Times {
    type Err = NotOne;

    fn from_str(word: &str) -> Result<Self, NotOne> {
        if word == "-" {
            return Ok(Self(None));
        }
        let time = |time: &str| {
            let (s, ns) = time.split_once(':').ok_or(NotOne)?;
            Ok((number(s)?, number(ns)?))
        };
        let (access, change) = word.split_once(',').ok_or(NotOne)?;
        Ok(Self(Some([time(access)?, time(change)?])))
    }
}

/// The error of a word that does not parse.
#[derive(Debug)]
pub struct NotOne;

fn number<N: FromStr>(digits: &str) -> Result<N, NotOne> {
    digits.parse().map_err(|_| NotOne)
}

vfs::text_form! {
/// One call. A descriptor is the number of its slot. The bytes of a write come from a length and a
/// seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessOp {
    Open(place: AtPath, flags: Octal, mode: Octal) "open";
    Close(fd: usize) "close";
    Dup(fd: usize) "dup";
    Dup2(from: usize, to: usize) "dup2";
    Read(fd: usize, len: usize) "read";
    Write(fd: usize, len: usize, seed: u8) "write";
    Pread(fd: usize, len: usize, at: i64) "pread";
    Pwrite(fd: usize, len: usize, seed: u8, at: i64) "pwrite";
    Readv(fd: usize, lens: Lens) "readv";
    Writev(fd: usize, lens: Lens, seed: u8) "writev";
    Pwritev2(fd: usize, len: usize, seed: u8, at: i64, flags: i32) "pwritev2";
    Lseek(fd: usize, at: i64, whence: i32) "lseek";
    SeekData(fd: usize, at: i64) "seek-data";
    SeekHole(fd: usize, at: i64) "seek-hole";
    Ftruncate(fd: usize, len: i64) "ftruncate";
    Truncate(place: AtPath, len: i64) "truncate";
    Fallocate(fd: usize, mode: i32, at: i64, len: i64) "fallocate";
    Fsync(fd: usize) "fsync";
    Getfl(fd: usize) "getfl";
    Setfl(fd: usize, flags: Octal) "setfl";
    Fstat(fd: usize) "fstat";
    Stat(place: AtPath, flags: i32) "stat";
    Access(place: AtPath, mode: i32, flags: i32) "access";
    Chmod(place: AtPath, mode: Octal, flags: i32) "chmod";
    Fchmod(fd: usize, mode: Octal) "fchmod";
    Chown(place: AtPath, uid: u32, gid: u32, flags: i32) "chown";
    Fchown(fd: usize, uid: u32, gid: u32) "fchown";
    Utimens(place: AtPath, times: Times, flags: i32) "utimens";
    Futimens(fd: usize, times: Times) "futimens";
    Mkdir(place: AtPath, mode: Octal) "mkdir";
    Mknod(place: AtPath, mode: Octal, device: u64) "mknod";
    Symlink(target: Text, place: AtPath) "symlink";
    Readlink(place: AtPath, len: usize) "readlink";
    Link(from: AtPath, to: AtPath, flags: i32) "link";
    Unlink(place: AtPath, flags: i32) "unlink";
    Rename(from: AtPath, to: AtPath, flags: u32) "rename";
    List(fd: usize) "list";
    Chdir(place: AtPath) "chdir";
    Fchdir(fd: usize) "fchdir";
    Getcwd "getcwd";
    Getxattr(place: AtPath, name: Text, len: usize) "getxattr";
    Setxattr(place: AtPath, name: Text, len: usize, seed: u8, how: i32) "setxattr";
    Fsetxattr(fd: usize, name: Text, len: usize, seed: u8, how: i32) "fsetxattr";
    Listxattr(place: AtPath) "listxattr";
    Removexattr(place: AtPath, name: Text) "removexattr";
    CopyRange(from: usize, from_at: Offset, to: usize, to_at: Offset, len: usize) "copy-range";
    Sendfile(to: usize, from: usize, from_at: Offset, len: usize) "sendfile";
    Umask(mask: Octal) "umask";
    /// Makes the calls that follow as this user, whose group has the same number.
    Become(uid: u32) "become";
}
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(i64),
    Bytes(Vec<u8>),
    Stat { mode: u32, nlink: u64, uid: u32, gid: u32, rdev: u64, size: i64 },
    Names(Vec<(String, u8)>),
    Text(String),
}

pub type CallOutcome = Result<Value, posix::Errno>;
