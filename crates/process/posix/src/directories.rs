//! Listings of directories, and the calls on the working directory.

use crate::held::HeldInode;
use crate::names::Names;
use crate::served::{CallResult, CallStop};
use crate::{Errno, Served};
use std::sync::atomic::Ordering::Relaxed;
use vfs::FileKind;

/// One entry of a directory, for `readdir`.
#[derive(Clone, Copy, Debug)]
pub struct DirItem<'a> {
    /// Inode number.
    pub ino: u64,
    /// The offset at which a listing continues after this entry (`d_off`).
    pub offset: i64,
    /// `DT_*`.
    pub kind: u8,
    /// Name, without NUL.
    pub name: &'a [u8],
}

impl Names {
    /// Lists a directory from the description's offset on. Stops at the end, or when `emit` returns
    /// `false`; the entry that `emit` refused is listed again. The offset follows the entries
    /// taken. Returns whether the end was reached. `emit` must not call the process layer.
    /// `ENOTDIR`; `ENOENT` for a directory that was removed.
    pub fn getdents(&self, fd: i32, emit: &mut dyn FnMut(&DirItem<'_>) -> bool) -> Served<bool> {
        let mut call = || {
            let ofd = self.table().get_open(fd)?;
            if ofd.kind() != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            let offset = self.promotions().lock_offset(&ofd)?;
            let mut at = offset.get()?;
            let mut ended = true;
            let is_access = ofd.oflags() & libc::O_NOATIME == 0;
            let mut list = |entry: &vfs::DirEntry<'_>| {
                let item = DirItem {
                    ino: entry.ino.0,
                    offset: entry.cookie as i64,
                    kind: (entry.kind.mode_bits() >> 12) as u8,
                    name: entry.name,
                };
                let taken = emit(&item);
                if taken {
                    at = entry.cookie;
                } else {
                    ended = false;
                }
                taken
            };
            let (fs, dir, from) = (ofd.fs(), ofd.ino(), offset.get()?);
            match is_access {
                true => fs.readdir(dir, from, &mut list)?,
                false => vfs::access::unrecorded(|| fs.readdir(dir, from, &mut list))?,
            }
            offset.set(at)?;
            Ok(ended)
        };
        CallResult::into(call())
    }

    /// `chdir`. Changes the kernel's working directory, too, so that libc's own paths agree. If the
    /// answer is `Kernel`, and the call of the kernel succeeds, the caller must call `left_pool`.
    pub fn chdir(&self, path: &[u8]) -> Served<()> {
        let call = || {
            let held = self.paths().find(libc::AT_FDCWD, path, 0)?;
            self.working_dir()
                .change_to(held, || self.task().kernel.chdir(path).map_err(CallStop::from))
        };
        CallResult::into(call())
    }

    /// `fchdir`; as [`chdir`](Self::chdir).
    pub fn fchdir(&self, fd: i32) -> Served<()> {
        let call = || {
            let ofd = self.table().get(fd)?;
            if ofd.kind() != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            // The description stays as long as `held` does.
            let description = self.table().family.ofd(ofd.handle);
            let held = HeldInode::description(self.task(), ofd);
            self.working_dir().change_to(held, || {
                let table = self.table().lock_table();
                let change = |path: &[u8]| self.task().kernel.chdir(path);
                self.promotions().by_path(&table, description, change).map_err(CallStop::from)
            })
        };
        CallResult::into(call())
    }

    /// `getcwd`: writes the path, without NUL, and returns its length. `ERANGE` if it does not fit
    /// together with a NUL; `ENOENT` if the directory was removed.
    pub fn getcwd(&self, buf: &mut [u8]) -> Served<usize> {
        // After `chroot`, only the kernel knows whether the root leads there.
        if self.path_walk().foreign_namespace.load(Relaxed) {
            return Served::Kernel;
        }
        let mut call = || {
            let path = match self.working_dir().cwd() {
                Ok(ofd) => self.promotions().path_of(ofd.mount_index(), ofd.ino())?,
                Err(CallStop::Kernel) => self.working_dir().path_of_kernels()?,
                Err(stop) => return Err(stop),
            };
            if path.len() >= buf.len() {
                return Err(Errno::RANGE.into());
            }
            buf[..path.len()].copy_from_slice(&path);
            Ok(path.len())
        };
        CallResult::into(call())
    }
}
