//! The buffers of one call.
//!
//! They are not looked at before they are used: what is bad faults (direct-C2). For a pool, to which a call is one (what is written
//! is there as a whole, or not at all), several of them are gathered in a buffer of the thread's own, without an allocation.

#![allow(unsafe_code)]

use crate::copy;
use crate::epoch::Inside;
use crate::slab::reserve;
use libc::iovec;
use std::ffi::c_int;
use std::sync::atomic::Ordering::*;

/// Longer transfers are the kernel's: a call costs nothing beside them.
pub const COPY_BYTES_MAX: usize = 64 << 20;
/// Of several buffers, no more than this is gathered.
const GATHERED_BYTES_MAX: usize = 128 << 10;

/// Vectors of more parts are the kernel's.
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

    /// Whether they are few enough bytes, and some, for a call on a pool.
    #[inline]
    pub fn fit_pool(&self) -> bool {
        let most = if self.only().is_some() { COPY_BYTES_MAX } else { GATHERED_BYTES_MAX };
        self.len.wrapping_sub(1) < most
    }

    /// The one that has all of the bytes, if there is one.
    #[inline]
    pub fn only(&self) -> Option<&'p iovec> {
        match self.parts {
            [part] => Some(part),
            parts => parts.iter().find(|part| part.iov_len == self.len),
        }
    }

    /// Copies what is in them to the thread's buffer; `None` after a fault, and without memory.
    pub fn gather<'i>(&self, inside: &'i Inside) -> Option<&'i [u8]> {
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

    /// Lets `read` fill the thread's buffer, and copies as much as it says from there. `None` after a fault, and without memory;
    /// then nothing has come of it.
    pub fn scatter<E>(
        &self,
        inside: &Inside,
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

/// The buffers of a list. What is too long or cannot be read is no list: there are none, so that it is the kernel's.
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
    let is_read =
        Inside::enter().is_some_and(|inside| unsafe { copy_part(&inside, to, list.cast(), bytes) });
    Parts::new(if is_read { &room[..len] } else { &[] })
}

/// # Safety
/// 1 and 2 of [`copy::copy`].
unsafe fn copy_part(inside: &Inside, to: *mut u8, from: *const u8, len: usize) -> bool {
    let witness: *const u8 = std::ptr::from_ref(inside.slot).cast();
    // SAFETY: 1, 2: the caller's; 3: the thread's, as it is inside.
    len == 0 || unsafe { copy::copy(inside.slot, to, from, len, libc::memcpy, witness) }
}

/// The first bytes of the thread's buffer, which stays for its next call.
#[allow(clippy::mut_from_ref)]
fn buffer(inside: &Inside, len: usize) -> Option<&mut [u8]> {
    let mut at = inside.slot.buffer.load(Relaxed);
    if at.is_null() {
        at = reserve(GATHERED_BYTES_MAX).ok()?;
        inside.slot.buffer.store(at, Relaxed);
    }
    // SAFETY: memory of that many bytes at least, which only the thread of the slot uses, in one call at a time.
    (len <= GATHERED_BYTES_MAX).then(|| unsafe { std::slice::from_raw_parts_mut(at, len) })
}
