//! Volatile state that engines derive from persistent memory, in offset-based structures.
//!
//! BPFS keeps only simple, non-redundant data in PM and derives the rest at mount (§3.3): free
//! lists, directory index, link counts. That derived state lives here: in zeroed memory, addressed
//! by index and never by pointer, made of atomics only. So the same code serves one process
//! (anonymous memory) and, once attached by name, many.
//!
//! What is here: the memory ([`Arena`], [`Layout`], [`Span`]), and the structures that work in it:
//! [`Bitmap`], [`RwLock`], [`Slab`], [`HashIndex`]. What is not: anything that must survive the
//! process.
//!
//! `unsafe` is confined to this file (turning a span into a slice) and to the implementations of
//! [`Shared`].

mod bitmap;
mod hash;
mod rwlock;
mod slab;

pub use bitmap::Bitmap;
pub use hash::{HashIndex, Link};
pub use rwlock::{LockMode, RwLock};
pub use slab::{Handle, Slab};

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// A type that may live in an arena.
///
/// # Safety
/// 1. Every field is an atomic or itself `Shared`, so that any number of threads may hold `&Self`.
/// 2. All-zero bytes are a valid value.
/// 3. It holds no pointer and needs no `Drop`.
pub unsafe trait Shared: Send + Sync + 'static {}

// SAFETY: 1–3 hold for plain atomics.
unsafe impl Shared for AtomicU16 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an array of `Shared` has no fields but `Shared` ones.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Where a table of `T` lies in an arena: offset in bytes and number of elements.
pub struct Span<T> {
    offset: usize,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Span<T> {}

/// Plans the tables of an arena before it is mapped.
#[derive(Debug, Default)]
pub struct Layout {
    bytes: usize,
}

impl Layout {
    /// Reserves a table of `len` elements, aligned to a cache line.
    pub fn table<T: Shared>(&mut self, len: usize) -> Span<T> {
        let offset = self.bytes.next_multiple_of(64.max(align_of::<T>()));
        self.bytes = offset + len * size_of::<T>();
        Span { offset, len, of: PhantomData }
    }

    /// Bytes reserved so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Arenas from this size on ask for huge pages; in smaller ones clearing them would cost more.
const HUGE_FROM: usize = 64 << 20;

/// Zeroed memory that is committed page by page as it is touched.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an arena hands out only `&T` where `T: Shared`, which is `Send + Sync`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena for one process: private anonymous memory, reserved but not committed.
    pub fn anonymous(layout: &Layout) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags};
        let len = layout.bytes().max(1).next_multiple_of(2 << 20);
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        if len >= HUGE_FROM {
            // SAFETY: the range was mapped just above. Huge pages are a hint: failure changes nothing.
            let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base.cast()).expect("mmap returns no null mapping");
        Ok(Self { base, len })
    }

    /// The table at `span`.
    #[inline]
    pub fn table<T: Shared>(&self, span: Span<T>) -> &[T] {
        debug_assert!(span.offset + span.len * size_of::<T>() <= self.len);
        // SAFETY: `Layout` placed the span inside the arena's length (spans have no other source),
        // aligned for `T`; the memory is initialised to zero, which `Shared` 2 makes valid, and is
        // only ever reached through `&T` of `Shared` 1. It stays mapped while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(span.offset).cast(), span.len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `anonymous`; no slice outlives the borrow of `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
