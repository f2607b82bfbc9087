//! A borrowed or shared medium that knows the callers of loads.
//!
//! [`pmem::Medium`] promises the caller's line only for accesses that change or order memory.
//! Engines that are mounted on this medium also give it for loads, so that [`crate::lint`] can name
//! them.

use pmem::{Counters, Domain, Fenced, Line, Medium};
use std::ops::Deref;

/// The medium that `P` points to.
#[derive(Debug)]
pub struct Sited<P>(pub P);

impl<P: Deref<Target: Medium> + Send + Sync> Medium for Sited<P> {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn domain(&self) -> Domain {
        self.0.domain()
    }
    fn counters(&self) -> &Counters {
        self.0.counters()
    }
    #[track_caller]
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.0.read(off, buf);
    }
    #[track_caller]
    fn load_u64(&self, off: u64) -> u64 {
        self.0.load_u64(off)
    }
    #[track_caller]
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.0.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.0.write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.0.write_nt(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.0.copy_nt(dst, src, len);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.0.zero_nt(off, len);
    }
    fn store_u64(&self, off: u64, value: u64) {
        self.0.store_u64(off, value);
    }
    fn stores_lines(&self) -> bool {
        self.0.stores_lines()
    }
    fn store_line(&self, off: u64, line: &Line) {
        self.0.store_line(off, line);
    }
    fn flush(&self, off: u64, len: u64) {
        self.0.flush(off, len);
    }
    fn fence(&self) -> Fenced {
        self.0.fence()
    }
}
