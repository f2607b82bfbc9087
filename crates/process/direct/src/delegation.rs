//! Files of caches that are delegated to this process: their content is in a pool that the process
//! has open, too. It is read and written there, without a request ([`vfs::Delegations::delegate`]).
//!
//! - **delegation-D1** A delegation is valid as long as the pool confirms it, which each call asks.
//!   The state here changes only with the tables locked. If a call uses it under an older number,
//!   the pool refuses the call.
//! - **delegation-D2** A block is written only after it was announced to the cache under the same
//!   number, or marked here within the credit that the cache has granted. An append names the bytes
//!   that were announced. If the file ends outside of them by then, the pool, which checks that
//!   with the file locked, writes nothing.

#![allow(unsafe_code)]

use crate::descriptions::{Description, READS, STORES};
use crate::epoch::InsideEpoch;
use crate::file::{File, FileSystemKind};
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

/// Attributes of files of caches: reading the first asks for a delegation, reading the second for
/// one that exists.
const DELEGATION: &CStr = c"keepstone.cache.delegation";
const JOIN: &CStr = c"keepstone.cache.delegated";

const BLOCK: u64 = 4096;
/// Blocks of a file that can be written to here.
const BLOCKS: u64 = 1 << 20;
/// Blocks announced ahead: an append announces as many as the file has, up to this number;
/// sequential writes double theirs up to it.
const AHEAD: u64 = 256;
/// Blocks in one announcement at most.
const ANNOUNCED_MAX: u64 = 16 << 10;
/// Weight of writes by the kernel before the file's delegation is asked for: at first, and at most.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 4096;
/// Weight of calls below which a delegation was not worth it.
const WORTH: u32 = 64;
/// Bytes of a call that add 1 to its weight.
const CALL_BYTES: usize = 16 << 10;
/// Attempts to get a file that others are using just then, and the pause after the first, in ns.
/// Later pauses are longer.
const ASKED_MAX: usize = 10;
const ASKED_AGAIN_NS: i64 = 50_000;
/// Pools of caches that are used at most.
const POOLS: usize = 4;

/// A function that opens the pool of a cache: by its path, and the device of the cache's files.
pub type OpenPool = fn(&[u8], u64) -> Option<&'static dyn FileSystem>;

/// A pool, by path and device; `None` if it could not be opened.
type Pool = (Vec<u8>, u64, Option<&'static dyn FileSystem>);

/// Pools that calls have asked for.
#[derive(Default)]
pub struct Pools([OnceLock<Pool>; POOLS]);

impl Pools {
    /// Returns the index of a pool, which it opens the first time. `None` if it cannot be opened,
    /// or there are too many pools.
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

/// The state of a file's delegation. All zeros: no delegation.
pub struct Delegated {
    /// Its number; 0: not delegated, as far as this process knows.
    number: AtomicU64,
    shadow: AtomicU64,
    pool: AtomicU32,
    /// Weight of the calls by it.
    calls: AtomicU32,
    /// Weight of writes by the kernel since the last attempt to get it; above `patience`, the next
    /// attempt is due.
    kernels: AtomicU32,
    /// Number of all writes by the kernel.
    missed: AtomicU32,
    patience: AtomicU32,
    /// The thread that asks for it. A call by the kernel meanwhile would be another use of the
    /// file, and prevent the delegation.
    asking: Turn,
    /// Blocks that were announced, a bit for each; null before the first.
    announced: AtomicPtr<AtomicU64>,
    /// The blocks announced last at the end of the file: the first one, and above 32 bits the one
    /// behind them.
    at_end: AtomicU64,
    /// The block after those announced last, within the file, and the number of blocks that were
    /// announced ahead.
    expected: AtomicU64,
    ahead: AtomicU64,
    /// The credit: blocks that may be marked without announcing them, below an end, in a bitmap in
    /// the pool.
    credit: AtomicU64,
    credit_end: AtomicU64,
    bitmap: AtomicU64,
    /// Whether a process may have mapped the file by the kernel, which then has to know its size;
    /// and the size that the kernel got during this delegation.
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

/// The reason that a call by a delegation has failed.
pub enum Hurdle {
    /// These blocks have to be announced first.
    Announce(Range<u64>),
    /// The delegation was recalled. Others may have got the file since.
    Recalled,
    /// The kernel has to make the call.
    Kernel,
}

impl Delegated {
    /// Starts over with another file. No other thread knows the place.
    pub fn reset(&self) {
        self.number.store(0, Relaxed);
        self.kernels.store(0, Relaxed);
        self.missed.store(0, Relaxed);
        self.calls.store(0, Relaxed);
        self.patience.store(PATIENCE, Relaxed);
        self.is_mapped.store(false, Relaxed);
        self.asking.reset();
    }

    /// Returns the delegation, if the file has one.
    #[inline]
    pub fn get(&self) -> Option<By> {
        let number = self.number.load(Acquire);
        if number == 0 {
            return None;
        }
        let (shadow, pool) = (self.shadow.load(Relaxed), self.pool.load(Relaxed));
        fence(Acquire);
        // delegation-D1: the fields belong to this number.
        let is_same = self.number.load(Relaxed) == number;
        is_same.then_some(By { number: Delegation(number), shadow: Ino(shadow), pool })
    }

    /// Sets the delegation.
    pub fn begin(&self, _held: &Held<'_>, by: By) {
        if self.number.load(Relaxed) == by.number.0 {
            return;
        }
        self.number.store(0, Release);
        fence(SeqCst);
        let bits = self.announced.load(Relaxed);
        if !bits.is_null() {
            // SAFETY: a mapping of this size, of numbers; dropped pages read as zeros.
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

    /// Ends a delegation that was recalled.
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

    /// Notes that the first write should ask for a delegation.
    pub fn is_promising(&self) {
        self.patience.store(0, Relaxed);
    }

    /// Returns the weight of calls by it, plus the number of writes that the kernel made.
    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed).saturating_add(self.missed.load(Relaxed))
    }

    /// Counts a write of `len` bytes that the kernel would make; returns whether to ask for a
    /// delegation first.
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

    /// Returns whether all these blocks were announced.
    #[inline]
    fn is_announced(&self, blocks: &Range<u64>) -> bool {
        let bits = self.announced.load(Acquire);
        // SAFETY: a mapping with a bit for each of `BLOCKS`.
        let has = |block: u64| unsafe {
            (*bits.add((block / 64) as usize)).load(Relaxed) & 1 << (block % 64) != 0
        };
        !bits.is_null() && blocks.clone().all(has)
    }

    /// Returns the bytes at the end of the file that were announced, if any.
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

    /// Notes that a process may have mapped the file by the kernel.
    pub fn note_mapping(&self) {
        self.is_mapped.store(true, Relaxed);
    }

    /// Makes the kernel ask for the end of the file, if the end has moved on and a process may have
    /// mapped the file: pages beyond the end that the kernel knows are not accessible.
    #[inline]
    fn tell_end(&self, fd: i32, end: u64) {
        if self.is_mapped.load(Relaxed) && end > self.told.load(Relaxed) {
            self.told.store(tell_size(fd), Relaxed);
        }
    }

    /// Records the credit that an announcement gave.
    fn take_in(&self, _held: &Held<'_>, credit: Credit) {
        self.is_mapped.fetch_or(credit.others_map, Relaxed);
        self.bitmap.store(credit.bitmap.0, Relaxed);
        self.credit_end.store(credit.end, Relaxed);
        self.credit.store(credit.blocks, Relaxed);
    }

    /// Takes the blocks from the credit; returns the bitmap in which to mark them, `None` if there
    /// is too little credit.
    fn spend(&self, _held: &Held<'_>, blocks: &Range<u64>) -> Option<Ino> {
        let left = self.credit.load(Relaxed).checked_sub(blocks.end - blocks.start)?;
        let may = blocks.end <= self.credit_end.load(Relaxed);
        may.then(|| {
            self.credit.store(left, Relaxed);
            Ino(self.bitmap.load(Relaxed))
        })
    }

    /// Leaves half of the credit to a process that is about to be forked.
    pub fn share_credit(&self, _held: &Held<'_>) {
        self.credit.store(self.credit.load(Relaxed) / 2, Relaxed);
    }

    /// Records that blocks were announced, at the end of the file if `is_append`.
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
    /// Returns the pool, if a delegation is still valid.
    pub(crate) fn pool_if_valid(&self, by: By) -> Option<&'static dyn FileSystem> {
        let fs = self.pools.get(by.pool)?;
        fs.read_delegated(by.number, by.shadow, 0, &mut []).ok()?;
        Some(fs)
    }

    /// Reads or writes by a delegation. The buffers are the program's, and may be bad.
    #[inline]
    pub(crate) fn by_delegation<const W: bool>(
        &self,
        inside: &InsideEpoch,
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

    /// Appends by a delegation; returns the end of the bytes.
    #[inline]
    pub(crate) fn append_by_delegation(
        &self,
        inside: &InsideEpoch,
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
            // delegation-D2: the blocks at the end of the file are not announced, or must not be
            // written to.
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

    /// Returns the bytes to write as one slice; `None` if one of them is inaccessible.
    #[inline]
    fn data<'i>(&self, inside: &'i InsideEpoch, parts: &Parts<'i>) -> Option<&'i [u8]> {
        let Some(part) = parts.only() else { return parts.gather(inside) };
        let (at, len) = (part.iov_base.cast::<u8>(), part.iov_len);
        // SAFETY: in a pool, direct-C2 does not hold: bad buffers are found beforehand.
        let is_there = unsafe { (self.config.is_there)(at, len, false) };
        // SAFETY: it is accessible, and used by the program alone.
        is_there.then(|| unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// Reads into all buffers at once; `None` if one is inaccessible, and then nothing has been
    /// read.
    #[inline]
    fn read_into(
        &self,
        inside: &InsideEpoch,
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
        file.kind() == FileSystemKind::Cached && (delegated.asking.is_taken() || wants())
    }

    /// Asks for a delegation; with `only_joins`, for one that exists. The caller is outside.
    #[cold]
    pub(crate) fn delegate(&self, fd: i32, only_joins: bool) {
        let Some(file) = InsideEpoch::enter().and_then(|_inside| Some(self.get(fd)?.1.file()))
        else {
            return;
        };
        // Other calls wait until the result is known.
        let Some(_turn) = file.delegated.asking.take() else { return };
        let (device, name) = (file.dev.load(Relaxed), if only_joins { JOIN } else { DELEGATION });
        let mut text = [0_u8; libc::PATH_MAX as usize + 64];
        let mut told = Err(Errno::AGAIN);
        for attempt in 0..ASKED_MAX {
            told = rustix::fs::fgetxattr(borrow(fd), name, &mut text[..]);
            // The kernel was making calls, or another file is being delegated.
            if told != Err(Errno::AGAIN) {
                break;
            }
            let tv_nsec = ASKED_AGAIN_NS << attempt.min(5);
            let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec });
        }
        let by = told.ok().and_then(|len| self.parse(text.get(..len)?, device));
        let held = self.hold();
        let Some(_inside) = InsideEpoch::enter() else { return };
        let Some((_, description)) = self.get(fd) else { return };
        let delegated = &description.file().delegated;
        match by {
            Some(by) => delegated.begin(&held, by),
            None if !only_joins => delegated.wait_longer(false),
            None => {}
        }
    }

    /// Parses the value of the attribute: number, shadow, path of the pool. `None` if it is invalid
    /// or the pool cannot be opened.
    fn parse(&self, told: &[u8], device: u64) -> Option<By> {
        let mut words = told.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let (delegation, shadow): (u64, u64) = (number()?, number()?);
        let pool = self.pools.find(words.next()?, device, self.config.open_pool)?;
        let by = By { number: Delegation(delegation), shadow: Ino(shadow), pool };
        (delegation != 0).then_some(by)
    }

    /// Marks blocks, or announces writes to them; returns whether they may be written to. The
    /// caller is outside.
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
        // SAFETY: a command that reads and writes as many bytes.
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
                // The cache refuses for good: the error is neither a recall nor transient.
                if !matches!(err, Errno::STALE | Errno::NOSPC | Errno::AGAIN | Errno::INTR) {
                    delegated.patience.store(PATIENCE_MAX, Relaxed);
                }
                false
            }
        })
        .unwrap_or(false)
    }

    /// Marks blocks within the credit; returns whether they may be written to, `None` if there is
    /// too little credit.
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
            // An announcement may let the cache make room.
            Err(_) => None,
        }
    }

    /// Changes the state of a delegation; `None` if the file has another one by now.
    fn with_delegation<T>(
        &self,
        fd: i32,
        by: By,
        change: impl FnOnce(&Delegated, &Held<'_>) -> T,
    ) -> Option<T> {
        let held = self.hold();
        let _inside = InsideEpoch::enter()?;
        let delegated = &self.get(fd)?.1.file().delegated;
        let is_same = delegated.get().is_some_and(|now| now.number == by.number);
        is_same.then(|| change(delegated, &held))
    }

    /// Returns the number of blocks to announce beyond those about to be written: twice as many as
    /// last time if these follow the last ones, else 0. They count as changed even if they are not
    /// written to.
    fn ahead(&self, fd: i32, blocks: &Range<u64>) -> Option<u64> {
        let _inside = InsideEpoch::enter()?;
        let Delegated { expected, ahead, .. } = &self.get(fd)?.1.file().delegated;
        let follows = (blocks.start..=blocks.end).contains(&expected.load(Relaxed));
        let next = if follows { (ahead.load(Relaxed) * 2).clamp(1, AHEAD) } else { 0 };
        ahead.store(next, Relaxed);
        expected.store(blocks.end + next, Relaxed);
        Some(next)
    }

    /// Prepares for a mapping by the kernel, which has to know where the file ends. The caller is
    /// outside.
    #[cold]
    pub fn mapping(&self, fd: i32) {
        self.look_now(fd);
        let delegated = InsideEpoch::enter().and_then(|_inside| {
            let file = self.get(fd)?.1.file();
            (file.kind() == FileSystemKind::Cached).then_some(&file.delegated)
        });
        let Some(delegated) = delegated else { return };
        delegated.note_mapping();
        if delegated.get().is_some() {
            delegated.told.store(tell_size(fd), Relaxed);
        }
    }

    /// Prepares for a read by the kernel up to the end that it knows, which may not be the end of a
    /// delegated file. The caller is outside.
    pub fn read_by_kernel(&self, fd: i32) {
        let is_delegated = InsideEpoch::enter().is_some_and(|_inside| {
            let found = self.get(fd);
            found.is_some_and(|(_, description)| description.file().delegated.get().is_some())
        });
        if is_delegated {
            tell_size(fd);
        }
    }

    /// Whether nothing of a descriptor's file has to be synced, because all its writes were durable
    /// when they returned.
    pub fn is_synced(&self, fd: i32) -> bool {
        let Some(_inside) = InsideEpoch::enter() else { return false };
        let Some((_, description)) = self.get(fd) else { return false };
        description.file().delegated.get().is_some_and(|by| self.pool_if_valid(by).is_some())
    }
}

/// Makes the kernel ask for the size of a file; returns that size.
#[cold]
fn tell_size(fd: i32) -> u64 {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = rustix::fs::statx(borrow(fd), c"", flags, StatxFlags::SIZE);
    stat.map_or(0, |stat| stat.stx_size)
}

/// Returns the weight of a call of `len` bytes.
pub fn weight(len: usize) -> u32 {
    1 + (len / CALL_BYTES) as u32
}

/// Handles the refusal of a call by the pool.
fn refused(file: &File, by: By, err: Errno) -> Hurdle {
    if err != Errno::STALE {
        return Hurdle::Kernel;
    }
    file.delegated.end(by);
    Hurdle::Recalled
}

/// Returns the delegation by which a description may read or write its file, if any.
#[inline]
pub fn may_use<const W: bool>(description: &Description) -> Option<By> {
    let file: &File = description.file();
    let is_open = description.is(if W { STORES } else { READS });
    if is_open && file.kind() == FileSystemKind::Cached { file.delegated.get() } else { None }
}
