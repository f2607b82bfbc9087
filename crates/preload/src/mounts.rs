//! The mounts of pools that this process sees.

use std::sync::atomic::{AtomicPtr, Ordering};

use ::mounts::{FS_TYPE, Line, unescape};
use rustix::fs::{Mode, OFlags};

/// A mount of a pool.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where: absolute.
    pub dir: Vec<u8>,
    /// The pool.
    pub pool: Vec<u8>,
    /// `st_dev` of what is in it.
    pub dev: u64,
    /// `ST_*` of `statvfs`.
    pub flags: u64,
    /// Mount points below.
    pub nested: Vec<Vec<u8>>,
}

/// Mount points and devices of the pools that are served, set once.
static SERVED: AtomicPtr<Vec<(Vec<u8>, u64)>> = AtomicPtr::new(std::ptr::null_mut());

/// Remembers where pools are served.
pub fn serve(mounts: Vec<(Vec<u8>, u64)>) {
    SERVED.store(Box::into_raw(Box::new(mounts)), Ordering::Release);
}

fn served() -> impl Iterator<Item = &'static (Vec<u8>, u64)> {
    // SAFETY: null, or a box that is never dropped.
    unsafe { SERVED.load(Ordering::Acquire).as_ref() }.into_iter().flatten()
}

/// Whether an absolute path leads to a pool, by its text.
pub fn is_served(path: &[u8]) -> bool {
    served().any(|(dir, _)| covers(dir, path))
}

/// Whether `st_dev` is that of a pool's mount.
pub fn is_served_device(dev: u64) -> bool {
    served().any(|(_, own)| *own == dev)
}

/// Finds them in `/proc/self/mountinfo`.
pub fn find() -> Vec<Mount> {
    read(c"/proc/self/mountinfo").map(|table| parse(&table)).unwrap_or_default()
}

fn read(path: &std::ffi::CStr) -> rustix::io::Result<Vec<u8>> {
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

fn parse(table: &[u8]) -> Vec<Mount> {
    if !table.windows(FS_TYPE.len()).any(|part| part == FS_TYPE.as_bytes()) {
        return Vec::new();
    }
    let lines = table.split(|&byte| byte == b'\n').filter_map(Line::parse);
    let lines: Vec<_> = lines.map(|line| (unescape(line.dir), line)).collect();
    let mut mounts = Vec::new();
    for (index, (dir, line)) in lines.iter().enumerate() {
        let hidden = lines[index + 1..].iter().any(|(later, _)| covers(later, dir));
        // A bind mount of a part of the pool has another root, which the process layer cannot know.
        if line.is_keepstone() && line.root == b"/" && !hidden {
            let below = |other: &&(Vec<u8>, Line<'_>)| other.0 != *dir && covers(dir, &other.0);
            mounts.push(Mount {
                dir: dir.clone(),
                pool: unescape(line.source),
                dev: rustix::fs::makedev(line.device.0, line.device.1),
                flags: flags(line.options) | flags(line.super_options),
                nested: lines.iter().filter(below).map(|(other, _)| other.clone()).collect(),
            });
        }
    }
    mounts
}

/// Whether `path` is `dir` or below it.
fn covers(dir: &[u8], path: &[u8]) -> bool {
    let dir = if dir == b"/" { b"" } else { dir };
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn flags(options: &[u8]) -> u64 {
    let options = options.split(|&byte| byte == b',');
    options.fold(0, |flags, option| {
        flags
            | match option {
                b"ro" => libc::ST_RDONLY,
                b"nosuid" => libc::ST_NOSUID,
                b"nodev" => libc::ST_NODEV,
                b"noexec" => libc::ST_NOEXEC,
                b"noatime" => libc::ST_NOATIME,
                b"nodiratime" => libc::ST_NODIRATIME,
                b"relatime" => libc::ST_RELATIME,
                b"sync" => libc::ST_SYNCHRONOUS,
                _ => 0,
            }
    })
}
