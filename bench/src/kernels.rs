//! The kernel's file systems that engines are compared with, by system calls: those of the paper on
//! SCMFS (§4.1) and ext4.

use crate::ramdisk;
use crate::store::{Durable, Kernel, open_dir};
use anyhow::Result;
use rustix::fd::OwnedFd;
use std::path::Path;
use tempfile::TempDir;

/// File systems with their names, in the order of tables.
pub struct Kernels {
    /// Name, calls, and the directory again for a caller that needs its path.
    pub each: Vec<(&'static str, Kernel, OwnedFd)>,
    _tmpfs: TempDir,
}

impl Kernels {
    /// Opens tmpfs (`dir` should be on it), and as root mounts ramfs, and ext2 and ext4 on RAM
    /// disks of `bytes`. Leaves out a file system that cannot be mounted, with a message on stderr.
    pub fn mounted(dir: &Path, bytes: u64) -> Result<Self> {
        let tmpfs = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
        let mut found = vec![("tmpfs", open_dir(tmpfs.path())?)];
        if rustix::process::geteuid().is_root() {
            let others = [
                ("ramfs", ramdisk::ramfs()),
                ("ext2", ramdisk::ext2(dir, bytes)),
                ("ext4", ramdisk::ext4(dir, bytes)),
            ];
            for (name, root) in others {
                match root {
                    Ok(root) => found.push((name, root)),
                    Err(err) => tell!("without {name}: {err:#}"),
                }
            }
        } else {
            tell!("not root: without ramfs, ext2 and ext4");
        }
        let mut each = Vec::new();
        for (name, root) in found {
            let again = rustix::io::fcntl_dupfd_cloexec(&root, 0)?;
            each.push((name, Kernel::new(root, Durable::Never), again));
        }
        Ok(Self { each, _tmpfs: tmpfs })
    }
}
