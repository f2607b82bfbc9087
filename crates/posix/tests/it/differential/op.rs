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
pub type Place = (At, String);

#[derive(Clone, Debug)]
pub enum Op {
    Open(Place, i32, u32),
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
    Truncate(Place, i64),
    Fallocate(usize, i32, i64, i64),
    Fsync(usize),
    Getfl(usize),
    Setfl(usize, i32),
    Fstat(usize),
    Stat(Place, i32),
    Access(Place, i32, i32),
    Chmod(Place, u32, i32),
    Fchmod(usize, u32),
    Chown(Place, u32, u32, i32),
    Fchown(usize, u32, u32),
    Utimens(Place, Option<[(i64, i64); 2]>, i32),
    Futimens(usize, Option<[(i64, i64); 2]>),
    Mkdir(Place, u32),
    Mknod(Place, u32, u64),
    Symlink(String, Place),
    Readlink(Place, usize),
    Link(Place, Place, i32),
    Unlink(Place, i32),
    Rename(Place, Place, u32),
    List(usize),
    Chdir(Place),
    Fchdir(usize),
    Getcwd,
    Getxattr(Place, String, usize),
    Setxattr(Place, String, Vec<u8>, i32),
    Fsetxattr(usize, String, Vec<u8>, i32),
    Listxattr(Place),
    Removexattr(Place, String),
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
