//! Bytes of files in place, without a copy.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;

use vfs::Errno;

use crate::File;

/// Bytes of a file in the memory of its pool, to be read. They stay until the map is dropped,
/// whatever happens to the file meanwhile.
///
/// With the layout `scmfs`, writes to the file show in its maps. With `bpfs`, a map shows the
/// content at the time of [`File::map`], except that writes within 8 aligned bytes show. Blocks
/// that any program replaces in the pool become free only when no such map of `bpfs` is left, so
/// keep them short where the pool is nearly full.
///
/// ```
/// # use keepstone_library as keepstone;
/// # let dir = tempfile::tempdir()?;
/// # let pool = keepstone::NewPool::new(16 << 20).create(dir.path().join("pool"))?;
/// pool.write("weights", [7; 10_000])?;
/// let file = keepstone::File::open(&pool, "weights")?;
/// let map = file.map(0, 10_000)?;
/// assert_eq!(map.to_vec(), [7; 10_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Map<'f> {
    file: &'f File,
    addr: usize,
    len: usize,
}

impl<'f> Map<'f> {
    pub(crate) fn new(file: &'f File, addr: usize, len: usize) -> Self {
        Self { file, addr, len }
    }

    /// Returns the address of the first byte. Bytes may change at any time.
    pub fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.addr)
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes from `offset` on, as many as `buf` has.
    ///
    /// # Panics
    /// If the map has fewer.
    pub fn copy_to(&self, buf: &mut [u8], offset: usize) {
        let end = offset.checked_add(buf.len()).expect("the range has an end");
        assert!(end <= self.len, "bytes {offset}..{end} of a map of {} bytes", self.len);
        // SAFETY: the bytes are mapped until the map is dropped, and `buf` is not among them.
        unsafe { copy(self.as_ptr().add(offset), buf.as_mut_ptr(), buf.len()) }
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes, 0);
        bytes
    }

    /// Returns the bytes themselves.
    ///
    /// # Safety
    /// 1. No program writes to these bytes of the file while the slice is in use.
    pub unsafe fn as_slice(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the bytes are mapped until the map is dropped; 1. and they do not change.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl Drop for Map<'_> {
    fn drop(&mut self) {
        let (lent, fs, ino) = self.file.lent();
        // It fails only if a thread has panicked in it; then the map stays.
        let _ = lent.end_read(fs, ino);
    }
}

/// Copies bytes by one instruction, whose accesses the compiler does not assume to be the only
/// ones: other programs and threads may load and store the bytes at the same time.
///
/// # Safety
/// 1. `len` bytes from `from` on can be read, as many from `to` on can be written, and these are
///    different bytes.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: 1. the caller's promise. The direction flag is clear, by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Bytes of a file in the memory of its pool, to be stored to. Stores show at once to all readers
/// of the file. They are durable when [`sync`](Self::sync) has returned; until then a crash may
/// leave any part of them.
#[derive(Debug)]
pub struct MapMut<'f> {
    file: &'f File,
    addr: usize,
    len: usize,
    /// Each thread may store, but they must agree: as a `*mut u8`.
    _bytes: PhantomData<*mut u8>,
}

// SAFETY: the bytes belong to no thread.
unsafe impl Send for MapMut<'_> {}

impl<'f> MapMut<'f> {
    pub(crate) fn new(file: &'f File, addr: usize, len: usize) -> Self {
        Self { file, addr, len, _bytes: PhantomData }
    }

    /// Returns the address of the first byte. Other programs may read and write the bytes.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores `data` from `offset` on.
    ///
    /// # Panics
    /// If the map has fewer bytes.
    pub fn copy_from(&mut self, data: &[u8], offset: usize) {
        let end = offset.checked_add(data.len()).expect("the range has an end");
        assert!(end <= self.len, "bytes {offset}..{end} of a map of {} bytes", self.len);
        // SAFETY: the bytes are mapped for stores until the map is dropped, and `data` is not among
        // them.
        unsafe { copy(data.as_ptr(), self.as_mut_ptr().add(offset), data.len()) }
    }

    /// Returns the bytes themselves.
    ///
    /// # Safety
    /// 1. No other program or thread reads or writes these bytes of the file while the slice is in
    ///    use.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the bytes are mapped until the map is dropped; 1. and they are only used by it.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }

    /// Ends the map, after what was stored is durable.
    ///
    /// # Errors
    /// `EIO` if it is not known to be durable.
    pub fn sync(self) -> io::Result<()> {
        let ended = self.end();
        std::mem::forget(self);
        Ok(ended?)
    }

    fn end(&self) -> Result<(), Errno> {
        let (lent, fs, ino) = self.file.lent();
        if self.is_empty() { Ok(()) } else { lent.end_write(fs, ino, self.addr, Some(self.len)) }
    }
}

/// Makes what was stored durable. [`sync`](Self::sync) reports whether that failed.
impl Drop for MapMut<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// For callers whose maps have no owner in Rust.
impl File {
    /// Does the work of dropping a [`Map`], for callers that have forgotten it
    /// ([`std::mem::forget`]).
    ///
    /// # Errors
    /// `EIO` if a thread has panicked before.
    ///
    /// # Safety
    /// 1. The caller has forgotten a map of this file, and nothing uses it any more.
    #[doc(hidden)]
    pub unsafe fn end_map(&self) -> io::Result<()> {
        let (lent, fs, ino) = self.lent();
        Ok(lent.end_read(fs, ino)?)
    }

    /// As [`end_map`](Self::end_map), for the [`MapMut`] at this address, whose stores become
    /// durable. Of several maps there, ends that of this length, or any.
    ///
    /// # Errors
    /// `EINVAL` if no such map exists; as [`MapMut::sync`].
    ///
    /// # Safety
    /// 1. As [`end_map`](Self::end_map).
    #[doc(hidden)]
    pub unsafe fn end_map_mut(&self, addr: usize, len: Option<usize>) -> io::Result<()> {
        let (lent, fs, ino) = self.lent();
        Ok(lent.end_write(fs, ino, addr, len)?)
    }
}
