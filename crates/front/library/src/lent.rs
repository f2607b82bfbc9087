//! Memory of the pool that is lent to the program (library-L3): any range of a file as one slice.
//!
//! A contiguous range is lent in the pool's own mapping. Otherwise its blocks are mapped behind
//! each other in a *window* ([`vfs::Mappings::map_range`]). A window for reading stays for later
//! readers.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Mutex;

use pmem::Medium as _;
use pool::Engine;
use posix::PoolFile;
use vfs::{Errno, Ino};

type Result<T> = std::result::Result<T, Errno>;

/// Size up to which a window maps all of a file, in bytes: address space costs little, but mapping
/// it takes time.
const WHOLE_MAX: u64 = 1 << 30;
/// Alignment of mapped ranges, in bytes.
const BLOCK: u64 = 4096;

/// A range of a file that is mapped as one. The engine counts it until [`end`](Self::end).
struct Window {
    range: Range<u64>,
    addr: usize,
    /// Whether it has a mapping of its own, not the pool's.
    is_own: bool,
    stores: bool,
}

impl Window {
    fn open(fs: &dyn Engine, ino: Ino, range: Range<u64>, stores: bool) -> Result<Self> {
        let range = range.start - range.start % BLOCK..range.end.next_multiple_of(BLOCK);
        let extents = fs.map_range(ino, range.clone(), stores)?;
        let is_own = extents.len() > 1;
        let mapped = match extents[..] {
            [only] => Ok(fs.region().read_ptr(only.start, only.len).addr()),
            _ => file_of(fs).and_then(|file| posix::map_window(&file, &extents, stores)),
        };
        match mapped {
            Ok(addr) => Ok(Self { range, addr, is_own, stores }),
            Err(err) => {
                fs.unmap_range(ino, stores, true);
                Err(err)
            }
        }
    }

    fn covers(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }

    fn at(&self, offset: u64) -> usize {
        self.addr + (offset - self.range.start) as usize
    }

    /// Unmaps a window that is no longer used, and whose stores are durable.
    fn end(self, fs: &dyn Engine, ino: Ino) {
        if self.is_own {
            // SAFETY: what was lent of it has been given back.
            unsafe { posix::unmap_window(self.addr, (self.range.end - self.range.start) as usize) };
        }
        fs.unmap_range(ino, self.stores, true);
    }
}

fn file_of(fs: &dyn Engine) -> Result<PoolFile> {
    let fd = fs.region().descriptor().ok_or(Errno::OPNOTSUPP)?;
    Ok(pool_file(fs, fd.as_raw_fd()))
}

/// Describes the file of a pool, to be mapped by this descriptor.
pub fn pool_file(fs: &dyn Engine, fd: RawFd) -> PoolFile {
    let region = fs.region();
    let is_persistent = region.domain().is_persistent();
    PoolFile { fd, flags: region.map_flags(), is_persistent }
}

/// The memory that is lent of one file.
#[derive(Default)]
pub struct Lent(Mutex<LentState>);

#[derive(Default)]
struct LentState {
    /// Number of loans for reading.
    readers: usize,
    /// The window that serves new readers, and former ones that may still be read.
    window: Option<Window>,
    former: Vec<Window>,
    /// Loans for writing.
    writes: Vec<Write>,
}

struct Write {
    window: Window,
    range: Range<u64>,
}

/// Returns the part of `count` bytes from `offset` on that lies inside the file.
fn inside(fs: &dyn Engine, ino: Ino, offset: u64, count: usize) -> Result<Range<u64>> {
    let size = fs.getattr(ino)?.size;
    let end = offset.saturating_add(count as u64).min(size);
    Ok(offset.min(end)..end)
}

impl Lent {
    /// Lends bytes for reading; returns their address and number, which is smaller if the engine
    /// cannot map them as one.
    pub fn read(
        &self,
        fs: &dyn Engine,
        ino: Ino,
        offset: u64,
        count: usize,
    ) -> Result<(usize, usize)> {
        let mut state = self.0.lock().map_err(|_| Errno::IO)?;
        let bytes = fs.get_read_buf(ino, offset, count as u64)?;
        let together = (bytes.as_ptr().addr(), bytes.len());
        let range = inside(fs, ino, offset, count)?;
        let lent = match range.end - range.start > together.1 as u64 {
            true => state.window(fs, ino, &range).unwrap_or(together),
            false => together,
        };
        state.readers += 1;
        // `end_read` gives it back.
        std::mem::forget(bytes);
        Ok(lent)
    }

    /// Takes back one loan for reading.
    pub fn end_read(&self, fs: &dyn Engine, ino: Ino) -> Result<()> {
        let mut state = self.0.lock().map_err(|_| Errno::IO)?;
        fs.put_read_buf();
        state.readers = state.readers.saturating_sub(1);
        if state.readers == 0 {
            state.former.drain(..).for_each(|window| window.end(fs, ino));
        }
        Ok(())
    }

    /// Lends bytes for writing, none of them beyond the end of the file.
    pub fn write(
        &self,
        fs: &dyn Engine,
        ino: Ino,
        offset: u64,
        count: usize,
    ) -> Result<(usize, usize)> {
        let mut state = self.0.lock().map_err(|_| Errno::IO)?;
        let range = inside(fs, ino, offset, count)?;
        if range.is_empty() {
            return Ok((0, 0));
        }
        let window = Window::open(fs, ino, range.clone(), true)?;
        let lent = (window.at(range.start), (range.end - range.start) as usize);
        state.writes.push(Write { window, range });
        Ok(lent)
    }

    /// Takes back the loan for writing at this address, and makes it durable. Of several loans
    /// there, takes that of this length, or any.
    pub fn end_write(
        &self,
        fs: &dyn Engine,
        ino: Ino,
        addr: usize,
        len: Option<usize>,
    ) -> Result<()> {
        let mut state = self.0.lock().map_err(|_| Errno::IO)?;
        let is_meant = |write: &Write| {
            let has = (write.range.end - write.range.start) as usize;
            write.window.at(write.range.start) == addr && len.is_none_or(|len| len == has)
        };
        let found = state.writes.iter().position(is_meant).ok_or(Errno::INVAL)?;
        let Write { window, range } = state.writes.swap_remove(found);
        let synced = fs.sync_range(ino, range, true);
        window.end(fs, ino);
        synced
    }

    /// Ends all loans of a file that is closed.
    pub fn close(&mut self, fs: &dyn Engine, ino: Ino) {
        let Ok(state) = self.0.get_mut() else { return };
        (0..std::mem::take(&mut state.readers)).for_each(|_| fs.put_read_buf());
        let windows = state.window.take().into_iter().chain(state.former.drain(..));
        windows.for_each(|window| window.end(fs, ino));
        for Write { window, range } in state.writes.drain(..) {
            // The borrower did not give it back, so there is no caller to report an error to.
            let _ = fs.sync_range(ino, range, true);
            window.end(fs, ino);
        }
    }
}

impl LentState {
    /// Returns the bytes in the window, after making a new window if it does not cover them.
    fn window(&mut self, fs: &dyn Engine, ino: Ino, range: &Range<u64>) -> Result<(usize, usize)> {
        if !self.window.as_ref().is_some_and(|window| window.covers(range)) {
            let size = fs.getattr(ino)?.size;
            let whole = || Window::open(fs, ino, 0..size, false);
            let opened = if size <= WHOLE_MAX { whole() } else { Err(Errno::OPNOTSUPP) };
            let new = opened.or_else(|_| Window::open(fs, ino, range.clone(), false))?;
            let old = self.window.replace(new);
            self.former.extend(old);
        }
        let window = self.window.as_ref().filter(|window| window.covers(range));
        let at = window.ok_or(Errno::IO)?.at(range.start);
        Ok((at, (range.end - range.start) as usize))
    }
}
