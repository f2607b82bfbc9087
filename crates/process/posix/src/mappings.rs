//! Mappings of files in place: the program maps the memory of the pool itself
//! ([`vfs::Mappings::map_range`]).
//!
//! - mappings-P1: an entry stands for one mapping that the engine counts, and for one reference to
//!   the inode. It exists before the program has the address, and is removed after the kernel has
//!   unmapped the range. A fork waits until the child has counted its own entries.
//! - mappings-P2: the kernel's mappings and the list change under one lock. So an address that the
//!   kernel gives out again is not taken for its earlier mapping.
//! - mappings-P3: a change that this library does not see (a system call past libc) leaves an entry
//!   for a range that is not mapped any more. Such an entry keeps the blocks of the file in place
//!   until the process ends.

#![allow(unsafe_code)]

use crate::promote::Promotions;
use crate::served::CallResult;
use crate::table::OfdRef;
use crate::{Errno, Served};
use libc::{MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_EXEC, PROT_WRITE};
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, msync, munmap};
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU32, Ordering::*};
use vfs::{Extent, Fallocate, FileSystem, Ino};

/// Alignment of huge pages, in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// Flags that do not change the content of a mapping, and are passed on.
const HINTS: i32 = libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED | libc::MAP_NORESERVE;
/// Flags that `MAP_SHARED_VALIDATE` may be combined with.
const KNOWN: i32 = libc::MAP_TYPE | MAP_FIXED | MAP_FIXED_NOREPLACE | libc::MAP_SYNC | HINTS;

/// The file of a pool, to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct PoolFile {
    /// A descriptor that the program does not see, open for reading and writing.
    pub fd: i32,
    /// `MAP_SHARED`, or `MAP_SHARED_VALIDATE | MAP_SYNC` if the pool is mapped so.
    pub flags: u32,
    /// Whether lines that the program flushes are durable.
    pub is_persistent: bool,
}

/// A range of addresses at which a part of a file is mapped.
#[derive(Clone, Copy, Debug)]
struct MappingEntry {
    start: usize,
    end: usize,
    mount: usize,
    ino: Ino,
    /// The offset in the file that is mapped at `start`.
    offset: u64,
    prot: i32,
    is_shared: bool,
    /// Whether the engine counts it as a mapping that stores.
    stores: bool,
    /// Whether the program may make it writable later.
    may_store: bool,
    /// Whether children inherit it (not after `MADV_DONTFORK`).
    is_inherited: bool,
}

impl MappingEntry {
    fn meets(&self, range: &Range<usize>) -> bool {
        self.start < range.end && range.start < self.end
    }

    /// Returns the part of the entry at these addresses, all of which are its own.
    fn part(self, start: usize, end: usize) -> Self {
        Self { start, end, offset: self.offset + (start - self.start) as u64, ..self }
    }

    /// Returns the range of the file that is mapped at these addresses.
    fn bytes(&self, range: &Range<usize>) -> Range<u64> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        let part = self.part(start, end);
        part.offset..part.offset + (end - start) as u64
    }
}

/// The list of entries. A check whether it is empty costs one load.
#[derive(Default)]
pub(crate) struct Mappings {
    count: AtomicU32,
    lock: AtomicU32,
    entries: UnsafeCell<Vec<MappingEntry>>,
}

// SAFETY: `entries` is reached only under `lock`.
unsafe impl Sync for Mappings {}

/// The list, locked (mappings-P2).
struct LockedMappings<'a>(&'a Mappings);

impl Deref for LockedMappings<'_> {
    type Target = Vec<MappingEntry>;

    fn deref(&self) -> &Vec<MappingEntry> {
        // SAFETY: the lock is held.
        unsafe { &*self.0.entries.get() }
    }
}

impl DerefMut for LockedMappings<'_> {
    fn deref_mut(&mut self) -> &mut Vec<MappingEntry> {
        // SAFETY: the lock is held, and `self` is borrowed alone.
        unsafe { &mut *self.0.entries.get() }
    }
}

impl Drop for LockedMappings<'_> {
    fn drop(&mut self) {
        self.0.count.store(self.len() as u32, Relaxed);
        self.0.lock.store(0, Release);
    }
}

impl Mappings {
    /// Waits for the list.
    fn lock(&self) -> LockedMappings<'_> {
        while self.lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            rustix::thread::sched_yield();
        }
        LockedMappings(self)
    }

    /// Locks the list before a fork, so that it does not change until [`release`](Self::release),
    /// in parent and child.
    pub fn hold(&self) {
        std::mem::forget(self.lock());
    }

    /// Unlocks the list; see [`hold`](Self::hold).
    pub fn release(&self) {
        self.lock.store(0, Release);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// The entries that overlap a range of addresses.
    fn within(&self, range: &Range<usize>) -> SmallVec<[MappingEntry; 2]> {
        if self.is_empty() {
            return SmallVec::new();
        }
        self.lock().iter().filter(|entry| entry.meets(range)).copied().collect()
    }
}

/// Returns whole pages from `addr` on. `None` if the kernel takes no such range.
fn pages(addr: usize, len: usize) -> Option<Range<usize>> {
    let page = rustix::param::page_size();
    let end = addr.checked_add(len.checked_next_multiple_of(page)?)?;
    (addr.is_multiple_of(page) && len > 0).then_some(addr..end)
}

/// A mapping to be made.
#[derive(Clone, Copy)]
struct Wanted {
    /// The address, or a hint.
    addr: usize,
    /// The length, in whole pages.
    len: usize,
    prot: i32,
    flags: i32,
}

impl Wanted {
    /// Reserves the addresses. If possible they are aligned as the memory is, so that huge pages
    /// can map it.
    fn reserve(&self, first: u64) -> Result<usize, Errno> {
        // The kernel will replace the old mapping in one step, because other threads may be using
        // it.
        if self.flags & MAP_FIXED != 0 {
            return Ok(self.addr);
        }
        let fixed = self.flags & MAP_FIXED_NOREPLACE;
        let slack =
            if fixed == 0 && self.addr == 0 && self.len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let flags = flags | MapFlags::from_bits_retain(fixed as u32);
        let total = self.len.checked_add(slack).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping.
        let at = unsafe { mmap_anonymous(self.addr as *mut _, total, ProtFlags::empty(), flags)? };
        let at = at as usize;
        if fixed != 0 && at != self.addr {
            // A kernel that does not know MAP_FIXED_NOREPLACE takes the address for a hint.
            self.give_back(at, total);
            return Err(Errno::EXIST);
        }
        if slack == 0 {
            return Ok(at);
        }
        let head = (first as usize).wrapping_sub(at) % HUGE_PAGE;
        self.give_back(at, head);
        self.give_back(at + head + self.len, slack - head);
        Ok(at + head)
    }

    /// Unmaps a part of the reserved range.
    fn give_back(&self, at: usize, len: usize) {
        if len > 0 {
            // SAFETY: reserved by `reserve`, and no other thread knows the address.
            let _ = unsafe { munmap(at as *mut _, len) };
        }
    }

    /// Maps extents of the file one behind the other.
    fn map(&self, fd: i32, kind: u32, extents: &[Extent]) -> Result<usize, Errno> {
        let at = self.reserve(extents.first().map_or(0, |first| first.start))?;
        let flags = kind | (self.flags & HINTS | MAP_FIXED) as u32;
        let (flags, prot) =
            (MapFlags::from_bits_retain(flags), ProtFlags::from_bits_retain(self.prot as u32));
        // SAFETY: the descriptor is the library's own, and stays open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut to = at;
        for extent in extents {
            let len = (extent.len as usize).min(at + self.len - to);
            // SAFETY: inside of the reserved range, or of a range that the program wants replaced.
            let mapped = unsafe { mmap(to as *mut _, len, prot, flags, fd, extent.start) };
            mapped.inspect_err(|_| self.give_back(at, self.len))?;
            to += len;
        }
        Ok(at)
    }
}

/// Maps extents of a pool's file as one range, for reading, and for storing if it `stores`. Returns
/// the address.
///
/// # Errors
/// Errors of the system.
pub fn map_window(file: &PoolFile, extents: &[Extent], stores: bool) -> Result<usize, Errno> {
    let len = extents.iter().map(|extent| extent.len as usize).sum();
    let prot = if stores { libc::PROT_READ | PROT_WRITE } else { libc::PROT_READ };
    Wanted { addr: 0, len, prot, flags: 0 }.map(file.fd, file.flags, extents)
}

/// Unmaps a range that [`map_window`] has mapped.
///
/// # Safety
/// 1. No thread uses the range any more.
pub unsafe fn unmap_window(addr: usize, len: usize) {
    // SAFETY: 1. the caller's promise.
    let _ = unsafe { munmap(addr as *mut _, len) };
}

impl Promotions {
    fn engine(&self, mount: usize) -> &dyn FileSystem {
        &*self.task().mount(mount).attached().fs
    }

    /// Counts one more mapping of the file of an entry, and takes one more reference to it: for a
    /// second entry. After an error, neither is counted.
    fn count_again(&self, entry: &MappingEntry) -> Result<(), Errno> {
        let fs = self.engine(entry.mount);
        fs.map_again(entry.ino, entry.stores)?;
        match fs.lookup(entry.ino, b".") {
            Ok(_) => Ok(()),
            Err(errno) => {
                fs.unmap_range(entry.ino, entry.stores, true);
                Err(errno)
            }
        }
    }

    /// Gives back the count and the reference of an entry whose range is not mapped any more.
    fn end(&self, entry: &MappingEntry) {
        let fs = self.engine(entry.mount);
        fs.unmap_range(entry.ino, entry.stores, false);
        fs.forget(entry.ino, 1);
    }

    /// Runs `change`, by which the kernel replaces or removes the mappings at these addresses, and
    /// updates the list. `change` returns the entry to add. If it fails, the list stays as it is.
    fn remap<T>(
        &self,
        range: Range<usize>,
        change: impl FnOnce() -> Result<(T, Option<MappingEntry>), Errno>,
    ) -> Result<T, Errno> {
        let mut list = self.mappings.lock();
        let (done, new) = change()?;
        let mut ended = SmallVec::<[MappingEntry; 2]>::new();
        let mut at = 0;
        while let Some(entry) = list.get(at).copied() {
            if range.is_empty() || !entry.meets(&range) {
                at += 1;
                continue;
            }
            let before = (entry.start < range.start).then(|| entry.part(entry.start, range.start));
            let behind = (range.end < entry.end).then(|| entry.part(range.end, entry.end));
            match (before, behind) {
                (None, None) => {
                    ended.push(list.swap_remove(at));
                    continue;
                }
                (Some(part), None) | (None, Some(part)) => list[at] = part,
                // If the second part cannot be counted, the entry stays as it is (mappings-P3).
                (Some(before), Some(behind)) => {
                    if self.count_again(&entry).is_ok() {
                        list[at] = before;
                        list.push(behind);
                    }
                }
            }
            at += 1;
        }
        list.extend(new);
        drop(list);
        ended.iter().for_each(|entry| self.end(entry));
        Ok(done)
    }

    /// Maps a file in place. `None` if that is not possible, or not worth it.
    pub(crate) fn map_directly(
        &self,
        ofd: &OfdRef<'_>,
        (addr, len): (usize, usize),
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> Option<Result<usize, Errno>> {
        let file = ofd.mount().attached().file?;
        let is_shared = flags & libc::MAP_TYPE != MAP_PRIVATE;
        let unknown = flags & libc::MAP_TYPE == libc::MAP_SHARED_VALIDATE && flags & !KNOWN != 0;
        let odd = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
        if prot & PROT_EXEC != 0
            || flags & odd != 0
            || unknown
            || ofd.mount().check_writable().is_err()
        {
            return None;
        }
        if is_shared && prot & PROT_WRITE != 0 && !ofd.is_writable() {
            return Some(Err(Errno::ACCESS));
        }
        let validated = flags & libc::MAP_TYPE == libc::MAP_SHARED_VALIDATE;
        if validated && flags & libc::MAP_SYNC != 0 && !file.is_persistent {
            return Some(Err(Errno::OPNOTSUPP));
        }
        let Some(whole) = len.checked_next_multiple_of(rustix::param::page_size()) else {
            return Some(Err(Errno::NOMEM));
        };
        if flags & MAP_FIXED != 0 && pages(addr, len).is_none() {
            return Some(Err(Errno::INVAL));
        }
        let entry = MappingEntry {
            start: 0,
            end: 0,
            mount: ofd.mount_index(),
            ino: ofd.ino(),
            offset,
            prot,
            is_shared,
            stores: is_shared && prot & PROT_WRITE != 0,
            may_store: is_shared && ofd.is_writable(),
            is_inherited: true,
        };
        self.map_entry(entry, Wanted { addr, len: whole, prot, flags }).transpose()
    }

    /// Maps an entry, whose addresses are not known yet. `None` if the engine refuses, or if a
    /// mapping by the kernel may succeed instead.
    fn map_entry(&self, entry: MappingEntry, wanted: Wanted) -> Result<Option<usize>, Errno> {
        let fs = self.engine(entry.mount);
        let Some(end) = entry.offset.checked_add(wanted.len as u64) else { return Ok(None) };
        let Ok(extents) = fs.map_range(entry.ino, entry.offset..end, entry.stores) else {
            return Ok(None);
        };
        let unmap = |errno| {
            fs.unmap_range(entry.ino, entry.stores, true);
            errno
        };
        if let Err(errno) = fs.lookup(entry.ino, b".") {
            return Err(unmap(errno));
        }
        let replaced = match wanted.flags & MAP_FIXED {
            0 => 0..0,
            _ => wanted.addr..wanted.addr + wanted.len,
        };
        let mapped = self.remap(replaced, || {
            let start = self.map_extents(&entry, wanted, &extents)?;
            Ok((start, Some(MappingEntry { start, end: start + wanted.len, ..entry })))
        });
        match mapped {
            Ok(start) => Ok(Some(start)),
            Err(errno) => {
                fs.forget(entry.ino, 1);
                unmap(errno);
                // These errors are final. After others, another way may succeed.
                let is_final = matches!(errno, Errno::EXIST | Errno::NOMEM | Errno::PERM);
                if is_final { Err(errno) } else { Ok(None) }
            }
        }
    }

    /// Maps extents as the entry demands: private, or shared and perhaps read-only. Returns the
    /// address.
    fn map_extents(
        &self,
        entry: &MappingEntry,
        wanted: Wanted,
        extents: &[Extent],
    ) -> Result<usize, Errno> {
        let file = self.task().mount(entry.mount).attached().file.ok_or(Errno::OPNOTSUPP)?;
        if !entry.is_shared {
            return wanted.map(file.fd, MAP_PRIVATE as u32, extents);
        }
        if entry.may_store {
            return wanted.map(file.fd, file.flags, extents);
        }
        // The descriptor is read-only, so that the kernel refuses stores for good.
        let mut path = [0; 64];
        let path = crate::text::format(&mut path, format_args!("/proc/self/fd/{}", file.fd));
        let fd = self.task().kernel.open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
        let mapped = wanted.map(fd, file.flags, extents);
        let _ = self.task().kernel.close(fd);
        mapped
    }

    /// Whether a file is mapped in place at any of these addresses.
    pub fn maps_directly(&self, addr: usize, len: usize) -> bool {
        !self.mappings.is_empty()
            && pages(addr, len).is_some_and(|range| !self.mappings.within(&range).is_empty())
    }

    /// Runs a call by which the kernel maps something else at these addresses. If it `succeeds`,
    /// the entries there end.
    pub fn replace_mapping<T>(
        &self,
        addr: usize,
        len: usize,
        call: impl FnOnce() -> T,
        succeeds: impl FnOnce(&T) -> bool,
    ) -> T {
        let mut result = None;
        let _ = self.remap(pages(addr, len).unwrap_or(0..0), || {
            let returned = result.insert(call());
            if succeeds(returned) { Ok(((), None)) } else { Err(Errno::INVAL) }
        });
        result.expect("`remap` runs what it is given")
    }

    /// `munmap` of files that are mapped in place.
    pub fn munmap(&self, addr: usize, len: usize) -> Served<()> {
        let Some(range) = pages(addr, len).filter(|_| self.maps_directly(addr, len)) else {
            return Served::Kernel;
        };
        // SAFETY: the program answers for what it unmaps.
        let unmap = || unsafe { munmap(addr as *mut _, len) }.map(|()| ((), None));
        Served::Done(self.remap(range, unmap))
    }

    /// `msync`: writes back the lines of ranges that are mapped in place.
    pub fn msync(&self, addr: usize, len: usize, flags: i32) -> Served<()> {
        self.msync_call(addr, len, flags).into()
    }

    fn msync_call(&self, addr: usize, len: usize, flags: i32) -> CallResult<()> {
        let Some(range) = pages(addr, len) else { return Err(crate::served::CallStop::Kernel) };
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        let known = both | libc::MS_INVALIDATE;
        let found = self.mappings.within(&range);
        if found.is_empty() || flags & !known != 0 || flags & both == both {
            return Err(crate::served::CallStop::Kernel);
        }
        if flags & libc::MS_INVALIDATE != 0 {
            // The kernel knows which pages are locked.
            let check = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
            // SAFETY: it changes nothing, as the mapping is of memory.
            unsafe { msync(addr as *mut _, len, check) }?;
        }
        let mut covered = 0;
        for entry in &found {
            let bytes = entry.bytes(&range);
            covered += (bytes.end - bytes.start) as usize;
            if entry.is_shared && flags & libc::MS_SYNC != 0 {
                self.engine(entry.mount).sync_range(entry.ino, bytes, entry.stores)?;
            }
        }
        // The kernel syncs the rest of the range, and checks whether all of it is mapped.
        if covered < range.len() { Err(crate::served::CallStop::Kernel) } else { Ok(()) }
    }

    /// Counts ranges as writable before the kernel's `mprotect` makes them so. `Kernel` if the
    /// caller may go on.
    pub fn mprotect(&self, addr: usize, len: usize, prot: i32) -> Served<()> {
        let Some(range) = pages(addr, len).filter(|_| !self.mappings.is_empty()) else {
            return Served::Kernel;
        };
        let mut list = self.mappings.lock();
        if let Err(errno) = self.split(&mut list, &range) {
            return Served::Done(Err(errno));
        }
        for entry in list.iter_mut().filter(|entry| entry.meets(&range)) {
            let executes = prot & PROT_EXEC != 0;
            let is_refused = prot & PROT_WRITE != 0 && entry.is_shared && !entry.may_store
                || executes && self.task().mount(entry.mount).flags() & libc::ST_NOEXEC != 0;
            if is_refused {
                return Served::Done(Err(Errno::ACCESS));
            }
            entry.prot = prot;
            if prot & PROT_WRITE == 0 || entry.stores || !entry.may_store {
                continue;
            }
            let fs = self.engine(entry.mount);
            if let Err(errno) = fs.map_again(entry.ino, true) {
                return Served::Done(Err(errno));
            }
            fs.unmap_range(entry.ino, false, true);
            entry.stores = true;
        }
        Served::Kernel
    }

    /// Splits entries at both ends of a range.
    fn split(&self, list: &mut Vec<MappingEntry>, range: &Range<usize>) -> Result<(), Errno> {
        for edge in [range.start, range.end] {
            let is_inside = |entry: &MappingEntry| entry.start < edge && edge < entry.end;
            let Some(at) = list.iter().position(is_inside) else { continue };
            let entry = list[at];
            self.count_again(&entry)?;
            list[at] = entry.part(entry.start, edge);
            list.push(entry.part(edge, entry.end));
        }
        Ok(())
    }

    /// `madvise` of files that are mapped in place. Advice that would change the pool's file
    /// changes the program's file instead.
    pub fn madvise(&self, addr: usize, len: usize, advice: i32) -> Served<()> {
        let Some(range) = pages(addr, len).filter(|_| self.maps_directly(addr, len)) else {
            return Served::Kernel;
        };
        match advice {
            libc::MADV_REMOVE => Served::Done(self.remove_pages(&range)),
            libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                let mut list = self.mappings.lock();
                if let Err(errno) = self.split(&mut list, &range) {
                    return Served::Done(Err(errno));
                }
                let inside = list.iter_mut().filter(|entry| entry.meets(&range));
                inside.for_each(|entry| entry.is_inherited = advice == libc::MADV_DOFORK);
                Served::Kernel
            }
            _ => Served::Kernel,
        }
    }

    /// `MADV_REMOVE`: punches a hole in the file.
    fn remove_pages(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut found = self.mappings.within(range);
        found.sort_by_key(|entry| entry.start);
        let mut covered = range.start;
        for entry in &found {
            if entry.start > covered {
                return Err(Errno::NOMEM);
            }
            if !entry.is_shared || !entry.may_store {
                return Err(Errno::ACCESS);
            }
            let (fs, bytes) = (self.engine(entry.mount), entry.bytes(range));
            self.task().drop_privileges(fs, &fs.getattr(entry.ino)?)?;
            fs.fallocate(entry.ino, Fallocate::PunchHole, bytes.start, bytes.end - bytes.start)?;
            covered = entry.end;
        }
        if covered < range.end { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// `remap_file_pages` of a range that is mapped in place. `page` counts pages of the program's
    /// file, which may lie anywhere in the pool's.
    pub fn remap_file_pages(&self, addr: usize, len: usize, prot: i32, page: usize) -> Served<()> {
        let size = rustix::param::page_size();
        let (start, len) = (addr - addr % size, len - len % size);
        if !self.maps_directly(start, len) {
            return Served::Kernel;
        }
        let remap = || {
            let range = pages(start, len).filter(|_| prot == 0).ok_or(Errno::INVAL)?;
            let mut found = self.mappings.within(&range);
            found.sort_by_key(|entry| entry.start);
            let first = *found.first().ok_or(Errno::INVAL)?;
            let is_alike = |entry: &MappingEntry| {
                let same = (entry.mount, entry.ino) == (first.mount, first.ino);
                same && entry.prot == first.prot && entry.is_shared && entry.may_store
            };
            let is_whole = first.start <= range.start
                && found.windows(2).all(|pair| pair[0].end == pair[1].start)
                && found.last().is_some_and(|last| range.end <= last.end);
            if !is_whole || !found.iter().all(is_alike) {
                return Err(Errno::INVAL);
            }
            let offset = (page as u64).checked_mul(size as u64).ok_or(Errno::INVAL)?;
            let entry =
                MappingEntry { offset, ..first.part(range.start.max(first.start), range.end) };
            let wanted = Wanted { addr: start, len, prot: first.prot, flags: MAP_FIXED };
            self.map_entry(entry, wanted)?.map(drop).ok_or(Errno::INVAL)
        };
        Served::Done(remap())
    }

    /// `mremap` of a range that is mapped in place. A private mapping is not moved, because its
    /// changes would be lost.
    pub fn mremap(
        &self,
        old: usize,
        old_len: usize,
        new_len: usize,
        flags: i32,
        new: usize,
    ) -> Served<usize> {
        if !self.maps_directly(old, old_len.max(1)) {
            return Served::Kernel;
        }
        // A length of 0 asks for a second mapping of the same pages, as `MREMAP_DONTUNMAP` does.
        let len = if old_len == 0 { new_len } else { old_len };
        let Some(range) = pages(old, len) else { return Served::Done(Err(Errno::INVAL)) };
        let stays = old_len == 0 || flags & libc::MREMAP_DONTUNMAP != 0;
        Served::Done(self.mremap_call(range, new_len, flags, new, stays))
    }

    fn mremap_call(
        &self,
        old: Range<usize>,
        new_len: usize,
        flags: i32,
        new: usize,
        stays: bool,
    ) -> Result<usize, Errno> {
        let found = self.mappings.within(&old);
        let is_double = stays && flags & libc::MREMAP_DONTUNMAP == 0;
        let entry = match found[..] {
            [entry] if entry.start <= old.start && (old.end <= entry.end || is_double) => entry,
            _ => return Err(Errno::FAULT),
        };
        let part = entry.part(old.start, old.end);
        let is_fixed = flags & libc::MREMAP_FIXED != 0;
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        let end = pages(old.start, new_len).ok_or(Errno::INVAL)?.end;
        let known = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        if flags & !known != 0 || is_fixed && !may_move {
            return Err(Errno::INVAL);
        }
        if flags & libc::MREMAP_DONTUNMAP != 0 && (!may_move || end != old.end)
            || stays && !part.is_shared
        {
            return Err(Errno::INVAL);
        }
        if !stays && !is_fixed && end <= old.end {
            return self.shrink(end..old.end).map(|()| old.start);
        }
        if !stays && !is_fixed && entry.end == old.end && self.extend(&part, end) {
            return Ok(old.start);
        }
        if !may_move || !part.is_shared {
            return Err(Errno::NOMEM);
        }
        let target = if is_fixed { pages(new, new_len).ok_or(Errno::INVAL)? } else { 0..0 };
        if target.start < old.end && old.start < target.end {
            return Err(Errno::INVAL);
        }
        let fixed = if is_fixed { MAP_FIXED } else { 0 };
        let len = end - old.start;
        let wanted = Wanted { addr: target.start, len, prot: part.prot, flags: fixed };
        let at = self.map_entry(part, wanted)?.ok_or(Errno::NOMEM)?;
        if !stays {
            self.shrink(old)?;
        }
        Ok(at)
    }

    /// Unmaps a range, unless it is empty.
    fn shrink(&self, range: Range<usize>) -> Result<(), Errno> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = (range.start, range.len());
        // SAFETY: the range is the program's own mapping, which it wants shorter or elsewhere.
        self.remap(range, || unsafe { munmap(at as *mut _, len) }.map(|()| ((), None)))
    }

    /// Maps the bytes of the file behind a part of an entry, up to the address `end`. Returns
    /// whether there was room.
    fn extend(&self, part: &MappingEntry, end: usize) -> bool {
        let more = MappingEntry { offset: part.offset + (part.end - part.start) as u64, ..*part };
        let wanted = Wanted {
            addr: part.end,
            len: end - part.end,
            prot: part.prot,
            flags: MAP_FIXED_NOREPLACE,
        };
        if !matches!(self.map_entry(more, wanted), Ok(Some(_))) {
            return false;
        }
        // Joins the two entries, as the next call expects one entry for one mapping.
        let mut list = self.mappings.lock();
        let place =
            |list: &[MappingEntry], at: usize| list.iter().position(|entry| entry.start == at);
        let Some(behind) = place(&list, part.end) else { return true };
        let behind = list.swap_remove(behind);
        let is_first = |entry: &&mut MappingEntry| entry.end == part.end && entry.ino == part.ino;
        match list.iter_mut().find(is_first) {
            Some(first) => first.end = behind.end,
            None => {
                list.push(behind);
                return true;
            }
        }
        drop(list);
        let fs = self.engine(behind.mount);
        fs.unmap_range(behind.ino, behind.stores, true);
        fs.forget(behind.ino, 1);
        true
    }

    /// Locks the list before a `clone` whose child is not served, until
    /// [`release_mappings`](Self::release_mappings).
    pub fn hold_mappings(&self) {
        self.mappings.hold();
    }

    /// Unlocks the list in the parent, after the `clone`.
    pub fn release_mappings(&self) {
        self.mappings.release();
    }

    /// Unmaps files that are mapped in place, in a child that is not counted (`clone`).
    pub fn unmap_inherited(&self) {
        // SAFETY: `hold_mappings` has kept other threads from changing the list, and the child has
        // no others.
        for entry in unsafe { &*self.mappings.entries.get() } {
            // SAFETY: as in `count_inherited_mappings`.
            let _ = unsafe { munmap(entry.start as *mut _, entry.end - entry.start) };
        }
    }

    /// Counts mappings that a forked child has inherited (mappings-P1). Unmaps those that cannot be
    /// counted.
    pub(crate) fn count_inherited_mappings(&self) {
        let mut list = self.mappings.lock();
        list.retain(|entry| {
            // The child does not have the mapping, and may map something else there.
            if !entry.is_inherited {
                return false;
            }
            let is_counted = self.count_again(entry).is_ok();
            if !is_counted {
                // SAFETY: the program loses a mapping. Otherwise it would see the stores of other
                // files.
                let _ = unsafe { munmap(entry.start as *mut _, entry.end - entry.start) };
            }
            is_counted
        });
    }
}
