//! The extents of a device with and without data, in the form of the protocol.

use crate::wire::{STATE_HOLE, STATE_ZERO};
use pmbd::{BlockDevice, DeviceExtent};

/// The length and state of an extent, which follows the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyStatus {
    /// Bytes, not zero.
    pub len: u64,
    /// [`STATE_HOLE`], [`STATE_ZERO`]
    pub flags: u32,
}

/// Lists the extents of `len` bytes from `off`: at most `most`, each with a state different from
/// its neighbours'. If there are more, the list ends before the range does.
pub(crate) fn list(
    device: &dyn BlockDevice,
    off: u64,
    len: u64,
    most: usize,
) -> Result<Vec<ReplyStatus>, pmbd::Error> {
    let mut list: Vec<ReplyStatus> = Vec::new();
    let (mut at, end) = (off, off + len);
    device.extents(off, len, &mut |extent| {
        let flags = flags(&extent);
        // A device may report an extent beyond the requested range.
        let extent_end = (extent.off + extent.len).min(end);
        let len = extent_end.saturating_sub(at);
        at = at.max(extent_end);
        match list.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.flags == flags => last.len += len,
            _ => list.push(ReplyStatus { len, flags }),
        }
        // An extent beyond `most` shows that the one before it is complete.
        list.len() <= most
    })?;
    list.truncate(most);
    if list.is_empty() {
        // "Data" is a correct state for any extent.
        list.push(ReplyStatus { len, flags: 0 });
    }
    Ok(list)
}

/// Returns the flags of `base:allocation` for an extent.
fn flags(extent: &DeviceExtent) -> u32 {
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
