//! Reading without a copy (Chell §6): returns the address of a file's bytes, until they are given
//! back.
//!
//! A chunk that is lent stays mapped after its descriptor is closed. If another process truncates
//! the file meanwhile, the bytes are gone all the same, as from every mapping: touching them is
//! SIGBUS.

use crate::Direct;
use crate::chunk::{CHUNK_BYTES, Chunk, Entry};
use crate::descriptions::READS;
use crate::epoch::InsideEpoch;
use crate::file::MAPPABLE_BYTES;
use crate::table::borrow;
use std::sync::atomic::Ordering::*;
use vfs::Errno;

impl Direct {
    /// Lends up to `count` bytes at `offset`: returns their address and number (fewer at the end of
    /// a chunk, 0 at the end of the file). [`put_read_buf`](Self::put_read_buf) has to give them
    /// back, unless there are 0. `EBADF` if the descriptor cannot be read; `ENOTSUP` for files that
    /// are not served, and for holes: `pread` serves these.
    pub fn get_read_buf(
        &self,
        fd: i32,
        count: usize,
        offset: u64,
    ) -> Result<(*const u8, usize), Errno> {
        if offset >= MAPPABLE_BYTES {
            return Err(Errno::NOTSUP);
        }
        let index = offset / CHUNK_BYTES;
        let at = (offset % CHUNK_BYTES) as usize;
        self.look_now(fd);
        for _ in 0..3 {
            let inside = InsideEpoch::enter().ok_or(Errno::NOTSUP)?;
            let (_, description) = self.get(fd).ok_or(Errno::NOTSUP)?;
            if !description.is(READS) {
                return Err(Errno::BADF);
            }
            let file = description.file();
            let within = count.min(CHUNK_BYTES as usize - at);
            if offset + within as u64 > file.size() {
                file.set_size(rustix::fs::fstat(borrow(fd))?.st_size as u64);
            }
            let len = within.min(file.size().saturating_sub(offset) as usize);
            if len == 0 {
                return Ok((std::ptr::null(), 0));
            }
            if let Some(entry) = file.entry(index) {
                if let Entry::Mapped(chunk) = Entry::of(entry.load(Acquire)) {
                    return lend(chunk, at, len);
                }
                Entry::heat(entry, self.config.map_after);
            }
            drop(inside);
            if !self.map(fd, index, false) {
                break;
            }
        }
        Err(Errno::NOTSUP)
    }

    /// Gives back one loan of [`get_read_buf`](Self::get_read_buf). `EINVAL` for another address.
    pub fn put_read_buf(&self, bytes: *const u8) -> Result<(), Errno> {
        let held = self.hold();
        let index = self.chunk_at(&held, bytes).ok_or(Errno::INVAL)?;
        let chunk = self.chunks.at(index);
        let lent = chunk.lent.fetch_update(AcqRel, Relaxed, |lent| lent.checked_sub(1));
        if lent.map_err(|_| Errno::INVAL)? == 1 && chunk.entry.load(Relaxed).is_null() {
            self.end(index);
        }
        Ok(())
    }
}

/// Lends the present part of a range, inside (direct-E1).
fn lend(chunk: &Chunk, at: usize, len: usize) -> Result<(*const u8, usize), Errno> {
    if !chunk.has_pages(at, len) {
        chunk.look_at(at, len);
    }
    if !chunk.has_pages(at, len) {
        return Err(Errno::NOTSUP);
    }
    chunk.touch();
    chunk.lent.fetch_add(1, AcqRel);
    Ok((chunk.base().wrapping_add(at), len))
}
