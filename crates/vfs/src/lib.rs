//! The contract between storage engines and front ends.
//!
//! An engine (`bpfs`, later `scmfs` and `pmcache`) implements [`FileSystem`]; a front end (`fuse`,
//! later `posix`) translates requests into its calls and results into replies. Both sides speak
//! inode numbers, byte names and [`Errno`]; neither knows the other.
//!
//! What the contract promises:
//!
//! - **C1** Every call is atomic with respect to every other call.
//! - **C2** A call that fails leaves the tree as it was.
//! - **C3** Access permission is the front end's business (the kernel checks it for the mount under
//!   `default_permissions`); the [`Caller`] says who owns what the call creates.
//! - **C4** An inode lives while a name or a reference holds it: calls that return an [`Entry`]
//!   add one reference for the caller, [`FileSystem::forget`] gives references back.
//!
//! [`model`] is the executable specification, [`conformance`] the suite that compares any
//! implementation with it, [`acl`] the POSIX.1e arithmetic and [`rules`] the small rules that every
//! engine needs.

pub mod acl;
pub mod rules;
mod types;

pub use rustix::io::Errno;
pub use types::*;

/// Result of every call of the contract.
pub type Result<T> = std::result::Result<T, Errno>;

/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Largest size of a file, in bytes: 2^48 (a tree of height 4, BPFS §3.1).
pub const FILE_SIZE_MAX: u64 = 1 << 48;
/// Most names one inode can have.
pub const LINK_MAX: u32 = 65_000;
/// Longest value of an extended attribute, in bytes (the kernel's `XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: usize = 65_536;
/// Longest list of attribute names `listxattr` can return, in bytes (the kernel's limit).
pub const XATTR_LIST_MAX: usize = 65_536;

/// A file system as its front ends see it.
///
/// Names are single components without `/` or NUL; `.` and `..` are refused with `EINVAL` by calls
/// that create or remove, and resolved by [`lookup`](Self::lookup). A name longer than [`NAME_MAX`]
/// gives `ENAMETOOLONG`; an unknown inode gives `ESTALE`; a non-directory where a directory is
/// needed gives `ENOTDIR`; corruption gives `EUCLEAN` or `EIO`; a read-only mount gives `EROFS` to
/// every call that changes something.
pub trait FileSystem: Send + Sync {
    /// The inode of the root directory. It needs no reference.
    fn root(&self) -> Ino;

    /// Finds `name` in `dir`. `.` gives `dir`, `..` its parent (the root is its own parent).
    /// Adds a reference. `ENOENT` where there is no such name.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Gives back `refs` references. An inode with no name and no reference is freed.
    fn forget(&self, ino: Ino, refs: u64);

    /// The attributes of `ino`.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes the given attributes in one atomic step (times excepted, BPFS §3.6) and returns the
    /// new ones. `size` on a directory gives `EISDIR`, on other non-files `EINVAL`, above
    /// [`FILE_SIZE_MAX`] `EFBIG`. A change of `mode` rewrites the mask of an access ACL; a change of
    /// owner clears set-user-ID and (where group-executable) set-group-ID of non-directories, and
    /// `security.capability`.
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Creates `name` in `dir`. In a directory with set-group-ID the group is the directory's (and
    /// a new directory gets the bit). Where `dir` has a default ACL it takes the place of
    /// `node.umask`. Adds a reference. `EEXIST` where the name is taken. `ENAMETOOLONG` for a
    /// symlink target longer than [`SYMLINK_MAX`], `ENOENT` for an empty one.
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry>;

    /// Creates a regular file without a name (`O_TMPFILE`); it lives while the returned reference
    /// does, or until [`link`](Self::link) names it.
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry>;

    /// The target of a symbolic link. `EINVAL` for anything else.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Removes the name of a non-directory. `EISDIR` for a directory.
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. `ENOTEMPTY`, `ENOTDIR`; `EINVAL` for `.`, `ENOTEMPTY` for `..`.
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Gives `ino` another name. Adds a reference. `EPERM` for a directory, `EMLINK` beyond
    /// [`LINK_MAX`], `EEXIST`; `ENOENT` for an inode whose last name is gone, unless it came from
    /// [`tmpfile`](Self::tmpfile) and was never named.
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Moves `from` to `to`, replacing what stands there (`rename(2)`, `renameat2(2)`). Two names of
    /// one inode: nothing happens. `EINVAL` for a directory moved below itself, or both flags;
    /// `EISDIR`, `ENOTDIR`, `ENOTEMPTY` as in POSIX.
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()>;

    /// Lists `dir` from `cookie` (0: the start) by calling `emit` until it returns `false`; `.` and
    /// `..` come first. Entries that stay are listed exactly once. `emit` must not call the file
    /// system. The entry's `cookie` continues after it.
    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Reads at `offset`; returns how many bytes (short only at the end of the file). `EISDIR` for a
    /// directory, `EINVAL` for other non-files.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at `offset`, atomically, or nothing. Durable on return where the medium
    /// is. `EFBIG` beyond [`FILE_SIZE_MAX`], `ENOSPC`.
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;

    /// Writes `data` at the end of the file, atomically; returns the offset it got.
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64>;

    /// Clears set-user-ID, set-group-ID (where group-executable) and `security.capability`, as a
    /// write by an unprivileged process must.
    fn drop_privileges(&self, ino: Ino) -> Result<()>;

    /// Allocates, frees or shifts a range (`fallocate(2)`, with its errors and alignments: collapse
    /// and insert want multiples of the block size, 4096).
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()>;

    /// The first data or hole at or after `offset`. `ENXIO` at or beyond the end of the file, or
    /// where no data follows. The end of the file is a hole. Granularity is the engine's choice.
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64>;

    /// Copies up to `len` bytes between files (or within one: overlap gives `EINVAL`); returns how
    /// many. The copy is atomic; it shares no blocks.
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64>;

    /// Makes everything completed on `ino` durable. Engines whose operations are durable on return
    /// have nothing to do.
    fn fsync(&self, ino: Ino) -> Result<()>;

    /// The value of an extended attribute. `ENODATA` where there is none.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. Names start with `user.`, `trusted.`, `security.`,
    /// `system.posix_acl_access` or `system.posix_acl_default` (else `EOPNOTSUPP`); `user.` only on
    /// files and directories (`EPERM`). An access ACL also sets the permission bits; one that says
    /// no more than the bits is not stored. `E2BIG`/`ERANGE` as in `setxattr(2)`.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()>;

    /// The names of all extended attributes.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute. `ENODATA` where there is none.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Space and inodes, total and free.
    fn statfs(&self) -> StatFs;
}
