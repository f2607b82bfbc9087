//! The format on the media: `docs/format/pmbd.md` in Rust.
//!
//! All numbers are little-endian. Only the map records which data block holds which block; all
//! other state is derived from it when the device is opened.

use crc_fast::CrcAlgorithm;
use pmem::PmOff;
use std::fmt;
use std::mem::offset_of;
use std::num::NonZeroU32;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first bytes of a region with atomic blocks.
pub const MAGIC: [u8; 8] = *b"KSTNPMBD";
/// Version of this format.
pub const VERSION: u32 = 1;
/// The offset of the map.
pub const MAP_AT: PmOff = PmOff::new(4096);
/// Bytes of a word of the map.
pub const WORD: u64 = 8;
/// Bytes of the smallest block, a sector.
pub const BLOCK_MIN: u32 = 512;
/// Bytes of the largest block.
pub const BLOCK_MAX: u32 = 16 << 10;
/// The number of blocks of the device per spare data block.
const SPARES: u64 = 128;
/// The fewest spare data blocks: the number that one request replaces at a time.
pub const SPARES_MIN: u64 = 32;

/// The start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`]; stored last.
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// Bytes of a block: a power of two from [`BLOCK_MIN`] to [`BLOCK_MAX`].
    pub block_bytes: U32,
    /// Blocks of the device.
    pub blocks: U64,
    /// Blocks that hold data, spares included.
    pub data_blocks: U64,
    /// Offset of data block number 1, in bytes from the start of the region; a multiple of
    /// `block_bytes`.
    pub data_off: U64,
    reserved: [u8; 20],
    /// CRC-32C of all bytes before.
    pub checksum: U32,
}

/// The number of an existing data block, from 1. [`MapWord::unpack`] checks that the number in a
/// word of the map is in bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataNo(NonZeroU32);

impl DataNo {
    /// Returns the number of the data block with this bit in the bitmap of data blocks in use.
    ///
    /// # Panics
    /// If the bit is beyond the data blocks of any device ([`Geometry::of`]).
    #[inline]
    pub(super) fn of_bit(bit: u64) -> Self {
        let number = u32::try_from(bit + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a geometry has no more data blocks"))
    }

    /// Returns its bit.
    #[inline]
    pub(super) fn bit(self) -> u64 {
        u64::from(self.0.get()) - 1
    }
}

impl fmt::Display for DataNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The layout of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block.
    pub block: u32,
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks that hold data, spares included.
    pub data_blocks: u64,
    /// Offset of the first data block.
    pub data_at: PmOff,
}

impl Geometry {
    /// Returns the layout for a device of `blocks` blocks; `None` if the numbers do not fit the
    /// format.
    pub fn of(block: u32, blocks: u64) -> Option<Self> {
        if !block.is_power_of_two() || !(BLOCK_MIN..=BLOCK_MAX).contains(&block) || blocks == 0 {
            return None;
        }
        let data_blocks = blocks.checked_add((blocks / SPARES).max(SPARES_MIN))?;
        let map_end = blocks.checked_mul(WORD)?.checked_add(MAP_AT.get())?;
        let data_at = map_end.checked_next_multiple_of(u64::from(block.max(4096)))?;
        let fits = u32::try_from(data_blocks).is_ok();
        fits.then_some(Self { block, blocks, data_blocks, data_at: PmOff::new(data_at) })
    }

    /// Returns the layout of the largest device that fits a region of `len` bytes.
    pub fn within(block: u32, len: u64) -> Option<Self> {
        let (mut fits, mut too_many) = (0, (len / u64::from(block.max(1))).min(1 << 32) + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            match Self::of(block, middle) {
                Some(geometry) if geometry.region_len() <= len => fits = middle,
                _ => too_many = middle,
            }
        }
        Self::of(block, fits)
    }

    /// Returns the bytes of the region that the device needs.
    pub fn region_len(&self) -> u64 {
        (self.data_at + self.data_blocks * u64::from(self.block)).get()
    }

    /// Returns the bytes of the device.
    pub fn device_len(&self) -> u64 {
        self.blocks * u64::from(self.block)
    }

    /// Returns the offset of the word of a block of the device.
    pub fn word_at(&self, block: u64) -> PmOff {
        MAP_AT + block * WORD
    }

    /// Returns the offset of a data block.
    pub fn data_at(&self, number: DataNo) -> PmOff {
        self.data_at + number.bit() * u64::from(self.block)
    }

    /// Returns the superblock with this layout.
    pub fn superblock(&self) -> Superblock {
        let mut sb = Superblock {
            magic: MAGIC,
            version: VERSION.into(),
            block_bytes: self.block.into(),
            blocks: self.blocks.into(),
            data_blocks: self.data_blocks.into(),
            data_off: self.data_at.get().into(),
            reserved: [0; 20],
            checksum: 0.into(),
        };
        sb.checksum = sb.sum().into();
        sb
    }
}

impl Superblock {
    fn sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..offset_of!(Superblock, checksum)])
    }

    /// Whether the region has the magic of a device with atomic blocks. Nothing else is checked.
    pub fn is_ours(&self) -> bool {
        self.magic == MAGIC
    }

    /// Checks the whole superblock, for a region of `len` bytes. The error describes the fault.
    pub fn verify(&self, len: u64) -> Result<Geometry, String> {
        if !self.is_ours() {
            return Err("it has no superblock of that kind".into());
        }
        if self.checksum.get() != self.sum() {
            return Err("the checksum of its superblock is wrong".into());
        }
        if self.version.get() != VERSION {
            return Err(format!(
                "its format has version {}; this program knows {VERSION}",
                self.version
            ));
        }
        let geometry = Geometry::of(self.block_bytes.get(), self.blocks.get())
            .filter(|g| g.superblock() == *self)
            .ok_or("its superblock contradicts itself")?;
        match geometry.region_len() <= len {
            true => Ok(geometry),
            false => Err(format!("it is {len} bytes long and was {}", geometry.region_len())),
        }
    }
}

/// Computes the CRC-32C (Castagnoli, as in iSCSI and ext4).
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A word of the map: the data block that holds the content of a block, and the checksum of the
/// content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapWord {
    /// Number of the data block, from 1.
    pub number: DataNo,
    /// CRC-32C of its content.
    pub sum: u32,
}

impl MapWord {
    /// The word of a block whose content a repair has given up: it names no data block.
    pub const LOST: u64 = 1;

    /// Returns the word to store.
    pub fn pack(self) -> u64 {
        u64::from(self.number.0.get()) << 32 | u64::from(self.sum)
    }

    /// Decodes a word. `None` is a block that was never written, or was discarded: its content is
    /// zeros.
    pub fn unpack(word: u64, geometry: &Geometry) -> Result<Option<Self>, BadWord> {
        match NonZeroU32::new((word >> 32) as u32).map(DataNo) {
            _ if word == 0 => Ok(None),
            Some(number) if number.bit() < geometry.data_blocks => {
                Ok(Some(Self { number, sum: word as u32 }))
            }
            _ => Err(BadWord),
        }
    }
}

/// A word of the map that names no data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadWord;

const _: () = {
    assert!(size_of::<Superblock>() == 64);
    assert!(offset_of!(Superblock, version) == 8);
    assert!(offset_of!(Superblock, block_bytes) == 12);
    assert!(offset_of!(Superblock, blocks) == 16);
    assert!(offset_of!(Superblock, data_blocks) == 24);
    assert!(offset_of!(Superblock, data_off) == 32);
    assert!(offset_of!(Superblock, checksum) == 60);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_device_fits_and_the_next_does_not() {
        for block in [512, 4096, 16 << 10] {
            for len in [1 << 20, (64 << 20) + 12345, 1u64 << 40] {
                let g = Geometry::within(block, len).unwrap();
                assert!(g.region_len() <= len);
                assert!(Geometry::of(block, g.blocks + 1).is_none_or(|g| g.region_len() > len));
                assert_eq!(g.superblock().verify(len), Ok(g));
                assert!(g.superblock().verify(g.region_len() - 1).is_err());
                assert_eq!(g.data_at(DataNo::of_bit(0)), g.data_at);
            }
        }
        assert_eq!(Geometry::within(4096, 4096), None);
        assert_eq!(Geometry::within(1000, 1 << 20), None);
        assert_eq!(Geometry::within(0, 1 << 20), None);
        assert_eq!(Geometry::of(4096, u64::MAX), None);
    }

    #[test]
    fn a_superblock_with_any_bit_turned_is_refused() {
        let g = Geometry::within(4096, 1 << 20).unwrap();
        for bit in 0..512 {
            let mut bytes: [u8; 64] = g.superblock().as_bytes().try_into().unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let sb = Superblock::read_from_bytes(&bytes).unwrap();
            assert!(sb.verify(1 << 20).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn words_round_trip() {
        let g = Geometry::within(512, 1 << 20).unwrap();
        let word = MapWord { number: DataNo::of_bit(6), sum: 0xffff_ffff };
        assert_eq!(MapWord::unpack(word.pack(), &g), Ok(Some(word)));
        assert_eq!(MapWord::unpack(0, &g), Ok(None));
        for bad in [1, (g.data_blocks + 1) << 32, u64::MAX] {
            assert_eq!(MapWord::unpack(bad, &g), Err(BadWord));
        }
    }
}
