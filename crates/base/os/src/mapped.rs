//! Files that this process has mapped for itself, found by an address in them.
//!
//! A handler of SIGBUS asks whose the page is that cannot be had, and who locks the memory of a program leaves these
//! mappings out. A [`Table`] is a static of atomics, so that handlers can read it whatever they interrupt.

#![allow(unsafe_code)]

use rustix::fd::{AsRawFd as _, BorrowedFd};
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

/// Mappings of one kind that are known at a time. Further ones are not.
pub const ENTRIES: usize = 64;
/// A base that is none yet.
const CLAIMED: usize = 1;

/// Mappings of one kind, with what belongs to each.
#[derive(Debug)]
pub struct Table<T>([Entry<T>; ENTRIES]);

/// A file that is mapped.
#[derive(Debug)]
pub struct Entry<T> {
    /// 0: none.
    base: AtomicUsize,
    len: AtomicUsize,
    file: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    /// What else is known of it.
    pub more: T,
}

impl<T> Entry<T> {
    /// One without a mapping.
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

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        let base = self.base.load(Acquire);
        base..base + self.len.load(Relaxed)
    }

    /// The file and its size, by the descriptor that was given; `None` where that is another file's by now. One
    /// system call.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        // SAFETY: it stays open while the file is mapped, or is another file's, which is seen next.
        let file = unsafe { BorrowedFd::borrow_raw(self.file.load(Relaxed)) };
        let id = (self.device.load(Relaxed), self.inode.load(Relaxed));
        let stat = rustix::fs::fstat(file).ok()?;
        ((stat.st_dev, stat.st_ino) == id).then(|| (file, stat.st_size.cast_unsigned()))
    }

    /// Before the memory is unmapped.
    pub fn end(&self) {
        self.base.store(0, Release);
    }
}

impl<T> Table<T> {
    /// Of entries without mappings.
    pub const fn new(entries: [Entry<T>; ENTRIES]) -> Self {
        Self(entries)
    }

    /// From now on the file `id` (device and inode), open as `file`, is known to be mapped at `range`; `prepare`
    /// says what else. `None` where there are too many.
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

    /// What is mapped at an address.
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
