//! Files that this process maps where they lie, in the memory of the pool itself ([`FileSystem::map_range`]).
//!
//! - mappings-P1: an entry stands for one mapping that the engine counts, and for one reference to the inode. It is there before
//!   the program has the address, and goes when the kernel has unmapped what it stands for. Who forks waits until the child
//!   has counted its own.
//! - mappings-P2: what the kernel maps and the list change under one lock, so that an address that is given out again is not taken
//!   for what it was.
//! - mappings-P3: what nobody sees (a system call past libc) leaves an entry for what is not mapped any more, and with it the
//!   blocks of the file where they are, until the process ends.

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

/// What huge pages are aligned to, in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// Flags that say nothing about what is mapped, and are passed on.
const HINTS: i32 = libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED | libc::MAP_NORESERVE;
/// What `MAP_SHARED_VALIDATE` is asked for.
const KNOWN: i32 = libc::MAP_TYPE | MAP_FIXED | MAP_FIXED_NOREPLACE | libc::MAP_SYNC | HINTS;

/// The file that a pool lies in, to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct PoolFile {
    /// A descriptor that the program does not see, open for reading and writing.
    pub fd: i32,
    /// `MAP_SHARED`, or `MAP_SHARED_VALIDATE | MAP_SYNC` where that is how it is mapped.
    pub flags: u32,
    /// Whether lines that the program flushes are durable.
    pub is_persistent: bool,
}

/// Addresses at which a part of a file is mapped.
#[derive(Clone, Copy, Debug)]
struct MappingEntry {
    start: usize,
    end: usize,
    mount: usize,
    ino: Ino,
    /// What of the file is mapped at `start`.
    offset: u64,
    prot: i32,
    is_shared: bool,
    /// Counted as a mapping that stores.
    stores: bool,
    /// Whether the program may allow stores later.
    may_store: bool,
    /// Whether children get it (not after `MADV_DONTFORK`).
    is_inherited: bool,
}

impl MappingEntry {
    fn meets(&self, range: &Range<usize>) -> bool {
        self.start < range.end && range.start < self.end
    }

    /// The part at these addresses, which are some of its own.
    fn part(self, start: usize, end: usize) -> Self {
        Self { start, end, offset: self.offset + (start - self.start) as u64, ..self }
    }

    /// What of the file lies at these addresses, as far as it does.
    fn bytes(&self, range: &Range<usize>) -> Range<u64> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        let part = self.part(start, end);
        part.offset..part.offset + (end - start) as u64
    }
}

/// All of them; asking whether there are any costs a load.
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
    fn lock(&self) -> LockedMappings<'_> {
        while self.lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            rustix::thread::sched_yield();
        }
        LockedMappings(self)
    }

    /// Before a fork: nothing changes until [`release`](Self::release), in parent and child.
    pub fn hold(&self) {
        std::mem::forget(self.lock());
    }

    /// See [`hold`](Self::hold).
    pub fn release(&self) {
        self.lock.store(0, Release);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Those that lie in a range of addresses, at least in part.
    fn within(&self, range: &Range<usize>) -> SmallVec<[MappingEntry; 2]> {
        if self.is_empty() {
            return SmallVec::new();
        }
        self.lock().iter().filter(|entry| entry.meets(range)).copied().collect()
    }
}

/// Whole pages from `addr` on; `None` where the kernel takes no such range.
fn pages(addr: usize, len: usize) -> Option<Range<usize>> {
    let page = rustix::param::page_size();
    let end = addr.checked_add(len.checked_next_multiple_of(page)?)?;
    (addr.is_multiple_of(page) && len > 0).then_some(addr..end)
}

/// How a mapping is to be made.
#[derive(Clone, Copy)]
struct Wanted {
    /// Where, or a hint.
    addr: usize,
    /// In whole pages.
    len: usize,
    prot: i32,
    flags: i32,
}

impl Wanted {
    /// Reserves the addresses, as far as possible aligned as the memory is, so that huge pages can map it.
    fn reserve(&self, first: u64) -> Result<usize, Errno> {
        // The kernel replaces the old mapping at once: other threads may be using it.
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
            // A kernel that does not know MAP_FIXED_NOREPLACE takes it for a hint.
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

    fn give_back(&self, at: usize, len: usize) {
        if len > 0 {
            // SAFETY: reserved by `reserve`, and nobody knows the address.
            let _ = unsafe { munmap(at as *mut _, len) };
        }
    }

    /// Maps extents of the file behind each other.
    fn map(&self, fd: i32, kind: u32, extents: &[Extent]) -> Result<usize, Errno> {
        let at = self.reserve(extents.first().map_or(0, |first| first.start))?;
        let flags = kind | (self.flags & HINTS | MAP_FIXED) as u32;
        let (flags, prot) =
            (MapFlags::from_bits_retain(flags), ProtFlags::from_bits_retain(self.prot as u32));
        // SAFETY: one of the library's own, which it never closes.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut to = at;
        for extent in extents {
            let len = (extent.len as usize).min(at + self.len - to);
            // SAFETY: inside of what was just reserved, or of what the program says that it may be replaced.
            let mapped = unsafe { mmap(to as *mut _, len, prot, flags, fd, extent.start) };
            mapped.inspect_err(|_| self.give_back(at, self.len))?;
            to += len;
        }
        Ok(at)
    }
}

/// Maps extents of a pool's file as one, for reading, and for storing where it `stores`; returns the address.
///
/// # Errors
/// Of the system.
pub fn map_window(file: &PoolFile, extents: &[Extent], stores: bool) -> Result<usize, Errno> {
    let len = extents.iter().map(|extent| extent.len as usize).sum();
    let prot = if stores { libc::PROT_READ | PROT_WRITE } else { libc::PROT_READ };
    Wanted { addr: 0, len, prot, flags: 0 }.map(file.fd, file.flags, extents)
}

/// Unmaps what [`map_window`] has mapped.
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn unmap_window(addr: usize, len: usize) {
    // SAFETY: the caller's.
    let _ = unsafe { munmap(addr as *mut _, len) };
}

impl Promotions {
    fn engine(&self, mount: usize) -> &dyn FileSystem {
        &*self.task().mount(mount).attached().fs
    }

    /// Counts one more mapping as an entry does, in this process.
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

    /// Takes back what an entry stands for, which is not mapped any more.
    fn end(&self, entry: &MappingEntry) {
        let fs = self.engine(entry.mount);
        fs.unmap_range(entry.ino, entry.stores, false);
        fs.forget(entry.ino, 1);
    }

    /// Runs `change`, by which the kernel maps something else, or nothing, at these addresses; what is added to the list is what
    /// it returns. Where it fails nothing has changed.
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
                // Where that cannot be counted, it stays one entry (mappings-P3).
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

    /// Maps a file where it lies. `None` where that is not possible, or not worth it.
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

    /// Maps what an entry says, but for its addresses. `None` where the engine refuses, or the kernel does what it can do
    /// otherwise.
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
                // What was asked for cannot be had; else another way may do.
                let is_final = matches!(errno, Errno::EXIST | Errno::NOMEM | Errno::PERM);
                if is_final { Err(errno) } else { Ok(None) }
            }
        }
    }

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
        // The kernel is to refuse stores for good.
        let mut path = [0; 64];
        let path = crate::text::format(&mut path, format_args!("/proc/self/fd/{}", file.fd));
        let fd = self.task().kernel.open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
        let mapped = wanted.map(fd, file.flags, extents);
        let _ = self.task().kernel.close(fd);
        mapped
    }

    /// Whether any of these addresses is one at which a file is mapped where it lies.
    pub fn maps_directly(&self, addr: usize, len: usize) -> bool {
        !self.mappings.is_empty()
            && pages(addr, len).is_some_and(|range| !self.mappings.within(&range).is_empty())
    }

    /// Runs a call by which the kernel maps something else at these addresses, if it `succeeds`.
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

    /// `munmap`, where files are mapped directly.
    pub fn munmap(&self, addr: usize, len: usize) -> Served<()> {
        let Some(range) = pages(addr, len).filter(|_| self.maps_directly(addr, len)) else {
            return Served::Kernel;
        };
        // SAFETY: what the program unmaps is its responsibility.
        let unmap = || unsafe { munmap(addr as *mut _, len) }.map(|()| ((), None));
        Served::Done(self.remap(range, unmap))
    }

    /// `msync`: writes back the lines of what is mapped directly.
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
            // The kernel knows what is locked.
            let check = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
            // SAFETY: it changes nothing: what is mapped is memory.
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
        // The rest is the kernel's, which knows as well whether all of it is mapped.
        if covered < range.len() { Err(crate::served::CallStop::Kernel) } else { Ok(()) }
    }

    /// Before `mprotect`, which the kernel is to do: what may be stored to from then on is counted so.
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

    /// Makes entries end and begin where a range does.
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

    /// `madvise`, where files are mapped directly: what the kernel would do to the pool's file is done to the program's.
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

    /// `MADV_REMOVE`: a hole in the file.
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

    /// `remap_file_pages` of what is mapped directly: the pages are the program's file's, wherever they lie in the pool's.
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

    /// `mremap` of what is mapped directly. A private mapping is not moved: what was stored to it would be lost.
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
        // Of no length it is a second mapping of the same pages, as with `MREMAP_DONTUNMAP`.
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

    /// Unmaps a range, if there is any.
    fn shrink(&self, range: Range<usize>) -> Result<(), Errno> {
        if range.is_empty() {
            return Ok(());
        }
        let (at, len) = (range.start, range.len());
        // SAFETY: the program's own mapping, which it wants to be shorter or elsewhere.
        self.remap(range, || unsafe { munmap(at as *mut _, len) }.map(|()| ((), None)))
    }

    /// Maps what follows a part of an entry behind it, up to `end`; whether there was room.
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
        // One mapping is one entry: for the next call.
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

    /// Before a `clone` whose child is not served: nothing changes until [`release_mappings`](Self::release_mappings).
    pub fn hold_mappings(&self) {
        self.mappings.hold();
    }

    /// After it, in the parent.
    pub fn release_mappings(&self) {
        self.mappings.release();
    }

    /// After it, in the child, which nobody counts: it maps nothing where it lies any more.
    pub fn unmap_inherited(&self) {
        // SAFETY: `hold_mappings` has kept other threads from changing it, and they are not here.
        for entry in unsafe { &*self.mappings.entries.get() } {
            // SAFETY: as in `count_inherited_mappings`.
            let _ = unsafe { munmap(entry.start as *mut _, entry.end - entry.start) };
        }
    }

    /// In a forked child: counts what it has inherited (mappings-P1). What cannot be counted is not mapped any more.
    pub(crate) fn count_inherited_mappings(&self) {
        let mut list = self.mappings.lock();
        list.retain(|entry| {
            // The child does not have it, and may map something else there.
            if !entry.is_inherited {
                return false;
            }
            let is_counted = self.count_again(entry).is_ok();
            if !is_counted {
                // SAFETY: the program finds it missing, which is better than what others store there.
                let _ = unsafe { munmap(entry.start as *mut _, entry.end - entry.start) };
            }
            is_counted
        });
    }
}
