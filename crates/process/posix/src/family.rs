//! The memory that a family of forked processes shares: open file descriptions, and each process's
//! table of descriptors.
//!
//! It is zeroed shared memory of a fixed size. Parts that are not used take no pages. It contains
//! no pointers.
//!
//! - **family-F1** A process *holds* a description while one of its descriptors refers to it, it is
//!   the working directory, or a call uses it. `Segment::holds` counts these. The first hold of a
//!   process comes with one reference of the engine, which the last hold gives back.
//! - **family-F2** `Ofd::holders` counts the processes that hold a description. 0 means that it is
//!   free.
//! - **family-F3** A segment belongs to a live process, or it is swept: its holds and locks are
//!   given back.
//! - **family-F4** The segment of a process that died in a fork waits for the child, which is to
//!   inherit it. It waits half a minute, or longer if the child has announced itself. A child that
//!   comes later (it was stopped right after its birth) detects that and inherits nothing.

#![allow(unsafe_code)]

use crate::owner::Owner;
use arena::ProcessId;
use os::threads::OwnU32;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*, fence};
use vfs::{Errno, FileKind, Ino};

/// Descriptors from this number on are never ours.
pub const FDS: usize = 1 << 16;
/// Open file descriptions of a family.
pub const OFDS: usize = 1 << 14;
/// Processes of a family. Further ones get a segment that is not swept.
const SEGMENTS: usize = 256;

/// The description of a table entry: its index + 1, or 0 for no description.
pub type OfdHandle = u32;
/// The table entry of a descriptor of our own, which the program does not see.
pub const HIDDEN: OfdHandle = u32::MAX;
/// The table entry of a descriptor that is closed to the program, but not in the kernel.
pub const PARKED: OfdHandle = u32::MAX - 1;

/// The bit of a table entry for a descriptor that is a duplicate of the kernel's description
/// (promote-M6 in `promote`).
pub const ON_KERNEL: OfdHandle = 1 << 30;

/// Returns the description that a table entry refers to, if it refers to one.
#[inline]
pub fn described(entry: OfdHandle) -> Option<OfdHandle> {
    let handle = entry & !ON_KERNEL;
    (1..=OFDS as OfdHandle).contains(&handle).then_some(handle)
}

/// The kernel has a description, too, and its offset counts: [`Ofd::state`].
pub const PROMOTED: u32 = 1 << 8;
/// The description is a working directory, which needs no description in the kernel.
pub const CWD: u32 = 1 << 9;
/// The file was opened with `O_TMPFILE | O_EXCL`, and may not be given a name.
pub const UNLINKABLE: u32 = 1 << 10;
/// Opening it has created the file.
pub const CREATED: u32 = 1 << 11;
const KIND_BITS: u32 = 0xf;

/// Raises a word that only grows. Usually it is high enough already.
#[inline]
pub fn raise(word: &AtomicU32, to: u32) {
    if word.load(Relaxed) < to {
        word.fetch_max(to, AcqRel);
    }
}

/// An open file description. One cache line.
#[repr(C, align(64))]
pub struct Ofd {
    holders: AtomicU32,
    state: AtomicU32,
    /// `O_*`: access mode and status flags.
    pub flags: AtomicU32,
    /// Guards `offset`: 0, or the owner's token, with [`CONTENDED`] if a thread sleeps.
    lock: AtomicU32,
    /// In bytes; for directories the cookie of the next entry.
    pub offset: AtomicU64,
    ino: AtomicU64,
    generation: AtomicU32,
    mount: AtomicU32,
}

/// The properties of a description to be opened.
#[derive(Clone, Copy, Debug)]
pub struct OfdInit {
    /// Index of the mount.
    pub mount: u32,
    /// The inode.
    pub ino: Ino,
    /// Generation of the inode.
    pub generation: u32,
    /// Kind of the inode.
    pub kind: FileKind,
    /// `O_*`.
    pub flags: i32,
    /// Further bits of the state.
    pub state: u32,
}

impl Ofd {
    /// The inode.
    #[inline]
    pub fn ino(&self) -> Ino {
        Ino(self.ino.load(Relaxed))
    }

    /// Generation of the inode.
    pub fn generation(&self) -> u32 {
        self.generation.load(Relaxed)
    }

    /// Index of the mount.
    #[inline]
    pub fn mount(&self) -> usize {
        self.mount.load(Relaxed) as usize
    }

    /// Kind of the inode.
    #[inline]
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode((self.state.load(Relaxed) & KIND_BITS) << 12).unwrap_or(FileKind::File)
    }

    /// Whether all of `bits` are set in the state.
    #[inline]
    pub fn is(&self, bits: u32) -> bool {
        self.state.load(Acquire) & bits == bits
    }

    /// Sets bits of the state.
    pub fn mark(&self, bits: u32) {
        self.state.fetch_or(bits, AcqRel);
    }

    /// `O_*`.
    #[inline]
    pub fn oflags(&self) -> i32 {
        self.flags.load(Relaxed) as i32
    }
}

/// A thread sleeps on the lock.
const CONTENDED: u32 = 1 << 30;
/// The token is a process ID: the process has no segment in the family.
const BY_PID: u32 = 1 << 31;
/// The time that a child has to inherit from a parent that died, in milliseconds (family-F4).
const FORK_MS: u64 = 30_000;
/// The time that a waiter sleeps before it checks that the owner lives, in nanoseconds.
const LOOK_NS: i64 = 20_000_000;

/// The offset of a description, locked. Like the kernel's `f_pos` lock, it makes reads and writes
/// that move the offset follow one another.
pub struct Position<'a> {
    ofd: &'a Ofd,
}

impl Ofd {
    /// Locks the offset. Takes the lock over from a dead holder; `dead` returns whether the process
    /// of a token is dead.
    #[inline]
    pub fn position(&self, token: u32, dead: impl Fn(u32) -> bool) -> Position<'_> {
        if self.lock.compare_exchange(0, token, Acquire, Relaxed).is_err() {
            self.position_slow(token, dead);
        }
        Position { ofd: self }
    }

    /// Waits for the lock. Takes it over if the owner is `dead`.
    #[cold]
    fn position_slow(&self, token: u32, dead: impl Fn(u32) -> bool) {
        use rustix::thread::futex;
        for _ in 0..100 {
            if self.lock.compare_exchange_weak(0, token, Acquire, Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        loop {
            let seen = self.lock.load(Relaxed);
            let ours = token | CONTENDED;
            if seen == 0 {
                if self.lock.compare_exchange(0, ours, Acquire, Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            if seen & CONTENDED == 0
                && self.lock.compare_exchange(seen, seen | CONTENDED, Relaxed, Relaxed).is_err()
            {
                continue;
            }
            let seen = seen | CONTENDED;
            let timeout = futex::Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
            let slept = futex::wait(&self.lock, futex::Flags::empty(), seen, Some(&timeout));
            if slept == Err(Errno::TIMEDOUT)
                && dead(seen & !CONTENDED)
                && self.lock.compare_exchange(seen, ours, Acquire, Relaxed).is_ok()
            {
                return;
            }
        }
    }

    /// Gives the lock back, and wakes a waiting thread.
    fn unlock(&self) {
        if self.lock.swap(0, Release) & CONTENDED != 0 {
            let _ =
                rustix::thread::futex::wake(&self.lock, rustix::thread::futex::Flags::empty(), 1);
        }
    }
}

impl Position<'_> {
    /// The offset.
    #[inline]
    pub fn get(&self) -> u64 {
        self.ofd.offset.load(Relaxed)
    }

    /// Sets the offset.
    #[inline]
    pub fn set(&self, offset: u64) {
        self.ofd.offset.store(offset, Relaxed);
    }
}

impl Drop for Position<'_> {
    #[inline]
    fn drop(&mut self) {
        self.ofd.unlock();
    }
}

/// The part of the memory that belongs to one process.
#[repr(C)]
pub struct Segment {
    /// Set when the child has its engine references.
    pub ready: AtomicU32,
    /// One more than the highest descriptor that was ever ours.
    pub fd_end: AtomicU32,
    /// The working directory, if it is in a pool.
    pub cwd: OwnU32,
    /// The table: one entry for each descriptor.
    pub fds: [OwnU32; FDS],
    /// Records of the module `parked`, one for each descriptor.
    pub descriptors: [AtomicU8; FDS],
    /// Holds of each description (family-F1), at [`holds`](Self::holds).
    holds: [OwnU32; OFDS],
}

impl Segment {
    /// The number of holds that this process has on a description (family-F1). Descriptions that
    /// were opened one after the other have theirs in different cache lines. Otherwise the line
    /// would travel between threads that use one each.
    #[inline]
    pub fn holds(&self, handle: OfdHandle) -> &OwnU32 {
        const PER_LINE: usize = 64 / size_of::<OwnU32>();
        const LINES: usize = OFDS / PER_LINE;
        let index = (handle - 1) as usize;
        &self.holds[index % LINES * PER_LINE + index / LINES]
    }
}

fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[repr(C)]
struct FamilyMemory {
    /// The index at which the search for a free description starts.
    next: AtomicU32,
    /// One more than the highest description ever used.
    end: AtomicU32,
    /// The owners of the segments, as [`ProcessId`]. Moments are milliseconds of the monotonic
    /// clock. Owners lie together, so that the search for a free segment touches one page.
    owners: [Owner; SEGMENTS],
    ofds: [Ofd; OFDS],
    segments: [Segment; SEGMENTS],
}

/// The family's memory, and the place of this process in it.
pub struct Family {
    shared: NonNull<FamilyMemory>,
    /// The process that has claimed a segment last, as [`ProcessId`]; after a fork, the parent.
    own: AtomicU64,
}

// SAFETY: everything that is reached through the pointer is atomic.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}

/// The segment of a process for which there was no memory. It stays empty.
static NOWHERE: Segment = Segment {
    ready: AtomicU32::new(0),
    fd_end: AtomicU32::new(0),
    cwd: OwnU32::new(0),
    fds: [const { OwnU32::new(0) }; FDS],
    descriptors: [const { AtomicU8::new(0) }; FDS],
    holds: [const { OwnU32::new(0) }; OFDS],
};

/// One process of the family: its segment, and the token of its locks.
#[derive(Clone, Copy)]
pub struct Member {
    segment: NonNull<Segment>,
    /// The value that marks locks of this process.
    pub token: u32,
}

impl Member {
    /// A member without memory: calls on descriptors go to the kernel.
    pub fn nobody() -> Self {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        Self { segment: NonNull::from(&NOWHERE), token: BY_PID | pid }
    }

    /// Its segment.
    #[inline]
    pub fn segment(&self) -> &Segment {
        // SAFETY: segments stay mapped as long as the family, and so the process layer, exists.
        unsafe { self.segment.as_ref() }
    }

    /// The segment's address, for [`from_raw`](Self::from_raw).
    pub fn as_ptr(&self) -> *mut Segment {
        self.segment.as_ptr()
    }

    /// Makes a member of a pointer of [`as_ptr`](Self::as_ptr) that is not null.
    pub fn from_raw(segment: NonNull<Segment>, token: u32) -> Self {
        Self { segment, token }
    }
}

/// Maps zeroed memory that a process shares with the processes that it forks.
fn map<T>() -> Result<NonNull<T>, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let kind = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping replaces nothing.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), size_of::<T>(), prot, kind)? };
    NonNull::new(at.cast()).ok_or(Errno::NOMEM)
}

impl Family {
    /// Maps the memory.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { shared: map::<FamilyMemory>()?, own: AtomicU64::new(0) })
    }

    /// The addresses of the memory.
    pub fn range(&self) -> Range<usize> {
        let start = self.shared.addr().get();
        start..start + size_of::<FamilyMemory>()
    }

    fn shared(&self) -> &FamilyMemory {
        // SAFETY: mapped until `self` is dropped; zeroes are valid atomics.
        unsafe { self.shared.as_ref() }
    }

    /// A description.
    #[inline]
    pub fn ofd(&self, handle: OfdHandle) -> &Ofd {
        &self.shared().ofds[(handle - 1) as usize & (OFDS - 1)]
    }

    /// Claims a segment for the calling process. Sweeps segments of dead processes if none is free.
    pub fn claim(&self) -> Result<Member, Errno> {
        let own = ProcessId::own();
        self.own.store(own.0, Relaxed);
        let shared = self.shared();
        for sweep in [false, true] {
            for (token, owner) in (1..).zip(&shared.owners) {
                if sweep {
                    self.sweep(token);
                }
                if owner.claim(own.0) {
                    return Ok(self.member(token));
                }
            }
        }
        // Processes that this one forks must see the segment, too.
        Ok(Member { segment: map::<Segment>()?, token: BY_PID | own.pid() })
    }

    fn member(&self, token: u32) -> Member {
        let segment = NonNull::from(&self.shared().segments[(token - 1) as usize]);
        Member { segment, token }
    }

    /// The owner of a token's segment. `None` for a segment that is not swept.
    fn owner(&self, token: u32) -> Option<&Owner> {
        if token & BY_PID != 0 {
            return None;
        }
        Some(&self.shared().owners[(token - 1) as usize % SEGMENTS])
    }

    /// Announces that `member` is about to fork. Until [`end_fork`](Self::end_fork), its segment
    /// stays if it dies (family-F4).
    pub fn begin_fork(&self, member: Member) {
        if let Some(owner) = self.owner(member.token) {
            owner.begin_fork(now_ms() + FORK_MS);
        }
    }

    /// Notes that the child of `member` has inherited, or does not exist.
    pub fn end_fork(&self, member: Member) {
        if let Some(owner) = self.owner(member.token) {
            owner.end_fork();
        }
    }

    /// Returns whether the segment of the parent can still be inherited, and keeps it (family-F4).
    /// For a child that has not [claimed](Self::claim) a segment yet.
    pub fn is_there(&self, parent: Member) -> bool {
        let Some(owner) = self.owner(parent.token) else { return true };
        let until = now_ms() + FORK_MS;
        let own = self.own.load(Relaxed);
        owner.is_there(own, until, || fence(SeqCst), rustix::thread::sched_yield)
    }

    /// Whether the segment of `member` still belongs to the process that claimed it here.
    pub fn is_own(&self, member: Member) -> bool {
        let own = self.own.load(Relaxed);
        self.owner(member.token).is_none_or(|owner| owner.is(own))
    }

    /// Whether the process of a lock's token is dead.
    pub fn is_dead(&self, token: u32) -> bool {
        match self.owner(token) {
            None => ProcessId::is_free(token & !BY_PID),
            Some(owner) => owner.is_left(|who| ProcessId(who).is_dead()),
        }
    }

    /// Gives back the holds and locks of a segment's process, if it is dead and no child is to
    /// inherit (family-F3, family-F4).
    fn sweep(&self, token: u32) {
        let owner = &self.shared().owners[(token - 1) as usize];
        if owner.begin_sweep(now_ms, |who| ProcessId(who).is_dead(), || fence(SeqCst)) {
            self.vacate(self.member(token).segment(), token);
        }
    }

    /// Empties a segment and frees it.
    fn vacate(&self, segment: &Segment, token: u32) {
        let end = self.shared().end.load(Acquire) as usize;
        for i in 0..end {
            let ofd = &self.shared().ofds[i];
            if ofd.lock.load(Relaxed) & !CONTENDED == token {
                ofd.unlock();
            }
            if segment.holds(i as OfdHandle + 1).swap(0, AcqRel) > 0 {
                ofd.holders.fetch_sub(1, AcqRel);
            }
        }
        let fds = segment.fd_end.swap(0, AcqRel) as usize;
        segment.fds[..fds].iter().for_each(|fd| fd.store(0, Relaxed));
        segment.descriptors[..fds].iter().for_each(|record| record.store(0, Relaxed));
        segment.cwd.store(0, Relaxed);
        segment.ready.store(0, Relaxed);
        self.shared().owners[(token - 1) as usize].free();
    }

    /// Gives the calling process's segment back, before the process exits.
    pub fn leave(&self, member: Member) {
        if member.token & BY_PID == 0 {
            self.vacate(member.segment(), member.token);
        }
    }

    /// Makes a description, with one hold for `member`. `ENFILE` if the family has too many.
    pub fn open(&self, member: Member, init: &OfdInit) -> Result<OfdHandle, Errno> {
        let shared = self.shared();
        for sweep in [false, true] {
            if sweep {
                (1..=SEGMENTS as u32).filter(|t| *t != member.token).for_each(|t| self.sweep(t));
            }
            let start = shared.next.load(Relaxed) as usize;
            for i in (start..OFDS).chain(0..start) {
                let ofd = &shared.ofds[i];
                if ofd.holders.load(Relaxed) == 0
                    && ofd.holders.compare_exchange(0, 1, AcqRel, Relaxed).is_ok()
                {
                    shared.next.store((i as u32 + 1) % OFDS as u32, Relaxed);
                    raise(&shared.end, i as u32 + 1);
                    ofd.state.store(init.kind.mode_bits() >> 12 | init.state, Relaxed);
                    ofd.flags.store(init.flags as u32, Relaxed);
                    ofd.lock.store(0, Relaxed);
                    ofd.offset.store(0, Relaxed);
                    ofd.ino.store(init.ino.0, Relaxed);
                    ofd.generation.store(init.generation, Relaxed);
                    ofd.mount.store(init.mount, Relaxed);
                    member.segment().holds(i as OfdHandle + 1).store(1, Release);
                    return Ok(i as OfdHandle + 1);
                }
            }
        }
        Err(Errno::NFILE)
    }

    /// Whether the family is likely to have room for another description.
    pub fn has_room(&self) -> bool {
        let shared = self.shared();
        let is_free = |i: usize| shared.ofds[i].holders.load(Relaxed) == 0;
        let next = shared.next.load(Relaxed) as usize;
        is_free(next) || (0..OFDS).any(is_free)
    }

    /// Notes that one more process of the family holds the description.
    pub fn add_holder(&self, handle: OfdHandle) {
        self.ofd(handle).holders.fetch_add(1, AcqRel);
    }

    /// Notes that the calling process holds the description no longer. A freed description is the
    /// next to be used, as its line is in the cache.
    pub fn drop_holder(&self, handle: OfdHandle) {
        let holders = &self.ofd(handle).holders;
        // With one thread, no other thread can be forking, which would let another process hold it.
        let is_ours = os::threads::is_only_one() && holders.load(Relaxed) == 1;
        if is_ours {
            holders.store(0, Release);
        }
        if is_ours || holders.fetch_sub(1, AcqRel) == 1 {
            self.shared().next.store(handle - 1, Relaxed);
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: references into the memory do not outlive `self`.
        let _ = unsafe { munmap(self.shared.as_ptr().cast(), size_of::<FamilyMemory>()) };
    }
}

const _: () = assert!(size_of::<Ofd>() == 64);
const _: () = assert!(OFDS.is_power_of_two());
