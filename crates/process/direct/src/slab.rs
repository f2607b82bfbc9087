//! Places for values of one type, in reserved memory: taking one does not enter the heap of the
//! program, which may be in the middle of an allocation.
//!
//! The memory is reserved once and touched as it is used. A place, once used, keeps its type, so
//! that a thread that looks at it late finds a value, if an old one.

#![allow(unsafe_code)]

use crate::chunk::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::*};
use vfs::Errno;

const PAGE: usize = PAGE_BYTES as usize;

/// Types for which bytes of zeros are a value.
///
/// # Safety
/// Bytes of zeros are a valid value of the type.
pub unsafe trait Zeroed {}

// SAFETY: zero is a number.
unsafe impl Zeroed for AtomicU32 {}

/// Values by index from 1; 0 means no value.
pub struct Slab<T> {
    base: *mut T,
    len: u32,
    /// Places that were ever used.
    used: AtomicU32,
    /// Indexes to use again, as a stack.
    free: *mut u32,
    free_len: AtomicU32,
    _type: PhantomData<T>,
}

// SAFETY: places are handed out by shared reference only.
unsafe impl<T: Sync> Sync for Slab<T> {}
// SAFETY: the memory belongs to no thread.
unsafe impl<T: Send> Send for Slab<T> {}

/// Reserved memory from which tables are made. All tables share one mapping, as each mapping costs
/// time at the start of a process, in a fork, and at the end.
pub struct Room {
    at: *mut u8,
    left: usize,
}

impl Room {
    /// Reserves `bytes`, in pages of the usual size: little of it is ever touched, and a huge page
    /// would be cleared as a whole.
    pub fn new(bytes: usize) -> Result<Self, Errno> {
        let at = reserve(bytes)?;
        // SAFETY: the range was mapped just above. This is a hint: failure changes nothing.
        let _ = unsafe { rustix::mm::madvise(at.cast(), bytes, Advice::LinuxNoHugepage) };
        Ok(Self { at, left: bytes })
    }

    /// Returns the part that is not taken yet.
    pub fn memory(&self) -> Range<usize> {
        self.at.addr()..self.at.addr() + self.left
    }

    /// Takes whole pages for `bytes`.
    fn take(&mut self, bytes: usize) -> *mut u8 {
        let bytes = bytes.next_multiple_of(PAGE);
        self.left = self.left.checked_sub(bytes).expect("room for all tables");
        let at = self.at;
        self.at = at.wrapping_add(bytes);
        at
    }
}

/// Maps zeroed private memory, which takes no memory until it is touched. The caller unmaps it, if
/// ever. `ENOMEM`, for example at the limit of mappings.
pub fn reserve(bytes: usize) -> Result<*mut u8, Errno> {
    let (prot, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: new memory.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags)? };
    Ok(base.cast())
}

impl<T: Zeroed> Slab<T> {
    /// Takes room for `len` values.
    pub fn new(len: usize, room: &mut Room) -> Self {
        Self {
            base: room.take((len + 1) * size_of::<T>()).cast(),
            len: len as u32,
            used: AtomicU32::new(0),
            free: room.take(len * size_of::<u32>()).cast(),
            free_len: AtomicU32::new(0),
            _type: PhantomData,
        }
    }

    /// Returns the bytes for `len` values.
    pub const fn bytes(len: usize) -> usize {
        let (values, indexes) = ((len + 1) * size_of::<T>(), len * size_of::<u32>());
        values.next_multiple_of(PAGE) + indexes.next_multiple_of(PAGE)
    }

    /// Returns the value at an index that is or was in use.
    #[inline]
    pub fn at(&self, index: u32) -> &T {
        assert!(index <= self.len);
        // SAFETY: within the reserved memory, where zeros or a former value are a value.
        unsafe { &*self.base.add(index as usize) }
    }

    /// Returns the index of a value; `None` for null.
    pub fn index_of(&self, value: *const T) -> Option<u32> {
        (!value.is_null()).then(|| ((value.addr() - self.base.addr()) / size_of::<T>()) as u32)
    }

    /// Returns the indexes that are or were in use.
    pub fn indexes(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.used.load(Acquire)
    }

    /// Takes a place. The caller holds the lock of the tables.
    pub fn take(&self) -> Option<u32> {
        let free_len = self.free_len.load(Relaxed);
        if free_len > 0 {
            self.free_len.store(free_len - 1, Relaxed);
            // SAFETY: below `free_len`, everything has been written by `give_back`.
            return Some(unsafe { *self.free.add(free_len as usize - 1) });
        }
        let index = self.used.load(Relaxed) + 1;
        (index <= self.len).then(|| {
            self.used.store(index, Release);
            index
        })
    }

    /// Gives a place back, after direct-E1. The caller holds the lock of the tables.
    pub fn give_back(&self, index: u32) {
        let free_len = self.free_len.load(Relaxed);
        assert!(index != 0 && free_len < self.len);
        // SAFETY: there is room for all indexes.
        unsafe { *self.free.add(free_len as usize) = index };
        self.free_len.store(free_len + 1, Relaxed);
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        let (bytes, indexes) = ((self.len as usize + 1) * size_of::<T>(), self.len as usize * 4);
        // SAFETY: mapped by `new`, and not borrowed any more.
        unsafe {
            let _ = rustix::mm::munmap(self.base.cast(), bytes);
            let _ = rustix::mm::munmap(self.free.cast(), indexes);
        }
    }
}
