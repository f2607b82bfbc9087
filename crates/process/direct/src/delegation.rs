//! Files of caches that are delegated to this process: their content is in a pool that it has, too, and is read and written
//! there, without a request ([`vfs::FileSystem::delegate`]).
//!
//! - **delegation-D1** A delegation counts as long as the pool says so, which each call asks as it is made. What is remembered here
//!   of it changes with the tables locked, and whoever uses it under an older number is refused by the pool.
//! - **delegation-D2** A block is written to only when the cache was told of it under the same number, or has let it be marked
//!   here, which is done before. Who appends says which bytes those are; where the file ends elsewhere by then, the pool, which
//!   knows with the file locked, writes nothing.

#![allow(unsafe_code)]

use crate::descriptions::{Description, READS, STORES};
use crate::epoch::Inside;
use crate::file::{File, Kind};
use crate::parts::Parts;
use crate::slab::reserve;
use crate::table::borrow;
use crate::turn::Turn;
use crate::{Direct, lock::Held};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::ioctl::Updater;
use rustix::time::Timespec;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence};
use vfs::{Announcement, Credit, Delegation, Errno, FileSystem, Ino};

/// The attributes of files of caches by which they are delegated, and by which a program learns that they are.
const DELEGATION: &CStr = c"keepstone.cache.delegation";
const JOIN: &CStr = c"keepstone.cache.delegated";

const BLOCK: u64 = 4096;
/// Files are written to here up to so many blocks.
const BLOCKS: u64 = 1 << 20;
/// Who appends announces as many blocks as the file has, up to so many, at once; who writes one after the other in the end.
const AHEAD: u64 = 256;
/// Nobody may announce more at once.
const ANNOUNCED_MAX: u64 = 16 << 10;
/// So many writes by the kernel before a file is asked for, at first and at most.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 4096;
/// A delegation of fewer calls was not worth it.
const WORTH: u32 = 64;
/// As many bytes count as a call.
const CALL_BYTES: usize = 16 << 10;
/// So often a file is asked for that others are using just then, after pauses of so many ns and more.
const ASKED_MAX: usize = 10;
const ASKED_AGAIN_NS: i64 = 50_000;
/// Pools of caches that are used.
const POOLS: usize = 4;

/// What opens the pool of a cache: by its path, and the device of the cache's files.
pub type OpenPool = fn(&[u8], u64) -> Option<&'static dyn FileSystem>;

/// A pool, by path and device; `None` where it could not be opened.
type Pool = (Vec<u8>, u64, Option<&'static dyn FileSystem>);

/// Pools that were asked for.
#[derive(Default)]
pub struct Pools([OnceLock<Pool>; POOLS]);

impl Pools {
    fn find(&self, path: &[u8], device: u64, open: OpenPool) -> Option<u32> {
        let is_it = |slot: &OnceLock<Pool>| {
            let pool = slot.get_or_init(|| (path.to_vec(), device, open(path, device)));
            (&*pool.0, pool.1) == (path, device)
        };
        let index = self.0.iter().position(is_it)?;
        self.get(index as u32).map(|_| index as u32)
    }

    fn get(&self, index: u32) -> Option<&'static dyn FileSystem> {
        self.0.get(index as usize)?.get()?.2
    }
}

/// What is known of a file's delegation. All zeros: nothing.
pub struct Delegated {
    /// 0: it is not delegated, as far as is known here.
    number: AtomicU64,
    shadow: AtomicU64,
    pool: AtomicU32,
    /// Calls by it.
    calls: AtomicU32,
    /// Writes by the kernel since it was asked for last, and how many are to come before it is again.
    kernels: AtomicU32,
    /// All of them.
    missed: AtomicU32,
    patience: AtomicU32,
    /// Who asks for it; a call by the kernel meanwhile would be another use of the file, and it would not be delegated.
    asking: Turn,
    /// Blocks that were announced, a bit for each; null as long as there were none.
    announced: AtomicPtr<AtomicU64>,
    /// Those of them that were announced last at the end of the file: the first one, and above 32 bits the one behind them.
    at_end: AtomicU64,
    /// The block after those that were announced last, within the file, and how many of these were not about to be written.
    expected: AtomicU64,
    ahead: AtomicU64,
    /// What may be marked without announcing it: so many blocks below an end, in a file of the pool.
    credit: AtomicU64,
    credit_end: AtomicU64,
    bitmap: AtomicU64,
    /// Whether somebody may have mapped the file by the kernel, for whom that is told of sizes; and the one it was told of by
    /// this delegation.
    is_mapped: AtomicBool,
    told: AtomicU64,
}

/// A delegation as a call uses it.
#[derive(Clone, Copy)]
pub struct By {
    pub number: Delegation,
    pub shadow: Ino,
    pub pool: u32,
}

/// Why a call by a delegation has come to nothing.
pub enum Hurdle {
    /// These blocks have to be announced first.
    Announce(Range<u64>),
    /// It was recalled. Others may have been delegated the file again.
    Recalled,
    /// It is the kernel's to make.
    Kernel,
}

impl Delegated {
    /// Starts over with another file. Nobody knows the place.
    pub fn reset(&self) {
        self.number.store(0, Relaxed);
        self.kernels.store(0, Relaxed);
        self.missed.store(0, Relaxed);
        self.calls.store(0, Relaxed);
        self.patience.store(PATIENCE, Relaxed);
        self.is_mapped.store(false, Relaxed);
        self.asking.reset();
    }

    /// The delegation, if there is one.
    #[inline]
    pub fn get(&self) -> Option<By> {
        let number = self.number.load(Acquire);
        if number == 0 {
            return None;
        }
        let (shadow, pool) = (self.shadow.load(Relaxed), self.pool.load(Relaxed));
        fence(Acquire);
        // delegation-D1: what was read is of this number.
        let is_same = self.number.load(Relaxed) == number;
        is_same.then_some(By { number: Delegation(number), shadow: Ino(shadow), pool })
    }

    /// It is by this one from now on.
    pub fn begin(&self, _held: &Held<'_>, by: By) {
        if self.number.load(Relaxed) == by.number.0 {
            return;
        }
        self.number.store(0, Release);
        fence(SeqCst);
        let bits = self.announced.load(Relaxed);
        if !bits.is_null() {
            // SAFETY: a mapping of this size, of numbers; what is dropped reads as zeros.
            let _ = unsafe { libc::madvise(bits.cast(), BLOCKS as usize / 8, libc::MADV_DONTNEED) };
        }
        self.shadow.store(by.shadow.0, Relaxed);
        self.pool.store(by.pool, Relaxed);
        self.at_end.store(0, Relaxed);
        self.credit.store(0, Relaxed);
        self.told.store(0, Relaxed);
        self.calls.store(0, Relaxed);
        self.number.store(by.number.0, Release);
    }

    /// It was recalled.
    #[cold]
    fn end(&self, by: By) {
        if self.number.compare_exchange(by.number.0, 0, AcqRel, Relaxed).is_ok() {
            let is_worth = self.calls.swap(0, Relaxed) >= WORTH;
            self.wait_longer(is_worth);
        }
    }

    fn wait_longer(&self, is_worth: bool) {
        let patience = self.patience.load(Relaxed);
        let patience = if is_worth { PATIENCE } else { (patience * 2).min(PATIENCE_MAX) };
        self.patience.store(patience, Relaxed);
    }

    /// It is worth asking for at the first write.
    pub fn is_promising(&self) {
        self.patience.store(0, Relaxed);
    }

    /// Calls by it, and writes that it would have been for.
    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed).saturating_add(self.missed.load(Relaxed))
    }

    /// Counts a write of so many bytes that the kernel is to make; whether to ask first.
    fn is_wanted(&self, len: usize) -> bool {
        self.missed.fetch_add(1, Relaxed);
        let calls = weight(len);
        let so_far = self.kernels.fetch_add(calls, Relaxed);
        let is_due = so_far.saturating_add(calls) > self.patience.load(Relaxed);
        if is_due {
            self.kernels.store(0, Relaxed);
        }
        is_due
    }

    #[inline]
    fn is_announced(&self, blocks: &Range<u64>) -> bool {
        let bits = self.announced.load(Acquire);
        // SAFETY: a mapping with a bit for each of `BLOCKS`.
        let has = |block: u64| unsafe {
            (*bits.add((block / 64) as usize)).load(Relaxed) & 1 << (block % 64) != 0
        };
        !bits.is_null() && blocks.clone().all(has)
    }

    /// Bytes at the end of the file that were announced, if there are any.
    #[inline]
    fn announced_at_end(&self) -> Range<u64> {
        let at_end = self.at_end.load(Relaxed);
        (at_end & u64::from(u32::MAX)) * BLOCK..(at_end >> 32) * BLOCK
    }

    /// Counts a call by it.
    #[inline]
    fn used(&self, len: usize) {
        let calls = self.calls.load(Relaxed);
        self.calls.store(calls.saturating_add(weight(len)), Relaxed);
    }

    /// From now on somebody may have mapped the file by the kernel.
    pub fn note_mapping(&self) {
        self.is_mapped.store(true, Relaxed);
    }

    /// Makes the kernel ask where the file ends, if that is further away now and somebody may have mapped it: beyond the end
    /// that it knows, what is mapped is not there.
    #[inline]
    fn tell_end(&self, fd: i32, end: u64) {
        if self.is_mapped.load(Relaxed) && end > self.told.load(Relaxed) {
            self.told.store(tell_size(fd), Relaxed);
        }
    }

    fn take_in(&self, _held: &Held<'_>, credit: Credit) {
        self.is_mapped.fetch_or(credit.others_map, Relaxed);
        self.bitmap.store(credit.bitmap.0, Relaxed);
        self.credit_end.store(credit.end, Relaxed);
        self.credit.store(credit.blocks, Relaxed);
    }

    /// The bitmap in which these blocks may be marked, of which so many are left to be marked less then.
    fn spend(&self, _held: &Held<'_>, blocks: &Range<u64>) -> Option<Ino> {
        let left = self.credit.load(Relaxed).checked_sub(blocks.end - blocks.start)?;
        let may = blocks.end <= self.credit_end.load(Relaxed);
        may.then(|| {
            self.credit.store(left, Relaxed);
            Ino(self.bitmap.load(Relaxed))
        })
    }

    /// Leaves half of the credit to a process that is about to be made.
    pub fn share_credit(&self, _held: &Held<'_>) {
        self.credit.store(self.credit.load(Relaxed) / 2, Relaxed);
    }

    fn announced(&self, _held: &Held<'_>, blocks: &Range<u64>, is_append: bool) {
        if self.announced.load(Relaxed).is_null() {
            let Ok(bits) = reserve(BLOCKS as usize / 8) else { return };
            self.announced.store(bits.cast(), Release);
        }
        let bits = self.announced.load(Relaxed);
        for block in blocks.clone() {
            // SAFETY: as above; ranges end at `BLOCKS`.
            unsafe { (*bits.add((block / 64) as usize)).fetch_or(1 << (block % 64), Relaxed) };
        }
        if is_append {
            self.at_end.store(blocks.end << 32 | blocks.start, Relaxed);
        }
    }
}

impl Direct {
    /// The pool, if a delegation still counts.
    pub(crate) fn pool_if_valid(&self, by: By) -> Option<&'static dyn FileSystem> {
        let fs = self.pools.get(by.pool)?;
        fs.read_delegated(by.number, by.shadow, 0, &mut []).ok()?;
        Some(fs)
    }

    /// Reads or writes by a delegation. The buffers are the program's, and may be bad.
    #[inline]
    pub(crate) fn by_delegation<const W: bool>(
        &self,
        inside: &Inside,
        (fd, description): (i32, &Description),
        by: By,
        offset: u64,
        parts: &Parts<'_>,
    ) -> Result<usize, Hurdle> {
        let file = description.file();
        let fs = self.pools.get(by.pool).ok_or(Hurdle::Kernel)?;
        let end = offset + parts.len as u64;
        if W {
            let blocks = offset / BLOCK..end.div_ceil(BLOCK);
            // delegation-D2.
            match self.may_be_written(&blocks, end) {
                true if file.delegated.is_announced(&blocks) => {}
                true => return Err(Hurdle::Announce(blocks)),
                false => return Err(Hurdle::Kernel),
            }
        }
        let done = if W {
            let data = self.data(inside, parts).ok_or(Hurdle::Kernel)?;
            let written = fs.write_delegated(by.number, by.shadow, offset, data);
            written.map(|()| data.len())
        } else {
            let read = |buf: &mut [u8]| fs.read_delegated(by.number, by.shadow, offset, buf);
            self.read_into(inside, parts, read).ok_or(Hurdle::Kernel)?
        };
        let len = done.map_err(|err| refused(file, by, err))?;
        if W {
            file.reached(end);
            file.delegated.tell_end(fd, end);
        }
        file.delegated.used(len);
        Ok(len)
    }

    /// Appends by a delegation: where the bytes end.
    #[inline]
    pub(crate) fn append_by_delegation(
        &self,
        inside: &Inside,
        (fd, description): (i32, &Description),
        by: By,
        parts: &Parts<'_>,
    ) -> Result<u64, Hurdle> {
        let file = description.file();
        let fs = self.pools.get(by.pool).ok_or(Hurdle::Kernel)?;
        let data = self.data(inside, parts).ok_or(Hurdle::Kernel)?;
        let announced = file.delegated.announced_at_end();
        let within = announced.start..announced.end.min(self.file_size_max.load(Relaxed));
        match fs.append_delegated(by.number, by.shadow, within, data) {
            Ok(offset) => {
                let end = offset + data.len() as u64;
                file.reached(end);
                file.delegated.tell_end(fd, end);
                file.delegated.used(data.len());
                Ok(end)
            }
            // delegation-D2: where the file ends is not announced, or not to be written to.
            Err(Errno::RANGE) => {
                let attr = fs.getattr(by.shadow).map_err(|_| Hurdle::Kernel)?;
                let end = attr.size + data.len() as u64;
                let blocks = attr.size / BLOCK..end.div_ceil(BLOCK);
                file.set_size(attr.size);
                let may_be = self.may_be_written(&blocks, end);
                Err(if may_be { Hurdle::Announce(blocks) } else { Hurdle::Kernel })
            }
            Err(err) => Err(refused(file, by, err)),
        }
    }

    /// Whether blocks can be announced, and a file may be written to up to `end`.
    #[inline]
    fn may_be_written(&self, blocks: &Range<u64>, end: u64) -> bool {
        blocks.end <= BLOCKS
            && blocks.end - blocks.start <= ANNOUNCED_MAX
            && end <= self.file_size_max.load(Relaxed)
    }

    /// What is to be written, as one; `None` where not all of it is there.
    #[inline]
    fn data<'i>(&self, inside: &'i Inside, parts: &Parts<'i>) -> Option<&'i [u8]> {
        let Some(part) = parts.only() else { return parts.gather(inside) };
        let (at, len) = (part.iov_base.cast::<u8>(), part.iov_len);
        // SAFETY: direct-C2 does not hold in a pool: what is bad is found before.
        let is_there = unsafe { (self.config.is_there)(at, len, false) };
        // SAFETY: it is there, and nobody else's but the program's.
        is_there.then(|| unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// Reads into all buffers at once; `None` where they are not all there, and then nothing has come of it.
    #[inline]
    fn read_into(
        &self,
        inside: &Inside,
        parts: &Parts<'_>,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        let Some(part) = parts.only() else { return parts.scatter(inside, read) };
        let (at, len) = (part.iov_base.cast::<u8>(), part.iov_len);
        // SAFETY: as above.
        let is_there = unsafe { (self.config.is_there)(at, len, true) };
        // SAFETY: as above.
        is_there.then(|| read(unsafe { std::slice::from_raw_parts_mut(at, len) }))
    }

    /// Whether to ask for a delegation before the kernel makes a call.
    pub(crate) fn wants_delegation<const W: bool>(
        &self,
        description: &Description,
        is_asking: bool,
        len: usize,
    ) -> bool {
        let file = description.file();
        let delegated = &file.delegated;
        let wants =
            || if W { description.is(STORES) && delegated.is_wanted(len) } else { is_asking };
        file.kind() == Kind::Cached && (delegated.asking.is_taken() || wants())
    }

    /// Asks for a delegation, or whether there is one. The caller is outside.
    #[cold]
    pub(crate) fn delegate(&self, fd: i32, only_joins: bool) {
        let Some(file) = Inside::enter().and_then(|_inside| Some(self.get(fd)?.1.file())) else {
            return;
        };
        // Until what has come of it is known.
        let Some(_turn) = file.delegated.asking.take() else { return };
        let (device, name) = (file.dev.load(Relaxed), if only_joins { JOIN } else { DELEGATION });
        let mut text = [0_u8; libc::PATH_MAX as usize + 64];
        let mut told = Err(Errno::AGAIN);
        for attempt in 0..ASKED_MAX {
            told = rustix::fs::fgetxattr(borrow(fd), name, &mut text[..]);
            // Calls by the kernel were under way, or another file is being delegated.
            if told != Err(Errno::AGAIN) {
                break;
            }
            let tv_nsec = ASKED_AGAIN_NS << attempt.min(5);
            let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec });
        }
        let by = told.ok().and_then(|len| self.parse(text.get(..len)?, device));
        let held = self.hold();
        let Some(_inside) = Inside::enter() else { return };
        let Some((_, description)) = self.get(fd) else { return };
        let delegated = &description.file().delegated;
        match by {
            Some(by) => delegated.begin(&held, by),
            None if !only_joins => delegated.wait_longer(false),
            None => {}
        }
    }

    fn parse(&self, told: &[u8], device: u64) -> Option<By> {
        let mut words = told.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let (delegation, shadow): (u64, u64) = (number()?, number()?);
        let pool = self.pools.find(words.next()?, device, self.config.open_pool)?;
        let by = By { number: Delegation(delegation), shadow: Ino(shadow), pool };
        (delegation != 0).then_some(by)
    }

    /// Marks blocks, or announces writes to them; whether they may be made. The caller is outside.
    #[cold]
    pub(crate) fn announce(&self, fd: i32, by: By, blocks: &Range<u64>, size: u64) -> bool {
        if let Some(marked) = self.mark(fd, by, blocks) {
            return marked;
        }
        let is_append = blocks.start * BLOCK >= size / BLOCK * BLOCK;
        let ahead = if is_append { Some(AHEAD.min(blocks.end)) } else { self.ahead(fd, blocks) };
        let most = (blocks.start + ANNOUNCED_MAX).min(BLOCKS);
        let blocks = blocks.start..(blocks.end + ahead.unwrap_or(0)).min(most);
        let mut bytes = Announcement { by: by.number, blocks: blocks.clone() }.to_bytes();
        // SAFETY: a command that reads and writes so many bytes.
        let asked = unsafe {
            let command = Updater::<{ Announcement::COMMAND }, _>::new(&mut bytes);
            rustix::ioctl::ioctl(borrow(fd), command)
        };
        self.with_delegation(fd, by, |delegated, held| match asked {
            Ok(()) => {
                delegated.announced(held, &blocks, is_append);
                delegated.take_in(held, Credit::from_bytes(&bytes));
                true
            }
            Err(err) => {
                delegated.end(by);
                // Neither a recall nor what may pass.
                if !matches!(err, Errno::STALE | Errno::NOSPC | Errno::AGAIN | Errno::INTR) {
                    delegated.patience.store(PATIENCE_MAX, Relaxed);
                }
                false
            }
        })
        .unwrap_or(false)
    }

    /// Marks blocks by the credit that there is; `None` where there is not enough, and otherwise whether they may be written to.
    fn mark(&self, fd: i32, by: By, blocks: &Range<u64>) -> Option<bool> {
        let bitmap =
            self.with_delegation(fd, by, |delegated, held| delegated.spend(held, blocks))??;
        let fs = self.pools.get(by.pool)?;
        match fs.set_bits_delegated(by.number, bitmap, blocks.clone()) {
            Ok(()) => self.with_delegation(fd, by, |delegated, held| {
                delegated.announced(held, blocks, false);
                true
            }),
            Err(Errno::STALE) => self.with_delegation(fd, by, |delegated, _| {
                delegated.end(by);
                false
            }),
            // The cache may make room.
            Err(_) => None,
        }
    }

    /// Changes what is known of a delegation; `None` where that is another one by now.
    fn with_delegation<T>(
        &self,
        fd: i32,
        by: By,
        change: impl FnOnce(&Delegated, &Held<'_>) -> T,
    ) -> Option<T> {
        let held = self.hold();
        let _inside = Inside::enter()?;
        let delegated = &self.get(fd)?.1.file().delegated;
        let is_same = delegated.get().is_some_and(|now| now.number == by.number);
        is_same.then(|| change(delegated, &held))
    }

    /// How many blocks are announced beyond those that are about to be written: where the last ones are followed by these,
    /// twice as many as then. They count as changed even if they are not written to.
    fn ahead(&self, fd: i32, blocks: &Range<u64>) -> Option<u64> {
        let _inside = Inside::enter()?;
        let Delegated { expected, ahead, .. } = &self.get(fd)?.1.file().delegated;
        let follows = (blocks.start..=blocks.end).contains(&expected.load(Relaxed));
        let next = if follows { (ahead.load(Relaxed) * 2).clamp(1, AHEAD) } else { 0 };
        ahead.store(next, Relaxed);
        expected.store(blocks.end + next, Relaxed);
        Some(next)
    }

    /// The program is about to map a file by the kernel, for which that has to know where it ends. The caller is outside.
    #[cold]
    pub fn mapping(&self, fd: i32) {
        self.look_now(fd);
        let delegated = Inside::enter().and_then(|_inside| {
            let file = self.get(fd)?.1.file();
            (file.kind() == Kind::Cached).then_some(&file.delegated)
        });
        let Some(delegated) = delegated else { return };
        delegated.note_mapping();
        if delegated.get().is_some() {
            delegated.told.store(tell_size(fd), Relaxed);
        }
    }

    /// The kernel is about to read a file up to the end that it knows, which is not that of a file that is delegated. The caller
    /// is outside.
    pub fn read_by_kernel(&self, fd: i32) {
        let is_delegated = Inside::enter().is_some_and(|_inside| {
            let found = self.get(fd);
            found.is_some_and(|(_, description)| description.file().delegated.get().is_some())
        });
        if is_delegated {
            tell_size(fd);
        }
    }

    /// Whether a descriptor is of a file with nothing to be synced: all that was written to it was durable when that returned.
    pub fn is_synced(&self, fd: i32) -> bool {
        let Some(_inside) = Inside::enter() else { return false };
        let Some((_, description)) = self.get(fd) else { return false };
        description.file().delegated.get().is_some_and(|by| self.pool_if_valid(by).is_some())
    }
}

/// Makes the kernel ask for the size of a file, which it knows then.
#[cold]
fn tell_size(fd: i32) -> u64 {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = rustix::fs::statx(borrow(fd), c"", flags, StatxFlags::SIZE);
    stat.map_or(0, |stat| stat.stx_size)
}

/// What a call of so many bytes counts.
pub fn weight(len: usize) -> u32 {
    1 + (len / CALL_BYTES) as u32
}

/// The pool has refused a call by a delegation.
fn refused(file: &File, by: By, err: Errno) -> Hurdle {
    if err != Errno::STALE {
        return Hurdle::Kernel;
    }
    file.delegated.end(by);
    Hurdle::Recalled
}

/// Whether a description is of a file that may be read, or written to, by a delegation.
#[inline]
pub fn may_use<const W: bool>(description: &Description) -> Option<By> {
    let file: &File = description.file();
    let is_open = description.is(if W { STORES } else { READS });
    if is_open && file.kind() == Kind::Cached { file.delegated.get() } else { None }
}
