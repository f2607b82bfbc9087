//! The contract between storage engines and front ends.
//!
//! An engine (`bpfs`, `scmfs`), or a cache over one (`pmcache`), implements [`FileSystem`]; a front
//! end (`fuse`, `posix`) translates requests into its calls and results into replies. Both sides
//! speak inode numbers, byte names and [`Errno`]; neither knows the other.
//!
//! The contract promises:
//!
//! - **vfs-C1** Every call is atomic with respect to every other call.
//! - **vfs-C2** A call that fails leaves the tree as it was.
//! - **vfs-C3** Access permission is the front end's business (the kernel checks it for the mount
//!   under `default_permissions`); the [`Caller`] gives the owner of the inode that a call creates.
//! - **vfs-C4** An inode lives while a name or a reference holds it: calls that return an [`Entry`]
//!   add one reference for the caller, [`FileSystem::forget`] gives references back.
//! - **vfs-C5** A call that changes the content or the size of a file removes its
//!   `security.capability`. It does so for every caller, and even if the new content equals the
//!   old. The removal is a step of its own, durable before the content changes. It stays if the
//!   change then fails for want of space.
//! - **vfs-C6** The work of a call survives a crash as [`FileSystem::durability`] states. Front
//!   ends act on it. If a program asks for durable writes (`O_SYNC`, `RWF_DSYNC`, `syncfs`, …) and
//!   the call alone does not suffice, they call [`FileSystem::fsync`] or [`FileSystem::sync`]. If
//!   the engine makes writes durable before that, no cache above it holds them back.
//!
//! [`model`] is the executable specification. `conformance` (a cargo feature of this name) is the
//! suite that compares any implementation with it; `script` (also a feature) represents operations
//! as lines of text. [`path`] walks paths, [`clone_tree()`] clones trees, [`tree`] reads a whole
//! file system into a value that can be compared, and [`forward!`] puts one file system over
//! another. [`access`] marks reads that must not move access times, [`acl`] is the POSIX.1e
//! arithmetic, and [`Limits`] and [`rules`] are the small rules that every engine needs.

#![forbid(unsafe_code)]

pub mod access;
pub mod acl;
mod backed;
mod clone_tree;
#[cfg(feature = "conformance")]
pub mod conformance;
mod forward;
mod limits;
mod loader;
mod mappings;
pub mod model;
mod openings;
pub mod path;
pub mod rules;
#[cfg(feature = "script")]
pub mod script;
pub mod tree;
mod types;

pub use backed::{ABSENT, Backed, DirtyCount, IDENTITY_MAX, LoadedObject, Residence, WaitingCalls};
pub use clone_tree::{
    Cloned, Progress, Share, TreeCopy, clone_tree, is_below, names_in, remove_tree, temporary_name,
    unique_number,
};
pub use limits::{CLONE_UNIT, Limits, XATTR_NAME_MAX};
pub use loader::{COMMANDS, DATA, Loader, Need, load_for};
pub use mappings::Mappings;
pub use openings::Openings;
pub use rustix::io::Errno;
pub use types::*;

/// Result of every call of the contract.
pub type Result<T> = std::result::Result<T, Errno>;

/// A file system as its front ends use it.
///
/// Names are single components without `/` or NUL. Calls that create or remove refuse `.` and `..`
/// with `EINVAL`; [`lookup`](Self::lookup) resolves them. Anything larger than the file system's
/// [`limits`](Self::limits) is refused, a longer name with `ENAMETOOLONG`. An unknown inode gives
/// `ESTALE`; a non-directory where a directory is needed gives `ENOTDIR`; corruption gives
/// `EUCLEAN` or `EIO`. A read-only mount gives `EROFS` to every call that changes something.
///
/// If several errors apply, the first in this order is given: unknown inodes; inodes of the wrong
/// kind; names; other arguments; names that exist, do not exist or no longer may (`EEXIST`,
/// `ENOENT`, `ENOTEMPTY`, …); limits; space. Calls with two inodes or names check the directory
/// before the inode to be linked, and `from` before `to`.
///
/// A removed directory that is still referenced has no parent and takes no names: creating in it,
/// listing it and looking up `..` give `ENOENT`; its link count is 0.
///
/// Times: a change of the content of a file or directory sets its `mtime` and `ctime`. Any other
/// change of an inode (links included, and for `rename` the inode moved) sets `ctime`. `read` need
/// not set `atime`. A call that changes nothing (an empty write, a rename between two names of one
/// inode, an empty [`SetAttr`]) sets none.
pub trait FileSystem: Mappings + Openings + Send + Sync {
    /// Returns the inode of the root directory. It needs no reference.
    fn root(&self) -> Ino;

    /// Returns the call after which a change is durable (vfs-C6): the call itself, or `fsync`. It
    /// stays the same while the file system is mounted.
    fn durability(&self) -> Durability;

    /// Returns the data of this file system that the kernel may cache.
    fn kernel_cache(&self) -> KernelCache;

    /// Returns the largest sizes and counts that the file system supports. They stay the same while
    /// it lives and do not exceed [`Limits::MAX`].
    fn limits(&self) -> &'static Limits;

    /// Finds `name` in `dir`. `.` gives `dir`, which need not be a directory then (the kernel finds
    /// inodes by handle that way); `..` gives its parent (the root is its own parent). Adds a
    /// reference. `ENOENT` if there is no such name.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// As [`lookup`](Self::lookup), but stores the attributes into `entry`: copying them costs a
    /// good part of a short call. After an error `entry` is undefined.
    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        *entry = self.lookup(dir, name)?;
        Ok(())
    }

    /// Returns the attributes of the inode that `name` leads to, as [`lookup`](Self::lookup) does,
    /// but without a reference. `btime`, which few callers need, may be missing: 0.
    fn peek(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let mut attr = Attr::NONE;
        self.peek_into(dir, name, &mut attr)?;
        Ok(attr)
    }

    /// As [`peek`](Self::peek), but stores the attributes into `attr`.
    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        self.lookup_into(dir, name, attr)?;
        self.forget(attr.ino, 1);
        Ok(())
    }

    /// Returns a number that changes with a directory's names, with any attribute of the inode
    /// except `atime`, and when the inode number is used for another inode. While it is equal, the
    /// results of earlier calls still hold. `None` during a change, and if the file system keeps no
    /// such number.
    fn version(&self, _ino: Ino) -> Option<u64> {
        None
    }

    /// Gives back `refs` references. An inode with no name and no reference is freed. References
    /// that were never given, and the root's, are ignored.
    fn forget(&self, ino: Ino, refs: u64);

    /// Returns the attributes of `ino`.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes the given attributes in one atomic step (times excepted, BPFS §3.6) and returns the
    /// new ones. `size` on a directory gives `EISDIR`, on other non-files `EINVAL`, above
    /// [`Limits::file_size`] `EFBIG`; `perm` on a symbolic link `EOPNOTSUPP`. A change of `perm`
    /// rewrites the mask of an access ACL. Giving an owner or group (even the same) clears
    /// set-user-ID, set-group-ID (if group-executable) of non-directories, and
    /// `security.capability`, before `perm` is applied. A size, even the same, sets `mtime`. The
    /// added part of a longer file reads as zeros.
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Creates `name` in `dir`. In a directory with set-group-ID the group is the directory's (and
    /// a new directory gets the bit, which it never takes from `node.mode`). A default ACL of `dir`
    /// takes the place of `node.umask`. The bits of a symbolic link are 0777 regardless of `node`
    /// and the ACL ([`rules::NewInode::derive`]). Adds a reference. `EEXIST` if the name is taken.
    /// `ENAMETOOLONG` for a target longer than [`Limits::symlink`], `ENOENT` for an empty one.
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry>;

    /// Creates a regular file without a name (`O_TMPFILE`); it lives while the returned reference
    /// does, or [`link`](Self::link) names it. It inherits from `dir` (which may be removed) as
    /// [`create`](Self::create) does.
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry>;

    /// Returns the target of a symbolic link. `EINVAL` for anything else.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Removes the name of a non-directory. `EISDIR` for a directory.
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. `ENOTEMPTY`, `ENOTDIR`; `EINVAL` for `.`, `ENOTEMPTY` for `..`.
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Gives `ino` another name. Adds a reference. `EPERM` for a directory, `EMLINK` beyond
    /// [`Limits::links`], `EEXIST`; `ENOENT` for an inode whose last name is gone, unless it came
    /// from [`tmpfile`](Self::tmpfile) and was never named.
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Moves `from` to `to`, replacing what `to` names (`rename(2)`, `renameat2(2)`). If both are
    /// names of one inode, nothing happens. `EINVAL` for a directory moved below itself, or for
    /// both flags; `EISDIR`, `ENOTDIR`, `ENOTEMPTY` as in POSIX. As in Linux the state is checked
    /// in this order: `from` must exist; `to` must or must not exist, as the flags require; `from`
    /// must not be above `to` (`EINVAL`), nor `to` above `from` (`ENOTEMPTY`, or `EINVAL` when
    /// exchanging); then the rest.
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()>;

    /// As [`rename`](Self::rename), but leaves a whiteout under the old name in the same atomic
    /// step (`RENAME_WHITEOUT`). The whiteout is a character device 0:0 without permission bits,
    /// owned by the caller and made as by [`create`](Self::create). An exchange leaves none:
    /// `EINVAL`. If nothing is renamed, no whiteout is left.
    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()>;

    /// Lists `dir` from `cookie` (0: the start) by calling `emit` until it returns `false`; `.` and
    /// `..` come first. Entries that stay are listed exactly once. `emit` must not call the file
    /// system. The entry's `cookie` continues after it.
    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Reads at `offset`; returns the number of bytes (short only at the end of the file). `EISDIR`
    /// for a directory, `EINVAL` for other non-files.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at `offset`, atomically, or nothing. If the medium is durable, the
    /// write is durable on return. `EISDIR` and `EINVAL` as [`read`](Self::read), `EFBIG` if the
    /// end is beyond [`Limits::file_size`], `ENOSPC`.
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;

    /// Writes `data` at the end of the file, atomically; returns the offset it got. Errors as
    /// [`write`](Self::write).
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64>;

    /// Clears set-user-ID, set-group-ID (if group-executable) and `security.capability`. Any change
    /// of owner must do this, and a front end before a write by an unprivileged process. (By vfs-C5
    /// a write removes the capability for every caller.) Directories keep theirs.
    fn drop_privileges(&self, ino: Ino) -> Result<()>;

    /// Allocates, frees or shifts a range of bytes (`fallocate(2)`). `EISDIR` for a directory,
    /// `ENODEV` for other non-files; `EINVAL` for an empty range; `EFBIG` if the range, or the file
    /// after an insertion, would reach beyond [`Limits::file_size`]. Collapse and insert give
    /// `EINVAL` unless both numbers are multiples of 4096. So does a collapse that reaches the end
    /// of the file, and an insertion at or beyond it. Sets `mtime` and `ctime`.
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()>;

    /// Returns the first data or hole at or after `offset`. `ENXIO` at or beyond the end of the
    /// file, or if no data follows. The end of the file is a hole. `EISDIR` and `EINVAL` as
    /// [`read`](Self::read). An engine may report zeros as data or as a hole, in multiples of 4096
    /// bytes. But a search for data never skips a nonzero byte. A hole that is found reads as zeros
    /// at least to the next multiple of 4096 or the end of the file.
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64>;

    /// Copies `len` bytes, or those up to the end of the source, between files (or within one:
    /// overlap gives `EINVAL`); returns how many. The copy is atomic; it may share blocks, and need
    /// not keep holes. `EISDIR` and `EINVAL` as [`read`](Self::read), `EFBIG` as
    /// [`write`](Self::write).
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64>;

    /// Makes the range at `to` have the content at `from` by sharing it, as one atomic step
    /// (`FICLONERANGE`): neither file sees later changes of the other. A `len` of 0 stands for the
    /// rest of the source; if that is empty, nothing changes. `to` grows if the range ends beyond
    /// its end. `EOPNOTSUPP` unless [`Limits::clones`]. `EISDIR` and `EINVAL` as
    /// [`read`](Self::read). `EINVAL` if an offset is no multiple of [`CLONE_UNIT`], if the source
    /// ends before the range, or if ranges of one file overlap. So does a `len` that is no
    /// multiple, unless the range ends with the source, and not before the end of `to`. `EFBIG` as
    /// [`write`](Self::write).
    fn clone_range(&self, _from: (Ino, u64), _to: (Ino, u64), _len: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Makes everything completed on `ino` durable, and the names that lead to it. `EIO` if the
    /// engine does not know that it is durable.
    fn fsync(&self, ino: Ino) -> Result<()>;

    /// Makes everything completed durable (`syncfs`). `EIO` as [`fsync`](Self::fsync).
    fn sync(&self) -> Result<()>;

    /// Makes everything durable. It is the last call that changes anything, and no other call runs
    /// at the same time. The engine may record in the storage that the file system was closed, for
    /// its next user. `EIO` as [`fsync`](Self::fsync).
    fn close(&self) -> Result<()> {
        self.sync()
    }

    /// Returns the value of an extended attribute. `ENODATA` if it does not exist.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. Names start with `user.`, `trusted.` or `security.`, or are
    /// `system.posix_acl_access` or `system.posix_acl_default` (else `EOPNOTSUPP`); `user.` only on
    /// files and directories (`EPERM`). All rules of names are in [`Limits::check_xattr`]. An
    /// access ACL also sets the permission bits; if the bits express all of it, it is not stored,
    /// and a stored one is removed. An invalid ACL gives `EINVAL` (`EOPNOTSUPP` for its version).
    /// `ENOSPC` if the list of names would outgrow [`Limits::xattr_list`].
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()>;

    /// Returns the names of all extended attributes.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute. `ENODATA` if it does not exist; names as in
    /// [`setxattr`](Self::setxattr). Removing an ACL leaves the permission bits as they are.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Returns space and inodes, total and free.
    fn statfs(&self) -> StatFs;
}
