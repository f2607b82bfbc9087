//! Formatting a region, and deriving state from its map when it is opened.

use super::layout::{BadWord, Geometry, MAP_AT, MapWord, Superblock, WORD};
use super::space::Space;
use arena::Arena;
use pmem::{Medium, Pm, PmOff};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// The offset of the superblock.
const SUPERBLOCK: PmOff = PmOff::new(0);
/// Words of the map read at once.
const STEP: u64 = 512;

/// Formats a region as one device of atomic blocks. A crash leaves the old content, or a region
/// that is refused, or the new device, all zeros. On return the new device is durable.
pub fn format(medium: &impl Medium, geometry: &Geometry) {
    let medium = Pm(medium);
    let sb = geometry.superblock();
    let sb = sb.as_bytes();
    // The map may change only after the old superblock is durably gone.
    let ready = medium.fence();
    let _ = medium.publish(SUPERBLOCK, 0, ready);
    medium.zero_nt(MAP_AT, geometry.blocks * WORD);
    // The rest of the superblock is in one line with the magic. So it becomes durable before the
    // magic, and is flushed with it.
    medium.write(SUPERBLOCK + 8, &sb[8..]);
    let ready = medium.fence();
    let magic = u64::read_from_bytes(&sb[..8]).expect("8 bytes");
    let _ = medium.publish(SUPERBLOCK, magic, ready);
}

/// Reads the superblock, without a check.
pub(crate) fn superblock(medium: &impl Medium) -> Superblock {
    let mut bytes = [0; size_of::<Superblock>()];
    if medium.len() >= bytes.len() as u64 {
        Pm(medium).read(SUPERBLOCK, &mut bytes);
    }
    Superblock::read_from_bytes(&bytes).expect("as many bytes")
}

/// Makes superblock and map durable: a process that stored to them may have been killed before it
/// flushed. No state may be derived from them before.
pub(super) fn persist(medium: &impl Medium, geometry: &Geometry) {
    let medium = Pm(medium);
    medium.flush(SUPERBLOCK, size_of::<Superblock>() as u64);
    medium.flush(MAP_AT, geometry.blocks * WORD);
    let _ = medium.fence();
}

/// Derives the data blocks in use, and checks each word. It must name a data block that no other
/// word names, or be [`MapWord::LOST`] or zero. Returns whether all words are correct.
pub(super) fn derive(
    medium: &impl Medium,
    geometry: &Geometry,
    arena: &Arena,
    space: &Space,
) -> bool {
    space.init(arena);
    let (mut sound, mut lost) = (true, 0);
    let mut bytes = [0; (STEP * WORD) as usize];
    for first in (0..geometry.blocks).step_by(STEP as usize) {
        let n = STEP.min(geometry.blocks - first);
        let bytes = &mut bytes[..(n * WORD) as usize];
        Pm(medium).read(geometry.word_at(first), bytes);
        for word in bytes.chunks_exact(WORD as usize) {
            let word = u64::read_from_bytes(word).expect("8 bytes");
            match MapWord::unpack(word, geometry) {
                Ok(None) => {}
                Ok(Some(MapWord { number, .. })) => sound &= space.take(arena, number),
                Err(BadWord) if word == MapWord::LOST => lost += 1,
                Err(BadWord) => sound = false,
            }
        }
    }
    if lost > 0 {
        tracing::warn!(
            "the content of {lost} blocks is lost: reading them fails until they are written"
        );
    }
    sound
}
