//! The seam between engines and persistent memory.
//!
//! Every load and store of PM goes through [`Medium`]; nobody holds a reference into PM. The mapped
//! region implements it, and so does the recorder of the crash explorer.
//!
//! Three operations have a meaning beyond their bytes:
//! - [`Medium::store_u64`] is failure-atomic: after a crash the word is old or new (BPFS §4.3).
//! - [`Medium::store_line`], where there is one, is the same for a whole line.
//! - [`Medium::fence`] ends an epoch (BPFS §4.4): everything this thread wrote and flushed, or wrote
//!   non-temporally, is in the persistence domain when it returns.

use crate::{Counters, Domain, Error, Line, Lock};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

/// Proof that a fence has completed since the caller prepared what it is about to publish.
///
/// A commit consumes one, so "shadow durable before the pointer that names it" is a type error to
/// forget. Only [`Medium`] implementations make it, by [`Fenced::assert`]; a commit that needs no order
/// says why ([`Fenced::not_needed`]).
#[must_use = "a fence that proves nothing to a commit is better written as `let _ = …`"]
#[derive(Debug)]
pub struct Fenced(());

impl Fenced {
    /// For implementations of [`Medium::fence`] only: asserts that the fence has been executed.
    pub fn assert() -> Self {
        Self(())
    }

    /// For a commit before which nothing has to be durable, because of `_why`: it shows nothing but the bytes that it
    /// stores, or what lies before it in its line; or whoever reads what it shows finds out that it is not whole.
    #[inline]
    pub fn not_needed(_why: &'static str) -> Self {
        Self(())
    }

    /// The same proof for another commit: what both show was prepared before the one fence.
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
/// What changes or orders PM is `#[track_caller]`, in every implementation: the crash explorer tells
/// stores, flushes and fences apart by the line that made them, so that it can leave out each one.
/// Implementations that are inlined or ignore it pay nothing.
pub trait Medium: Send + Sync {
    /// Length of the region in bytes.
    fn len(&self) -> u64;

    /// Whether part of what is mapped is gone, as its file was truncated: nothing is to be changed any more, and
    /// what was read before this was asked may be zeros instead.
    fn is_lost(&self) -> bool {
        false
    }

    /// The length that it can grow to.
    fn max_len(&self) -> u64 {
        self.len()
    }

    /// Makes it longer, where that is possible; what comes is all zeros.
    fn grow(&self, len: u64) -> Result<(), Error> {
        let cause = "this kind of memory keeps its length".to_owned();
        Err(Error::BadLength { path: "memory".into(), len, cause })
    }

    /// Exchanges the lock that it was opened with for another one, at once or not at all: then `WouldBlock`,
    /// and there may be none left. Memory that nobody else can open needs none.
    fn lock(&self, _lock: Lock) -> io::Result<()> {
        Ok(())
    }

    /// Gives the space of whole pages in `off..off + len` back to the file system, where it can; returns which
    /// these are. They read as zeros, and durably so: in the page-cache domain from the next
    /// [`fence`](Self::fence) on. A store there takes space anew, and raises SIGBUS where there is none.
    fn release(&self, off: u64, _len: u64) -> io::Result<Range<u64>> {
        Ok(off..off)
    }

    /// The first part of `off..off + len` that may hold other than zeros; empty, at its end, if nothing does.
    fn data_within(&self, off: u64, len: u64) -> Range<u64> {
        off..off + len
    }

    /// Whether the region is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a fence means here.
    fn domain(&self) -> Domain;

    /// Whether every fence so far did what it says. A medium on an ordinary file can fail to write
    /// back; what was durable then is not known any more.
    fn health(&self) -> io::Result<()> {
        Ok(())
    }

    /// Has flushes and fences do what they say, or not: then a flush does nothing, what is stored persists in any order or
    /// never, and a fence orders what other threads see. Whether that can be had.
    fn set_ordered(&self, ordered: bool) -> bool {
        ordered
    }

    /// Traffic since the start.
    fn counters(&self) -> &Counters;

    /// Copies `buf.len()` bytes out of PM.
    fn read(&self, off: u64, buf: &mut [u8]);

    /// Loads an aligned word (acquire).
    fn load_u64(&self, off: u64) -> u64;

    /// Announces that `off..off + len` will be read soon. A hint: it may do nothing.
    fn prefetch(&self, _off: u64, _len: u64) {}

    /// The bytes of `off..off + len` where they lie, which others may be changing; `None` where they
    /// are not mapped, or reads through it would not be slowed down as [`Emulation`](crate::Emulation)
    /// asks. Counters do not see what is read.
    fn mapped(&self, _off: u64, _len: u64) -> Option<&[AtomicU8]> {
        None
    }

    /// The bytes where they lie, for somebody to keep. Of an emulated medium they are as fast as they are. `None` where
    /// they lie nowhere.
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

    /// Whether there is [`store_line`](Self::store_line).
    fn stores_lines(&self) -> bool {
        false
    }

    /// Stores an aligned line of 64 bytes past the cache. Never tears: neither a crash, nor the death of the
    /// process, nor a load of the whole line by one instruction finds a part of it. Overtakes no store of this
    /// thread. Persists after `fence`. Only where [`stores_lines`](Self::stores_lines).
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

    /// Commits by a word: [stores](Self::store_u64) the one that makes prepared data visible. `_ready` proves that the
    /// data is durable. The word persists after `flush` + `fence`, which follow.
    #[track_caller]
    fn publish_word(&self, off: u64, value: u64, _ready: Fenced) {
        self.store_u64(off, value);
    }

    /// Commits by a line, as [`publish_word`](Self::publish_word) by a word: [stores](Self::store_line) it. It persists
    /// after `fence`, which follows.
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
