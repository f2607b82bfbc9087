//! Directory listings with attributes (`readdirplus`).
//!
//! The contract forbids calls from within a listing, so entries are read from the engine in batches
//! and looked up afterwards; each entry in a reply carries one reference (contract vfs-C4).

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyDirectoryPlus};
use vfs::{DirEntry, Errno, FileKind, FileSystem, Ino, Result};

use crate::convert;

/// Entries read at a time. A reply has room for about 200 of them at the 32 KiB that glibc's
/// `readdir` asks for.
const BATCH_LEN: usize = 64;

/// A batch of entries.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    entries: Vec<(Ino, FileKind, u64, Range<usize>)>,
}

impl Batch {
    fn fill(&mut self, fs: &dyn FileSystem, dir: Ino, cookie: u64) -> Result<()> {
        self.names.clear();
        self.entries.clear();
        fs.readdir(dir, cookie, &mut |entry| {
            let start = self.names.len();
            self.names.extend_from_slice(entry.name);
            self.entries.push((entry.ino, entry.kind, entry.cookie, start..self.names.len()));
            self.entries.len() < BATCH_LEN
        })
    }

    fn iter(&self) -> impl Iterator<Item = DirEntry<'_>> {
        self.entries.iter().map(|(ino, kind, cookie, name)| DirEntry {
            ino: *ino,
            kind: *kind,
            name: &self.names[name.clone()],
            cookie: *cookie,
        })
    }
}

/// Adds the entries of `dir` from `cookie` until the reply is full or the directory ends. Calls
/// `note` for each, except `.` and `..`.
pub(crate) fn add_entries(
    fs: &dyn FileSystem,
    (dir, mut cookie): (Ino, u64),
    ttl: &Duration,
    note: &impl Fn(&OsStr, INodeNo),
    reply: &mut ReplyDirectoryPlus,
) -> Result<()> {
    let mut batch = Batch::default();
    let mut added = 0;
    loop {
        batch.fill(fs, dir, cookie)?;
        if batch.entries.is_empty() {
            return Ok(());
        }
        for item in batch.iter() {
            cookie = item.cookie;
            match add_entry(fs, dir, &item, ttl, note, reply) {
                Ok(true) => added += 1,
                Ok(false) => return Ok(()),
                // Removed since it was listed.
                Err(Errno::NOENT) => {}
                // The entries before it go out now; the next request starts with it and reports the
                // error.
                Err(_) if added > 0 => return Ok(()),
                Err(err) => return Err(err),
            }
        }
    }
}

/// Adds one entry; `false` if it does not fit.
fn add_entry(
    fs: &dyn FileSystem,
    dir: Ino,
    item: &DirEntry<'_>,
    ttl: &Duration,
    note: &impl Fn(&OsStr, INodeNo),
    reply: &mut ReplyDirectoryPlus,
) -> Result<bool> {
    let name = OsStr::from_bytes(item.name);
    if matches!(item.name, b"." | b"..") {
        // The kernel uses number and kind of these two and takes no reference.
        let attr = convert::only_kind(item.ino, item.kind);
        return Ok(!reply.add(attr.ino, item.cookie, name, ttl, &attr, Generation(0)));
    }
    let entry = fs.lookup(dir, item.name)?;
    let attr = convert::file_attr(&entry);
    let full = reply.add(attr.ino, item.cookie, name, ttl, &attr, convert::generation(&entry));
    if full {
        fs.forget(entry.ino, 1);
    } else {
        note(name, attr.ino);
    }
    Ok(!full)
}
