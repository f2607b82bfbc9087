//! The mounts of pools that this process sees.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use ::mounts::{MountState, PoolMount};
use rustix::fs::{Mode, OFlags};

use crate::environment;

/// Devices of the pools that are served. Set once.
static SERVED: AtomicPtr<Vec<u64>> = AtomicPtr::new(std::ptr::null_mut());

/// Remembers which pools are served.
pub fn serve(devices: Vec<u64>) {
    SERVED.store(Box::into_raw(Box::new(devices)), Ordering::Release);
}

/// Checks whether `st_dev` is that of a pool's mount.
pub fn is_served_device(dev: u64) -> bool {
    // SAFETY: null, or a box that is never dropped.
    unsafe { SERVED.load(Ordering::Acquire).as_ref() }.is_some_and(|served| served.contains(&dev))
}

/// Finds the mounts that exist when the process starts: takes the list of `keepstone run` if it
/// made one, else reads the kernel's table.
pub fn find() -> Vec<PoolMount> {
    let announced = environment::variable(c"KEEPSTONE_MOUNTS").map(CStr::to_bytes);
    announced.and_then(PoolMount::announced).unwrap_or_else(in_table)
}

/// Returns the users whose mounts are believed: root and this one. Any other user could name any
/// pool.
pub fn believed_users() -> [u32; 2] {
    [0, rustix::process::geteuid().as_raw()]
}

fn in_table() -> Vec<PoolMount> {
    read(c"/proc/self/mountinfo").map(|table| PoolMount::find(&table)).unwrap_or_default()
}

/// Returns the flags of a pool's mount now, and the mounts below it; `None` if paths do not lead to
/// that mount any more.
pub fn state(dir: &[u8], device: (u32, u32)) -> Option<MountState> {
    let in_table =
        || in_table().into_iter().find(|mount| mount.dir == dir && mount.device == device);
    ::mounts::mount_state(dir, device).or_else(|| Some(in_table()?.state))
}

/// Returns the `st_dev` of files in a mount.
pub fn device_number(mount: &PoolMount) -> u64 {
    rustix::fs::makedev(mount.device.0, mount.device.1)
}

/// Reads a file of `/proc`, bypassing libc.
pub fn read(path: &CStr) -> rustix::io::Result<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut content = vec![0; 4096];
    let mut len = 0;
    loop {
        match rustix::io::read(&file, &mut content[len..])? {
            0 => break,
            more => len += more,
        }
        if len == content.len() {
            content.resize(2 * len, 0);
        }
    }
    content.truncate(len);
    Ok(content)
}
