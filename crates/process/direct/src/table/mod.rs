//! Descriptors and what they refer to: from the first look to the last close.
//!
//! - **table-T1** An entry is emptied before its descriptor is closed, and filled after it was
//!   opened. So with the tables locked, an entry shows what its descriptor refers to.

#![allow(unsafe_code)]

mod leaving;

use crate::chunk::{Chunk, Entry, Leaf};
use crate::descriptions::{APPENDS, Description, LEAVES_NOTHING, READS, WRITES};
use crate::file::{self, File, FileSystemKind};
use crate::lock::{Held, Lock};
use crate::look;
use crate::position::OffsetOwner;
use crate::slab::{Room, Slab};
use crate::{Config, epoch};
use leaving::Leaving;
use rustix::fd::{AsRawFd as _, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use vfs::Errno;

/// Descriptors with higher numbers are the kernel's.
const FDS: usize = 1 << 16;
const DESCRIPTIONS: usize = 1 << 14;
const FILES: usize = 1 << 12;
const CHAINS: u64 = 1 << 10;
const LEAVES: usize = 1 << 13;
/// Chunks that are unmapped at once when there are too many.
const EVICTED_AT_ONCE: usize = 16;
/// Lowest number of the library's own descriptors, if they can have it.
const OWN_FROM: i32 = 800;

/// Bit of an entry that has not been looked at and counts its calls. (Without this bit, an entry is
/// 0 or the index of a description.)
const NEW: u32 = 1 << 31;
/// Bit of such an entry: other processes may move its offset.
const NEW_SHARED: u32 = 1 << 30;
/// Bit of such an entry: it has locks of its own.
const NEW_LOCKED: u32 = 1 << 29;
const CALLS: u32 = 0xffff;
/// Bytes of a call that count as another call.
const CALL_BYTES: usize = 16 << 10;

/// The files that a process reads and writes by copies. Any number of threads may call it.
pub struct Direct {
    pub(super) config: Config,
    /// Addresses of the tables.
    memory: Range<usize>,
    /// Held while descriptions, files or chunks are added or removed.
    lock: Lock,
    /// Entries by descriptor plus one.
    fds: Slab<AtomicU32>,
    /// End of the descriptors in use.
    fd_end: AtomicU32,
    descriptions: Slab<Description>,
    pub(super) files: Slab<File>,
    /// Files by hash: the first of each chain.
    chains: Slab<AtomicU32>,
    leaves: Slab<Leaf>,
    pub(super) chunks: Slab<Chunk>,
    mapped: AtomicUsize,
    /// Index where the search for a chunk to unmap continues.
    hand: AtomicU32,
    /// Descriptions that are closed and may still be looked at (direct-E1).
    limbo: [AtomicU32; 64],
    limbo_len: AtomicUsize,
    /// Incremented when this process has read or set times (direct-C4).
    pub(super) generation: AtomicU64,
    /// `RLIMIT_FSIZE`.
    pub(super) file_size_max: AtomicU64,
    /// Whether this process has ever locked a record of a file: closing a descriptor of the library
    /// would end such locks.
    has_record_locks: AtomicBool,
    /// Whether new descriptors are looked at, and chunks mapped.
    looks: AtomicBool,
}

/// Returns the number of calls that a call of `len` bytes counts as.
fn weight(len: usize) -> u32 {
    1 + (len / CALL_BYTES) as u32
}

pub(super) fn borrow<'f>(fd: i32) -> BorrowedFd<'f> {
    // SAFETY: descriptors here are the program's, which keeps them open during its calls; if it
    // does not, the kernel returns an error.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Direct {
    /// Makes a state that serves nothing yet: see [`opened`](Self::opened). Fails if the kernel
    /// lacks `membarrier`, or without memory.
    pub fn new(config: Config) -> Result<Self, Errno> {
        epoch::start()?;
        let chunks = config.chunks_max + EVICTED_AT_ONCE;
        let mut room = Room::new(
            Slab::<AtomicU32>::bytes(FDS)
                + Slab::<Description>::bytes(DESCRIPTIONS)
                + Slab::<File>::bytes(FILES)
                + Slab::<AtomicU32>::bytes(CHAINS as usize)
                + Slab::<Leaf>::bytes(LEAVES)
                + Slab::<Chunk>::bytes(chunks),
        )?;
        let direct = Self {
            memory: room.memory(),
            lock: Lock::default(),
            fds: Slab::new(FDS, &mut room),
            fd_end: AtomicU32::new(0),
            descriptions: Slab::new(DESCRIPTIONS, &mut room),
            files: Slab::new(FILES, &mut room),
            chains: Slab::new(CHAINS as usize, &mut room),
            leaves: Slab::new(LEAVES, &mut room),
            chunks: Slab::new(chunks, &mut room),
            mapped: AtomicUsize::new(0),
            hand: AtomicU32::new(0),
            limbo: [const { AtomicU32::new(0) }; 64],
            limbo_len: AtomicUsize::new(0),
            generation: AtomicU64::new(1),
            file_size_max: AtomicU64::new(u64::MAX),
            has_record_locks: AtomicBool::new(false),
            looks: AtomicBool::new(true),
            config,
        };
        direct.limits_changed();
        Ok(direct)
    }

    #[inline]
    fn entry(&self, fd: i32) -> Option<&AtomicU32> {
        ((fd as u32 as usize) < FDS).then(|| self.fds.at(fd as u32 + 1))
    }

    /// Whether calls on `fd` are of interest here.
    #[inline]
    pub fn watches(&self, fd: i32) -> bool {
        self.entry(fd).is_some_and(|entry| entry.load(Relaxed) != 0)
    }

    /// Returns the description of a descriptor, inside (direct-E1). A new one is only looked at
    /// after enough calls.
    #[inline]
    pub(super) fn get(&self, fd: i32) -> Option<(u32, &Description)> {
        let entry = self.entry(fd)?.load(Acquire);
        if entry & NEW != 0 || entry == 0 {
            return None;
        }
        Some((entry, self.descriptions.at(entry)))
    }

    /// Counts a call on a new descriptor, and the bytes that it writes; looks at the descriptor
    /// when it is time to. Returns whether it is served now. The caller is outside.
    #[inline]
    pub(super) fn is_served(&self, fd: i32, len: usize) -> bool {
        match self.entry(fd).map_or(0, |entry| entry.load(Relaxed)) {
            0 => false,
            entry if entry & NEW == 0 => true,
            entry => self.count(fd, entry, weight(len)),
        }
    }

    /// Counts calls on a new descriptor until it is looked at. Returns whether it is served now.
    #[cold]
    fn count(&self, fd: i32, seen: u32, calls: u32) -> bool {
        let Some(entry) = self.entry(fd) else { return false };
        if (seen & CALLS).saturating_add(calls) <= self.config.look_after {
            let _ = entry.compare_exchange(seen, seen + calls, Relaxed, Relaxed);
            return false;
        }
        let held = self.lock.hold();
        self.look(&held, fd);
        drop(held);
        self.entry(fd).is_some_and(|entry| {
            let entry = entry.load(Relaxed);
            entry != 0 && entry & NEW == 0
        })
    }

    /// Looks at a new descriptor: sets its entry to a description or 0.
    fn look(&self, held: &Held<'_>, fd: i32) {
        let Some(entry) = self.entry(fd) else { return };
        let seen = entry.load(Acquire);
        if seen & NEW == 0 {
            return;
        }
        let index = if self.looks.load(Relaxed) { self.describe(held, fd, seen) } else { None };
        let index = index.unwrap_or(0);
        let is_same = |now: u32| now & NEW != 0 && (now & !CALLS) == (seen & !CALLS);
        let taken = entry.fetch_update(AcqRel, Relaxed, |now| is_same(now).then_some(index));
        if taken.is_err() && index != 0 {
            // It was closed, or opened again, meanwhile.
            self.release(held, -1, index);
        }
    }

    /// Makes a description for a descriptor that is to be served.
    fn describe(&self, held: &Held<'_>, fd: i32, seen: u32) -> Option<u32> {
        let file = borrow(fd);
        let stat = look::stat(fd)?;
        if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let kind = look::kind_of(fd, &stat)?;
        let flags = rustix::fs::fcntl_getfl(file).ok()?;
        let is_asked = look::is_below(fd, &self.config.dirs);
        if flags.intersects(OFlags::DIRECT | OFlags::PATH) || !is_asked {
            return None;
        }
        let mut how = match flags.bits() as i32 & libc::O_ACCMODE {
            libc::O_RDONLY => READS,
            libc::O_WRONLY => WRITES,
            libc::O_RDWR => READS | WRITES,
            _ => return None,
        };
        if flags.contains(OFlags::APPEND) {
            how |= APPENDS;
        }
        if seen & NEW_LOCKED != 0 {
            how |= LEAVES_NOTHING;
        }
        let file_index = self.find_file(held, look::device(&stat), stat.stx_ino, kind)?;
        let file = self.files.at(file_index);
        let Some(index) = self.descriptions.take() else {
            self.free_file_if_unused(held, file_index);
            return None;
        };
        file.set_size(stat.stx_size);
        file.open.fetch_add(1, Relaxed);
        file.users.fetch_add(1, Relaxed);
        let description = self.descriptions.at(index);
        description.init(file, file_index, how);
        let shared = seen & NEW_SHARED != 0;
        description.position.init(if shared { OffsetOwner::Shared } else { OffsetOwner::Kernel });
        Some(index)
    }

    fn chain(&self, dev: u64, ino: u64) -> &AtomicU32 {
        self.chains.at((file::hash(dev, ino) % CHAINS) as u32 + 1)
    }

    /// Returns the index of a file, by device and inode number, if a descriptor of it is known.
    pub(super) fn known_file(&self, _held: &Held<'_>, dev: u64, ino: u64) -> Option<u32> {
        let mut at = self.chain(dev, ino).load(Relaxed);
        while at != 0 && !self.files.at(at).is(dev, ino) {
            at = self.files.at(at).next.load(Relaxed);
        }
        (at != 0).then_some(at)
    }

    fn find_file(&self, held: &Held<'_>, dev: u64, ino: u64, kind: FileSystemKind) -> Option<u32> {
        if let Some(known) = self.known_file(held, dev, ino) {
            return Some(known);
        }
        let chain = self.chain(dev, ino);
        let index = self.files.take()?;
        let file = self.files.at(index);
        file.init(dev, ino, kind);
        file.next.store(chain.swap(index, Relaxed), Relaxed);
        Some(index)
    }

    /// Frees a file without users or chunks. After direct-E1.
    fn free_file_if_unused(&self, _held: &Held<'_>, index: u32) {
        let file = self.files.at(index);
        if file.users.load(Relaxed) > 0 || file.chunks().next().is_some() {
            return;
        }
        for slot in file.leaves() {
            let leaf = slot.swap(std::ptr::null_mut(), Relaxed);
            if let Some(index) = self.leaves.index_of(leaf) {
                self.leaves.at(index).entries().iter().for_each(|entry| entry.store(0, Relaxed));
                self.leaves.give_back(index);
            }
        }
        let mut link = self.chain(file.dev.load(Relaxed), file.ino.load(Relaxed));
        while link.load(Relaxed) != index {
            link = &self.files.at(link.load(Relaxed)).next;
        }
        link.store(file.next.load(Relaxed), Relaxed);
        self.files.give_back(index);
    }

    pub(super) fn hold(&self) -> Held<'_> {
        self.lock.hold()
    }

    /// Looks at a descriptor if it is new.
    pub(super) fn look_now(&self, fd: i32) {
        if self.entry(fd).is_some_and(|entry| entry.load(Relaxed) & NEW != 0) {
            self.look(&self.lock.hold(), fd);
        }
    }

    /// Returns the chunk in which an address lies.
    pub(super) fn chunk_at(&self, _held: &Held<'_>, bytes: *const u8) -> Option<u32> {
        self.chunks.indexes().find(|&index| self.chunks.at(index).holds(bytes.addr()))
    }

    /// Unmaps a chunk that no thread can find or use any more.
    pub(super) fn end(&self, index: u32) {
        self.chunks.at(index).unmap();
        self.chunks.give_back(index);
        self.mapped.fetch_sub(1, Relaxed);
    }

    /// Maps a chunk for a call on `fd`, if that is worth it by now; returns whether there may be
    /// more to map. The caller is outside.
    #[cold]
    pub(super) fn map(&self, fd: i32, index: u64, writes: bool) -> bool {
        let held = self.lock.hold();
        // table-T1: as long as the tables are locked, `fd` is this description's.
        let Some((description_index, description)) = self.get(fd) else { return false };
        if !self.looks.load(Relaxed) {
            return false;
        }
        let file = description.file();
        let Some(entry) = self.make_entry(file, index) else { return false };
        match Entry::of(entry.load(Acquire)) {
            Entry::Mapped(chunk) if chunk.is_writable() || !writes => return true,
            Entry::Heat(heat) if heat < self.config.map_after => return true,
            _ => {}
        }
        if self.mapped.load(Relaxed) >= self.config.chunks_max {
            self.evict(&held);
        }
        // The mapped chunk may have been evicted.
        let before = Entry::of(entry.load(Acquire));
        let Some(chunk_index) = self.chunks.take() else { return false };
        let chunk = self.chunks.at(chunk_index);
        let by = if description.is(READS) { Ok(fd) } else { self.mapper(&held, fd, file) };
        let writable = description.is(WRITES);
        let mapped = by.and_then(|by| chunk.map(borrow(by), file.kind(), index, writable));
        if mapped.is_err() {
            Entry::refuse(entry);
            self.chunks.give_back(chunk_index);
            return false;
        }
        self.mapped.fetch_add(1, Relaxed);
        chunk.owner.store(description_index, Relaxed);
        chunk.entry.store(std::ptr::from_ref(entry).cast_mut(), Relaxed);
        entry.store(std::ptr::from_ref(chunk).addr(), Release);
        if let Entry::Mapped(old) = before {
            let mut leaving = Leaving::default();
            leaving.add(self, old);
            let _ = leaving.unmap(self);
        }
        true
    }

    fn make_entry<'f>(&self, file: &'f File, index: u64) -> Option<&'f AtomicUsize> {
        if file.leaf(index).is_none() {
            let leaf = self.leaves.at(self.leaves.take()?);
            file.leaf_slot(index).store(std::ptr::from_ref(leaf).cast_mut(), Release);
        }
        file.entry(index)
    }

    /// Returns a descriptor that maps a file which the program can only write to. It stays open as
    /// long as the program's own: closing any descriptor ends the process's record locks.
    fn mapper(&self, _held: &Held<'_>, fd: i32, file: &File) -> Result<i32, Errno> {
        let known = file.mapper.load(Relaxed) - 1;
        if known >= 0 && self.is_ours(known, file) {
            return Ok(known);
        }
        if self.has_record_locks.load(SeqCst) {
            return Err(Errno::NOTSUP);
        }
        let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0";
        let _ = std::io::Write::write_fmt(&mut &mut path[14..], format_args!("{fd}"));
        let path = std::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let low = rustix::fs::open(path, flags, Mode::empty())?;
        let own = match rustix::io::fcntl_dupfd_cloexec(&low, OWN_FROM) {
            // A record that was locked meanwhile stays so: the low descriptor is kept, too.
            Ok(high) if self.has_record_locks.load(SeqCst) => {
                std::mem::forget(low);
                high
            }
            Ok(high) => high,
            Err(_) => low,
        };
        let fd = own.as_raw_fd();
        std::mem::forget(own);
        file.mapper.store(fd + 1, Relaxed);
        Ok(fd)
    }

    /// Whether the number of the library's descriptor has not been given to another file.
    fn is_ours(&self, fd: i32, file: &File) -> bool {
        let is_free = self.entry(fd).is_none_or(|entry| entry.load(Relaxed) == 0);
        let stat = rustix::fs::fstat(borrow(fd));
        is_free && stat.is_ok_and(|stat| file.is(stat.st_dev, stat.st_ino))
    }

    /// Unmaps chunks that were not used lately.
    #[cold]
    fn evict(&self, _held: &Held<'_>) {
        let len = *self.chunks.indexes().end();
        let mut leaving = Leaving::default();
        for _ in 0..2 * len {
            let hand = self.hand.fetch_add(1, Relaxed) % len + 1;
            let chunk = self.chunks.at(hand);
            let is_idle = chunk.is_mapped() && chunk.lent.load(Relaxed) == 0;
            if is_idle && !chunk.entry.load(Relaxed).is_null() && !chunk.was_used() {
                leaving.add(self, chunk);
                if leaving.len == EVICTED_AT_ONCE {
                    break;
                }
            }
        }
        let _ = leaving.unmap(self);
    }

    /// Waits as in direct-E1; `false` if that is impossible. Then removed chunks stay mapped for
    /// good, and nothing new is served.
    fn wait_for_others(&self) -> bool {
        let is_known = epoch::wait_for_others();
        if !is_known {
            self.looks.store(false, Relaxed);
        }
        is_known
    }

    /// Notes that a call which the library saw has opened a descriptor.
    pub fn opened(&self, fd: i32, flags: i32) {
        let Some(entry) = self.entry(fd) else { return };
        let skip = libc::O_PATH | libc::O_DIRECTORY | libc::O_DIRECT;
        let skipped = fd <= 2 || flags & skip != 0 || !self.looks.load(Relaxed);
        self.fd_end.fetch_max(fd as u32 + 1, Relaxed);
        if flags & libc::O_TRUNC != 0
            && let Ok(stat) = rustix::fs::fstat(borrow(fd))
        {
            self.truncated(&stat);
        }
        let before = entry.swap(if skipped { 0 } else { NEW }, AcqRel);
        if before != 0 && before & NEW == 0 {
            // Unseen code has closed it.
            self.release(&self.lock.hold(), -1, before);
        }
    }

    /// Notes that a descriptor is about to be closed.
    pub fn closing(&self, fd: i32) {
        let Some(entry) = self.entry(fd) else { return };
        let seen = entry.load(Relaxed);
        let is_new = seen & NEW != 0;
        if seen == 0 || is_new && entry.compare_exchange(seen, 0, AcqRel, Relaxed).is_ok() {
            return;
        }
        let held = self.lock.hold();
        let before = entry.swap(0, AcqRel);
        if before != 0 && before & NEW == 0 {
            self.release(&held, fd, before);
        }
    }

    /// Notes that descriptors are about to be closed.
    pub fn closing_range(&self, first: u32, last: u32) {
        for fd in first..=last.min(self.fd_end.load(Relaxed)) {
            self.closing(fd as i32);
        }
    }

    /// Notes that `new` is now a duplicate of `old`, and its former file is closed.
    pub fn duplicated(&self, old: i32, new: i32) {
        if old == new || !self.watches(old) && !self.watches(new) {
            return;
        }
        let held = self.lock.hold();
        self.look(&held, old);
        let described = self.get(old);
        let Some(entry) = self.entry(new) else {
            // The descriptor is beyond the table.
            drop(held);
            return self.forget(old);
        };
        self.fd_end.fetch_max(new as u32 + 1, Relaxed);
        if let Some((_, description)) = described {
            description.fds.fetch_add(1, Relaxed);
        }
        let before = entry.swap(described.map_or(0, |(index, _)| index), AcqRel);
        if before != 0 && before & NEW == 0 {
            self.release(&held, -1, before);
        }
        drop(held);
        if new <= 2 {
            // libc and the shell use these unseen.
            self.forget(new);
        }
    }

    /// Removes one descriptor from a description. `fd` is that descriptor, or -1 if it is closed
    /// already.
    fn release(&self, held: &Held<'_>, fd: i32, index: u32) {
        let description = self.descriptions.at(index);
        if description.fds.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        let file = description.file();
        let is_last = file.open.fetch_sub(1, AcqRel) == 1;
        let mut owned = file.chunks().filter(|(_, chunk)| chunk.owner.load(Relaxed) == index);
        if owned.next().is_some() {
            let stays = fd >= 0 && self.may_leave_chunks(fd, description);
            let mut leaving = Leaving::default();
            for (_, chunk) in file.chunks().filter(|(_, c)| c.owner.load(Relaxed) == index) {
                if stays {
                    chunk.owner.store(0, Relaxed);
                } else {
                    leaving.add(self, chunk);
                }
            }
            let _ = leaving.unmap(self);
        }
        let mapper = file.mapper.load(Relaxed) - 1;
        if is_last && mapper >= 0 {
            file.mapper.store(0, Relaxed);
            if self.is_ours(mapper, file) {
                // The program's own close, which follows, ends its record locks as well.
                // SAFETY: a descriptor of ours.
                drop(unsafe {
                    <rustix::fd::OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(mapper)
                });
            }
        }
        let len = self.limbo_len.load(Relaxed);
        self.limbo[len].store(index, Relaxed);
        self.limbo_len.store(len + 1, Relaxed);
        if len + 1 == self.limbo.len() || epoch::is_alone() {
            self.empty_limbo(held);
        }
    }

    /// Whether its chunks may stay by direct-E2, and the inode has names.
    fn may_leave_chunks(&self, fd: i32, description: &Description) -> bool {
        !description.is(WRITES)
            && !description.is(LEAVES_NOTHING)
            && description.position.get() != OffsetOwner::Shared
            && rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Frees descriptions that no thread can look at any more.
    fn empty_limbo(&self, held: &Held<'_>) {
        let is_known = self.wait_for_others();
        let len = self.limbo_len.swap(0, Relaxed);
        for slot in self.limbo[..len].iter().filter(|_| is_known) {
            let index = slot.load(Relaxed);
            let description = self.descriptions.at(index);
            description.file().users.fetch_sub(1, Relaxed);
            self.free_file_if_unused(held, description.file_index.load(Relaxed));
            self.descriptions.give_back(index);
        }
    }

    /// Unmaps the chunks that closed descriptors have left, before this process removes or replaces
    /// names, or unmounts a file system.
    pub fn names_change(&self) {
        if self.mapped.load(Relaxed) == 0 {
            return;
        }
        let held = self.lock.hold();
        self.empty_limbo(&held);
        let mut leaving = Leaving::default();
        for index in self.files.indexes() {
            let file = self.files.at(index);
            if file.open.load(Relaxed) == 0 {
                file.chunks().for_each(|(_, chunk)| leaving.add(self, chunk));
            }
        }
        if leaving.len > 0 && leaving.unmap(self) {
            for index in self.files.indexes() {
                let is_known = self.files.at(index).ino.load(Relaxed) != 0;
                if is_known && self.is_listed(&held, index) {
                    self.free_file_if_unused(&held, index);
                }
            }
        }
    }

    fn is_listed(&self, held: &Held<'_>, index: u32) -> bool {
        let file = self.files.at(index);
        self.known_file(held, file.dev.load(Relaxed), file.ino.load(Relaxed)) == Some(index)
    }

    /// Sets a mark on an entry that is still new.
    fn mark_new(&self, entry: &AtomicU32, mark: u32) {
        let marked = |now: u32| (now & NEW != 0).then_some(now | mark);
        let _ = entry.fetch_update(AcqRel, Relaxed, marked);
    }

    /// Gives the offset of a descriptor to the kernel for good (direct-O1).
    fn give_offset_to_kernel(&self, _held: &Held<'_>, fd: i32) {
        let Some(entry) = self.entry(fd) else { return };
        let seen = entry.load(Relaxed);
        if seen & NEW != 0 {
            self.mark_new(entry, NEW_SHARED);
        } else if let Some((_, description)) = self.get(fd) {
            let mut locked = description.position.lock();
            if let OffsetOwner::Ours(offset) = locked.owner {
                let _ = rustix::fs::seek(borrow(fd), rustix::fs::SeekFrom::Start(offset));
            }
            locked.owner = OffsetOwner::Shared;
        }
    }

    /// Leaves `fd` to unseen code: its description, which may get other flags then, is the kernel's
    /// for good.
    pub fn forget(&self, fd: i32) {
        let Some(entry) = self.entry(fd) else { return };
        if entry.load(Relaxed) == 0 {
            return;
        }
        let held = self.lock.hold();
        self.give_offset_to_kernel(&held, fd);
        let before = entry.swap(0, AcqRel);
        if before == 0 || before & NEW != 0 {
            return;
        }
        let duplicates = (0..self.fd_end.load(Relaxed)).map(|fd| self.fds.at(fd + 1));
        for duplicate in duplicates.filter(|entry| entry.load(Relaxed) == before) {
            duplicate.store(0, Release);
            self.release(&held, -1, before);
        }
        self.release(&held, fd, before);
    }

    /// Forgets all descriptors and looks at no new ones.
    pub fn stop(&self) {
        self.looks.store(false, Relaxed);
        (0..self.fd_end.load(Relaxed) as i32).for_each(|fd| self.forget(fd));
    }

    /// Prepares for a fork: both processes use the kernel's offsets. Has to be
    /// followed by [`after_fork_parent`](Self::after_fork_parent) or
    /// [`after_fork_child`](Self::after_fork_child).
    pub fn before_fork(&self) {
        let held = self.lock.hold();
        for fd in 0..self.fd_end.load(Relaxed) as i32 {
            self.give_offset_to_kernel(&held, fd);
        }
        std::mem::forget(held);
    }

    /// Ends [`before_fork`](Self::before_fork) in the parent.
    pub fn after_fork_parent(&self) {
        drop(self.lock.take_over());
    }

    /// Ends [`before_fork`](Self::before_fork) in the child.
    pub fn after_fork_child(&self) {
        epoch::start_in_child();
        drop(self.lock.take_over());
    }

    /// Prepares for a new program that inherits descriptors.
    pub fn before_exec(&self) {
        let held = self.lock.hold();
        for fd in (0..self.fd_end.load(Relaxed) as i32).filter(|&fd| self.watches(fd)) {
            let flags = rustix::io::fcntl_getfd(borrow(fd));
            if flags.is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC)) {
                self.give_offset_to_kernel(&held, fd);
            }
        }
    }

    /// Notes that the description of `fd` gets a lock of its own, or a lease, which must end with
    /// it (direct-E2).
    pub fn locked(&self, fd: i32) {
        let Some(entry) = self.entry(fd) else { return };
        let _held = self.lock.hold();
        let seen = entry.load(Relaxed);
        if seen & NEW != 0 {
            self.mark_new(entry, NEW_LOCKED);
        } else if let Some((_, description)) = self.get(fd) {
            description.set(LEAVES_NOTHING);
        }
    }

    /// Notes that the process is about to lock a record of a file.
    pub fn record_locked(&self) {
        if !self.has_record_locks.load(Relaxed) {
            self.has_record_locks.store(true, SeqCst);
        }
    }

    /// Notes that `F_SETFL` was called.
    pub fn flags_changed(&self, fd: i32, flags: i32) {
        if flags & libc::O_DIRECT != 0 {
            return self.forget(fd);
        }
        let _held = self.lock.hold();
        if let Some((_, description)) = self.get(fd) {
            if flags & libc::O_APPEND != 0 {
                description.set(APPENDS);
            } else {
                description.clear(APPENDS);
            }
        }
    }

    /// Notes that this process has read times or changed attributes (direct-C4).
    #[inline]
    pub fn times_seen(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    /// Notes that `RLIMIT_FSIZE` may have changed.
    pub fn limits_changed(&self) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        self.file_size_max.store(limit.current.unwrap_or(u64::MAX), Relaxed);
    }

    /// Notes that `ftruncate` has set a size.
    pub fn resized(&self, fd: i32, len: u64) {
        let _held = self.lock.hold();
        if let Some((_, description)) = self.get(fd) {
            description.file().resized(len);
        }
    }

    /// Notes that a file was truncated by name, or opened with truncation: `stat` describes it
    /// afterwards.
    pub fn truncated(&self, stat: &rustix::fs::Stat) {
        let held = self.lock.hold();
        if let Some(file) = self.known_file(&held, stat.st_dev, stat.st_ino) {
            self.files.at(file).resized(stat.st_size as u64);
        }
    }

    /// Notes that `fallocate` may have made holes (direct-C3).
    pub fn punched(&self, fd: i32) {
        let _held = self.lock.hold();
        if let Some((_, description)) = self.get(fd) {
            description.file().forget_pages(0);
        }
    }

    /// Whether this memory includes the library's, unknown to the program. The kernel may merge
    /// adjacent mappings into one.
    pub fn has_memory_in(&self, range: &Range<usize>) -> bool {
        let ours = &self.memory;
        ours.start < range.end && range.start < ours.end
            || self.chunk_at(&self.lock.hold(), std::ptr::without_provenance(range.start)).is_some()
    }

    /// Returns the number of mapped chunks.
    pub fn mapped_chunks(&self) -> usize {
        self.mapped.load(Relaxed)
    }
}
