//! The buffers of one call.
//!
//! Buffers are not checked before they are used: a bad one faults (direct-C2). A call on a pool
//! takes one buffer, as it writes all bytes or none. So several parts are gathered in a buffer of
//! the thread's own, without an allocation.

#![allow(unsafe_code)]

use crate::copy;
use crate::epoch::InsideEpoch;
use crate::slab::reserve;
use libc::iovec;
use std::ffi::c_int;
use std::sync::atomic::Ordering::*;

/// Longer transfers are the kernel's: they take so long that the call's cost does not matter.
pub const COPY_BYTES_MAX: usize = 64 << 20;
/// Bytes of several parts that are gathered at most.
const GATHERED_BYTES_MAX: usize = 128 << 10;

/// Parts of a vector at most; the kernel transfers longer ones.
const PARTS_MAX: usize = 16;
/// Room for a list.
pub const NO_PARTS: [iovec; PARTS_MAX] =
    [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];

/// The program's buffers, and how many bytes they are.
pub struct Parts<'p> {
    pub parts: &'p [iovec],
    pub len: usize,
}

impl<'p> Parts<'p> {
    pub fn new(parts: &'p [iovec]) -> Self {
        // Sums that are too large for a copy stay so.
        let len = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
        Self { parts, len }
    }

    /// Whether they have bytes, and few enough for a call on a pool.
    #[inline]
    pub fn fit_pool(&self) -> bool {
        let most = if self.only().is_some() { COPY_BYTES_MAX } else { GATHERED_BYTES_MAX };
        self.len.wrapping_sub(1) < most
    }

    /// Returns the part that has all bytes, if one has.
    #[inline]
    pub fn only(&self) -> Option<&'p iovec> {
        match self.parts {
            [part] => Some(part),
            parts => parts.iter().find(|part| part.iov_len == self.len),
        }
    }

    /// Copies the parts to the thread's buffer; `None` after a fault, and without memory.
    pub fn gather<'i>(&self, inside: &'i InsideEpoch) -> Option<&'i [u8]> {
        let buffer = buffer(inside, self.len)?;
        let mut at = 0;
        for part in self.parts {
            let to = &mut buffer[at..at + part.iov_len];
            let (to, from) = (to.as_mut_ptr(), part.iov_base.cast::<u8>());
            // SAFETY: 1: our buffer, and the program's to answer for; 2: `memcpy`; 3: entered.
            if !unsafe { copy_part(inside, to, from, part.iov_len) } {
                return None;
            }
            at += part.iov_len;
        }
        Some(buffer)
    }

    /// Lets `read` fill the thread's buffer, and copies as many bytes as it returns to the parts.
    /// `None` after a fault, and without memory; then nothing has been read.
    pub fn scatter<E>(
        &self,
        inside: &InsideEpoch,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        let buffer = buffer(inside, self.len)?;
        let len = match read(buffer) {
            Ok(len) => len,
            err => return Some(err),
        };
        let mut rest = &buffer[..len];
        for part in self.parts {
            let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
            // SAFETY: as above.
            if !unsafe { copy_part(inside, part.iov_base.cast(), now.as_ptr(), now.len()) } {
                return None;
            }
            rest = later;
        }
        Some(Ok(len))
    }
}

/// Reads the buffers of a list. If it is too long or cannot be read, returns no buffers, so that
/// the kernel makes the call.
///
/// # Safety
/// As 1 and 2 of [`Direct::read`](crate::Direct::read), for the list.
pub unsafe fn of_list<'r>(
    list: *const iovec,
    count: c_int,
    room: &'r mut [iovec; PARTS_MAX],
) -> Parts<'r> {
    let len = usize::try_from(count).ok().filter(|len| *len <= PARTS_MAX).unwrap_or(0);
    let (to, bytes) = (room.as_mut_ptr().cast(), len * size_of::<iovec>());
    // SAFETY: 1: the program's memory and ours, where any bytes are a list; 2: `memcpy`.
    let is_read = InsideEpoch::enter()
        .is_some_and(|inside| unsafe { copy_part(&inside, to, list.cast(), bytes) });
    Parts::new(if is_read { &room[..len] } else { &[] })
}

/// # Safety
/// 1 and 2 of [`copy::copy`].
unsafe fn copy_part(inside: &InsideEpoch, to: *mut u8, from: *const u8, len: usize) -> bool {
    let witness: *const u8 = std::ptr::from_ref(inside.slot).cast();
    // SAFETY: 1, 2: the caller's; 3: the thread's, as it is inside.
    len == 0 || unsafe { copy::copy(inside.slot, to, from, len, libc::memcpy, witness) }
}

/// Returns the first bytes of the thread's buffer, which stays for its next call.
#[allow(clippy::mut_from_ref)]
fn buffer(inside: &InsideEpoch, len: usize) -> Option<&mut [u8]> {
    let mut at = inside.slot.buffer.load(Relaxed);
    if at.is_null() {
        at = reserve(GATHERED_BYTES_MAX).ok()?;
        inside.slot.buffer.store(at, Relaxed);
    }
    // SAFETY: memory of that many bytes at least, which only the thread of the slot uses, in one
    // call at a time.
    (len <= GATHERED_BYTES_MAX).then(|| unsafe { std::slice::from_raw_parts_mut(at, len) })
}
