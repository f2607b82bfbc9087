//! Listings, and the working directory.

use crate::creds::Access;
use crate::family::{CWD, OfdInit};
use crate::process::{OfdRef, Process};
use crate::served::{Call, Stop};
use crate::walk::Held;
use crate::{Errno, Served};
use std::sync::atomic::Ordering::*;
use vfs::FileKind;

/// One entry of a directory, for `readdir`.
#[derive(Clone, Copy, Debug)]
pub struct DirItem<'a> {
    /// Inode number.
    pub ino: u64,
    /// Where a listing continues after this entry (`d_off`).
    pub offset: i64,
    /// `DT_*`.
    pub kind: u8,
    /// Name, without NUL.
    pub name: &'a [u8],
}

impl Process {
    /// Lists from the description's offset, which follows the entries taken, until `emit` returns
    /// `false` (that entry is listed again) or the end. Returns whether the end was reached. `emit`
    /// must not call the process layer. `ENOTDIR`; `ENOENT` for a directory that was removed.
    pub fn getdents(&self, fd: i32, emit: &mut dyn FnMut(&DirItem<'_>) -> bool) -> Served<bool> {
        let mut call = || {
            let ofd = self.get_open(fd)?;
            if ofd.kind() != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            let offset = ofd.lock_offset()?;
            let mut at = offset.get()?;
            let mut ended = true;
            ofd.fs().readdir(ofd.ino(), at, &mut |entry| {
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
            })?;
            offset.set(at)?;
            Ok(ended)
        };
        Call::into(call())
    }

    /// `chdir`. The kernel's working directory changes, too, so that libc's own paths agree. After
    /// an answer of `Kernel`, and success there, [`left_pool`](Self::left_pool) must be called.
    pub fn chdir(&self, path: &[u8]) -> Served<()> {
        let call = || {
            let held = self.find(libc::AT_FDCWD, path, 0)?;
            self.change_to(held, || self.kernel.chdir(path).map_err(Stop::from))
        };
        Call::into(call())
    }

    /// `fchdir`; as [`chdir`](Self::chdir).
    pub fn fchdir(&self, fd: i32) -> Served<()> {
        let call = || {
            let ofd = self.get(fd)?;
            if ofd.kind() != FileKind::Dir {
                return Err(Errno::NOTDIR.into());
            }
            let path = self.path_to(&ofd)?;
            let held = Held::description(self, ofd);
            self.change_to(held, || self.kernel.chdir(&path).map_err(Stop::from))
        };
        Call::into(call())
    }

    /// To be called after the kernel's `chdir` or `fchdir` succeeded where the answer here was
    /// `Kernel`: the working directory is elsewhere now.
    pub fn left_pool(&self) {
        // cwd-L1: before the description, without which prefixes are asked.
        self.cwd.forget();
        self.set_cwd(None);
    }

    /// Takes a directory for the working directory, if this user may make it that and `by_kernel` says that the kernel
    /// is there, too.
    pub(crate) fn change_to(
        &self,
        held: Held<'_>,
        by_kernel: impl FnOnce() -> Call<()>,
    ) -> Call<()> {
        if held.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        held.check(&self.identity().effective, Access::EXEC)?;
        let init = OfdInit {
            mount: held.mount_index as u32,
            ino: held.ino,
            generation: held.attr()?.generation,
            kind: FileKind::Dir,
            flags: libc::O_PATH | libc::O_DIRECTORY,
            state: CWD,
        };
        by_kernel()?;
        self.cwd.entered_pool();
        held.into_reference()?;
        let described = self.describe(&init).inspect_err(|_| {
            self.mount(init.mount as usize).attached().fs.forget(init.ino, 1);
        });
        // Without a description, relative paths are the kernel's.
        self.set_cwd(described.ok());
        Ok(())
    }

    /// The working directory is this description now, whose hold it takes over.
    pub(crate) fn set_cwd(&self, ofd: Option<OfdRef<'_>>) {
        let handle = ofd.as_ref().map_or(0, |ofd| ofd.handle);
        std::mem::forget(ofd);
        let old = self.place().segment().cwd.swap(handle, AcqRel);
        if old != 0 {
            self.put(old);
        }
    }

    /// `getcwd`: writes the path, without NUL; returns its length. `ERANGE` where it and a NUL do not
    /// fit; `ENOENT` where the directory was removed.
    pub fn getcwd(&self, buf: &mut [u8]) -> Served<usize> {
        let mut call = || {
            let path = match self.cwd() {
                Ok(ofd) => self.path_of(ofd.mount_index(), ofd.ino())?,
                Err(Stop::Kernel) => self.path_of_kernels()?,
                Err(stop) => return Err(stop),
            };
            if path.len() >= buf.len() {
                return Err(Errno::RANGE.into());
            }
            buf[..path.len()].copy_from_slice(&path);
            Ok(path.len())
        };
        Call::into(call())
    }
}
