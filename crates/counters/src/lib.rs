//! What all programs of a `keepstone run` count together: which calls and bytes were served in user space, and which went
//! through the mount, and why.
//!
//! `KEEPSTONE_STATS` leads to a file without a name that all of them map (`/proc/PID/fd/N`); those that have
//! inherited descriptor N need not be allowed to look at process PID. The command makes it ([`Counters::create`]) and reads
//! it, the library counts in it ([`Counters::inherited`]). All in host byte order.
//!
//! - **counters-N1** A thread counts in a slot of its own, without a locked instruction, as long as there are slots; the first
//!   slot is everybody's, and changed atomically. What was counted stays when the slot goes to another.
//! - **counters-N2** Counting neither allocates nor makes a system call.

#![allow(unsafe_code)]

mod files;
mod kinds;
mod sums;

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

pub use files::FileCalls;
pub use kinds::{Class, Reason};
pub use sums::{Calls, Sums, Tally};

use files::Files;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The first 8 bytes of the file.
const MAGIC: u64 = u64::from_ne_bytes(*b"KSRUN004");
/// So many threads count without disturbing others.
const SLOTS: usize = 256;

/// The time of each call that is served is measured.
pub const TIMED: u32 = 1;
/// Files that went through the mount are listed.
pub const EXPLAIN: u32 = 2;
/// The first program of the run says when it ends that too little was served in user space.
pub const CLOSING_LINE: u32 = 4;
/// It says so as a JSON object.
pub const JSON: u32 = 8;

/// The file, as it is mapped.
#[repr(C)]
pub struct Counters {
    magic: AtomicU64,
    flags: AtomicU32,
    root: AtomicU32,
    /// Programs that were to be executed, and those that have loaded the library.
    executed: AtomicU64,
    started: AtomicU64,
    /// Slots in use are below this one.
    slots_end: AtomicU32,
    slots: [ThreadCounts; SLOTS],
    files: Files,
}

/// What one thread has counted, and whoever had the slot before.
#[repr(C, align(64))]
struct ThreadCounts {
    /// The process that counts here; 0: nobody.
    owner: AtomicU32,
    classes: [ClassCounts; Class::COUNT],
    reasons: [Counts; Reason::COUNT],
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    bytes: AtomicU64,
}

#[repr(C)]
#[derive(Default)]
struct ClassCounts {
    served: Counts,
    by_kernel: Counts,
    served_ns: AtomicU64,
}

/// Where a thread counts: a slot of [`Counters`], by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(u32);

impl SlotIndex {
    /// Everybody's.
    const SHARED: Self = Self(0);

    #[inline]
    fn add(self, to: &AtomicU64, n: u64) {
        if self == Self::SHARED {
            to.fetch_add(n, Relaxed);
        } else {
            // counters-N1.
            to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }
}

impl Counters {
    /// Makes the file; `root` is the process that becomes the first program. It has no name that others could open, nobody can
    /// shorten it, and it ends with the last of those who have it.
    pub fn create(flags: u32, root: u32) -> rustix::io::Result<OwnedFd> {
        let kind = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"keepstone-run", kind)?;
        rustix::fs::ftruncate(&file, size_of::<Self>() as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut head = MAGIC.to_ne_bytes().to_vec();
        head.extend(flags.to_ne_bytes());
        head.extend(root.to_ne_bytes());
        // The first program.
        head.extend(1_u64.to_ne_bytes());
        rustix::io::pwrite(&file, &head, 0)?;
        Ok(file)
    }

    /// What a path says that ends with the number of an inherited descriptor: that one, or else what the path leads to.
    pub fn inherited(path: &CStr) -> Option<&'static Self> {
        let number = || path.to_str().ok()?.rsplit('/').next()?.parse().ok();
        // SAFETY: whatever it is now, nothing that runs this early closes it before it is mapped.
        let inherited =
            number().filter(|fd| *fd > 2).map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        inherited.and_then(Self::map).or_else(|| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            Self::map(rustix::fs::open(path, flags, Mode::empty()).ok()?.as_fd())
        })
    }

    /// Maps the file, if it is one that `keepstone run` has made and nobody can shorten. The mapping stays.
    pub fn map(file: BorrowedFd<'_>) -> Option<&'static Self> {
        let sealed = rustix::fs::fcntl_get_seals(file).ok()?;
        let len = rustix::fs::fstat(file).ok()?.st_size as usize;
        if !sealed.contains(SealFlags::SHRINK) || len != size_of::<Self>() {
            return None;
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, as long as `Counters`, of a file that nobody can shorten.
        let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) };
        // SAFETY: mapped, aligned to a page and never unmapped; it holds atomics, and bytes that `files` treats as such.
        let counters = unsafe { &*mapped.ok()?.cast::<Self>() };
        (counters.magic.load(Relaxed) == MAGIC).then_some(counters)
    }

    /// What is wanted: [`TIMED`], [`EXPLAIN`], [`CLOSING_LINE`], [`JSON`].
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Whether a process is that of the first program.
    pub fn is_root(&self, pid: u32) -> bool {
        self.root.load(Relaxed) == pid
    }

    /// A program is about to be executed.
    pub fn executes(&self) {
        self.executed.fetch_add(1, Relaxed);
    }

    /// It was not.
    pub fn execute_failed(&self) {
        self.executed.fetch_sub(1, Relaxed);
    }

    /// A program has loaded the library, in process `pid`: a slot for its first thread, and what was its predecessor's is free.
    pub fn start(&self, pid: u32) -> SlotIndex {
        self.started.fetch_add(1, Relaxed);
        self.release(pid);
        self.claim(pid)
    }

    /// A slot for a thread of process `pid`.
    pub fn claim(&self, pid: u32) -> SlotIndex {
        for (index, slot) in self.slots.iter().enumerate().skip(1) {
            let owner = &slot.owner;
            if owner.load(Relaxed) == 0 && owner.compare_exchange(0, pid, AcqRel, Relaxed).is_ok() {
                self.slots_end.fetch_max(index as u32 + 1, Relaxed);
                return SlotIndex(index as u32);
            }
        }
        SlotIndex::SHARED
    }

    /// All slots of a process are free; its threads count in the one that [`shared`](Self::shared) names, if they still do.
    pub fn release(&self, pid: u32) {
        let end = self.slots_end.load(Relaxed) as usize;
        for slot in self.slots.iter().take(end).skip(1) {
            let _ = slot.owner.compare_exchange(pid, 0, AcqRel, Relaxed);
        }
    }

    /// The slot that is everybody's.
    pub const fn shared() -> SlotIndex {
        SlotIndex::SHARED
    }

    #[inline]
    fn counts(&self, slot: SlotIndex) -> &ThreadCounts {
        &self.slots[slot.0 as usize % SLOTS]
    }

    /// A call was served in user space; it has moved `bytes`, and taken `ns`. Stores to mapped memory (counters-N2).
    #[inline]
    pub fn served(&self, slot: SlotIndex, class: Class, bytes: u64, ns: u64) {
        let counts = &self.counts(slot).classes[class as usize];
        slot.add(&counts.served.calls, 1);
        if bytes > 0 {
            slot.add(&counts.served.bytes, bytes);
        }
        if ns > 0 {
            slot.add(&counts.served_ns, ns);
        }
    }

    /// Calls that concern a pool went to the kernel, and moved `bytes`.
    pub fn by_kernel(&self, slot: SlotIndex, class: Class, reason: Reason, calls: u64, bytes: u64) {
        let counted = self.counts(slot);
        for counts in
            [&counted.classes[class as usize].by_kernel, &counted.reasons[reason as usize]]
        {
            slot.add(&counts.calls, calls);
            slot.add(&counts.bytes, bytes);
        }
    }

    /// As [`by_kernel`](Self::by_kernel), for the list of files ([`EXPLAIN`]).
    pub fn explain(&self, path: &[u8], reason: Reason, calls: u64, bytes: u64) {
        self.files.add(path, reason, calls, bytes);
    }

    /// The files that were listed.
    pub fn files(&self) -> Vec<FileCalls> {
        self.files.list()
    }

    /// What all have counted.
    pub fn sums(&self) -> Sums {
        let end = self.slots_end.load(Relaxed).max(1) as usize;
        let unserved = self.executed.load(Relaxed).saturating_sub(self.started.load(Relaxed));
        let mut sums = Sums { unserved, ..Sums::default() };
        for slot in self.slots.iter().take(end) {
            for (sum, counts) in sums.classes.iter_mut().zip(&slot.classes) {
                sum.served.add(&counts.served);
                sum.by_kernel.add(&counts.by_kernel);
                sum.served_ns += counts.served_ns.load(Relaxed);
            }
            for (sum, counts) in sums.reasons.iter_mut().zip(&slot.reasons) {
                sum.add(counts);
            }
        }
        sums
    }
}

impl SlotIndex {
    /// As a number that is not 0, for a thread's cell.
    #[inline]
    pub const fn to_word(self) -> u32 {
        self.0 + 1
    }

    /// From such a number; `None` for 0.
    #[inline]
    pub const fn from_word(word: u32) -> Option<Self> {
        match word {
            0 => None,
            word => Some(Self(word - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> &'static Counters {
        let file = Counters::create(EXPLAIN | TIMED, 7).unwrap();
        Counters::map(file.as_fd()).unwrap()
    }

    #[test]
    fn what_threads_count_is_summed_and_stays() {
        let counters = counters();
        assert!(counters.is_root(7) && counters.flags() == EXPLAIN | TIMED);
        let first = counters.start(7);
        std::thread::scope(|scope| {
            for _ in 0..2 * SLOTS {
                scope.spawn(|| {
                    let slot = counters.claim(8);
                    for _ in 0..100 {
                        counters.served(slot, Class::Read, 10, 1);
                    }
                });
            }
        });
        counters.served(first, Class::Open, 0, 0);
        counters.by_kernel(first, Class::Read, Reason::NotDirect, 1, 4096);
        counters.release(8);
        assert_ne!(counters.claim(9), SlotIndex::SHARED);
        let sums = counters.sums();
        let read = &sums.classes[Class::Read as usize];
        let calls = 200 * SLOTS as u64;
        assert_eq!((read.served, read.served_ns), (Tally { calls, bytes: 10 * calls }, calls));
        assert_eq!(read.by_kernel, Tally { calls: 1, bytes: 4096 });
        assert_eq!(sums.reasons[Reason::NotDirect as usize].bytes, 4096);
        assert_eq!(sums.unserved, 0);
        counters.executes();
        assert_eq!(counters.sums().unserved, 1);
        counters.execute_failed();
        assert_eq!(counters.sums().unserved, 0);
    }

    #[test]
    fn a_thread_that_counts_alone_has_a_slot() {
        let counters = counters();
        let slots = [counters.start(7), counters.claim(7), counters.claim(8)];
        assert_eq!(slots, [SlotIndex(1), SlotIndex(2), SlotIndex(3)]);
        // The next program in the same process.
        assert_eq!(counters.start(7), SlotIndex(1));
        assert_eq!(SlotIndex::from_word(SlotIndex(3).to_word()), Some(SlotIndex(3)));
        assert_eq!(SlotIndex::from_word(0), None);
    }

    #[test]
    fn other_files_are_not_mapped() {
        let file = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Counters::map(file.as_fd()).is_none());
        assert!(Counters::inherited(c"/dev/null").is_none());
    }
}
