//! Formatting a region, and what is derived from its map when it is opened.

use super::layout::{Geometry, MAP_OFF, MapWord, Superblock, WORD};
use super::space::Space;
use crate::Error;
use arena::Arena;
use pmem::Medium;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Words of the map read at once.
const STEP: u64 = 512;

/// Formats a region as one device of atomic blocks. A crash leaves what was there, or a region that is
/// refused, or the new device, all zeros; when this has returned, the new device.
pub fn format(medium: &impl Medium, geometry: &Geometry) {
    let sb = geometry.superblock();
    let sb = sb.as_bytes();
    // The map may only change when nobody takes it for that of the old superblock any more.
    let ready = medium.fence();
    let _ = medium.publish(0, 0, ready);
    medium.zero_nt(MAP_OFF, geometry.blocks * WORD);
    // In one line with the magic, it is durable before that is, and flushed with it.
    medium.write(8, &sb[8..]);
    let ready = medium.fence();
    let magic = u64::read_from_bytes(&sb[..8]).expect("8 bytes");
    let _ = medium.publish(0, magic, ready);
}

/// What is where a superblock would be.
pub(crate) fn superblock(medium: &impl Medium) -> Superblock {
    let mut bytes = [0; size_of::<Superblock>()];
    if medium.len() >= bytes.len() as u64 {
        medium.read(0, &mut bytes);
    }
    Superblock::read_from_bytes(&bytes).expect("as many bytes")
}

/// Derives which blocks are in use, and checks each word: it names a data block, which no other word names.
pub(super) fn derive(
    medium: &impl Medium,
    geometry: &Geometry,
    arena: &Arena,
    space: &Space,
) -> Result<(), Error> {
    space.init(arena);
    let mut bytes = [0; (STEP * WORD) as usize];
    for first in (0..geometry.blocks).step_by(STEP as usize) {
        let n = STEP.min(geometry.blocks - first);
        let bytes = &mut bytes[..(n * WORD) as usize];
        medium.read(geometry.word_off(first), bytes);
        for (block, word) in (first..).zip(bytes.chunks_exact(WORD as usize)) {
            let word = u64::read_from_bytes(word).expect("8 bytes");
            let entry = MapWord::unpack(word, geometry).map_err(|_| bad_word(block, word))?;
            if let Some(MapWord { number, .. }) = entry
                && !space.take(arena, number)
            {
                let what = format!("block {block} and another one have data block {number}");
                return Err(Error::Corrupt { what });
            }
        }
    }
    Ok(())
}

/// The error for a word that names no data block.
pub(super) fn bad_word(block: u64, word: u64) -> Error {
    Error::Corrupt { what: format!("the word of block {block}, {word:#018x}, names no data block") }
}
