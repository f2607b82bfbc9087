//! A device with atomic blocks in a region of arbitrary bytes: it is refused, or does what it is asked without a
//! panic, a hang or an access beyond its end.
//!
//! The first byte of the input chooses what is damaged: a formatted region's map, or all of it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pmbd::atomic::{self, Atomic, Geometry};
use pmbd::{BlockDevice, Durability, Scheme};
use pmem::{Medium as _, Region};

const BLOCK: u32 = 512;
const BLOCKS: u64 = 64;

/// Where the map begins.
const MAP_OFF: u64 = 4096;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let geometry = Geometry::of(BLOCK, BLOCKS).expect("it fits many times");
    let region = Region::anonymous(geometry.region_len()).expect("there is memory");
    atomic::format(&region, &geometry);
    let start = if choice % 4 == 0 { 0 } else { MAP_OFF };
    let len = bytes.len().min((geometry.region_len() - start) as usize);
    region.write(start, &bytes[..len]);
    let Ok(device) = Atomic::open(region, Scheme::Nt, choice % 2 == 0, false) else { return };

    let mut block = [0; BLOCK as usize];
    let blocks = device.size() / u64::from(device.block_sizes().minimum);
    let end = device.size();
    let _ = device.extents(0, end, &mut |extent| extent.off + extent.len <= end);
    for off in (0..blocks.min(BLOCKS)).map(|n| n * u64::from(BLOCK)) {
        let _ = device.read(off, &mut block);
        // What a damaged block cannot stop is that it is written anew.
        let written = device.write(off, &block, Durability::AtBarrier);
        if written.is_ok() {
            device.read(off, &mut block).expect("it was just written");
        }
    }
    let _ = device.discard(0, end);
    let _ = device.barrier();
});
