//! The calls, as data.

/// What a relative path starts from.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// The root of the tree: the path is absolute.
    Root,
    /// The working directory.
    Cwd,
    /// A descriptor of an earlier `Open`.
    Fd(usize),
}

/// A path and where it starts.
pub type AtPath = (At, String);

#[derive(Clone, Debug)]
pub enum Op {
    Open(AtPath, i32, u32),
    Close(usize),
    Dup(usize),
    Dup2(usize, usize),
    Read(usize, usize),
    Write(usize, usize, u8),
    Pread(usize, usize, i64),
    Pwrite(usize, usize, u8, i64),
    Readv(usize, [usize; 3]),
    Writev(usize, [usize; 3], u8),
    Pwritev2(usize, usize, u8, i64, i32),
    Lseek(usize, i64, i32),
    SeekData(usize, i64, bool),
    Ftruncate(usize, i64),
    Truncate(AtPath, i64),
    Fallocate(usize, i32, i64, i64),
    Fsync(usize),
    Getfl(usize),
    Setfl(usize, i32),
    Fstat(usize),
    Stat(AtPath, i32),
    Access(AtPath, i32, i32),
    Chmod(AtPath, u32, i32),
    Fchmod(usize, u32),
    Chown(AtPath, u32, u32, i32),
    Fchown(usize, u32, u32),
    Utimens(AtPath, Option<[(i64, i64); 2]>, i32),
    Futimens(usize, Option<[(i64, i64); 2]>),
    Mkdir(AtPath, u32),
    Mknod(AtPath, u32, u64),
    Symlink(String, AtPath),
    Readlink(AtPath, usize),
    Link(AtPath, AtPath, i32),
    Unlink(AtPath, i32),
    Rename(AtPath, AtPath, u32),
    List(usize),
    Chdir(AtPath),
    Fchdir(usize),
    Getcwd,
    Getxattr(AtPath, String, usize),
    Setxattr(AtPath, String, Vec<u8>, i32),
    Fsetxattr(usize, String, Vec<u8>, i32),
    Listxattr(AtPath),
    Removexattr(AtPath, String),
    CopyRange(usize, Option<i64>, usize, Option<i64>, usize),
    Sendfile(usize, usize, Option<i64>, usize),
    Umask(u32),
    /// Make the calls that follow as this user, whose group has the same number.
    Become(u32),
}

/// What a call returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(i64),
    Bytes(Vec<u8>),
    Stat { mode: u32, nlink: u64, uid: u32, gid: u32, rdev: u64, size: i64 },
    Names(Vec<(String, u8)>),
    Text(String),
}

pub type Outcome = Result<Value, posix::Errno>;
