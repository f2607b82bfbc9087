//! Pools with a backing store: what is absent is loaded by the server of the mount.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use ::pool::Engine;
use os::syscalls::syscall;
use rustix::fs::{Mode, OFlags};
use vfs::{Backed, Errno, Ino, Loader, Mappings, Need, Openings, Result, StatFs};

/// A pool of a cache in a program. The server loads what a call needs; the program repeats the
/// call.
///
/// Requests go to the root directory of the mount, by a hidden descriptor. If that leads nowhere,
/// because the server died and the pool was attached again, they go to the mount point.
pub struct LoadedPool {
    pool: Arc<dyn Engine>,
    root: RawFd,
    dir: CString,
}

impl LoadedPool {
    /// Makes it, with a descriptor of the root directory that stays open.
    pub fn new(pool: Arc<dyn Engine>, root: RawFd, dir: CString) -> Self {
        Self { pool, root, dir }
    }
}

/// Opens the root directory of a mount.
///
/// # Errors
/// Those of `open`.
pub fn open_root(dir: &std::ffi::CStr) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty())
}

/// Sends a need; returns whether anything was loaded.
fn send(root: RawFd, need: &[u8; Need::LEN]) -> Result<bool> {
    let Ok(fd) = usize::try_from(root) else { return Err(Errno::BADF) };
    let argument = need.as_ptr().expose_provenance();
    // SAFETY: the kernel reads the number of bytes in the command.
    let sent = unsafe { syscall(libc::SYS_ioctl, [fd, Need::COMMAND as usize, argument, 0, 0]) };
    sent.map(|result| result != 0)
}

impl Loader for LoadedPool {
    type Pool = dyn Engine;

    fn pool(&self) -> &(dyn Engine + 'static) {
        &*self.pool
    }

    fn load(&self, need: &Need<'_>) -> Result<bool> {
        let need = need.to_bytes().ok_or(Errno::NAMETOOLONG)?;
        loop {
            let sent = match send(self.root, &need) {
                Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::NOTTY | Errno::BADF) => {
                    open_root(&self.dir).and_then(|root| send(root.as_raw_fd(), &need))
                }
                sent => sent,
            };
            match sent {
                // Signals are handled when the call returns.
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::NOMEM | Errno::ROFS | Errno::DQUOT | Errno::OVERFLOW) => {
                    return sent;
                }
                // Absent parts cannot be loaded now.
                Err(_) => return Err(Errno::IO),
                loaded => return loaded,
            }
        }
    }

    fn backed(&self) -> Option<&dyn Backed> {
        self.pool.backed()
    }

    fn space(&self) -> StatFs {
        let Ok(found) = rustix::fs::statvfs(&*self.dir) else { return self.pool.statfs() };
        StatFs {
            block_size: u32::try_from(found.f_frsize).unwrap_or(4096),
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            inodes: found.f_files,
            inodes_free: found.f_ffree,
        }
    }
}

impl Mappings for LoadedPool {}

impl Openings for LoadedPool {
    fn opened(&self, ino: Ino) {
        self.pool.opened(ino);
    }

    fn closed(&self, ino: Ino) {
        self.pool.closed(ino);
    }
}
