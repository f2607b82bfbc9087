//! The functions of the C interface for names and attributes, for directories, and for the pool.

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;

use libc::{gid_t, mode_t, size_t, ssize_t, uid_t};
use library::{DirEntry, NamedTree, ReadDir};
use posix::{Errno, check_set_xattr, times_to_set};

use super::{PoolHandle, call, call_c, handle, path, to_stat};
use crate::memory;
use crate::serve::fail;

/// An open directory: `ks_dir`.
pub struct OpenDir {
    entries: ReadDir,
    /// The entry that the last call returned.
    last: Option<Box<libc::dirent>>,
}

fn to_dirent(entry: &DirEntry) -> libc::dirent {
    // SAFETY: plain numbers.
    let mut made: libc::dirent = unsafe { std::mem::zeroed() };
    made.d_ino = entry.ino();
    made.d_off = entry.cookie() as i64;
    made.d_reclen = size_of::<libc::dirent>() as u16;
    made.d_type = (entry.file_type().mode_bits() >> 12) as u8;
    // The last byte stays 0.
    for (to, byte) in made.d_name[..255].iter_mut().zip(entry.file_name().as_bytes()) {
        *to = *byte as c_char;
    }
    made
}

/// Copies a value of which the caller asks the length with a size of 0. `ERANGE` if it does not
/// fit.
fn copy_out(value: &[u8], to: *mut c_void, size: size_t) -> Result<usize, Errno> {
    match size {
        0 => {}
        _ if size < value.len() => return Err(Errno::RANGE),
        _ => memory::writable(to, value.len())?
            .get_mut(..value.len())
            .ok_or(Errno::FAULT)?
            .copy_from_slice(value),
    }
    Ok(value.len())
}

/// The flag of `ks_branch_commit` by which the pool gets the state of the branch where both have
/// changed.
const KS_FORCE: c_int = 1;

/// Reads the name of a snapshot or branch. `EINVAL` if it is no text.
fn tree_name<'a>(name: *const c_char) -> Result<&'a str, Errno> {
    str::from_utf8(memory::string(name)?).map_err(|_| Errno::INVAL)
}

/// Copies names, each with a byte 0 behind it, as [`copy_out`].
fn copy_names(trees: &[NamedTree], list: *mut c_char, size: size_t) -> Result<usize, Errno> {
    let mut names = Vec::new();
    for tree in trees {
        names.extend_from_slice(tree.name().as_bytes());
        names.push(0);
    }
    copy_out(&names, list.cast(), size)
}

export_versioned! {
    fn ks_sync (pool: PoolHandle) -> c_int {
        call_c(|| (*pool).sync())
    }

    fn ks_statvfs (pool: PoolHandle, buf: *mut libc::statvfs) -> c_int {
        let pool = &*pool;
        call_c(|| {
            let space = pool.space();
            let mut made: libc::statvfs = std::mem::zeroed();
            made.f_bsize = space.block_size().into();
            made.f_frsize = made.f_bsize;
            let blocks = |bytes: u64| bytes / u64::from(space.block_size());
            (made.f_blocks, made.f_bfree) = (blocks(space.total()), blocks(space.free()));
            made.f_bavail = blocks(space.available());
            (made.f_files, made.f_ffree) = (space.inodes(), space.inodes_free());
            made.f_favail = made.f_ffree;
            made.f_namemax = pool.name_max() as u64;
            Ok(memory::store(buf, made)?)
        })
    }

    fn ks_stat (pool: PoolHandle, at: *const c_char, buf: *mut libc::stat) -> c_int {
        call_c(|| Ok(memory::store(buf, to_stat(&(*pool).metadata(path(at)?)?))?))
    }

    fn ks_lstat (pool: PoolHandle, at: *const c_char, buf: *mut libc::stat) -> c_int {
        call_c(|| Ok(memory::store(buf, to_stat(&(*pool).symlink_metadata(path(at)?)?))?))
    }

    fn ks_mkdir (pool: PoolHandle, at: *const c_char, mode: mode_t) -> c_int {
        call_c(|| (*pool).create_dir(path(at)?, mode))
    }

    fn ks_unlink (pool: PoolHandle, at: *const c_char) -> c_int {
        call_c(|| (*pool).remove_file(path(at)?))
    }

    fn ks_rmdir (pool: PoolHandle, at: *const c_char) -> c_int {
        call_c(|| (*pool).remove_dir(path(at)?))
    }

    fn ks_rename (pool: PoolHandle, from: *const c_char, to: *const c_char) -> c_int {
        call_c(|| (*pool).rename(path(from)?, path(to)?))
    }

    fn ks_clone (pool: PoolHandle, from: *const c_char, to: *const c_char) -> c_int {
        call_c(|| (*pool).clone_tree(path(from)?, path(to)?))
    }

    fn ks_link (pool: PoolHandle, from: *const c_char, to: *const c_char) -> c_int {
        call_c(|| (*pool).hard_link(path(from)?, path(to)?))
    }

    fn ks_symlink (pool: PoolHandle, target: *const c_char, at: *const c_char) -> c_int {
        call_c(|| (*pool).symlink(path(target)?, path(at)?))
    }

    fn ks_readlink (
        pool: PoolHandle, at: *const c_char, buf: *mut c_char, size: size_t
    ) -> ssize_t {
        call_c(|| {
            let target = (*pool).read_link(path(at)?)?;
            let target = target.as_os_str().as_bytes();
            let len = target.len().min(size);
            if len == 0 {
                return Err(Errno::INVAL.into());
            }
            Ok(copy_out(&target[..len], buf.cast(), len)?)
        })
    }

    fn ks_chmod (pool: PoolHandle, at: *const c_char, mode: mode_t) -> c_int {
        call_c(|| (*pool).set_permissions(path(at)?, mode))
    }

    fn ks_chown (pool: PoolHandle, at: *const c_char, owner: uid_t, group: gid_t) -> c_int {
        // -1 leaves an ID as it is.
        let id = |id: u32| Some(id).filter(|id| *id != u32::MAX);
        call_c(|| (*pool).set_owner(path(at)?, id(owner), id(group)))
    }

    fn ks_utimens (
        pool: PoolHandle, at: *const c_char, times: *const [libc::timespec; 2]
    ) -> c_int {
        call_c(|| {
            let [atime, mtime] = times_to_set(memory::load_optional(times)?)?;
            (*pool).set_times_to(path(at)?, atime, mtime)
        })
    }

    fn ks_getxattr (
        pool: PoolHandle, at: *const c_char, name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t {
        call_c(|| {
            let found = (*pool).xattr(path(at)?, path(name)?)?.ok_or(Errno::NODATA)?;
            Ok(copy_out(&found, value, size)?)
        })
    }

    fn ks_setxattr (
        pool: PoolHandle, at: *const c_char, name: *const c_char, value: *const c_void,
        size: size_t, flags: c_int
    ) -> c_int {
        call_c(|| {
            let (at, name) = (path(at)?, memory::string(name)?);
            let value = memory::readable_whole(value, size)?;
            let condition = check_set_xattr(name, value, flags)?;
            (*pool).set_xattr_if(at, name, value, condition)
        })
    }

    fn ks_listxattr (
        pool: PoolHandle, at: *const c_char, list: *mut c_char, size: size_t
    ) -> ssize_t {
        call_c(|| {
            let mut names = Vec::new();
            for name in (*pool).list_xattrs(path(at)?)? {
                names.extend_from_slice(name.as_bytes());
                names.push(0);
            }
            Ok(copy_out(&names, list.cast(), size)?)
        })
    }

    fn ks_removexattr (pool: PoolHandle, at: *const c_char, name: *const c_char) -> c_int {
        call_c(|| (*pool).remove_xattr(path(at)?, path(name)?))
    }

    fn ks_snapshot_create (pool: PoolHandle, name: *const c_char) -> c_int {
        call_c(|| (*pool).create_snapshot(tree_name(name)?))
    }

    fn ks_snapshot_delete (pool: PoolHandle, name: *const c_char) -> c_int {
        call_c(|| (*pool).delete_snapshot(tree_name(name)?))
    }

    fn ks_snapshot_rollback (pool: PoolHandle, name: *const c_char) -> c_int {
        call_c(|| (*pool).roll_back(tree_name(name)?))
    }

    fn ks_snapshot_list (pool: PoolHandle, list: *mut c_char, size: size_t) -> ssize_t {
        call_c(|| Ok(copy_names(&(*pool).snapshots()?, list, size)?))
    }

    fn ks_branch_create (pool: PoolHandle, name: *const c_char) -> c_int {
        call_c(|| (*pool).create_branch(tree_name(name)?))
    }

    fn ks_branch_commit (
        pool: PoolHandle, name: *const c_char, flags: c_int, paths: *mut c_char, size: size_t
    ) -> ssize_t {
        call_c(|| {
            if flags & !KS_FORCE != 0 {
                return Err(Errno::INVAL.into());
            }
            let done = (*pool).commit_branch(tree_name(name)?, flags & KS_FORCE != 0)?;
            let mut list = Vec::new();
            if !done.is_done() {
                for path in done.conflicts() {
                    list.extend_from_slice(path.as_os_str().as_bytes());
                    list.push(0);
                }
            }
            // Nothing has changed, so that what does not fit is no error.
            let fits = list.len().min(size);
            if fits > 0 {
                copy_out(&list[..fits], paths.cast(), fits)?;
            }
            Ok(list.len())
        })
    }

    fn ks_branch_discard (pool: PoolHandle, name: *const c_char) -> c_int {
        call_c(|| (*pool).discard_branch(tree_name(name)?))
    }

    fn ks_branch_list (pool: PoolHandle, list: *mut c_char, size: size_t) -> ssize_t {
        call_c(|| Ok(copy_names(&(*pool).branches()?, list, size)?))
    }

    fn ks_opendir (pool: PoolHandle, at: *const c_char) -> *mut OpenDir {
        handle(call(|| {
            let entries = (*pool).read_dir(path(at)?)?.with_dots();
            Ok(OpenDir { entries, last: None })
        }))
    }

    fn ks_readdir (dir: *mut OpenDir) -> *const libc::dirent {
        let dir = &mut *dir;
        match call(|| dir.entries.next().transpose()) {
            Ok(entry) => {
                dir.last = entry.as_ref().map(to_dirent).map(Box::new);
                dir.last.as_deref().map_or(std::ptr::null(), std::ptr::from_ref)
            }
            Err(err) => {
                fail::<()>(err);
                std::ptr::null()
            }
        }
    }

    fn ks_closedir (dir: *mut OpenDir) -> c_int {
        call_c(|| {
            drop(Box::from_raw(dir));
            Ok(())
        })
    }

    fn ks_strerror (errnum: c_int) -> *const c_char {
        let text = match Errno::from_raw_os_error(errnum) {
            Errno::INVAL => c"no pool, or an invalid argument",
            Errno::UCLEAN => c"the pool is damaged; `keepstone check` names the faults",
            Errno::BUSY => c"a mount has the pool for itself, or a program without the library has the file open",
            Errno::OPNOTSUPP => c"the pool, its layout or the place of the bytes does not allow this",
            Errno::IO => c"the memory of the pool has failed, or was cut off",
            _ => return libc::strerror(errnum),
        };
        text.as_ptr()
    }
}
