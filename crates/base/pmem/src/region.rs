//! A mapped region: the [`Medium`] used in production.
//!
//! Invariants:
//! - region-I1: `base..base + len` is mapped readable for the life of the region. If `writable`, it
//!   is also mapped writable: always, or in a [`Guarded`](crate::Guarded) region through the
//!   mapping that it opens for a store.
//! - region-I2: the flush instruction and the width of non-temporal stores exist on this CPU, and
//!   so does MOVDIR64B if `stores_lines`.
//! - region-I3: every access has passed [`Region::check`]; memory is touched only by raw pointers,
//!   so that other threads and processes may access the same bytes. The engines order these
//!   accesses. A racing reader gets a mix of old and new bytes, except in words read by
//!   [`Medium::load_u64`].
//!
//! A file that a process truncates while it is mapped breaks region-I1: access raises SIGBUS.
//! `lost` describes the handler.

#![allow(unsafe_code)]

mod instruments;
mod space;

use crate::copy::{NtWidth, Stores, copy_out};
use crate::counters::Counters;
use crate::domain::Domain;
use crate::emulation::Emulation;
use crate::error::Error;
use crate::file_id::FileId;
use crate::flush::{FlushInstruction, LINE, flush_lines, lines, prefetch, store_fence};
use crate::holes;
use crate::host::{FsType, writable_fs};
use crate::line::{self, Line};
use crate::lock;
use crate::lost::RegionWatch;
use crate::mapping::Mapping;
use crate::medium::{Fenced, Medium};
use crate::observe::{Observed, SharedObserver, StoreWay};
use crate::open::{Access, Lock, OpenOptions};
use crate::pagesync::PageSync;
use crate::touched::Touched;
use instruments::Instruments;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, MprotectFlags};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The least bytes of a write past the caches if these are persistent: shorter ones go through
/// them, as they will be read or overwritten sooner than evicted.
const CPU_CACHE_NT_MIN: usize = 512;

/// The same in DRAM that is not flushed: pages are soon overwritten, but longer writes are mostly
/// new data.
const DRAM_NT_MIN: usize = 4097;

/// Whether DRAM is flushed as if it were persistent (`KEEPSTONE_DRAM_AS_PM`), to measure the cost
/// of persistent memory.
fn flushes_dram() -> bool {
    std::env::var_os("KEEPSTONE_DRAM_AS_PM").is_some_and(|value| !value.is_empty())
}

/// A mapped region of persistent memory, or of a substitute for it.
#[derive(Debug)]
pub struct Region {
    /// Dropped before the mapping that it watches.
    watch: Option<RegionWatch>,
    base: *mut u8,
    /// Only grows while the region is shared, and never beyond the mapping.
    len: AtomicU64,
    writable: bool,
    stores: Stores,
    stores_lines: bool,
    /// If set, flushes do nothing, and fences only order stores for other threads
    /// ([`Medium::set_ordered`]).
    unordered: AtomicBool,
    /// The least bytes of a write by non-temporal stores.
    nt_min: usize,
    instruments: Option<Box<Instruments>>,
    pages: Option<Box<PageSync>>,
    touched: Option<Touched>,
    counters: Counters,
    domain: Domain,
    path: PathBuf,
    mapping: Mapping,
    /// Bytes of a page of the mapping.
    grain: u64,
    /// The file system of a regular file to which system calls can write.
    fs: Option<FsType>,
    /// Holds the lock.
    file: Option<OwnedFd>,
}

// SAFETY: `base` points into `mapping`, which is Send; everything else is Send.
unsafe impl Send for Region {}
// SAFETY: region-I3: shared access never makes references to mapped bytes.
unsafe impl Sync for Region {}

/// The parts of a region.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) mapping: Mapping,
    /// At most the length of the mapping.
    pub(crate) len: u64,
    pub(crate) grain: u64,
    pub(crate) domain: Domain,
    pub(crate) access: Access,
    /// The flush instruction to use instead of the best.
    pub(crate) flush: Option<FlushInstruction>,
    /// Whether to use line stores, if the CPU has them.
    pub(crate) stores_lines: bool,
    pub(crate) emulation: Option<Emulation>,
    pub(crate) observer: Option<SharedObserver>,
    pub(crate) file: Option<OwnedFd>,
}

impl Region {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { path, mapping, len, grain, domain, access, file, .. } = parts;
        let instruments = Instruments::new(parts.emulation, parts.observer, mapping.len());
        let flush = match domain {
            // If a process is killed, others find its stores in the caches.
            Domain::Volatile
                if parts.flush.is_none() && instruments.is_none() && !flushes_dram() =>
            {
                None
            }
            Domain::MapSync | Domain::DevDax | Domain::Volatile => {
                Some(parts.flush.unwrap_or_else(FlushInstruction::detect))
            }
            Domain::CpuCache | Domain::PageCache => None,
        };
        let fs = file.as_ref().and_then(writable_fs);
        let watched = |file| RegionWatch::begin(mapping.addr(), mapping.len(), file);
        Region {
            watch: file.as_ref().and_then(watched),
            base: mapping.addr(),
            len: AtomicU64::new(len),
            writable: access == Access::ReadWrite,
            stores: Stores { width: NtWidth::detect(), flush },
            unordered: AtomicBool::new(false),
            // The kernel's write-back of a page does not preserve the atomicity of a line. And in
            // memory that is not flushed, a store past the caches only makes the next load slower.
            stores_lines: parts.stores_lines
                && domain != Domain::PageCache
                && (domain != Domain::Volatile || flush.is_some())
                && line::available(),
            nt_min: match (domain, flush) {
                (Domain::CpuCache, _) => CPU_CACHE_NT_MIN,
                (Domain::Volatile, None) => DRAM_NT_MIN,
                _ => 0,
            },
            instruments,
            pages: (domain == Domain::PageCache).then(Box::default),
            touched: (domain == Domain::Volatile && file.is_some())
                .then(|| Touched::new(mapping.len())),
            counters: Counters::default(),
            domain,
            path,
            mapping,
            grain,
            fs,
            file,
        }
    }

    /// [`OpenOptions::anonymous`] with default options.
    pub fn anonymous(len: u64) -> Result<Self, Error> {
        OpenOptions::default().anonymous(len)
    }

    /// [`OpenOptions::create`] with default options.
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self, Error> {
        OpenOptions::default().create(path, len)
    }

    /// [`OpenOptions::open`] with default options.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, Error> {
        OpenOptions::default().open(path, access)
    }

    /// Returns the path at which the region was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes or gives back a lock on a part of the region, whose numbers the callers agree on. It
    /// ends with the region, and has nothing to do with the region's own [`Lock`]. Returns `false`
    /// if another process has a lock that excludes this one.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn lock_part(&self, part: Range<u32>, lock: Lock) -> io::Result<bool> {
        match &self.file {
            Some(file) => Ok(lock::lock_part(file, part, lock)?),
            None => Ok(true),
        }
    }

    /// Returns the descriptor that the region keeps open; `None` for anonymous memory.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns the flags of `mmap` with which the region is mapped.
    pub fn map_flags(&self) -> u32 {
        self.mapping.flags().bits()
    }

    /// Returns the identity of the file; `None` for anonymous memory.
    pub fn file_id(&self) -> Option<FileId> {
        let stat = rustix::fs::fstat(self.file.as_ref()?).ok()?;
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
        Some(FileId {
            device: if is_device { stat.st_rdev } else { stat.st_dev },
            inode: if is_device { 0 } else { stat.st_ino },
            owner: stat.st_uid,
            group: stat.st_gid,
            mode: stat.st_mode & 0o777,
        })
    }

    /// Whether the region is a regular file, which has a length of its own and may have holes.
    pub fn is_file(&self) -> bool {
        self.regular_file().is_some()
    }

    /// Shortens the region to `len`, if it is longer. The file keeps its length.
    pub fn shorten(&mut self, len: u64) {
        let shorter = self.limit().min(len);
        *self.len.get_mut() = shorter;
    }

    /// Whether stores are allowed.
    pub fn access(&self) -> Access {
        if self.writable { Access::ReadWrite } else { Access::ReadOnly }
    }

    /// Returns the first failure of a fence, which only the page-cache domain can have. After a
    /// failure no data may be reported as durable, so callers check this first.
    pub fn sync_error(&self) -> Option<io::Error> {
        self.pages.as_ref()?.error()
    }

    /// Returns the address of `off..off + len`, for reads without a copy. Counters and emulation do
    /// not cover these reads.
    ///
    /// The bytes stay mapped while the region lives; they may change at any time.
    pub fn read_ptr(&self, off: u64, len: u64) -> *const u8 {
        self.span(off, len, self.limit())
    }

    /// Returns the bytes of `off..off + len`, which other threads may be changing. Counters and
    /// emulation do not cover these reads.
    pub fn bytes(&self, off: u64, len: u64) -> &[AtomicU8] {
        let first = self.span(off, len, self.limit());
        // SAFETY: region-I1: `span` has checked the range, which stays mapped while `self` is
        // borrowed; any byte is a valid `AtomicU8`, and region-I3: there are no references of
        // another type to it.
        unsafe { std::slice::from_raw_parts(first.cast(), len as usize) }
    }

    /// Returns the address of `off`, after checking that `off..off + len` does not end beyond
    /// `limit`.
    #[inline]
    fn span(&self, off: u64, len: u64, limit: u64) -> *mut u8 {
        self.check(off, len, limit);
        self.base.wrapping_add(off as usize)
    }

    #[inline]
    fn check(&self, off: u64, len: u64, limit: u64) {
        if off.checked_add(len).is_none_or(|end| end > limit) {
            self.refuse(off, len, limit);
        }
    }

    /// Returns the current length.
    #[inline]
    fn limit(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the address at which offset 0 is mapped.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the number of mapped bytes: whole pages.
    pub(crate) fn mapped_len(&self) -> u64 {
        self.mapping.len()
    }

    /// Returns the bytes of a page of the mapping: the unit of protection and of offsets of
    /// mappings.
    pub(crate) fn grain(&self) -> u64 {
        self.grain
    }

    /// Makes the mapping read-only: from now on only a guard stores (region-I1).
    pub(crate) fn forbid_stores(&self) -> rustix::io::Result<()> {
        self.mapping.protect(MprotectFlags::READ)
    }

    /// Closes the mapping: from now on only a guard loads and stores (region-I1).
    pub(crate) fn forbid_access(&self) -> rustix::io::Result<()> {
        self.mapping.protect(MprotectFlags::empty())
    }

    /// Returns the file, if system calls can write to it.
    pub(crate) fn regular_file(&self) -> Option<&OwnedFd> {
        self.file.as_ref().filter(|file| writable_fs(file).is_some())
    }

    /// Returns the file, and the flags with which the region is mapped.
    pub(crate) fn file_to_map(&self) -> Result<(OwnedFd, MapFlags), Error> {
        let file = self.file.as_ref().ok_or_else(|| Error::NoFile(self.path.clone()))?;
        let file = file.try_clone().map_err(|e| Error::io(&self.path, "keep the file open", e))?;
        Ok((file, self.mapping.flags()))
    }

    /// Maps the region a second time, for loads and stores.
    pub(crate) fn map_again(&self) -> Result<Mapping, Error> {
        let (file, flags) = self.file_to_map()?;
        Mapping::file(file.as_fd(), self.mapping.len(), self.grain, true, flags)
            .map_err(|e| Error::io(&self.path, "map the file a second time", e))
    }

    /// Does a store of `off..off + len` that uses no mapping, and counts it as one through the
    /// cache.
    pub(crate) fn count_write_by(&self, off: u64, len: u64, store: impl FnOnce()) {
        self.counters.count_write(len);
        self.note_dirty(off, len);
        self.instrumented(
            || Observed::Store { way: StoreWay::Cached, off, len, data: None },
            store,
        );
    }

    /// Does a store of `off..off + len` that uses no mapping, writes its lines back, and counts it
    /// as one past the cache.
    pub(crate) fn count_nt_by(&self, off: u64, len: u64, store: impl FnOnce()) {
        self.counters.count_nt(len);
        self.note_dirty(off, len);
        let access = || Observed::Store { way: StoreWay::PastCache, off, len, data: None };
        self.instrumented(access, || {
            store();
            if let Some(how) = self.stores.flush {
                // SAFETY: the caller has checked the range, which is mapped readable (region-I1);
                // region-I2.
                unsafe { flush_lines(how, self.base.wrapping_add(off as usize), lines(off, len)) };
            }
        });
    }

    /// Panics unless `off..off + len` may be stored to.
    #[inline]
    pub(crate) fn check_store(&self, off: u64, len: u64) {
        self.check(off, len, if self.writable { self.limit() } else { 0 });
    }

    /// Panics unless `src..src + len` may be copied to `dst`.
    pub(crate) fn check_copy(&self, dst: u64, src: u64, len: u64) {
        self.check_load(src, len);
        self.check_store(dst, len);
        assert!(dst.abs_diff(src) >= len, "copy of {len} bytes from {src} to {dst} overlaps");
    }

    /// Panics unless `off..off + len` may be loaded from.
    #[inline]
    pub(crate) fn check_load(&self, off: u64, len: u64) {
        self.check(off, len, self.limit());
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, off: u64, len: u64, limit: u64) -> ! {
        let path = self.path.display();
        if limit < self.limit() {
            panic!("{path}: store of {len} bytes at {off} to a region opened read-only");
        }
        panic!("{path}: access of {len} bytes at {off} in a region of {limit} bytes");
    }

    /// Does `op`, observed and slowed down if the region was opened so.
    #[inline]
    fn instrumented<'a, R>(
        &self,
        access: impl FnOnce() -> Observed<'a>,
        op: impl FnOnce() -> R,
    ) -> R {
        match &self.instruments {
            None => op(),
            Some(instruments) => instruments.around(&access(), &self.counters, op),
        }
    }

    /// Prepares a bulk store: in the page-cache domain marks the range as dirty, and on tmpfs does
    /// one load for each group of pages that is not mapped yet ([`Touched`]).
    ///
    /// # Safety
    /// The range can be loaded from at `base`.
    #[inline]
    unsafe fn before_bulk(&self, base: *mut u8, off: u64, len: u64) {
        self.note_dirty(off, len);
        if let Some(touched) = &self.touched {
            // SAFETY: the caller's.
            touched.each_new(off, len, |off| unsafe {
                base.wrapping_add(off as usize).read_volatile();
            });
        }
    }

    #[inline]
    fn note_dirty(&self, off: u64, len: u64) {
        if let Some(pages) = &self.pages {
            pages.note(off, len);
        }
    }
}

/// The accesses of [`Medium`], through any mapping of the region. `base` is the address at which
/// offset 0 is, or would be if the mapping holds only the range. A [`Guarded`](crate::Guarded)
/// region uses them in this way.
///
/// # Safety
/// For all of them:
/// 1. The range lies in the region (`check_load`, `check_store`).
/// 2. It is mapped at `base`, readable, and where it is stored to writable, during the call.
impl Region {
    #[inline]
    pub(crate) unsafe fn read_at(&self, base: *const u8, off: u64, buf: &mut [u8]) {
        let len = buf.len() as u64;
        let src = base.wrapping_add(off as usize);
        self.counters.count_read(len);
        // SAFETY: 1., 2.; `buf` is not in the region, to which there are no such references.
        self.instrumented(
            || Observed::Load { off, len },
            || unsafe { copy_out(buf.as_mut_ptr(), src, buf.len()) },
        );
    }

    #[inline(always)]
    pub(crate) unsafe fn load_u64_at(&self, base: *mut u8, off: u64) -> u64 {
        // SAFETY: 1., 2.
        let word = unsafe { word(base, off) };
        self.counters.count_read(8);
        self.instrumented(|| Observed::Load { off, len: 8 }, || word.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) unsafe fn equals_at(&self, base: *const u8, off: u64, bytes: &[u8]) -> bool {
        let len = bytes.len() as u64;
        let at = base.wrapping_add(off as usize);
        self.counters.count_read(len);
        // SAFETY: 1., 2.
        self.instrumented(
            || Observed::Load { off, len },
            || unsafe { libc::memcmp(at.cast(), bytes.as_ptr().cast(), bytes.len()) == 0 },
        )
    }

    #[inline]
    pub(crate) unsafe fn write_at(&self, base: *mut u8, off: u64, data: &[u8]) {
        let dst = base.wrapping_add(off as usize);
        let len = data.len() as u64;
        self.counters.count_write(len);
        let access = || Observed::Store { way: StoreWay::Cached, off, len, data: Some(data) };
        // SAFETY: 1., 2.; `data` is not in the region.
        self.instrumented(access, || unsafe {
            ptr::copy_nonoverlapping(data.as_ptr(), dst, data.len())
        });
    }

    #[inline]
    pub(crate) unsafe fn write_nt_at(&self, base: *mut u8, off: u64, data: &[u8]) {
        let len = data.len() as u64;
        let dst = base.wrapping_add(off as usize);
        self.counters.count_nt(len);
        // SAFETY: 1., 2.
        unsafe { self.before_bulk(base, off, len) };
        let access = || Observed::Store { way: StoreWay::PastCache, off, len, data: Some(data) };
        // SAFETY: 1., 2., region-I2; `data` is not in the region.
        self.instrumented(access, || unsafe {
            if data.len() < self.nt_min {
                ptr::copy_nonoverlapping(data.as_ptr(), dst, data.len());
            } else {
                self.stores.copy(dst, data.as_ptr(), data.len());
            }
        });
    }

    /// `from` is the address of the source's offset 0. The ranges must not overlap.
    pub(crate) unsafe fn copy_nt_at(
        &self,
        base: *mut u8,
        dst: u64,
        from: *const u8,
        src: u64,
        len: u64,
    ) {
        let to = base.wrapping_add(dst as usize);
        let from = from.wrapping_add(src as usize);
        self.counters.count_nt(len);
        // SAFETY: 1., 2.
        unsafe { self.before_bulk(base, dst, len) };
        let copied = self.instruments.as_ref().filter(|i| i.wants_data()).map(|_| {
            let mut copied = vec![0; len as usize];
            // SAFETY: 1., 2.; `copied` is not in the region.
            unsafe { copy_out(copied.as_mut_ptr(), from, copied.len()) };
            copied
        });
        let access = || Observed::Copy { dst, src, len, data: copied.as_deref() };
        // SAFETY: 1., 2., region-I2; no overlap (the caller).
        self.instrumented(access, || unsafe {
            if (len as usize) < self.nt_min {
                ptr::copy_nonoverlapping(from, to, len as usize);
            } else {
                self.stores.copy(to, from, len as usize);
            }
        });
    }

    pub(crate) unsafe fn zero_nt_at(&self, base: *mut u8, off: u64, len: u64) {
        let dst = base.wrapping_add(off as usize);
        self.counters.count_nt(len);
        // SAFETY: 1., 2.
        unsafe { self.before_bulk(base, off, len) };
        // SAFETY: 1., 2., region-I2.
        self.instrumented(
            || Observed::Zero { off, len },
            || unsafe {
                if (len as usize) < self.nt_min {
                    ptr::write_bytes(dst, 0, len as usize);
                } else {
                    self.stores.zero(dst, len as usize);
                }
            },
        );
    }

    #[inline]
    pub(crate) unsafe fn store_u64_at(&self, base: *mut u8, off: u64, value: u64) {
        // SAFETY: 1., 2.
        let word = unsafe { word(base, off) };
        self.counters.count_word();
        let data = value.to_le_bytes();
        let access = || Observed::Store { way: StoreWay::Word, off, len: 8, data: Some(&data) };
        self.instrumented(access, || word.store(value, Ordering::Release));
    }

    /// Also: `self.stores_lines`.
    #[inline]
    pub(crate) unsafe fn store_line_at(&self, base: *mut u8, off: u64, line: &Line) {
        assert!(off.is_multiple_of(LINE), "line at {off}, which is not a multiple of {LINE}");
        let dst = base.wrapping_add(off as usize);
        self.counters.count_nt(LINE);
        // SAFETY: 1., 2.
        unsafe { self.before_bulk(base, off, LINE) };
        let access =
            || Observed::Store { way: StoreWay::Line, off, len: LINE, data: Some(&line[..]) };
        // SAFETY: 1., 2., aligned, as mappings are page-aligned; region-I2.
        self.instrumented(access, || unsafe { line::store_line(dst, line) });
    }

    #[inline]
    pub(crate) unsafe fn flush_at(&self, base: *const u8, off: u64, len: u64) {
        if !self.domain.needs_flush() || self.unordered.load(Ordering::Relaxed) {
            return;
        }
        let lines = lines(off, len);
        self.counters.count_flush(lines);
        self.instrumented(
            || Observed::Flush { off, len },
            || match self.stores.flush {
                // SAFETY: 1., 2.: pages hold whole lines; region-I2.
                Some(how) => unsafe { flush_lines(how, base.wrapping_add(off as usize), lines) },
                None => self.note_dirty(off, len),
            },
        );
    }
}

/// Returns the word at `off` from `base`.
///
/// # Safety
/// 1. The word is mapped there while the reference is used.
/// 2. Other accesses to it are atomic or raw (region-I3).
#[inline]
unsafe fn word<'a>(base: *mut u8, off: u64) -> &'a AtomicU64 {
    assert!(off & 7 == 0, "word at {off}, which is not a multiple of 8");
    // SAFETY: aligned, as mappings are page-aligned; 1., 2.
    unsafe { AtomicU64::from_ptr(base.wrapping_add(off as usize).cast()) }
}

impl Medium for Region {
    fn len(&self) -> u64 {
        self.limit()
    }

    #[inline]
    fn is_lost(&self) -> bool {
        RegionWatch::is_lost(self.watch.as_ref())
    }

    fn max_len(&self) -> u64 {
        match self.writable && self.regular_file().is_some() {
            true => self.mapping.len().max(self.limit()),
            false => self.limit(),
        }
    }

    fn lock(&self, lock: Lock) -> io::Result<()> {
        match &self.file {
            Some(file) => Ok(rustix::fs::flock(file, lock.operation())?),
            None => Ok(()),
        }
    }

    /// Extends the file, for which address space was reserved ([`OpenOptions::reserve`]). One
    /// caller at a time. Of the processes that share the region, the first extends the file; the
    /// others find it extended, and use its new length.
    fn grow(&self, len: u64) -> Result<(), Error> {
        self.grow_by(&OpenOptions::default(), len)
    }

    fn release(&self, off: u64, len: u64) -> io::Result<Range<u64>> {
        self.check_store(off, len);
        let Some(file) = self.regular_file() else { return Ok(off..off) };
        let released = holes::punch(file, off..off + len, self.grain)?;
        match self.domain {
            // Stores are durable here without the file system, but its journal needs a sync.
            Domain::MapSync | Domain::CpuCache => rustix::fs::fdatasync(file)?,
            _ => self.note_dirty(released.start, released.end - released.start),
        }
        Ok(released)
    }

    fn provision(&self, off: u64, len: u64) -> io::Result<()> {
        self.check_store(off, len);
        Ok(self.provision_range(off..off + len)?)
    }

    fn data_within(&self, off: u64, len: u64) -> Range<u64> {
        self.check_load(off, len);
        let range = off..off + len;
        self.regular_file().map_or(range.clone(), |file| holes::data(file, range))
    }

    fn domain(&self) -> Domain {
        self.domain
    }

    fn health(&self) -> io::Result<()> {
        self.sync_error().map_or(Ok(()), Err)
    }

    fn set_ordered(&self, ordered: bool) -> bool {
        self.unordered.store(!ordered, Ordering::Relaxed);
        true
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.check_load(off, buf.len() as u64);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.read_at(self.base, off, buf) }
    }

    // Inlined, as it is called most often, and a call would double its cost.
    #[inline(always)]
    fn load_u64(&self, off: u64) -> u64 {
        self.check_load(off, 8);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.load_u64_at(self.base, off) }
    }

    #[inline]
    fn prefetch(&self, off: u64, len: u64) {
        let start = self.span(off, len, self.limit());
        for line in 0..lines(off, len) {
            prefetch(start.wrapping_add((line * LINE) as usize));
        }
    }

    fn mapped(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        self.instruments.is_none().then(|| self.bytes(off, len))
    }

    fn lend(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        Some(self.bytes(off, len))
    }

    #[inline]
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.check_load(off, bytes.len() as u64);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.equals_at(self.base, off, bytes) }
    }

    #[inline]
    fn write(&self, off: u64, data: &[u8]) {
        self.check_store(off, data.len() as u64);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.write_at(self.base, off, data) }
    }

    #[inline]
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.check_store(off, data.len() as u64);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.write_nt_at(self.base, off, data) }
    }

    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.check_copy(dst, src, len);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.copy_nt_at(self.base, dst, self.base, src, len) }
    }

    fn zero_nt(&self, off: u64, len: u64) {
        self.check_store(off, len);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.zero_nt_at(self.base, off, len) }
    }

    #[inline]
    fn store_u64(&self, off: u64, value: u64) {
        self.check_store(off, 8);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.store_u64_at(self.base, off, value) }
    }

    #[inline]
    fn stores_lines(&self) -> bool {
        self.stores_lines
    }

    #[inline]
    fn store_line(&self, off: u64, line: &Line) {
        self.check_store(off, LINE);
        assert!(self.stores_lines, "store of a line at {off} to a medium that tears lines");
        // SAFETY: 1. just checked, and `stores_lines`. 2. region-I1.
        unsafe { self.store_line_at(self.base, off, line) }
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        self.check_load(off, len);
        // SAFETY: 1. just checked. 2. region-I1.
        unsafe { self.flush_at(self.base, off, len) }
    }

    #[inline]
    fn fence(&self) -> Fenced {
        if self.unordered.load(Ordering::Relaxed) {
            // For other CPUs: without a fence, stores past the cache are not ordered with other
            // stores.
            store_fence();
            return Fenced::assert();
        }
        self.counters.count_fence();
        self.instrumented(
            || Observed::Fence,
            || {
                store_fence();
                if let Some(pages) = &self.pages {
                    pages.sync(&self.mapping);
                }
            },
        );
        Fenced::assert()
    }
}
