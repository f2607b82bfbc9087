//! Reading, writing and seeking.

#![allow(unsafe_code)]

use crate::chunk::{CHUNK_BYTES, Chunk, Entry, PAGE_BYTES};
use crate::copy::{self, Copier};
use crate::descriptions::{APPENDS, Description, READS, WRITES};
use crate::epoch::InsideEpoch;
use crate::file::{File, FileSystemKind, MAPPABLE_BYTES};
use crate::parts::{self, COPY_BYTES_MAX, NO_PARTS, Parts};
use crate::position::{Locked, OFFSET_END, OffsetOwner};
use crate::table::borrow;
use crate::{Answer, Direct};
use libc::{iovec, off_t};
use os::syscalls::syscall;
use std::ffi::{c_int, c_long};
use std::sync::atomic::Ordering::*;
use vfs::Errno;

/// Chunks that one call maps at most; after that the kernel makes it.
const MAPS_MAX: usize = (COPY_BYTES_MAX as u64 / CHUNK_BYTES) as usize + 2;

/// A call, as the kernel takes it.
pub(super) struct Call {
    /// Number and first arguments: descriptor, buffer or list, length or count.
    number: c_long,
    args: [usize; 3],
    /// Number of the same call at an offset.
    number_at: c_long,
}

impl Call {
    /// Makes the call at the description's offset.
    pub fn ask(&self) -> Result<usize, Errno> {
        let [fd, what, len] = self.args;
        // SAFETY: 1: the program's own arguments, which the kernel checks; 2: the program's call.
        unsafe { syscall(self.number, [fd, what, len, 0, 0]) }
    }

    /// Makes the call at an offset, of which `preadv` takes the upper half separately (and ignores
    /// it here).
    pub fn ask_at(&self, offset: u64) -> Result<usize, Errno> {
        let [fd, what, len] = self.args;
        // SAFETY: as above.
        unsafe { syscall(self.number_at, [fd, what, len, offset as usize, 0]) }
    }
}

/// A way to serve a range.
enum TransferPlan<'c> {
    /// Copy: here, if it lies in one chunk.
    Copy(Option<&'c Chunk>),
    /// Map this chunk first.
    Map(u64),
    /// Let the kernel do it.
    Ask(Why),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It cannot be copied, or not yet.
    Other,
    /// It ends beyond the size known here (direct-C1).
    Size,
    /// A page is not known to be allocated (direct-C3).
    Hole,
    /// It is the first write of a tick (direct-C4).
    Tick(u64),
}

/// Returns the bytes that a call is known to move: a read may ask for more than there is.
fn stored<const W: bool>(parts: &Parts<'_>) -> usize {
    if W { parts.len } else { 0 }
}

/// Whether another thread has moved the offset that a transfer is to move.
#[inline(always)]
fn has_moved(locked: &Option<Locked<'_>>, from: u64) -> bool {
    locked.as_ref().is_some_and(|locked| locked.owner != OffsetOwner::Ours(from))
}

/// Moves the offset that a transfer is to move, if it moves one.
#[inline(always)]
fn move_to(locked: &mut Option<Locked<'_>>, to: u64) {
    if let Some(locked) = locked {
        locked.owner = OffsetOwner::Ours(to);
    }
}

impl Direct {
    /// `read`.
    ///
    /// # Safety
    /// 1. `buf` to `buf + len` is what the program passes as a buffer: only bytes of its own, or
    ///    unmapped memory.
    /// 2. The handler of SIGSEGV and SIGBUS asks [`recover`](crate::recover).
    #[inline]
    pub unsafe fn read(&self, fd: i32, buf: *mut u8, len: usize) -> Answer<usize> {
        let args = [fd as usize, buf.addr(), len];
        let call = Call { number: libc::SYS_read, args, number_at: libc::SYS_pread64 };
        let part = [iovec { iov_base: buf.cast(), iov_len: len }];
        self.transfer::<false, true>(fd, &Parts { parts: &part, len }, 0, &call)
    }

    /// `write`.
    ///
    /// # Safety
    /// As [`read`](Self::read).
    #[inline]
    pub unsafe fn write(&self, fd: i32, data: *const u8, len: usize) -> Answer<usize> {
        let args = [fd as usize, data.addr(), len];
        let call = Call { number: libc::SYS_write, args, number_at: libc::SYS_pwrite64 };
        let part = [iovec { iov_base: data.cast_mut().cast(), iov_len: len }];
        self.transfer::<true, true>(fd, &Parts { parts: &part, len }, 0, &call)
    }

    /// `pread`.
    ///
    /// # Safety
    /// As [`read`](Self::read).
    #[inline]
    pub unsafe fn pread(&self, fd: i32, buf: *mut u8, len: usize, offset: off_t) -> Answer<usize> {
        let args = [fd as usize, buf.addr(), len];
        let call = Call { number: libc::SYS_read, args, number_at: libc::SYS_pread64 };
        let part = [iovec { iov_base: buf.cast(), iov_len: len }];
        self.transfer::<false, false>(fd, &Parts { parts: &part, len }, offset, &call)
    }

    /// `pwrite`.
    ///
    /// # Safety
    /// As [`read`](Self::read).
    #[inline]
    pub unsafe fn pwrite(
        &self,
        fd: i32,
        data: *const u8,
        len: usize,
        offset: off_t,
    ) -> Answer<usize> {
        let args = [fd as usize, data.addr(), len];
        let call = Call { number: libc::SYS_write, args, number_at: libc::SYS_pwrite64 };
        let part = [iovec { iov_base: data.cast_mut().cast(), iov_len: len }];
        self.transfer::<true, false>(fd, &Parts { parts: &part, len }, offset, &call)
    }

    /// `readv` and `preadv` (with an offset).
    ///
    /// # Safety
    /// As [`read`](Self::read), for the list and each part of it.
    pub unsafe fn readv(
        &self,
        fd: i32,
        list: *const iovec,
        count: c_int,
        offset: Option<off_t>,
    ) -> Answer<usize> {
        let args = [fd as usize, list.addr(), count as usize];
        let call = Call { number: libc::SYS_readv, args, number_at: libc::SYS_preadv };
        // SAFETY: the caller's.
        unsafe { self.transfer_list::<false>(fd, list, count, offset, &call) }
    }

    /// `writev` and `pwritev` (with an offset).
    ///
    /// # Safety
    /// As [`read`](Self::read), for the list and each part of it.
    pub unsafe fn writev(
        &self,
        fd: i32,
        list: *const iovec,
        count: c_int,
        offset: Option<off_t>,
    ) -> Answer<usize> {
        let args = [fd as usize, list.addr(), count as usize];
        let call = Call { number: libc::SYS_writev, args, number_at: libc::SYS_pwritev };
        // SAFETY: the caller's.
        unsafe { self.transfer_list::<true>(fd, list, count, offset, &call) }
    }

    /// # Safety
    /// As [`read`](Self::read), for the list and each part of it.
    unsafe fn transfer_list<const W: bool>(
        &self,
        fd: i32,
        list: *const iovec,
        count: c_int,
        offset: Option<off_t>,
        call: &Call,
    ) -> Answer<usize> {
        if !self.is_served(fd, 0) {
            return Answer::Kernel;
        }
        let mut room = NO_PARTS;
        // SAFETY: by 1 of `read`.
        let parts = unsafe { parts::of_list(list, count, &mut room) };
        match offset {
            Some(offset) => self.transfer::<W, false>(fd, &parts, offset, call),
            None => self.transfer::<W, true>(fd, &parts, 0, call),
        }
    }

    /// Writes (`W`) or reads. With `MOVES`, uses the offset of the description and moves it
    /// (direct-O2); otherwise uses `at`. Makes `call` in the kernel if it cannot copy.
    #[inline]
    fn transfer<const W: bool, const MOVES: bool>(
        &self,
        fd: i32,
        parts: &Parts<'_>,
        at: off_t,
        call: &Call,
    ) -> Answer<usize> {
        let mut maps = 0;
        while self.is_served(fd, stored::<W>(parts)) {
            let Some(inside) = InsideEpoch::enter() else { break };
            let Some((_, description)) = self.get(fd) else { break };
            let position = &description.position;
            let owner = if MOVES { position.get() } else { OffsetOwner::Ours(at as u64) };
            let offset = match owner {
                OffsetOwner::Shared => break,
                _ if W && description.is(APPENDS) => {
                    drop(inside);
                    let named = (!MOVES).then_some(at as u64);
                    return self.append(fd, parts, named, call);
                }
                OffsetOwner::Kernel => {
                    adopt(fd, description);
                    continue;
                }
                OffsetOwner::Ours(offset) => offset,
            };
            match self.plan::<W>(description, offset, parts, maps < MAPS_MAX) {
                TransferPlan::Copy(chunk) => {
                    let end = offset + parts.len as u64;
                    if MOVES && !position.advance(offset, end) {
                        continue;
                    }
                    if self.copy::<W>(&inside, description, chunk, offset, parts) {
                        return Answer::Copied(parts.len);
                    }
                    let result = self.ask::<W>(fd, description, offset, Why::Size, call);
                    if MOVES {
                        // Unless another thread has continued from there.
                        position.advance(end, offset + result.unwrap_or(0) as u64);
                    }
                    return Answer::Asked(result);
                }
                TransferPlan::Map(index) => {
                    drop(inside);
                    maps = if self.map(fd, index, W) { maps + 1 } else { MAPS_MAX };
                }
                TransferPlan::Ask(why) => {
                    let mut locked = MOVES.then(|| position.lock());
                    if has_moved(&locked, offset) {
                        continue;
                    }
                    let result = self.ask::<W>(fd, description, offset, why, call);
                    move_to(&mut locked, offset + result.unwrap_or(0) as u64);
                    return Answer::Asked(result);
                }
            }
        }
        Answer::Kernel
    }

    /// Copies between the program's buffers and mapped chunks, with the witness of direct-C1 after
    /// each piece; `false` after a fault (direct-C2).
    #[inline]
    fn copy<const W: bool>(
        &self,
        inside: &InsideEpoch,
        description: &Description,
        chunk: Option<&Chunk>,
        offset: u64,
        parts: &Parts<'_>,
    ) -> bool {
        let file = description.file();
        let is_durable = W && file.kind() == FileSystemKind::Dax;
        let copier = if is_durable { self.config.durable } else { libc::memcpy as Copier };
        match (chunk, parts.parts) {
            (Some(chunk), [part]) => {
                let at = (offset % CHUNK_BYTES) as usize;
                copy_piece::<W>(inside, chunk, at, part.iov_base.cast(), part.iov_len, copier)
            }
            _ => copy_pieces::<W>(inside, file, offset, parts, copier),
        }
    }

    /// Decides how to serve a range.
    #[inline(always)]
    fn plan<'d, const W: bool>(
        &self,
        description: &'d Description,
        offset: u64,
        parts: &Parts<'_>,
        may_map: bool,
    ) -> TransferPlan<'d> {
        let len = parts.len;
        let how = if W { WRITES } else { READS };
        let refused = !description.is(how)
            || len.wrapping_sub(1) >= COPY_BYTES_MAX
            || offset >= MAPPABLE_BYTES - COPY_BYTES_MAX as u64;
        if refused {
            return TransferPlan::Ask(Why::Other);
        }
        let file = description.file();
        let end = offset + len as u64;
        // direct-C1: the page of the witness.
        if (end - 1) / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES >= file.size() {
            return TransferPlan::Ask(Why::Size);
        }
        let (index, at) = (offset / CHUNK_BYTES, (offset % CHUNK_BYTES) as usize);
        let chunk = if at + len <= CHUNK_BYTES as usize {
            self.chunk::<W>(file, index, at, len, may_map).map(Some)
        } else {
            self.chunks::<W>(file, offset, len, may_map)
        };
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(plan) => return plan,
        };
        if W {
            if end > self.file_size_max.load(Relaxed) {
                return TransferPlan::Ask(Why::Other);
            }
            let tick = self.tick();
            if !file.is_stamped(tick, self.generation.load(Relaxed)) {
                return TransferPlan::Ask(Why::Tick(tick));
            }
        }
        TransferPlan::Copy(chunk)
    }

    /// As [`chunk`](Self::chunk), for a range in several chunks.
    #[cold]
    fn chunks<'f, const W: bool>(
        &self,
        file: &'f File,
        offset: u64,
        len: usize,
        may_map: bool,
    ) -> Result<Option<&'f Chunk>, TransferPlan<'f>> {
        for (index, at, len) in pieces(offset, len) {
            self.chunk::<W>(file, index, at, len, may_map)?;
        }
        Ok(None)
    }

    /// Returns the current tick (direct-C4): of the kernel's coarse clock, or a longer one if times
    /// may lag.
    #[inline]
    fn tick(&self) -> u64 {
        match self.config.times_ns {
            0 => coarse_now(),
            long => coarse_now() / long,
        }
    }

    /// Returns a chunk from which a range can be copied, or another plan.
    #[inline]
    fn chunk<'f, const W: bool>(
        &self,
        file: &'f File,
        index: u64,
        at: usize,
        len: usize,
        may_map: bool,
    ) -> Result<&'f Chunk, TransferPlan<'f>> {
        let map = || if may_map { TransferPlan::Map(index) } else { TransferPlan::Ask(Why::Other) };
        let Some(entry) = file.entry(index) else { return Err(map()) };
        match Entry::of(entry.load(Acquire)) {
            Entry::Mapped(chunk) if W && !chunk.is_writable() => Err(map()),
            Entry::Mapped(chunk) if !chunk.has(at, len) => Err(TransferPlan::Ask(Why::Hole)),
            Entry::Mapped(chunk) => {
                chunk.touch();
                Ok(chunk)
            }
            Entry::Heat(_) => {
                let enough = self.config.map_after;
                let more = file.evidence(index * CHUNK_BYTES + at as u64, len, enough);
                Err(if Entry::heat(entry, more) >= enough {
                    map()
                } else {
                    TransferPlan::Ask(Why::Other)
                })
            }
        }
    }

    /// Lets the kernel make a call at an offset, and learns from the result.
    #[cold]
    fn ask<const W: bool>(
        &self,
        fd: i32,
        description: &Description,
        offset: u64,
        why: Why,
        call: &Call,
    ) -> Result<usize, Errno> {
        let generation = self.generation.load(Relaxed);
        let result = call.ask_at(offset);
        let done = result.unwrap_or(0);
        if done == 0 || W && description.is(APPENDS) {
            return result;
        }
        let file = description.file();
        let (size, end) = (file.size(), offset + done as u64);
        file.reached(end);
        if W {
            for (index, at, len) in pieces(offset, done) {
                if let Some(chunk) = file.mapped(index) {
                    chunk.written(at, len);
                }
            }
        }
        match why {
            Why::Tick(tick) => file.stamp(tick, generation),
            // A write by this process to the end needs no look.
            Why::Size if end <= size && file.went_beyond() => {
                if let Ok(stat) = rustix::fs::fstat(borrow(fd)) {
                    file.set_size(stat.st_size as u64);
                }
            }
            Why::Hole if !W => {
                for (index, at, len) in pieces(offset, done) {
                    if let Some(chunk) = file.mapped(index).filter(|chunk| !chunk.has(at, len)) {
                        chunk.missed(at, len);
                    }
                }
            }
            _ => {}
        }
        result
    }

    /// `lseek`.
    pub fn lseek(&self, fd: i32, offset: off_t, whence: c_int) -> Answer<off_t> {
        let Some(_inside) = InsideEpoch::enter() else { return Answer::Kernel };
        let Some((_, description)) = self.get(fd) else { return Answer::Kernel };
        loop {
            let owner = description.position.get();
            let to = match (owner, whence) {
                (OffsetOwner::Shared, _) => return Answer::Kernel,
                (OffsetOwner::Ours(_), libc::SEEK_SET) => Some(offset),
                (OffsetOwner::Ours(from), libc::SEEK_CUR) => offset.checked_add(from as off_t),
                _ => None,
            };
            match (owner, to) {
                (OffsetOwner::Ours(from), Some(to)) if (0..OFFSET_END as off_t).contains(&to) => {
                    if description.position.advance(from, to as u64) {
                        return Answer::Copied(to);
                    }
                }
                _ => {
                    let mut locked = description.position.lock();
                    if locked.owner == OffsetOwner::Shared {
                        return Answer::Kernel;
                    }
                    give(fd, &mut locked);
                    let args = [fd as usize, offset as usize, whence as usize, 0, 0];
                    // SAFETY: 1: numbers; 2: the program's call.
                    let result = unsafe { syscall(libc::SYS_lseek, args) };
                    if let Ok(to) = result
                        && (to as u64) < OFFSET_END
                    {
                        locked.owner = OffsetOwner::Ours(to as u64);
                    }
                    return Answer::Asked(result.map(|to| to as off_t));
                }
            }
        }
    }

    /// Gives the offsets of both descriptions to the kernel, and locks them until the result is
    /// dropped. The caller is outside; until then it counts as inside. `None` without memory.
    ///
    /// All threads lock descriptions in the order of their indices, so that no two of them wait for
    /// each other.
    pub fn lend(&self, fds: [i32; 2]) -> Option<Lent<'_>> {
        let inside = InsideEpoch::enter()?;
        let mut found = fds.map(|fd| self.get(fd).map(|(index, known)| (index, fd, known)));
        found.sort_unstable_by_key(|found| found.map(|(index, ..)| index));
        let [a, b] = found;
        let same = a.map(|(index, ..)| index) == b.map(|(index, ..)| index);
        let lend = |(_, fd, description): (u32, i32, &'_ Description)| {
            // SAFETY: descriptions lie in the slab, which lives as long as `self`.
            let description = unsafe { &*std::ptr::from_ref(description) };
            let mut locked = description.position.lock();
            give(fd, &mut locked);
            locked
        };
        let first = a.map(lend);
        let second = b.filter(|_| !same).map(lend);
        Some(Lent { _locked: [first, second], _inside: inside })
    }
}

/// A loan of offsets that the kernel moves; see [`Direct::lend`].
pub struct Lent<'d> {
    _locked: [Option<Locked<'d>>; 2],
    _inside: InsideEpoch,
}

/// Returns the time of the kernel's coarse clock, in ns.
#[inline]
fn coarse_now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time. (The vDSO answers.)
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Takes the offset over from the kernel (direct-O1).
#[cold]
fn adopt(fd: i32, description: &Description) {
    let mut locked = description.position.lock();
    if locked.owner == OffsetOwner::Kernel {
        match rustix::fs::tell(borrow(fd)) {
            Ok(offset) if offset < OFFSET_END => locked.owner = OffsetOwner::Ours(offset),
            // The offset is too large, or the descriptor closed: it stays the kernel's.
            _ => locked.owner = OffsetOwner::Shared,
        }
    }
}

/// Gives the offset to the kernel, until the library takes it over again.
fn give(fd: i32, locked: &mut Locked<'_>) {
    if let OffsetOwner::Ours(offset) = locked.owner {
        let _ = rustix::fs::seek(borrow(fd), rustix::fs::SeekFrom::Start(offset));
        locked.owner = OffsetOwner::Kernel;
    }
}

/// Divides a range at the borders of chunks: index, offset within, bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = (offset + len as u64).min(MAPPABLE_BYTES);
    (offset / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)).map(move |index| {
        let start = index * CHUNK_BYTES;
        let from = offset.max(start) - start;
        (index, from as usize, (end.min(start + CHUNK_BYTES) - start - from) as usize)
    })
}

/// Copies a range that may lie in several chunks and buffers. `false` after a fault, or if a chunk
/// is not mapped.
fn copy_pieces<const W: bool>(
    inside: &InsideEpoch,
    file: &File,
    offset: u64,
    parts: &Parts<'_>,
    copier: Copier,
) -> bool {
    let mut offset = offset;
    for part in parts.parts {
        let mut program = part.iov_base.cast::<u8>();
        for (index, at, len) in pieces(offset, part.iov_len) {
            let Some(chunk) = file.mapped(index) else { return false };
            if W && !chunk.is_writable()
                || !copy_piece::<W>(inside, chunk, at, program, len, copier)
            {
                return false;
            }
            program = program.wrapping_add(len);
        }
        offset += part.iov_len as u64;
    }
    true
}

/// Copies a range within a chunk.
#[inline]
fn copy_piece<const W: bool>(
    inside: &InsideEpoch,
    chunk: &Chunk,
    at: usize,
    program: *mut u8,
    len: usize,
    copier: Copier,
) -> bool {
    let base = chunk.base();
    let mapped = base.wrapping_add(at);
    let page = PAGE_BYTES as usize;
    let witness = base.wrapping_add((at + len - 1) / page * page + page);
    let (to, from) = if W { (mapped, program) } else { (program, mapped) };
    // SAFETY: 1: the chunk is mapped while we are inside (direct-E1), and the program answers for
    // the rest (`Direct::read`); a buffer that is a mapping of the same file is copied as by the
    // kernel, in some order. 2: ours. 3: entered.
    unsafe { copy::copy(inside.slot, to, from, len, copier, witness) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use rustix::fd::AsRawFd as _;
    use rustix::fs::{Mode, OFlags};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn loans_of_the_same_offsets_do_not_wait_for_each_other() {
        let direct = Direct::new(Config::new(vec![b"/dev/shm".to_vec()], libc::memcpy)).unwrap();
        let direct: &Direct = Box::leak(Box::new(direct));
        let (flags, mode) = (OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR);
        let files = [(); 2].map(|()| rustix::fs::open("/dev/shm", flags, mode).unwrap());
        let [a, b] = files.each_ref().map(|file| {
            direct.opened(file.as_raw_fd(), libc::O_RDWR);
            direct.look_now(file.as_raw_fd());
            file.as_raw_fd()
        });
        let lend = |fds| {
            let lent = direct.lend(fds).unwrap();
            lent._locked.iter().flatten().count()
        };
        assert_eq!((lend([a, b]), lend([b, a])), (2, 2));
        assert_eq!((lend([a, a]), lend([a, -1]), lend([-1, a])), (1, 1, 1));
        let (ended, ends) = mpsc::channel();
        for fds in [[a, b], [b, a]] {
            let ended = ended.clone();
            std::thread::spawn(move || {
                (0..100_000).for_each(|_| drop(direct.lend(fds)));
                ended.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            ends.recv_timeout(Duration::from_secs(60)).expect("two threads wait for each other");
        }
    }
}
