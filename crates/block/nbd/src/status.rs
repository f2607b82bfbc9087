//! Where data is, as the protocol tells it.

use crate::wire::{STATE_HOLE, STATE_ZERO};
use pmbd::{BlockDevice, Extent};

/// A length of the device, following the one before, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Bytes, not zero.
    pub len: u64,
    /// [`STATE_HOLE`], [`STATE_ZERO`]
    pub flags: u32,
}

/// What `len` bytes from `off` are, in at most `most` parts that differ from their neighbours. The
/// parts start at `off`, and end before its end if there are too many.
pub(crate) fn list(
    device: &dyn BlockDevice,
    off: u64,
    len: u64,
    most: usize,
) -> Result<Vec<Status>, pmbd::Error> {
    let mut list: Vec<Status> = Vec::new();
    let (mut at, end) = (off, off + len);
    device.extents(off, len, &mut |extent| {
        let flags = flags(&extent);
        // A device may tell of more than it was asked for.
        let extent_end = (extent.off + extent.len).min(end);
        let len = extent_end.saturating_sub(at);
        at = at.max(extent_end);
        match list.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.flags == flags => last.len += len,
            _ => list.push(Status { len, flags }),
        }
        // One too many shows that the last one that counts is complete.
        list.len() <= most
    })?;
    list.truncate(most);
    if list.is_empty() {
        // Who knows nothing may always say "data".
        list.push(Status { len, flags: 0 });
    }
    Ok(list)
}

fn flags(extent: &Extent) -> u32 {
    let hole = if extent.allocated { 0 } else { STATE_HOLE };
    let zero = if extent.zero { STATE_ZERO } else { 0 };
    hole | zero
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use pmbd::Durability;

    #[test]
    fn neighbours_differ_and_the_last_is_complete() {
        let device = MemoryDevice::new(1 << 20);
        for block in [2, 3, 4, 9] {
            device.write(block * 4096, &[1; 4096], Durability::AtBarrier).unwrap();
        }
        let hole = STATE_HOLE | STATE_ZERO;
        let found = |off: u64, len: u64, most| {
            let list = list(&*device, off * 4096, len * 4096, most).unwrap();
            list.iter().map(|s| (s.len / 4096, s.flags)).collect::<Vec<_>>()
        };
        assert_eq!(found(0, 20, 9), [(2, hole), (3, 0), (4, hole), (1, 0), (10, hole)]);
        assert_eq!(found(0, 20, 2), [(2, hole), (3, 0)]);
        assert_eq!(found(3, 1, 1), [(1, 0)]);
        assert_eq!(found(3, 4, 1), [(2, 0)]);
    }
}
