//! Attaching a pool.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bpfs::Bpfs;
use posix::{Attached, Errno, MountSpec};

use crate::mounts::Mount;
use crate::start::debug;

/// What the process layer has to know of a mount.
pub fn spec(mount: Mount) -> MountSpec {
    let Mount { dir, pool, dev, flags, nested } = mount;
    let mountpoint = dir.clone();
    let attach = move || {
        let attached = attach(Path::new(OsStr::from_bytes(&pool)));
        if let Err(err) = &attached {
            let (pool, dir) = (String::from_utf8_lossy(&pool), String::from_utf8_lossy(&dir));
            debug(format_args!("{pool} on {dir} is left to the kernel: {err}"));
        }
        attached.map_err(|_| Errno::NOTSUP)
    };
    MountSpec { mountpoint, dev, flags, nested, attach: Box::new(attach) }
}

fn attach(pool: &Path) -> Result<Attached, Box<dyn std::error::Error>> {
    let region = pmem::OpenOptions::default().open(pool, pmem::Access::ReadWrite)?;
    let fs = Bpfs::mount(region, &bpfs::MountOptions::default())?;
    Ok(Attached { fs: Box::new(fs), secret: 0, after_fork: Box::new(|| ()) })
}
