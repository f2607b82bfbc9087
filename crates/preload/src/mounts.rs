//! The mounts of pools that this process sees.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use ::mounts::{MountState, PoolMount};
use rustix::fs::{Mode, OFlags};

/// Devices of the pools that are served, set once.
static SERVED: AtomicPtr<Vec<u64>> = AtomicPtr::new(std::ptr::null_mut());

/// Remembers which pools are served.
pub fn serve(devices: Vec<u64>) {
    SERVED.store(Box::into_raw(Box::new(devices)), Ordering::Release);
}

/// Whether `st_dev` is that of a pool's mount.
pub fn is_served_device(dev: u64) -> bool {
    // SAFETY: null, or a box that is never dropped.
    unsafe { SERVED.load(Ordering::Acquire).as_ref() }.is_some_and(|served| served.contains(&dev))
}

/// Finds them: where `keepstone run` has found them, if no mount has come since, else in the kernel's table.
pub fn find() -> Vec<PoolMount> {
    // SAFETY: the name is a string; nobody changes the environment this early.
    let announced = unsafe {
        let text = libc::getenv(c"KEEPSTONE_MOUNTS".as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes())
    };
    announced.and_then(PoolMount::announced).unwrap_or_else(in_table)
}

fn in_table() -> Vec<PoolMount> {
    read(c"/proc/self/mountinfo").map(|table| PoolMount::find(&table)).unwrap_or_default()
}

/// Flags of a pool's mount now, and what is mounted below; `None` where paths do not lead to that mount any more.
pub fn state(dir: &[u8], device: (u32, u32)) -> Option<MountState> {
    let in_table =
        || in_table().into_iter().find(|mount| mount.dir == dir && mount.device == device);
    ::mounts::mount_state(dir, device).or_else(|| Some(in_table()?.state))
}

/// `st_dev` of what is in a mount.
pub fn device_number(mount: &PoolMount) -> u64 {
    rustix::fs::makedev(mount.device.0, mount.device.1)
}

/// Reads a file of `/proc`, past the program's libc.
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
