//! A device with atomic blocks in a region of arbitrary bytes: it is refused, or does what it is
//! asked.

use pmbd::atomic::{self, Atomic, Geometry};
use pmbd::{BlockDevice, Durability, Scheme};
use pmem::{Medium as _, Region};

const BLOCK: u32 = 512;
const BLOCKS: u64 = 64;

/// Where the map begins.
const MAP_OFF: u64 = 4096;

/// Opens and uses a device in a damaged region. The first byte chooses where the rest overwrites a
/// formatted region: from its start, or from its map on.
pub fn atomic(bytes: &[u8]) {
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
        // A damaged block can always be written again.
        if device.write(off, &block, Durability::AtBarrier).is_ok() {
            device.read(off, &mut block).expect("it was just written");
        }
    }
    let _ = device.discard(0, end);
    let _ = device.barrier();
}

/// Returns inputs that leave the first 8 KiB of a region, or its map, as formatted.
pub fn seeds() -> Vec<Vec<u8>> {
    let geometry = Geometry::of(BLOCK, BLOCKS).expect("it fits many times");
    let region = Region::anonymous(geometry.region_len()).expect("there is memory");
    atomic::format(&region, &geometry);
    let mut bytes = vec![0; 8192];
    region.read(0, &mut bytes);
    let map = bytes[MAP_OFF as usize..].to_vec();
    [(0, &bytes), (1, &map), (2, &map), (3, &map)]
        .map(|(choice, bytes)| [&[choice][..], bytes].concat())
        .to_vec()
}
