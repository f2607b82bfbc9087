//! A mapped region: the [`Medium`] of production.
//!
//! Invariants:
//! - I1: `base..base + len` is mapped readable for the life of the region, and `writable_len` bytes
//!   of it (all or none) writable.
//! - I2: the flush instruction and the width of non-temporal stores exist on this CPU.
//! - I3: every access has passed [`Region::span`]; memory is touched only by raw pointers, so that
//!   other threads and processes may access the same bytes. Who may is for the engines to order;
//!   a racing reader gets a mix of old and new bytes, words by [`Medium::load_u64`] excepted.
//!
//! A file that somebody shortens while it is mapped breaks I1: access raises SIGBUS, which nothing
//! here catches.

use crate::copy::{NtWidth, Stores};
use crate::counters::Counters;
use crate::domain::Domain;
use crate::emulation::{Direction, Emulation, Emulator, Moved};
use crate::error::Error;
use crate::flush::{FlushInstruction, LINE, flush_lines, lines, prefetch, store_fence};
use crate::mapping::Mapping;
use crate::medium::{Fenced, Medium};
use crate::open::{Access, OpenOptions};
use crate::pagesync::PageSync;
use crate::touched::Touched;
use rustix::fd::OwnedFd;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Where caches persist, writes below this many bytes go through them: they will be read or
/// overwritten sooner than evicted.
const CPU_CACHE_NT_MIN: usize = 512;

/// A mapped region of persistent memory, or of what stands in for it.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    len: u64,
    writable_len: u64,
    stores: Stores,
    /// Shorter writes are not worth non-temporal stores here.
    nt_min: usize,
    emulator: Option<Box<Emulator>>,
    pages: Option<Box<PageSync>>,
    touched: Option<Touched>,
    counters: Counters,
    domain: Domain,
    path: PathBuf,
    mapping: Mapping,
    /// Holds the lock.
    file: Option<OwnedFd>,
}

/// Which file or device a region is, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Device that holds the file; of a devdax device, its own number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Owner.
    pub owner: u32,
    /// Group.
    pub group: u32,
    /// Permission bits.
    pub mode: u32,
}

// SAFETY: `base` points into `mapping`, which is Send; everything else is Send.
unsafe impl Send for Region {}
// SAFETY: I3: shared access never makes references to mapped bytes.
unsafe impl Sync for Region {}

/// What a region is made of.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) mapping: Mapping,
    /// At most that of the mapping.
    pub(crate) len: u64,
    pub(crate) domain: Domain,
    pub(crate) access: Access,
    pub(crate) emulation: Option<Emulation>,
    pub(crate) file: Option<OwnedFd>,
}

impl Region {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { path, mapping, len, domain, access, emulation, file } = parts;
        let flush = match domain {
            Domain::MapSync | Domain::DevDax | Domain::Volatile => Some(FlushInstruction::detect()),
            Domain::CpuCache | Domain::PageCache => None,
        };
        Region {
            base: mapping.addr(),
            len,
            writable_len: if access == Access::ReadWrite { len } else { 0 },
            stores: Stores { width: NtWidth::detect(), flush },
            nt_min: if domain == Domain::CpuCache { CPU_CACHE_NT_MIN } else { 0 },
            emulator: emulation.map(|e| Box::new(Emulator::new(&e))),
            pages: (domain == Domain::PageCache).then(Box::default),
            touched: (domain == Domain::Volatile && file.is_some()).then(|| Touched::new(len)),
            counters: Counters::default(),
            domain,
            path,
            mapping,
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

    /// Where it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file it is; `None` for anonymous memory.
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

    /// Whether stores are allowed.
    pub fn access(&self) -> Access {
        if self.writable_len == 0 { Access::ReadOnly } else { Access::ReadWrite }
    }

    /// The first failure of a fence, which only the page-cache domain can have. From then on
    /// nothing may be called durable: check it before telling a caller so.
    pub fn sync_error(&self) -> Option<io::Error> {
        self.pages.as_ref()?.error()
    }

    /// The address of `off..off + len`, for reads without a copy. Counters and emulation do not
    /// see what is read through it.
    ///
    /// The bytes stay mapped while the region lives; they may change at any time.
    pub fn read_ptr(&self, off: u64, len: u64) -> *const u8 {
        self.span(off, len, self.len)
    }

    /// The bytes of `off..off + len`, which others may be changing. Counters and emulation do not
    /// see what is read.
    pub fn bytes(&self, off: u64, len: u64) -> &[AtomicU8] {
        let first = self.span(off, len, self.len);
        // SAFETY: I1: `span` has checked the range, which stays mapped while `self` is borrowed; any
        // byte is a valid `AtomicU8`, and I3: nobody has references of another kind to it.
        unsafe { std::slice::from_raw_parts(first.cast(), len as usize) }
    }

    /// The address of `off`, after checking that `off..off + len` ends at most at `limit`.
    #[inline]
    fn span(&self, off: u64, len: u64, limit: u64) -> *mut u8 {
        match off.checked_add(len) {
            Some(end) if end <= limit => self.base.wrapping_add(off as usize),
            _ => self.refuse(off, len, limit),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, off: u64, len: u64, limit: u64) -> ! {
        let path = self.path.display();
        if limit < self.len {
            panic!("{path}: store of {len} bytes at {off} to a region opened read-only");
        }
        panic!("{path}: access of {len} bytes at {off} in a region of {limit} bytes");
    }

    /// The word at `off`, after checking alignment and bounds.
    #[inline]
    fn word(&self, off: u64, limit: u64) -> &AtomicU64 {
        assert!(off & 7 == 0, "word at {off}, which is not a multiple of 8");
        let at = self.span(off, 8, limit).cast::<u64>();
        // SAFETY: in bounds (I1) and aligned, as the mapping is page-aligned; I3: other accesses
        // to the word are atomic or raw.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Does `op`, slowed down where emulation is on.
    #[inline]
    fn slowed<R>(
        &self,
        direction: Direction,
        moved: impl FnOnce() -> Moved,
        op: impl FnOnce() -> R,
    ) -> R {
        match &self.emulator {
            None => op(),
            Some(emulator) => emulator.slowed(direction, moved(), &self.counters, op),
        }
    }

    /// What bulk stores do first: on the books for page-cache media, and for tmpfs one load for each
    /// group of pages that is not mapped yet ([`Touched`]).
    #[inline]
    fn before_bulk(&self, off: u64, len: u64) {
        self.note_dirty(off, len);
        if let Some(touched) = &self.touched {
            // SAFETY: I1: the caller has checked the range.
            touched.each_new(off, len, |off| unsafe {
                self.base.add(off as usize).read_volatile();
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

impl Medium for Region {
    fn len(&self) -> u64 {
        self.len
    }

    fn domain(&self) -> Domain {
        self.domain
    }

    fn health(&self) -> io::Result<()> {
        self.sync_error().map_or(Ok(()), Err)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) {
        let len = buf.len() as u64;
        let src = self.span(off, len, self.len);
        self.counters.count_read(len);
        let moved = || Moved { lines_read: lines(off, len), lines_written: 0 };
        // SAFETY: in bounds (I1); `buf` is not in the region, of which nobody has references.
        self.slowed(Direction::Read, moved, || unsafe {
            ptr::copy_nonoverlapping(src, buf.as_mut_ptr(), buf.len())
        });
    }

    #[inline]
    fn load_u64(&self, off: u64) -> u64 {
        let word = self.word(off, self.len);
        self.counters.count_read(8);
        let moved = || Moved { lines_read: 1, lines_written: 0 };
        self.slowed(Direction::Read, moved, || word.load(Ordering::Acquire))
    }

    #[inline]
    fn prefetch(&self, off: u64, len: u64) {
        let start = self.span(off, len, self.len);
        for line in 0..lines(off, len) {
            prefetch(start.wrapping_add((line * LINE) as usize));
        }
    }

    fn mapped(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        self.emulator.is_none().then(|| self.bytes(off, len))
    }

    #[inline]
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        let len = bytes.len() as u64;
        let at = self.span(off, len, self.len);
        self.counters.count_read(len);
        let moved = || Moved { lines_read: lines(off, len), lines_written: 0 };
        // SAFETY: in bounds (I1).
        self.slowed(Direction::Read, moved, || unsafe {
            libc::memcmp(at.cast(), bytes.as_ptr().cast(), bytes.len()) == 0
        })
    }

    #[inline]
    fn write(&self, off: u64, data: &[u8]) {
        let dst = self.span(off, data.len() as u64, self.writable_len);
        self.counters.count_write(data.len() as u64);
        // SAFETY: in bounds and writable (I1); `data` is not in the region.
        self.slowed(Direction::Write, Moved::default, || unsafe {
            ptr::copy_nonoverlapping(data.as_ptr(), dst, data.len())
        });
    }

    #[inline]
    fn write_nt(&self, off: u64, data: &[u8]) {
        let len = data.len() as u64;
        let dst = self.span(off, len, self.writable_len);
        self.counters.count_nt(len);
        self.before_bulk(off, len);
        let moved = || Moved { lines_read: 0, lines_written: lines(off, len) };
        // SAFETY: in bounds and writable (I1), I2; `data` is not in the region.
        self.slowed(Direction::Write, moved, || unsafe {
            if data.len() < self.nt_min {
                ptr::copy_nonoverlapping(data.as_ptr(), dst, data.len());
            } else {
                self.stores.copy(dst, data.as_ptr(), data.len());
            }
        });
    }

    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        let from = self.span(src, len, self.len);
        let to = self.span(dst, len, self.writable_len);
        assert!(dst.abs_diff(src) >= len, "copy of {len} bytes from {src} to {dst} overlaps");
        self.counters.count_nt(len);
        self.before_bulk(dst, len);
        let moved = || Moved { lines_read: lines(src, len), lines_written: lines(dst, len) };
        // SAFETY: both in bounds, `to` writable (I1), I2, no overlap (just asserted).
        self.slowed(Direction::Write, moved, || unsafe {
            if (len as usize) < self.nt_min {
                ptr::copy_nonoverlapping(from, to, len as usize);
            } else {
                self.stores.copy(to, from, len as usize);
            }
        });
    }

    fn zero_nt(&self, off: u64, len: u64) {
        let dst = self.span(off, len, self.writable_len);
        self.counters.count_nt(len);
        self.before_bulk(off, len);
        let moved = || Moved { lines_read: 0, lines_written: lines(off, len) };
        // SAFETY: in bounds and writable (I1), I2.
        self.slowed(Direction::Write, moved, || unsafe {
            if (len as usize) < self.nt_min {
                ptr::write_bytes(dst, 0, len as usize);
            } else {
                self.stores.zero(dst, len as usize);
            }
        });
    }

    #[inline]
    fn store_u64(&self, off: u64, value: u64) {
        let word = self.word(off, self.writable_len);
        self.counters.count_word();
        self.slowed(Direction::Write, Moved::default, || word.store(value, Ordering::Release));
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        let at = self.span(off, len, self.len);
        if !self.domain.needs_flush() {
            return;
        }
        let lines = lines(off, len);
        self.counters.count_flush(lines);
        let moved = || Moved { lines_read: 0, lines_written: lines };
        self.slowed(Direction::Write, moved, || match self.stores.flush {
            // SAFETY: in bounds, so the lines are mapped (I1: pages hold whole lines); I2.
            Some(how) => unsafe { flush_lines(how, at, lines) },
            None => self.note_dirty(off, len),
        });
    }

    #[inline]
    fn fence(&self) -> Fenced {
        self.counters.count_fence();
        self.slowed(Direction::Write, Moved::default, || {
            store_fence();
            if let Some(pages) = &self.pages {
                pages.sync(&self.mapping);
            }
        });
        Fenced::assert()
    }
}
