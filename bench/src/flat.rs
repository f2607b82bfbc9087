//! Memory seen as a store of files: bare copies in the pattern of any workload, with no file system
//! in between. Of a mapped file, these are the loads and stores of a program that maps it.

#![allow(unsafe_code)]

use crate::inprocess::Pool;
use crate::store::Store;
use anyhow::{Context as _, Result};
use pmem::{Access, Medium as _, OpenOptions, Region};
use std::ffi::CStr;
use std::os::fd::AsRawFd as _;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Errno, Ino};

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// By `memcpy`, into the cache.
    Cached,
    /// Bypassing the cache, with a fence: durable if the memory is.
    Fenced,
    /// The same, then a word elsewhere, its line flushed, and another fence. A durable append needs
    /// that: its length must not become durable before its bytes.
    Sized,
}

/// Behind the files, for the word of [`Stores::Sized`].
const WORD_BYTES: u64 = 4096;

/// A region in which files lie one behind the other, each of the same length.
pub struct Flat {
    region: Region,
    stores: Stores,
    file_bytes: u64,
    next: AtomicU64,
}

impl Flat {
    /// Makes `files` of `file_bytes` in memory like a pool's: an unlinked file in `dir`.
    pub fn like_a_pool(dir: &Path, files: u64, file_bytes: u64, stores: Stores) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
        let region = Region::create(home.path().join("flat"), files * file_bytes + WORD_BYTES)?;
        Ok(Self { region, stores, file_bytes, next: AtomicU64::new(0) })
    }

    /// Makes the same in a file of another file system, in an open directory, mapped as any program
    /// maps it.
    pub fn mapped(root: BorrowedFd<'_>, files: u64, file_bytes: u64) -> Result<Self> {
        let path = format!("/proc/self/fd/{}/mapped", root.as_raw_fd());
        let file = std::fs::File::create_new(&path).with_context(|| path.clone())?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..(files * file_bytes).div_ceil(1 << 20) {
            std::io::Write::write_all(&mut &file, &zeros)?;
        }
        file.set_len(files * file_bytes)?;
        let options = OpenOptions { populate: true, ..OpenOptions::default() };
        let region = options.open(&path, Access::ReadWrite)?;
        std::fs::remove_file(&path)?;
        Ok(Self { region, stores: Stores::Cached, file_bytes, next: AtomicU64::new(0) })
    }

    /// Returns the offset of `len` bytes of a file, or `EFBIG` beyond its end.
    fn at(&self, file: u64, offset: u64, len: usize) -> vfs::Result<u64> {
        let fits = offset + len as u64 <= self.file_bytes;
        if fits { Ok(file * self.file_bytes + offset) } else { Err(Errno::FBIG) }
    }
}

/// Files are numbers. Names are ignored, and calls on names are missing.
impl Store for Flat {
    type File = u64;
    type Dir = ();

    fn root(&self) -> vfs::Result<()> {
        Ok(())
    }
    fn mkdir(&self, _dir: &(), _name: &CStr) -> vfs::Result<()> {
        Ok(())
    }
    fn create(&self, _dir: &(), _name: &CStr) -> vfs::Result<u64> {
        let file = self.next.fetch_add(1, Relaxed);
        self.at(file, 0, 0)?;
        if (file + 1) * self.file_bytes > self.region.len() { Err(Errno::NOSPC) } else { Ok(file) }
    }
    fn read(&self, file: &u64, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        let at = self.at(*file, offset, buf.len())?;
        let from = self.region.read_ptr(at, buf.len() as u64);
        // SAFETY: `read_ptr` has checked that `buf.len()` bytes are mapped, and workloads read no
        // file that another thread writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        std::hint::black_box(buf);
        Ok(())
    }
    fn write(&self, file: &u64, offset: u64, data: &[u8]) -> vfs::Result<()> {
        let at = self.at(*file, offset, data.len())?;
        match self.stores {
            Stores::Cached => self.region.write(at, data),
            Stores::Fenced => {
                self.region.write_nt(at, data);
                let _ = self.region.fence();
            }
            Stores::Sized => {
                self.region.write_nt(at, data);
                let ready = self.region.fence();
                let _ = self.region.publish(self.region.len() - WORD_BYTES, at, ready);
            }
        }
        Ok(())
    }
    fn append(&self, file: &u64, end: u64, data: &[u8]) -> vfs::Result<()> {
        self.write(file, end, data)
    }
    fn truncate(&self, _file: &u64, _len: u64) -> vfs::Result<()> {
        Ok(())
    }
}

/// The files of a pool, read by copies from the addresses of their bytes
/// ([`pool::Engine::get_read_buf`]), as a program does that borrows them and looks at all of them.
pub struct Lent<'p>(pub &'p Pool);

/// Files are inodes that the pool holds open. Only reading is implemented.
impl Store for Lent<'_> {
    type File = Ino;
    type Dir = ();

    fn root(&self) -> vfs::Result<()> {
        Ok(())
    }
    fn read(&self, file: &Ino, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let piece =
                self.0.engine().get_read_buf(*file, offset + done as u64, rest.len() as u64)?;
            if piece.is_empty() {
                return Err(Errno::IO);
            }
            // SAFETY: the piece is lent until it is dropped, is no longer than what was asked for,
            // and workloads write no file that another thread reads.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    piece.as_ptr().cast(),
                    rest.as_mut_ptr(),
                    piece.len(),
                );
            }
            done += piece.len();
        }
        Ok(())
    }
}
