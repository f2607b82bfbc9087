//! A medium that shows the bytes that redo records would store, for checks of a pool that must not
//! change it.

use pmem::{Counters, Domain, Fenced, Medium, PmOff};
use std::collections::BTreeMap;

/// A medium that shows other values of some bytes. Nothing can be stored.
pub struct Overlay<'m, M> {
    below: &'m M,
    bytes: BTreeMap<u64, u8>,
}

impl<'m, M: Medium> Overlay<'m, M> {
    /// Creates a view of `below` with these bytes in these places.
    pub fn new(below: &'m M, pieces: impl IntoIterator<Item = (PmOff, Vec<u8>)>) -> Self {
        let bytes = pieces.into_iter().flat_map(|(at, bytes)| (at.get()..).zip(bytes));
        Self { below, bytes: bytes.collect() }
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
        for (at, byte) in self.bytes.range(off..end) {
            buf[(at - off) as usize] = *byte;
        }
    }
    fn load_u64(&self, off: u64) -> u64 {
        let mut word = self.below.load_u64(off).to_le_bytes();
        for (at, byte) in self.bytes.range(off..off + 8) {
            word[(at - off) as usize] = *byte;
        }
        u64::from_le_bytes(word)
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
    fn bytes_are_seen_in_every_way() {
        let region = Region::anonymous(1 << 16).unwrap();
        region.write(0, &[7; 4096]);
        let pieces = [(64, vec![0; 8]), (80, vec![255; 9])];
        let view = Overlay::new(&region, pieces.map(|(at, bytes)| (PmOff::new(at), bytes)));
        assert_eq!(
            [64, 72, 80, 88].map(|at| view.load_u64(at)),
            [0, 0x0707_0707_0707_0707, u64::MAX, 0x0707_0707_0707_07ff]
        );
        let mut buf = [1; 20];
        view.read(66, &mut buf);
        assert_eq!(buf, [0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 255, 255, 255, 255, 255, 255]);
        assert!(view.equals(63, &[7, 0, 0]) && !view.equals(63, &[7, 7]));
    }
}
