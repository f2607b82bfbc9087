//! The memory that a family of forked processes shares: open file descriptions, and each process's
//! table of descriptors.
//!
//! Zeroed shared memory of a fixed size, sparse: what is not used takes no pages. Nothing in it is a
//! pointer.
//!
//! - **family-F1** A process *holds* a description while one of its descriptors refers to it, its working
//!   directory is it, or a call uses it: `Segment::holds` counts these. The first hold of a process
//!   comes with one engine reference, which the last gives back.
//! - **family-F2** `Ofd::holders` counts the processes that hold it; 0 means free.
//! - **family-F3** A segment belongs to a live process or is swept: its holds and locks are given back.
//! - **family-F4** That of a process which has died in a fork waits for the child, which has yet to inherit it: for
//!   half a minute, unless the child says that it is there. A child that comes later (it was stopped as it
//!   was born) finds that out and inherits nothing.

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
/// Processes of a family; further ones get a segment that nobody sweeps.
const SEGMENTS: usize = 256;

/// Which description a table entry means: its index + 1; 0 is none.
pub type OfdHandle = u32;
/// The table entry of a descriptor of our own, which the program does not see.
pub const HIDDEN: OfdHandle = u32::MAX;
/// The table entry of a descriptor that is closed, but not in the kernel.
pub const PARKED: OfdHandle = u32::MAX - 1;

/// In a table entry, beside the handle: the descriptor is a duplicate of the kernel's description (promote-M6 in `promote`).
pub const ON_KERNEL: OfdHandle = 1 << 30;

/// The description that a table entry means, if any.
#[inline]
pub fn described(entry: OfdHandle) -> Option<OfdHandle> {
    let handle = entry & !ON_KERNEL;
    (1..=OFDS as OfdHandle).contains(&handle).then_some(handle)
}

/// The kernel has a description too, whose offset is the one that counts: [`Ofd::state`].
pub const PROMOTED: u32 = 1 << 8;
/// A working directory: it never needs a description in the kernel.
pub const CWD: u32 = 1 << 9;
/// A file of `O_TMPFILE | O_EXCL`, which may not be given a name.
pub const UNLINKABLE: u32 = 1 << 10;
/// Opening it has created the file.
pub const CREATED: u32 = 1 << 11;
const KIND_BITS: u32 = 0xf;

/// Raises a word that only grows; mostly, it is high enough.
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
    /// Guards `offset`: 0, or the owner's token, with [`CONTENDED`] where somebody sleeps.
    lock: AtomicU32,
    /// Bytes; for directories the cookie of the next entry.
    pub offset: AtomicU64,
    ino: AtomicU64,
    generation: AtomicU32,
    mount: AtomicU32,
}

/// What a description is opened with.
#[derive(Clone, Copy, Debug)]
pub struct OfdInit {
    /// Index of the mount.
    pub mount: u32,
    /// Inode.
    pub ino: Ino,
    /// Its life.
    pub generation: u32,
    /// Its kind.
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

    /// Which life of the inode.
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

/// Somebody sleeps on a lock.
const CONTENDED: u32 = 1 << 30;
/// The token is a process ID: the process has no segment in the family.
const BY_PID: u32 = 1 << 31;
/// How long a child has to inherit from a parent that has died, in milliseconds (family-F4).
const FORK_MS: u64 = 30_000;
/// How long a waiter sleeps before it looks whether the owner is alive, in nanoseconds.
const LOOK_NS: i64 = 20_000_000;

/// The offset of a description, held. As the kernel's `f_pos` lock it makes reads and writes that
/// move the offset follow one another.
pub struct Position<'a> {
    ofd: &'a Ofd,
}

impl Ofd {
    /// Takes the offset. A holder that died is taken over; `dead` says whether the process behind a
    /// token is.
    #[inline]
    pub fn position(&self, token: u32, dead: impl Fn(u32) -> bool) -> Position<'_> {
        if self.lock.compare_exchange(0, token, Acquire, Relaxed).is_err() {
            self.position_slow(token, dead);
        }
        Position { ofd: self }
    }

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

    /// Moves it.
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

/// What one process has of its own.
#[repr(C)]
pub struct Segment {
    /// The child has its engine references.
    pub ready: AtomicU32,
    /// One more than the highest descriptor that was ever ours.
    pub fd_end: AtomicU32,
    /// The working directory, where it is in a pool.
    pub cwd: OwnU32,
    /// By descriptor.
    pub fds: [OwnU32; FDS],
    /// By descriptor: what the module `parked` knows of it.
    pub descriptors: [AtomicU8; FDS],
    /// By description (family-F1), at [`holds`](Self::holds).
    holds: [OwnU32; OFDS],
}

impl Segment {
    /// How often this process holds a description (family-F1). Descriptions that were opened one after the other
    /// have them in different cache lines, which threads with one each would pass to and fro.
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
    /// Where the search for a free description starts.
    next: AtomicU32,
    /// One more than the highest description ever used.
    end: AtomicU32,
    /// Whose the segments are, as [`ProcessId`]; moments are milliseconds of the monotonic clock. They lie together, so that
    /// looking for a free one touches one page.
    owners: [Owner; SEGMENTS],
    ofds: [Ofd; OFDS],
    segments: [Segment; SEGMENTS],
}

/// The family's memory and who this process is in it.
pub struct Family {
    shared: NonNull<FamilyMemory>,
    /// The process that has claimed a segment last, as [`ProcessId`]: after a fork, the parent.
    own: AtomicU64,
}

// SAFETY: all that is reached through the pointer is atomic.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}

/// The segment of a process for which there was no memory: nothing is its.
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
    /// What locks carry.
    pub token: u32,
}

impl Member {
    /// One that has no memory: calls on descriptors go to the kernel.
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

    /// The segment's address, and back by [`from_raw`](Self::from_raw).
    pub fn as_ptr(&self) -> *mut Segment {
        self.segment.as_ptr()
    }

    /// From a pointer of [`as_ptr`](Self::as_ptr) that is not null.
    pub fn from_raw(segment: NonNull<Segment>, token: u32) -> Self {
        Self { segment, token }
    }
}

/// Memory that a process shares with those it forks.
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

    /// Addresses of the memory.
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

    /// Claims a segment for the calling process, sweeping those of dead ones if it must.
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
        // What the process forks must see it, too.
        Ok(Member { segment: map::<Segment>()?, token: BY_PID | own.pid() })
    }

    fn member(&self, token: u32) -> Member {
        let segment = NonNull::from(&self.shared().segments[(token - 1) as usize]);
        Member { segment, token }
    }

    /// Who has the segment of a token; `None` for one that nobody sweeps.
    fn owner(&self, token: u32) -> Option<&Owner> {
        if token & BY_PID != 0 {
            return None;
        }
        Some(&self.shared().owners[(token - 1) as usize % SEGMENTS])
    }

    /// `member` is about to fork: until [`end_fork`](Self::end_fork), its segment stays if it
    /// dies (family-F4).
    pub fn begin_fork(&self, member: Member) {
        if let Some(owner) = self.owner(member.token) {
            owner.begin_fork(now_ms() + FORK_MS);
        }
    }

    /// The child of `member` has inherited, or there is none.
    pub fn end_fork(&self, member: Member) {
        if let Some(owner) = self.owner(member.token) {
            owner.end_fork();
        }
    }

    /// In a child that has not [claimed](Self::claim) yet: whether the segment of its parent is
    /// still there to inherit, and stays so (family-F4).
    pub fn is_there(&self, parent: Member) -> bool {
        let Some(owner) = self.owner(parent.token) else { return true };
        let until = now_ms() + FORK_MS;
        let own = self.own.load(Relaxed);
        owner.is_there(own, until, || fence(SeqCst), rustix::thread::sched_yield)
    }

    /// Whether the segment of `member` is still that of the process which has claimed it here.
    pub fn is_own(&self, member: Member) -> bool {
        let own = self.own.load(Relaxed);
        self.owner(member.token).is_none_or(|owner| owner.is(own))
    }

    /// Whether the process behind a token of a lock is dead.
    pub fn is_dead(&self, token: u32) -> bool {
        match self.owner(token) {
            None => ProcessId::is_free(token & !BY_PID),
            Some(owner) => owner.is_left(|who| ProcessId(who).is_dead()),
        }
    }

    /// Gives back what the segment's process held, if it is dead and no child needs it (family-F3, family-F4).
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

    /// Gives the calling process's segment back: at a quiet exit.
    pub fn leave(&self, member: Member) {
        if member.token & BY_PID == 0 {
            self.vacate(member.segment(), member.token);
        }
    }

    /// Makes a description, with one hold for `member`. `ENFILE` where the family has
    /// too many.
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

    /// Another process of the family holds the description, too.
    pub fn add_holder(&self, handle: OfdHandle) {
        self.ofd(handle).holders.fetch_add(1, AcqRel);
    }

    /// The calling process holds it no longer. A freed description is the next to be used: its line
    /// is in the cache.
    pub fn drop_holder(&self, handle: OfdHandle) {
        let holders = &self.ofd(handle).holders;
        // With one thread there is nobody who could be forking, and let another process hold it.
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
