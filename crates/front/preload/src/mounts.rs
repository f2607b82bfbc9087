//! The mounts of pools that this process sees, and whether it sees caches.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use ::mounts::{CACHE_TYPE, MountState, PoolMount};
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

/// The newest mount when the table was read last; 0 if the kernel does not report it.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// The mounts that exist when the process starts.
pub struct FoundMount {
    pub pools: Vec<PoolMount>,
    /// Whether there are caches.
    pub caches: bool,
}

/// Finds the mounts: takes the list of `keepstone run` if it made one, else reads the kernel's
/// table.
pub fn find() -> FoundMount {
    is_another_newest();
    let announced = environment::variable(c"KEEPSTONE_MOUNTS").map(CStr::to_bytes);
    let are_caches = environment::is_set(c"KEEPSTONE_CACHES");
    match announced.and_then(PoolMount::announced) {
        Some(pools) => FoundMount { pools, caches: are_caches },
        None => FoundMount { pools: in_table(), caches: are_caches || is_cache_in_table() },
    }
}

/// Returns the users whose mounts are believed: root and this one. Any other user could name any
/// pool.
pub fn believed_users() -> [u32; 2] {
    [0, rustix::process::geteuid().as_raw()]
}

/// Checks whether there is a cache, if a mount was made since the last call.
pub fn has_cache_come() -> bool {
    is_another_newest() && is_cache_in_table()
}

/// Checks whether the newest mount is another one than at the last call, or the kernel does not
/// report it.
fn is_another_newest() -> bool {
    let newest = ::mounts::newest_mount().unwrap_or(0);
    NEWEST.swap(newest, Ordering::Relaxed) != newest || newest == 0
}

/// Checks whether the table lists a cache. Does not use the heap: the program may be in the middle
/// of an allocation.
fn is_cache_in_table() -> bool {
    // Paths have no spaces there.
    const TYPE: &[u8] = b" - fuse.keepstone-cache ";
    const { assert!(TYPE.len() == CACHE_TYPE.len() + 4) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty()) else {
        return false;
    };
    let (mut bytes, mut kept) = ([0; 4096], 0);
    while let Ok(more @ 1..) = rustix::io::read(&file, &mut bytes[kept..]) {
        let end = kept + more;
        if bytes[..end].windows(TYPE.len()).any(|part| part == TYPE) {
            return true;
        }
        kept = end.min(TYPE.len() - 1);
        bytes.copy_within(end - kept..end, 0);
    }
    false
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
