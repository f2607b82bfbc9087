//! Counters that all programs of a `keepstone run` share: calls and bytes that were served in user
//! space or went through the mount, with the reasons. They are kept in all and by program.
//!
//! `KEEPSTONE_STATS` is the path `/proc/PID/fd/N` of a nameless file that all of them map. Programs
//! that have inherited descriptor N do not need access to process PID. The command makes the file
//! ([`Counters::create`]) and reads it; the library counts in it ([`Counters::inherited`]). All
//! words are in host byte order.
//!
//! - **counters-N1** A thread counts in a slot of its own, without a locked instruction, as long as
//!   there are free slots. The last slots, one for each program, are shared and changed atomically.
//!   Counts stay when a slot goes to another thread.
//! - **counters-N2** Counting neither allocates nor makes a system call.
//! - **counters-N3** A slot belongs to one program for good, so its counts are that program's,
//!   whichever thread has counted and however it has ended. The memory is bounded: programs for
//!   which there is no room are counted as one.

#![allow(unsafe_code)]

mod files;
mod kinds;
mod label;
mod latency;
mod programs;
mod sums;

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

pub use files::FileCalls;
pub use kinds::{Class, Reason};
pub use latency::{Histogram, Latencies, LatencyReport};
pub use programs::ProgramIndex;
pub use sums::{Calls, Counted, ProgramSums, Sums, Tally};

use files::CountedFiles;
use programs::{PROGRAMS, Programs};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The first 8 bytes of the file.
const MAGIC: u64 = u64::from_ne_bytes(*b"KSRUN006");
/// The number of slots, including the shared ones: a power of two, so that a mask keeps an index
/// within bounds.
const SLOTS: usize = 512;
/// The number of slots that belong to one thread each.
const OWN_SLOTS: usize = SLOTS - PROGRAMS;

/// Flag: measure the time of each call that is served.
pub const TIMED: u32 = 1;
/// Flag: list the files that went through the mount.
pub const EXPLAIN: u32 = 2;
/// Flag: when the first program of the run ends, it reports if too little was served in user space.
pub const CLOSING_LINE: u32 = 4;
/// Flag: that report is a JSON object.
pub const JSON: u32 = 8;

/// The mapped file.
#[repr(C)]
pub struct Counters {
    magic: AtomicU64,
    flags: AtomicU32,
    root: AtomicU32,
    /// The number of programs that were to be executed.
    executed: AtomicU64,
    /// The number of programs that have loaded the library.
    started: AtomicU64,
    /// All owners that were ever used are below this index.
    owners_end: AtomicU32,
    programs: Programs,
    owners: [Owner; OWN_SLOTS],
    /// One slot for each owner, then one for each program. Most processes touch only the first few.
    slots: [ThreadCounts; SLOTS],
    files: CountedFiles,
    /// The times of the calls that were served. All slots share them: programs may lock all of
    /// their memory, this file included.
    times: [Histogram; Class::COUNT],
}

/// The owner of a slot. The lower half is its process, or 0 if the slot is free; the upper half is
/// the program plus 1. The word is 0 until the slot gets its first owner.
#[repr(transparent)]
struct Owner(AtomicU64);

impl Owner {
    const fn word(program: ProgramIndex, pid: u32) -> u64 {
        (program.to_word() as u64) << 32 | pid as u64
    }

    /// Claims the slot for a process, if it is free for this program. Returns whether it did.
    fn claim(&self, program: ProgramIndex, pid: u32) -> bool {
        let seen = self.0.load(Relaxed);
        let is_free = seen == 0 || seen == Self::word(program, 0);
        // counters-N3.
        let new = Self::word(program, pid);
        is_free && self.0.compare_exchange(seen, new, AcqRel, Relaxed).is_ok()
    }

    /// Frees the slot if the process owns it.
    fn release(&self, pid: u32) {
        let seen = self.0.load(Relaxed);
        if seen as u32 == pid {
            let free = seen & !u64::from(u32::MAX);
            let _ = self.0.compare_exchange(seen, free, AcqRel, Relaxed);
        }
    }

    fn is_of(&self, program: ProgramIndex) -> bool {
        self.0.load(Relaxed) >> 32 == Self::word(program, 0) >> 32
    }
}

/// The counts of one thread, and of earlier owners of the slot.
#[repr(C, align(64))]
struct ThreadCounts {
    classes: [ClassCounts; Class::COUNT],
    reasons: [ProcessCounts; Reason::COUNT],
}

#[repr(C)]
#[derive(Default)]
struct ProcessCounts {
    calls: AtomicU64,
    bytes: AtomicU64,
}

#[repr(C)]
#[derive(Default)]
struct ClassCounts {
    served: ProcessCounts,
    by_kernel: ProcessCounts,
    served_ns: AtomicU64,
}

/// The number of the slot of [`Counters`] in which a thread counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(u32);

impl SlotIndex {
    /// Returns the slot that all threads of a program share.
    pub const fn shared(program: ProgramIndex) -> Self {
        Self(OWN_SLOTS as u32 + program.number())
    }

    #[inline]
    const fn is_shared(self) -> bool {
        self.0 >= OWN_SLOTS as u32
    }

    /// Adds `n` to a word of the slot: atomically in a shared slot, otherwise by a load and a store
    /// (counters-N1).
    #[inline]
    fn add(self, to: &AtomicU64, n: u64) {
        if self.is_shared() {
            to.fetch_add(n, Relaxed);
        } else {
            // counters-N1.
            to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }
}

impl Counters {
    /// Makes the file with these [`flags`](Self::flags). `root` is the PID of the process that will
    /// execute the first program. The file is a sealed memfd: it has no name, cannot be shortened,
    /// and ends with the last process that has it open or mapped.
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

    /// Maps the file of a path that ends with the number of an inherited descriptor: that
    /// descriptor, or else the file at the path.
    pub fn inherited(path: &CStr) -> Option<&'static Self> {
        let number = || path.to_str().ok()?.rsplit('/').next()?.parse().ok();
        // SAFETY: whatever the descriptor is now, no code that runs this early closes it before it
        // is mapped.
        let inherited =
            number().filter(|fd| *fd > 2).map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        inherited.and_then(Self::map).or_else(|| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            Self::map(rustix::fs::open(path, flags, Mode::empty()).ok()?.as_fd())
        })
    }

    /// Maps the file, if `keepstone run` has made it and it cannot be shortened. The mapping stays.
    pub fn map(file: BorrowedFd<'_>) -> Option<&'static Self> {
        let sealed = rustix::fs::fcntl_get_seals(file).ok()?;
        let len = rustix::fs::fstat(file).ok()?.st_size as usize;
        if !sealed.contains(SealFlags::SHRINK) || len != size_of::<Self>() {
            return None;
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, as long as `Counters`, of a file that cannot be shortened.
        let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) };
        // SAFETY: mapped, aligned to a page and never unmapped; it holds only atomics.
        let counters = unsafe { &*mapped.ok()?.cast::<Self>() };
        (counters.magic.load(Relaxed) == MAGIC).then_some(counters)
    }

    /// Returns the flags: [`TIMED`], [`EXPLAIN`], [`CLOSING_LINE`], [`JSON`].
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Whether a process runs the first program.
    pub fn is_root(&self, pid: u32) -> bool {
        self.root.load(Relaxed) == pid
    }

    /// Counts a program that is about to be executed.
    pub fn executes(&self) {
        self.executed.fetch_add(1, Relaxed);
    }

    /// Takes back the count of [`executes`](Self::executes): the execution failed.
    pub fn execute_failed(&self) {
        self.executed.fetch_sub(1, Relaxed);
    }

    /// Counts a program that has loaded the library in process `pid`, and frees the slots of that
    /// process's previous program.
    pub fn start(&self, pid: u32) {
        self.started.fetch_add(1, Relaxed);
        self.release(pid);
    }

    /// Returns the program of this name; all programs for which there is no room are one. To be
    /// called only when there is something to count, so that programs that do not use pools take no
    /// room.
    pub fn program(&self, name: &[u8]) -> ProgramIndex {
        self.programs.find(name)
    }

    /// Counts a process of this program.
    pub fn add_process(&self, program: ProgramIndex) {
        self.programs.add_process(program);
    }

    /// Claims a slot for a thread of process `pid`.
    pub fn claim(&self, pid: u32, program: ProgramIndex) -> SlotIndex {
        match self.owners.iter().position(|owner| owner.claim(program, pid)) {
            Some(index) => {
                self.owners_end.fetch_max(index as u32 + 1, Relaxed);
                SlotIndex(index as u32)
            }
            None => SlotIndex::shared(program),
        }
    }

    /// Frees all slots of a process. If its threads still count, they do so in the
    /// [shared](SlotIndex::shared) slot of the program.
    pub fn release(&self, pid: u32) {
        self.claimed().iter().for_each(|owner| owner.release(pid));
    }

    /// Returns the owners that are, or ever were, in use.
    fn claimed(&self) -> &[Owner] {
        let end = self.owners_end.load(Relaxed) as usize;
        &self.owners[..end.min(OWN_SLOTS)]
    }

    #[inline]
    fn counts(&self, slot: SlotIndex) -> &ThreadCounts {
        &self.slots[slot.0 as usize % SLOTS]
    }

    /// Counts a call that was served in user space, with the `bytes` that it moved and the `ns`
    /// that it took. Only stores to mapped memory (counters-N2).
    #[inline]
    pub fn served(&self, slot: SlotIndex, class: Class, bytes: u64, ns: u64) {
        let counts = &self.counts(slot).classes[class as usize];
        slot.add(&counts.served.calls, 1);
        if bytes > 0 {
            slot.add(&counts.served.bytes, bytes);
        }
        if ns > 0 {
            slot.add(&counts.served_ns, ns);
            self.times[class as usize].record_in_bucket(ns);
        }
    }

    /// Counts calls on a pool that went to the kernel, and the `bytes` that they moved.
    pub fn by_kernel(&self, slot: SlotIndex, class: Class, reason: Reason, calls: u64, bytes: u64) {
        let counted = self.counts(slot);
        for counts in
            [&counted.classes[class as usize].by_kernel, &counted.reasons[reason as usize]]
        {
            slot.add(&counts.calls, calls);
            slot.add(&counts.bytes, bytes);
        }
    }

    /// Adds calls that went to the kernel, and their bytes, to the list of files ([`EXPLAIN`]).
    /// Does not count them elsewhere: the caller also calls [`by_kernel`](Self::by_kernel).
    pub fn explain(&self, path: &[u8], reason: Reason, calls: u64, bytes: u64) {
        self.files.add(path, reason, calls, bytes);
    }

    /// Returns the listed files.
    pub fn files(&self) -> Vec<FileCalls> {
        self.files.list()
    }

    /// Returns how long the calls took that were served, by [`Class`].
    pub fn latencies(&self) -> [Latencies; Class::COUNT] {
        self.times.each_ref().map(Histogram::counts)
    }

    /// Returns the sums of all counts.
    pub fn sums(&self) -> Sums {
        let unserved = self.executed.load(Relaxed).saturating_sub(self.started.load(Relaxed));
        let mut sums = Sums { unserved, ..Sums::default() };
        for (program, name, processes) in self.programs.list() {
            let owners = self.claimed().iter().zip(&self.slots);
            let owned = owners.filter(|(owner, _)| owner.is_of(program)).map(|(_, slot)| slot);
            let mut counted = Counted::from(self.counts(SlotIndex::shared(program)));
            owned.for_each(|slot| counted.add(&slot.into()));
            sums.add(name, processes, counted);
        }
        sums.finish();
        sums
    }
}

impl SlotIndex {
    /// Converts to a number that is not 0, for a thread's cell.
    #[inline]
    pub const fn to_word(self) -> u32 {
        self.0 + 1
    }

    /// Converts the number of [`to_word`](Self::to_word) back; `None` for 0.
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
        let program = counters.program(b"program");
        counters.add_process(program);
        counters.start(7);
        let first = counters.claim(7, program);
        std::thread::scope(|scope| {
            for _ in 0..2 * SLOTS {
                scope.spawn(|| {
                    let slot = counters.claim(8, program);
                    for _ in 0..100 {
                        counters.served(slot, Class::Read, 10, 1);
                    }
                });
            }
        });
        counters.served(first, Class::Open, 0, 0);
        counters.by_kernel(first, Class::Read, Reason::Exclusive, 1, 4096);
        counters.release(8);
        assert!(!counters.claim(9, program).is_shared());
        let sums = counters.sums();
        let read = &sums.all.classes[Class::Read as usize];
        let calls = 200 * SLOTS as u64;
        assert_eq!((read.served, read.served_ns), (Tally { calls, bytes: 10 * calls }, calls));
        assert_eq!(counters.latencies()[Class::Read as usize].calls(), calls);
        assert_eq!(read.by_kernel, Tally { calls: 1, bytes: 4096 });
        assert_eq!(sums.all.reasons[Reason::Exclusive as usize].bytes, 4096);
        assert_eq!(sums.programs.len(), 1);
        assert_eq!(sums.programs[0].counted, sums.all);
        assert_eq!(sums.unserved, 0);
        counters.executes();
        assert_eq!(counters.sums().unserved, 1);
        counters.execute_failed();
        assert_eq!(counters.sums().unserved, 0);
    }

    #[test]
    fn a_thread_that_counts_alone_has_a_slot() {
        let counters = counters();
        let (sh, cat) = (counters.program(b"sh"), counters.program(b"cat"));
        let slots = [counters.claim(7, sh), counters.claim(7, sh), counters.claim(8, sh)];
        assert_eq!(slots, [SlotIndex(0), SlotIndex(1), SlotIndex(2)]);
        // The next process of the same program, and the next program in the same process.
        counters.release(8);
        assert_eq!(counters.claim(9, sh), SlotIndex(2));
        counters.start(9);
        assert_eq!(counters.claim(9, cat), SlotIndex(3));
        assert_eq!(counters.claim(10, sh), SlotIndex(2));
        assert_eq!(SlotIndex::from_word(SlotIndex(3).to_word()), Some(SlotIndex(3)));
        assert_eq!(SlotIndex::from_word(0), None);
    }

    #[test]
    fn what_was_counted_stays_with_its_program() {
        let counters = counters();
        let (sh, cat) = (counters.program(b"sh"), counters.program(b"cat"));
        [sh, sh, sh, cat].into_iter().for_each(|program| counters.add_process(program));
        counters.served(counters.claim(7, sh), Class::Write, 5, 0);
        // A child that is killed keeps its slot; one that executes another program gives it back.
        counters.by_kernel(counters.claim(8, sh), Class::Read, Reason::Libc, 1, 10);
        counters.served(counters.claim(9, sh), Class::Open, 0, 0);
        counters.start(9);
        counters.served(counters.claim(9, cat), Class::Read, 100, 0);
        counters.release(9);
        counters.served(SlotIndex::shared(cat), Class::Close, 0, 0);
        // More programs than there is room for, and more threads.
        for i in 0..2 * SLOTS as u32 {
            let other = counters.program(i.to_string().as_bytes());
            counters.add_process(other);
            counters.served(counters.claim(100 + i, other), Class::Read, 1, 0);
        }
        let sums = counters.sums();
        let of = |name: &str| {
            let program = sums.programs.iter().find(|program| program.name == name).unwrap();
            (program.processes, program.counted.served(), program.counted.by_kernel())
        };
        let tally = |calls, bytes| Tally { calls, bytes };
        assert_eq!(of("sh"), (3, tally(2, 5), tally(1, 10)));
        assert_eq!(of("cat"), (1, tally(2, 100), tally(0, 0)));
        let named = PROGRAMS as u64 - 3;
        let others = 2 * SLOTS as u64 - named;
        assert_eq!(of("others"), (others, tally(others, others), tally(0, 0)));
        assert_eq!(sums.programs.len(), PROGRAMS);
        assert_eq!(sums.programs[0].name, "sh");
        let all: Tally = sums.programs.iter().map(|program| program.counted.served()).sum();
        assert_eq!(sums.all.served(), all);
        assert_eq!(all.calls, 4 + 2 * SLOTS as u64);
    }

    #[test]
    fn other_files_are_not_mapped() {
        let file = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Counters::map(file.as_fd()).is_none());
        assert!(Counters::inherited(c"/dev/null").is_none());
    }
}
