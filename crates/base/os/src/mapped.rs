//! Files that Keepstone has mapped in this process, found by an address in the mapping.
//!
//! A handler of SIGBUS finds the mapping of a page that could not be allocated. And code that locks
//! the memory of a program (`mlockall`) leaves these mappings out. A [`Table`] is a static of
//! atomics, so that signal handlers can read it at any time.

#![allow(unsafe_code)]

use rustix::fd::{AsRawFd as _, BorrowedFd};
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

/// The most mappings in a table. Further ones are not registered.
pub const ENTRIES: usize = 64;
/// The base of an entry that is claimed, but not filled in yet.
const CLAIMED: usize = 1;

/// The mappings of one kind, each with additional data.
#[derive(Debug)]
pub struct Table<T>([Entry<T>; ENTRIES]);

/// A mapped file.
#[derive(Debug)]
pub struct Entry<T> {
    /// The address; 0: no mapping.
    base: AtomicUsize,
    len: AtomicUsize,
    file: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    /// The additional data.
    pub more: T,
}

impl<T> Entry<T> {
    /// Makes an entry without a mapping.
    pub const fn new(more: T) -> Self {
        Self {
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            file: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            more,
        }
    }

    /// Returns its addresses.
    pub fn range(&self) -> Range<usize> {
        let base = self.base.load(Acquire);
        base..base + self.len.load(Relaxed)
    }

    /// Returns the file and its size, by the registered descriptor. `None` if that belongs to
    /// another file by now. One system call.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        // SAFETY: the descriptor stays open while the file is mapped, or belongs to another file,
        // which the check below finds.
        let file = unsafe { BorrowedFd::borrow_raw(self.file.load(Relaxed)) };
        let id = (self.device.load(Relaxed), self.inode.load(Relaxed));
        let stat = rustix::fs::fstat(file).ok()?;
        ((stat.st_dev, stat.st_ino) == id).then(|| (file, stat.st_size.cast_unsigned()))
    }

    /// Frees the entry. To be called before the memory is unmapped.
    pub fn end(&self) {
        self.base.store(0, Release);
    }
}

impl<T> Table<T> {
    /// Makes a table of entries without mappings.
    pub const fn new(entries: [Entry<T>; ENTRIES]) -> Self {
        Self(entries)
    }

    /// Registers the file `id` (device and inode), open as `file`, as mapped at `range`. `prepare`
    /// fills in the additional data. `None` if the table is full.
    pub fn begin(
        &self,
        range: Range<usize>,
        file: BorrowedFd<'_>,
        id: (u64, u64),
        prepare: impl FnOnce(&T),
    ) -> Option<&Entry<T>> {
        let free = |e: &&Entry<T>| e.base.compare_exchange(0, CLAIMED, AcqRel, Relaxed).is_ok();
        let entry = self.0.iter().find(free)?;
        entry.len.store(range.len(), Relaxed);
        entry.file.store(file.as_raw_fd(), Relaxed);
        entry.device.store(id.0, Relaxed);
        entry.inode.store(id.1, Relaxed);
        prepare(&entry.more);
        entry.base.store(range.start, Release);
        Some(entry)
    }

    /// Returns the entry of the mapping that contains an address. Signal handlers may call this.
    pub fn find(&self, address: usize) -> Option<&Entry<T>> {
        let is_there = |e: &&Entry<T>| {
            let range = e.range();
            range.start > CLAIMED && range.contains(&address)
        };
        self.0.iter().find(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::sync::atomic::AtomicBool;

    static TABLE: Table<AtomicBool> =
        Table::new([const { Entry::new(AtomicBool::new(false)) }; ENTRIES]);

    #[test]
    fn mappings_are_found_by_address_until_they_end() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let id = (stat.st_dev, stat.st_ino);
        let begin =
            |range, id| TABLE.begin(range, file.as_fd(), id, |more| more.store(true, Relaxed));
        let entry = begin(0x1000..0x3000, id).unwrap();
        let other = begin(0x3000..0x4000, (id.0, id.1 + 1)).unwrap();
        assert!(TABLE.find(0).is_none() && TABLE.find(0xfff).is_none());
        assert_eq!(TABLE.find(0x2fff).unwrap().range(), 0x1000..0x3000);
        assert_eq!(TABLE.find(0x3000).unwrap().range(), 0x3000..0x4000);
        assert_eq!(entry.file().unwrap().1, file.metadata().unwrap().len());
        assert!(entry.more.load(Relaxed) && other.file().is_none(), "another file has the number");
        entry.end();
        assert!(TABLE.find(0x2fff).is_none() && TABLE.find(0x3fff).is_some());
        other.end();
        let many = (1..=ENTRIES).map(|i| begin(i << 12..(i + 1) << 12, id));
        let many: Vec<_> = many.collect();
        assert!(many.iter().all(Option::is_some) && begin(1 << 30..1 << 31, id).is_none());
    }
}
