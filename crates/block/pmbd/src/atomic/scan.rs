//! Formatting a region, and what is derived from its map when it is opened.

use super::layout::{BadWord, Geometry, MAP_AT, MapWord, Superblock, WORD};
use super::space::Space;
use arena::Arena;
use pmem::{Medium, Pm, PmOff};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Where the superblock lies.
const SUPERBLOCK: PmOff = PmOff::new(0);
/// Words of the map read at once.
const STEP: u64 = 512;

/// Formats a region as one device of atomic blocks. A crash leaves what was there, or a region that is
/// refused, or the new device, all zeros; when this has returned, the new device.
pub fn format(medium: &impl Medium, geometry: &Geometry) {
    let medium = Pm(medium);
    let sb = geometry.superblock();
    let sb = sb.as_bytes();
    // The map may only change when nobody takes it for that of the old superblock any more.
    let ready = medium.fence();
    let _ = medium.publish(SUPERBLOCK, 0, ready);
    medium.zero_nt(MAP_AT, geometry.blocks * WORD);
    // In one line with the magic, it is durable before that is, and flushed with it.
    medium.write(SUPERBLOCK + 8, &sb[8..]);
    let ready = medium.fence();
    let magic = u64::read_from_bytes(&sb[..8]).expect("8 bytes");
    let _ = medium.publish(SUPERBLOCK, magic, ready);
}

/// What is where a superblock would be.
pub(crate) fn superblock(medium: &impl Medium) -> Superblock {
    let mut bytes = [0; size_of::<Superblock>()];
    if medium.len() >= bytes.len() as u64 {
        Pm(medium).read(SUPERBLOCK, &mut bytes);
    }
    Superblock::read_from_bytes(&bytes).expect("as many bytes")
}

/// Makes durable what the region says: who stored it may have been killed before flushing it. Nothing that
/// superblock or map say may be built on before.
pub(super) fn persist(medium: &impl Medium, geometry: &Geometry) {
    let medium = Pm(medium);
    medium.flush(SUPERBLOCK, size_of::<Superblock>() as u64);
    medium.flush(MAP_AT, geometry.blocks * WORD);
    let _ = medium.fence();
}

/// Derives which blocks are in use, and checks each word: it names a data block, which no other word names, or
/// says that the content is lost. Returns whether all do.
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
