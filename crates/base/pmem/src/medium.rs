//! The interface between engines and persistent memory.
//!
//! Every load and store of PM goes through [`Medium`]; no code holds a Rust reference to plain
//! bytes in PM. The mapped region implements it, and so does the recorder of the crash explorer.
//!
//! Three operations have a meaning beyond their bytes:
//! - [`Medium::store_u64`] is failure-atomic: after a crash the word is old or new (BPFS §4.3).
//! - [`Medium::store_line`], if the medium has it, does the same for a whole line.
//! - [`Medium::fence`] ends an epoch (BPFS §4.4): everything this thread wrote and flushed, or
//!   wrote non-temporally, is in the persistence domain when it returns.

use crate::{Counters, Domain, Error, Line, Lock};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

/// Proof that a fence has completed since the caller stored the data that it is about to publish.
///
/// A commit consumes one, so forgetting "shadow durable before the pointer that names it" is a type
/// error. Only [`Medium`] implementations make one, by [`Fenced::assert`]. A commit that needs no
/// order gives the reason ([`Fenced::not_needed`]).
#[must_use = "a fence that proves nothing to a commit is better written as `let _ = …`"]
#[derive(Debug)]
pub struct Fenced(());

impl Fenced {
    /// Asserts that the fence has been executed. For implementations of [`Medium::fence`] only.
    pub fn assert() -> Self {
        Self(())
    }

    /// Permits a commit before which nothing has to be durable, for the reason `_why`. Either the
    /// commit makes visible only the bytes that it stores, or those before them in the same line.
    /// Or a reader of the visible data detects whether it is complete.
    #[inline]
    pub fn not_needed(_why: &'static str) -> Self {
        Self(())
    }

    /// Copies the proof for another commit, whose data was stored before the same fence.
    #[inline]
    pub fn for_another(&self) -> Self {
        Self(())
    }
}

/// Byte-addressable persistent memory, addressed by offset from the start of the region.
///
/// Offsets and lengths are in bytes. An access outside the region is a bug of the caller and
/// panics before it touches memory: engines check what they read from PM first.
///
/// Methods that change or order PM are `#[track_caller]` in every implementation. The crash
/// explorer identifies stores, flushes and fences by the source line that made them, so that it can
/// leave out each one. This costs nothing in implementations that are inlined or ignore it.
pub trait Medium: Send + Sync {
    /// Returns the length of the region in bytes.
    fn len(&self) -> u64;

    /// Whether part of the mapped memory is gone, as its file was truncated. Then the caller must
    /// change nothing more, and data that it has read before this call may be zeros instead.
    fn is_lost(&self) -> bool {
        false
    }

    /// Returns the length to which the region can grow.
    fn max_len(&self) -> u64 {
        self.len()
    }

    /// Makes the region longer, if that is possible. The new part is all zeros.
    fn grow(&self, len: u64) -> Result<(), Error> {
        let cause = "this kind of memory keeps its length".to_owned();
        Err(Error::BadLength { path: "memory".into(), len, cause })
    }

    /// Converts the lock with which the region was opened. Does not wait, but fails with
    /// `WouldBlock`; then the old lock may be lost, too. Memory that no other process can open
    /// needs no lock.
    fn lock(&self, _lock: Lock) -> io::Result<()> {
        Ok(())
    }

    /// Gives the space of whole pages in `off..off + len` back to the file system, if that is
    /// possible. Returns the range of these pages. They read as zeros, and durably so: in the
    /// page-cache domain from the next [`fence`](Self::fence) on. A store there allocates space
    /// again, and raises SIGBUS if the file system is full.
    fn release(&self, off: u64, _len: u64) -> io::Result<Range<u64>> {
        Ok(off..off)
    }

    /// Allocates the space of `off..off + len` in the file system, so that no store there finds it
    /// full. The content stays. Other kinds of memory have their space already.
    ///
    /// # Errors
    /// Those of the system. `Interrupted` if a signal came; some of the space may be allocated
    /// then.
    fn provision(&self, _off: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Returns the first part of `off..off + len` that may hold other bytes than zeros. If there is
    /// none, the result is empty, at the end of the range.
    fn data_within(&self, off: u64, len: u64) -> Range<u64> {
        off..off + len
    }

    /// Whether the region is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the persistence domain: the guarantee that a fence gives.
    fn domain(&self) -> Domain;

    /// Fails if a fence so far has failed. A medium on an ordinary file can fail to write back;
    /// then it is unknown which data is durable.
    fn health(&self) -> io::Result<()> {
        Ok(())
    }

    /// Switches the effect of flushes and fences on or off. If off, a flush does nothing, stores
    /// persist in any order or never, and a fence only orders what other threads see. Returns
    /// whether the medium supports that.
    fn set_ordered(&self, ordered: bool) -> bool {
        ordered
    }

    /// Returns the counters of traffic since the start.
    fn counters(&self) -> &Counters;

    /// Copies `buf.len()` bytes out of PM.
    fn read(&self, off: u64, buf: &mut [u8]);

    /// Loads an aligned word (acquire).
    fn load_u64(&self, off: u64) -> u64;

    /// Prefetches `off..off + len`. A hint: it may do nothing.
    fn prefetch(&self, _off: u64, _len: u64) {}

    /// Returns the bytes of `off..off + len` in place; other threads may be changing them. `None`
    /// if they are not mapped, or if [`Emulation`](crate::Emulation) must slow down reads. Counters
    /// do not count such reads.
    fn mapped(&self, _off: u64, _len: u64) -> Option<&[AtomicU8]> {
        None
    }

    /// Returns the bytes in place, for a caller that keeps them. Unlike [`mapped`](Self::mapped)
    /// also in an emulated medium, without its slowdown. `None` if they are not mapped.
    fn lend(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        self.mapped(off, len)
    }

    /// Whether PM holds `bytes` at `off`.
    fn equals(&self, off: u64, bytes: &[u8]) -> bool;

    /// Stores `data` through the cache. May tear at 8 bytes; persists after `flush` + `fence`, or
    /// earlier if the line is evicted.
    #[track_caller]
    fn write(&self, off: u64, data: &[u8]);

    /// Stores `data` past the cache. May tear at 8 bytes; persists after `fence`.
    #[track_caller]
    fn write_nt(&self, off: u64, data: &[u8]);

    /// Copies within PM past the cache; the ranges must not overlap. Persists after `fence`.
    #[track_caller]
    fn copy_nt(&self, dst: u64, src: u64, len: u64);

    /// Zeroes past the cache. Persists after `fence`.
    #[track_caller]
    fn zero_nt(&self, off: u64, len: u64);

    /// Stores an aligned word through the cache (release). Never tears. Stores to one 64-byte line
    /// persist in program order.
    #[track_caller]
    fn store_u64(&self, off: u64, value: u64);

    /// Whether the medium has [`store_line`](Self::store_line).
    fn stores_lines(&self) -> bool {
        false
    }

    /// Stores an aligned line of 64 bytes past the cache. Never tears: neither a crash, nor the
    /// death of the process, nor a load of the whole line by one instruction finds a part of it.
    /// Overtakes no store of this thread. Persists after `fence`. To be called only if
    /// [`stores_lines`](Self::stores_lines).
    #[track_caller]
    fn store_line(&self, off: u64, _line: &Line) {
        panic!("store of a line at {off} to a medium that tears lines");
    }

    /// Starts writing back the lines that hold `off..off + len`.
    #[track_caller]
    fn flush(&self, off: u64, len: u64);

    /// Waits until everything this thread flushed or wrote non-temporally has reached the
    /// persistence domain: the epoch barrier on today's CPUs.
    #[track_caller]
    fn fence(&self) -> Fenced;

    /// Commits by a word: [stores](Self::store_u64) the word that makes prepared data visible.
    /// `_ready` proves that the data is durable. The word persists after `flush` + `fence`, which
    /// the caller does.
    #[track_caller]
    fn publish_word(&self, off: u64, value: u64, _ready: Fenced) {
        self.store_u64(off, value);
    }

    /// Commits by a line, as [`publish_word`](Self::publish_word) by a word:
    /// [stores](Self::store_line) it. It persists after `fence`, which the caller does.
    #[track_caller]
    fn publish_line(&self, off: u64, line: &Line, _ready: Fenced) {
        self.store_line(off, line);
    }

    /// [Commits by a word](Self::publish_word) and makes that durable.
    #[track_caller]
    fn publish(&self, off: u64, value: u64, ready: Fenced) -> Fenced {
        self.publish_word(off, value, ready);
        self.flush(off, 8);
        self.fence()
    }
}

/// A borrowed medium is a medium.
impl<M: Medium + ?Sized> Medium for &M {
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }
    fn max_len(&self) -> u64 {
        (**self).max_len()
    }
    fn grow(&self, len: u64) -> Result<(), Error> {
        (**self).grow(len)
    }
    fn lock(&self, lock: Lock) -> io::Result<()> {
        (**self).lock(lock)
    }
    fn release(&self, off: u64, len: u64) -> io::Result<Range<u64>> {
        (**self).release(off, len)
    }
    fn provision(&self, off: u64, len: u64) -> io::Result<()> {
        (**self).provision(off, len)
    }
    fn data_within(&self, off: u64, len: u64) -> Range<u64> {
        (**self).data_within(off, len)
    }
    fn domain(&self) -> Domain {
        (**self).domain()
    }
    fn health(&self) -> io::Result<()> {
        (**self).health()
    }
    fn set_ordered(&self, ordered: bool) -> bool {
        (**self).set_ordered(ordered)
    }
    fn counters(&self) -> &Counters {
        (**self).counters()
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        (**self).read(off, buf);
    }
    fn load_u64(&self, off: u64) -> u64 {
        (**self).load_u64(off)
    }
    fn prefetch(&self, off: u64, len: u64) {
        (**self).prefetch(off, len);
    }
    fn mapped(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        (**self).mapped(off, len)
    }
    fn lend(&self, off: u64, len: u64) -> Option<&[AtomicU8]> {
        (**self).lend(off, len)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        (**self).equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        (**self).write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        (**self).write_nt(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        (**self).copy_nt(dst, src, len);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        (**self).zero_nt(off, len);
    }
    fn store_u64(&self, off: u64, value: u64) {
        (**self).store_u64(off, value);
    }
    fn stores_lines(&self) -> bool {
        (**self).stores_lines()
    }
    fn store_line(&self, off: u64, line: &Line) {
        (**self).store_line(off, line);
    }
    fn flush(&self, off: u64, len: u64) {
        (**self).flush(off, len);
    }
    fn fence(&self) -> Fenced {
        (**self).fence()
    }
}
