//! Files as memory of this program: mapped where they lie in a pool, from a file system of the
//! kernel, or memory of no file.

#![allow(unsafe_code)]

use crate::inprocess::Pool;
use crate::rounds::Contender;
use crate::store::Store;
use anyhow::Result;
use rng::Rng;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use vfs::Errno;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// A mapping for loads and stores.
pub struct Mapping<'p> {
    at: *mut u8,
    len: usize,
    /// The pool that the mapping is of; `None`: the kernel's.
    pool: Option<&'p Pool>,
}

// SAFETY: a mapping belongs to the process, not to a thread. Threads that share it do not store
// where others load, nor give out references.
unsafe impl Send for Mapping<'_> {}
// SAFETY: as above.
unsafe impl Sync for Mapping<'_> {}

impl<'p> Mapping<'p> {
    /// Maps the first `len` bytes of a file of a pool in place.
    pub fn of_pool(pool: &'p Pool, file: i32, len: usize) -> vfs::Result<Self> {
        Ok(Self { at: pool.map(file, len)? as *mut u8, len, pool: Some(pool) })
    }

    /// Maps the first `len` bytes of a file of a kernel's file system.
    pub fn of_file(file: BorrowedFd<'_>, len: usize) -> vfs::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which replaces no other.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)?
        };
        Ok(Self { at: at.cast(), len, pool: None })
    }

    /// Maps `len` bytes of anonymous memory, in huge pages where the kernel grants them.
    pub fn anonymous(len: usize) -> vfs::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let len = len.next_multiple_of(HUGE_PAGE);
        // SAFETY: a new mapping, which replaces no other.
        let at = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE)?
        };
        // SAFETY: the mapping is new; the advice does not change what it holds.
        let _ = unsafe { rustix::mm::madvise(at, len, Advice::LinuxHugepage) };
        Ok(Self { at: at.cast(), len, pool: None })
    }

    /// Returns the address of `len` bytes, or `EFBIG` beyond the end.
    fn at(&self, offset: u64, len: usize) -> vfs::Result<*mut u8> {
        let is_within = offset as usize + len <= self.len;
        if is_within { Ok(self.at.wrapping_add(offset as usize)) } else { Err(Errno::FBIG) }
    }

    /// Loads or stores a word.
    fn access(&self, offset: u64, stores: bool) -> vfs::Result<()> {
        let at = self.at(offset, 8)?.cast::<u64>();
        // SAFETY: `at` has checked that the word is mapped, and offsets are multiples of eight.
        unsafe {
            match stores {
                true => at.write_volatile(offset),
                false => drop(std::hint::black_box(at.read_volatile())),
            }
        }
        Ok(())
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        match self.pool {
            Some(pool) => pool.unmap(self.at.addr(), self.len),
            // SAFETY: no pointers into it exist when it is dropped.
            None => drop(unsafe { rustix::mm::munmap(self.at.cast(), self.len) }),
        }
    }
}

/// Files of a pool, mapped where they lie, as a store: reads and writes are copies.
pub struct Mapped<'p>(pub &'p Pool);

impl<'p> Store for Mapped<'p> {
    type File = Mapping<'p>;
    type Dir = ();

    fn root(&self) -> vfs::Result<()> {
        Ok(())
    }
    fn read(&self, file: &Mapping<'p>, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        let from = file.at(offset, buf.len())?;
        // SAFETY: `at` has checked that these bytes are mapped, and workloads read no file that
        // another thread writes.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        std::hint::black_box(buf);
        Ok(())
    }
    fn write(&self, file: &Mapping<'p>, offset: u64, data: &[u8]) -> vfs::Result<()> {
        let to = file.at(offset, data.len())?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }
}

/// Returns a contender that touches a word of each page, in order, of a mapping that is new in each
/// round.
pub fn touches<'a>(
    name: &str,
    map: impl Fn() -> vfs::Result<Mapping<'a>> + 'a,
    stores: bool,
) -> Contender<'a> {
    let mapping = Rc::new(RefCell::new(None::<Mapping<'a>>));
    let again = mapping.clone();
    Contender::new(name, move |ops| {
        let mapping = mapping.borrow();
        let mapping = mapping.as_ref().ok_or(Errno::INVAL)?;
        (0..ops).try_for_each(|page| mapping.access(page * PAGE as u64, stores))
    })
    .prepared(move |_| {
        // The previous mapping goes first.
        again.borrow_mut().take();
        *again.borrow_mut() = Some(map()?);
        Ok(())
    })
}

/// Returns a contender that accesses random words of pages that have been touched.
pub fn accesses<'a>(name: &str, mapping: Mapping<'a>, stores: bool) -> Result<Contender<'a>> {
    for page in (0..mapping.len as u64).step_by(PAGE) {
        mapping.access(page, true)?;
    }
    let mut rng = Rng::new(21);
    Ok(Contender::new(name, move |ops| {
        let words = mapping.len as u64 / 8;
        (0..ops).try_for_each(|_| mapping.access(rng.below_fast(words) * 8, stores))
    }))
}
