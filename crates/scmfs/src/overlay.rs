//! A medium with the words that the redo journal would store: for those who look at a pool and may not change it.

use crate::journal;
use pmem::{Counters, Domain, Fenced, Medium, Pm};
use std::collections::BTreeMap;

/// A medium that shows other values of some words. Nothing can be stored.
pub struct Overlay<'m, M> {
    below: &'m M,
    words: BTreeMap<u64, u64>,
}

impl<'m, M: Medium> Overlay<'m, M> {
    /// With what the journal of a pool of so many bytes says.
    pub fn new(below: &'m M, pool_bytes: u64) -> Self {
        let pending = journal::pending(&Pm(below), pool_bytes);
        let words = pending.into_iter().flat_map(|(_, words)| words);
        Self { below, words: words.map(|(at, value)| (at.get(), value)).collect() }
    }
}

impl<M: Medium> Medium for Overlay<'_, M> {
    fn len(&self) -> u64 {
        self.below.len()
    }
    fn is_lost(&self) -> bool {
        self.below.is_lost()
    }
    fn domain(&self) -> Domain {
        self.below.domain()
    }
    fn counters(&self) -> &Counters {
        self.below.counters()
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.below.read(off, buf);
        let end = off + buf.len() as u64;
        for (at, value) in self.words.range(off.saturating_sub(7)..end) {
            for (i, byte) in (*at..).zip(value.to_le_bytes()) {
                if (off..end).contains(&i) {
                    buf[(i - off) as usize] = byte;
                }
            }
        }
    }
    fn load_u64(&self, off: u64) -> u64 {
        self.words.get(&off).copied().unwrap_or_else(|| self.below.load_u64(off))
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        let mut own = vec![0; bytes.len()];
        self.read(off, &mut own);
        own == bytes
    }
    fn write(&self, off: u64, _data: &[u8]) {
        unreachable!("store at {off} through a view");
    }
    fn write_nt(&self, off: u64, _data: &[u8]) {
        unreachable!("store at {off} through a view");
    }
    fn copy_nt(&self, dst: u64, _src: u64, _len: u64) {
        unreachable!("store at {dst} through a view");
    }
    fn zero_nt(&self, off: u64, _len: u64) {
        unreachable!("store at {off} through a view");
    }
    fn store_u64(&self, off: u64, _value: u64) {
        unreachable!("store at {off} through a view");
    }
    fn flush(&self, off: u64, len: u64) {
        self.below.flush(off, len);
    }
    fn fence(&self) -> Fenced {
        self.below.fence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::Region;

    #[test]
    fn words_are_seen_in_every_way() {
        let region = Region::anonymous(1 << 16).unwrap();
        region.write(0, &[7; 4096]);
        let view = Overlay { below: &region, words: BTreeMap::from([(64, 0), (80, u64::MAX)]) };
        assert_eq!(
            (view.load_u64(64), view.load_u64(72), view.load_u64(80)),
            (0, 0x0707_0707_0707_0707, u64::MAX)
        );
        let mut buf = [1; 20];
        view.read(66, &mut buf);
        assert_eq!(buf, [0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 255, 255, 255, 255, 255, 255]);
        assert!(view.equals(63, &[7, 0, 0]) && !view.equals(63, &[7, 7]));
    }
}
