//! A region that reports accesses to an observer. Offsets and lengths are in bytes of the region.

use pmem::{Counters, Domain, Fenced, Line, Medium, Region};

/// An observer, called before each access.
pub trait Watch: Send + Sync {
    /// Notes a read of bytes, or any store; not the load of a word or a comparison.
    fn bytes(&self) {}
    /// Notes a range that is read: bytes, a word or a comparison; not the source of a copy.
    fn load(&self, _off: u64, _len: u64) {}
    /// Notes a flush.
    fn flush(&self, off: u64, len: u64);
    /// Notes a fence.
    fn fence(&self);
}

/// A region with an observer of its accesses.
pub struct Watched<W> {
    /// The region.
    pub region: Region,
    /// The observer.
    pub watch: W,
}

impl<W: Watch> Medium for Watched<W> {
    fn len(&self) -> u64 {
        self.region.len()
    }
    fn domain(&self) -> Domain {
        self.region.domain()
    }
    fn counters(&self) -> &Counters {
        self.region.counters()
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.watch.bytes();
        self.watch.load(off, buf.len() as u64);
        self.region.read(off, buf);
    }
    fn load_u64(&self, off: u64) -> u64 {
        self.watch.load(off, 8);
        self.region.load_u64(off)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.watch.load(off, bytes.len() as u64);
        self.region.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.watch.bytes();
        self.region.write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.watch.bytes();
        self.region.write_nt(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.watch.bytes();
        self.region.copy_nt(dst, src, len);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.watch.bytes();
        self.region.zero_nt(off, len);
    }
    fn store_u64(&self, off: u64, value: u64) {
        self.watch.bytes();
        self.region.store_u64(off, value);
    }
    fn stores_lines(&self) -> bool {
        self.region.stores_lines()
    }
    fn store_line(&self, off: u64, line: &Line) {
        self.watch.bytes();
        self.region.store_line(off, line);
    }
    fn flush(&self, off: u64, len: u64) {
        self.watch.flush(off, len);
        self.region.flush(off, len);
    }
    fn fence(&self) -> Fenced {
        self.watch.fence();
        self.region.fence()
    }
}
