//! Typed offsets in a medium: [`PmOff`], and [`Pm`], a medium whose methods take them. So the
//! compiler rejects an offset in a file, a size or a word read from PM in their place.

use crate::{Fenced, LINE, Line, Medium};
use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::AtomicU8;

/// An offset in PM: bytes from the start of the medium. The type does not state what lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PmOff(u64);

impl PmOff {
    /// Makes an offset from a number of bytes.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the bytes from the start.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of its cache line.
    #[inline]
    pub const fn line(self) -> u64 {
        self.0 / LINE
    }
}

/// Adds a number of bytes to an offset.
impl Add<u64> for PmOff {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Subtracts a number of bytes from an offset.
impl Sub<u64> for PmOff {
    type Output = Self;

    #[inline]
    fn sub(self, bytes: u64) -> Self {
        Self(self.0 - bytes)
    }
}

/// Returns the bytes between two offsets.
impl Sub for PmOff {
    type Output = u64;

    #[inline]
    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

impl fmt::LowerHex for PmOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A medium whose methods take [`PmOff`]. They are methods of [`Medium`] and add no cost. The
/// methods that are missing here are called on the medium itself.
pub struct Pm<M>(pub M);

impl<M: Medium> Pm<M> {
    /// As [`Medium::read`].
    #[inline]
    pub fn read(&self, at: PmOff, buf: &mut [u8]) {
        self.0.read(at.0, buf);
    }

    /// As [`Medium::load_u64`].
    #[inline]
    pub fn load_u64(&self, at: PmOff) -> u64 {
        self.0.load_u64(at.0)
    }

    /// As [`Medium::prefetch`].
    #[inline]
    pub fn prefetch(&self, at: PmOff, len: u64) {
        self.0.prefetch(at.0, len);
    }

    /// As [`Medium::lend`].
    #[inline]
    pub fn lend(&self, at: PmOff, len: u64) -> Option<&[AtomicU8]> {
        self.0.lend(at.0, len)
    }

    /// As [`Medium::equals`].
    #[inline]
    pub fn equals(&self, at: PmOff, bytes: &[u8]) -> bool {
        self.0.equals(at.0, bytes)
    }

    /// As [`Medium::write`].
    #[inline]
    #[track_caller]
    pub fn write(&self, at: PmOff, data: &[u8]) {
        self.0.write(at.0, data);
    }

    /// As [`Medium::write_nt`].
    #[inline]
    #[track_caller]
    pub fn write_nt(&self, at: PmOff, data: &[u8]) {
        self.0.write_nt(at.0, data);
    }

    /// As [`Medium::copy_nt`].
    #[inline]
    #[track_caller]
    pub fn copy_nt(&self, to: PmOff, from: PmOff, len: u64) {
        self.0.copy_nt(to.0, from.0, len);
    }

    /// As [`Medium::zero_nt`].
    #[inline]
    #[track_caller]
    pub fn zero_nt(&self, at: PmOff, len: u64) {
        self.0.zero_nt(at.0, len);
    }

    /// As [`Medium::store_u64`].
    #[inline]
    #[track_caller]
    pub fn store_u64(&self, at: PmOff, value: u64) {
        self.0.store_u64(at.0, value);
    }

    /// As [`Medium::stores_lines`].
    #[inline]
    pub fn stores_lines(&self) -> bool {
        self.0.stores_lines()
    }

    /// As [`Medium::publish_word`].
    #[inline]
    #[track_caller]
    pub fn publish_word(&self, at: PmOff, value: u64, ready: Fenced) {
        self.0.publish_word(at.0, value, ready);
    }

    /// As [`Medium::publish_line`].
    #[inline]
    #[track_caller]
    pub fn publish_line(&self, at: PmOff, line: &Line, ready: Fenced) {
        self.0.publish_line(at.0, line, ready);
    }

    /// As [`Medium::flush`].
    #[inline]
    #[track_caller]
    pub fn flush(&self, at: PmOff, len: u64) {
        self.0.flush(at.0, len);
    }

    /// As [`Medium::fence`].
    #[inline]
    #[track_caller]
    pub fn fence(&self) -> Fenced {
        self.0.fence()
    }

    /// As [`Medium::publish`].
    #[inline]
    #[track_caller]
    pub fn publish(&self, at: PmOff, value: u64, ready: Fenced) -> Fenced {
        self.0.publish(at.0, value, ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn a_medium_is_asked_by_places() {
        let pm = Pm(Region::anonymous(1 << 16).unwrap());
        let (at, slot) = (PmOff::new(4096), PmOff::new(64));
        pm.write_nt(at + 8, b"shadow");
        let ready = pm.fence();
        let _ = pm.publish(slot, 7, ready);
        let mut read = [0; 6];
        pm.read(at + 8, &mut read);
        assert_eq!((&read, pm.0.load_u64(64)), (b"shadow", 7));
        assert_eq!((at - slot, at - 32, format!("{at:#x}")), (4032, PmOff(4064), "0x1000".into()));
    }
}
