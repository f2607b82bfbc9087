//! The buffers of one call.
//!
//! Buffers are not checked before they are used: a bad one faults (direct-C2).

#![allow(unsafe_code)]

use crate::copy;
use crate::epoch::InsideEpoch;
use libc::iovec;
use std::ffi::c_int;

/// Longer transfers are the kernel's: they take so long that the call's cost does not matter.
pub const COPY_BYTES_MAX: usize = 64 << 20;

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
