//! The mounts of pools that this process sees.

use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::{Mode, OFlags};

/// The type of every mount of a pool.
const FS_TYPE: &[u8] = b"fuse.keepstone";

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

struct Line {
    dev: u64,
    root: Vec<u8>,
    dir: Vec<u8>,
    flags: u64,
    fs_type: Vec<u8>,
    source: Vec<u8>,
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
    if !table.windows(FS_TYPE.len()).any(|part| part == FS_TYPE) {
        return Vec::new();
    }
    let lines: Vec<_> = table.split(|&byte| byte == b'\n').filter_map(parse_line).collect();
    let mut mounts = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let hidden = lines[index + 1..].iter().any(|later| covers(&later.dir, &line.dir));
        // A bind mount of a part of the pool has another root, which the process layer cannot know.
        if line.fs_type == FS_TYPE && line.root == b"/" && !hidden {
            let below = |other: &&Line| other.dir != line.dir && covers(&line.dir, &other.dir);
            mounts.push(Mount {
                dir: line.dir.clone(),
                pool: line.source.clone(),
                dev: line.dev,
                flags: line.flags,
                nested: lines.iter().filter(below).map(|other| other.dir.clone()).collect(),
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

/// `ID PARENT MAJOR:MINOR ROOT DIR OPTIONS … - TYPE SOURCE SUPER_OPTIONS`
fn parse_line(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let root = unescape(fields.next()?);
    let dir = unescape(fields.next()?);
    let options = fields.next()?;
    fields.find(|&field| field == b"-")?;
    let fs_type = fields.next()?.to_vec();
    let source = unescape(fields.next()?);
    let dev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let flags = flags(options) | flags(fields.next()?);
    Some(Line { dev, root, dir, flags, fs_type, source })
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

/// Undoes the octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|d| *byte == b'\\' && d.iter().all(u8::is_ascii_digit));
        if let Some(digits) = digits {
            out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &tail[3..];
        } else {
            out.push(*byte);
            rest = tail;
        }
    }
    out
}
