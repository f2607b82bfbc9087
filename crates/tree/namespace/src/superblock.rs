//! The superblock, the first block of every pool: a description of the pool, and the place of its
//! inodes.

use crate::derived::whole_units;
use crate::layout::{BLOCK, BlockNo, InodeRecord, STATE_NAMES_ABSENT};
use crate::tables::PoolLength;
use pmem::{Fenced, Medium, Pm, PmOff};
use pool::{Error, FormatOptions, LABEL_MAX, PoolInfo};
use std::mem::offset_of;
use vfs::{Ino, ROOT, Timestamp};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The place of the word that leads to the inodes.
pub const INODE_ROOT: PmOff = PmOff::new(64);
/// The place of the size of all inodes in bytes: behind it in its line.
pub const INODE_SIZE: PmOff = PmOff::new(72);
/// The place of the word that records how the pool was last used, in the same line; the engine
/// defines its meaning. It exists only if the format has it ([`Format::usage_since`]).
pub const POOL_USAGE: PmOff = PmOff::new(80);

/// The place of the word with the size of a pool that was resized, in the same line.
pub const POOL_RESIZED: PmOff = PmOff::new(88);

/// The place of the word that tells that files may share blocks, in the same line.
pub const POOL_SHARED: PmOff = PmOff::new(96);

/// The place of the word that tells that the pool has a table of snapshots: the one behind it.
pub const POOL_SNAPSHOTS: PmOff = PmOff::new(104);

/// The place of the word that leads to the directory of branches: the one behind it.
pub const POOL_BRANCHES: PmOff = PmOff::new(112);

/// The place of the word with the size of a pool that can get another size while it is used
/// (`Superblock::size_word`): the one behind it.
pub const POOL_SIZE: PmOff = PmOff::new(120);

/// Block 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Superblock {
    /// [`Format::magic`].
    pub magic: [u8; 8],
    /// [`Format::version`].
    pub version: U32,
    /// [`BLOCK`].
    pub block_bytes: U32,
    /// Blocks in the region, block 0 included.
    pub blocks: U64,
    /// Creation, ns since 1970.
    pub created_ns: U64,
    /// Identity of the pool.
    pub uuid: [u8; 16],
    /// FNV-1a of all fields except the place and size of the inodes, the last usage, the new size,
    /// the sharing of blocks, the table of snapshots, the branches and the size, computed with this
    /// field zero.
    pub checksum: U64,
    /// Properties: bits of `flags`.
    pub flags: U64,
    /// The place of the inodes; the engine defines its meaning.
    pub inode_root: U64,
    /// Size of all inodes in bytes.
    pub inode_size: U64,
    /// How the pool was last used, if the format records that; else zero.
    pub usage: U64,
    /// The number of blocks since the pool was resized ([`Superblock::resized_word`]); 0: never.
    pub resized: U64,
    /// `Superblock::shared_word` if files may share blocks, else 0.
    pub shared: U64,
    /// `Superblock::snapshots_word` if the pool has a table of snapshots, else 0.
    pub snapshots: U64,
    /// `Superblock::branches_word` if the pool has a directory of branches, else 0.
    pub branches: U64,
    /// The number of blocks that the pool may take (`Superblock::size_word`), if it is
    /// resizable; else 0.
    pub size: U64,
    /// Name given by the user, padded with zeros.
    pub label: [u8; LABEL_MAX],
}

const _: () = {
    assert!(size_of::<Superblock>() == 192);
    assert!(
        offset_of!(Superblock, inode_root) as u64 == INODE_ROOT.get(),
        "it has a line of its own"
    );
    assert!(offset_of!(Superblock, inode_size) as u64 == INODE_SIZE.get());
    assert!(offset_of!(Superblock, usage) as u64 == POOL_USAGE.get());
    assert!(offset_of!(Superblock, resized) as u64 == POOL_RESIZED.get());
    assert!(offset_of!(Superblock, shared) as u64 == POOL_SHARED.get());
    assert!(offset_of!(Superblock, snapshots) as u64 == POOL_SNAPSHOTS.get());
    assert!(offset_of!(Superblock, branches) as u64 == POOL_BRANCHES.get());
    assert!(offset_of!(Superblock, size) as u64 == POOL_SIZE.get());
};

/// Bits of [`Superblock::flags`].
mod flags {
    /// The pool takes space of the file below when it needs it, and gives it back.
    pub const THIN: u64 = 1;
    /// The pool is thin, and the word at [`super::POOL_SIZE`] is its size.
    pub const RESIZABLE: u64 = 2;
    /// The place of the bits, of a resizable pool, by which its number of blocks is shifted to the
    /// right for the number that it was made for.
    pub const ROOM_SHIFT: u32 = 8;
    /// The most that these bits can be.
    pub const ROOM_MAX: u64 = 15;
    /// All bits that this program knows.
    pub const ALL: u64 = THIN | RESIZABLE | ROOM_MAX << ROOM_SHIFT;
}

/// The format of an engine's superblocks.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The name of the layout.
    pub layout: &'static str,
    /// The first bytes of a pool.
    pub magic: [u8; 8],
    /// Version of the format that new pools get.
    pub version: u32,
    /// The oldest version that can be opened.
    pub oldest: u32,
    /// The version of pools with a backing store, if the engine has those.
    pub backed: Option<u32>,
    /// The first version whose superblocks have the word at [`POOL_USAGE`].
    pub usage_since: Option<u32>,
    /// Whether files can share blocks ([`POOL_SHARED`]), and pools have snapshots
    /// ([`POOL_SNAPSHOTS`]) and branches ([`POOL_BRANCHES`]).
    pub shares: bool,
    /// Smallest and largest region, in bytes.
    pub bytes: (u64, u64),
}

/// Returns the version in the superblock of a pool, which was loaded before.
pub fn version(medium: &Pm<impl Medium>) -> u32 {
    medium.load_u64(VERSION) as u32
}

/// Returns whether the pool takes space of the file below when it needs it, and gives it back. Its
/// superblock was loaded before.
pub fn is_thin(medium: &Pm<impl Medium>) -> bool {
    medium.load_u64(FLAGS) & flags::THIN != 0
}

/// Returns the number of blocks that the pool may take, if it is resizable. Its superblock was
/// loaded before.
pub fn size_in_blocks(medium: &Pm<impl Medium>) -> Option<u64> {
    let is_resizable = medium.load_u64(FLAGS) & flags::RESIZABLE != 0;
    is_resizable.then(|| medium.load_u64(POOL_SIZE) & LOW_HALF)
}

/// Returns the word at [`POOL_SIZE`] of a resizable pool that may take this number of blocks.
pub fn size_word(medium: &Pm<impl Medium>, blocks: u64) -> u64 {
    superblock(medium).size_word(blocks)
}

/// Returns the superblock of a pool, which was loaded before.
fn superblock(medium: &Pm<impl Medium>) -> Superblock {
    let mut bytes = [0; size_of::<Superblock>()];
    medium.read(PmOff::new(0), &mut bytes);
    Superblock::read_from_bytes(&bytes).expect("a superblock is exactly its bytes")
}

/// Returns the word at [`POOL_SHARED`] of a pool whose files may share blocks.
pub fn shared_word(medium: &Pm<impl Medium>) -> u64 {
    superblock(medium).shared_word()
}

/// Returns the word at [`POOL_SNAPSHOTS`] of a pool with a table of snapshots.
pub fn snapshots_word(medium: &Pm<impl Medium>) -> u64 {
    superblock(medium).snapshots_word()
}

/// Returns whether the pool has a table of snapshots. Its superblock was loaded before.
pub fn may_have_snapshots(medium: &Pm<impl Medium>) -> bool {
    medium.load_u64(POOL_SNAPSHOTS) != 0
}

/// Returns whether files of the pool may share blocks. Its superblock was loaded before.
pub fn may_share(medium: &Pm<impl Medium>) -> bool {
    medium.load_u64(POOL_SHARED) != 0
}

/// Returns the word at [`POOL_BRANCHES`] of a pool whose directory of branches is this inode.
pub fn branches_word(medium: &Pm<impl Medium>, dir: Ino) -> u64 {
    superblock(medium).branches_word(dir.0)
}

/// Returns the directory of branches, if the pool has one. Its superblock was loaded before.
pub fn branches_dir(medium: &Pm<impl Medium>) -> Option<Ino> {
    let number = medium.load_u64(POOL_BRANCHES) & LOW_HALF;
    (number != 0).then_some(Ino(number))
}

/// The place of the flags.
const FLAGS: PmOff = PmOff::new(offset_of!(Superblock, flags) as u64);

/// The place of the word whose lower half is the version.
const VERSION: PmOff = PmOff::new(offset_of!(Superblock, version) as u64);

/// Computes the 64-bit FNV-1a hash.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

impl Superblock {
    /// Returns the word that gives the pool this number of blocks: the number, and in the upper
    /// half the upper half of the FNV-1a of the UUID and the number. So one word commits a new
    /// size.
    pub fn resized_word(&self, blocks: u64) -> u64 {
        self.marker(&blocks.to_le_bytes()) & !LOW_HALF | blocks & LOW_HALF
    }

    /// Returns the length of the pool.
    pub fn length(&self) -> PoolLength {
        let blocks = self.blocks.get();
        PoolLength { blocks, expected: blocks >> self.room() }
    }

    /// Returns the binary logarithm of how many times as long the pool was made as its first size.
    fn room(&self) -> u64 {
        self.flags.get() >> flags::ROOM_SHIFT & flags::ROOM_MAX
    }

    /// Returns the number of blocks that the pool may take.
    pub fn size_in_blocks(&self) -> u64 {
        if self.is_resizable() { self.size.get() & LOW_HALF } else { self.blocks.get() }
    }

    /// Returns whether the pool can get another size while it is used.
    pub fn is_resizable(&self) -> bool {
        self.flags.get() & flags::RESIZABLE != 0
    }

    /// Returns the word of a resizable pool that may take this number of blocks, which is in the
    /// lower half. The upper half is the one of the FNV-1a of the UUID, the number in four bytes,
    /// and `SIZE`.
    fn size_word(&self, blocks: u64) -> u64 {
        self.numbered_word(blocks, b"SIZE")
    }

    /// Returns the word of a pool whose directory of branches is the inode of this number, which is
    /// in the lower half. The upper half is the one of the FNV-1a of the UUID, the number in four
    /// bytes, and `BRAN`.
    fn branches_word(&self, number: u64) -> u64 {
        self.numbered_word(number, b"BRAN")
    }

    /// Returns the word with this number in the lower half, and in the upper half the one of the
    /// FNV-1a of the UUID, the number in four bytes, and the tag.
    fn numbered_word(&self, number: u64, tag: &[u8; 4]) -> u64 {
        let mut what = [0; 8];
        what[..4].copy_from_slice(&(number as u32).to_le_bytes());
        what[4..].copy_from_slice(tag);
        self.marker(&what) & !LOW_HALF | number & LOW_HALF
    }

    /// Returns the word of a pool whose files may share blocks: the FNV-1a of the UUID and
    /// `SHARED`.
    fn shared_word(&self) -> u64 {
        self.marker(b"SHARED\0\0")
    }

    /// Returns the word of a pool with a table of snapshots, which may share leaves of its inode
    /// file: the FNV-1a of the UUID and `SNAPLEAF`.
    fn snapshots_word(&self) -> u64 {
        self.marker(b"SNAPLEAF")
    }

    /// Returns the word of a pool whose snapshots share no leaves, as programs from before made
    /// them: the FNV-1a of the UUID and `SNAPSHOT`.
    fn old_snapshots_word(&self) -> u64 {
        self.marker(b"SNAPSHOT")
    }

    /// Returns the FNV-1a of the UUID and these bytes.
    fn marker(&self, what: &[u8; 8]) -> u64 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.uuid);
        bytes[16..].copy_from_slice(what);
        fnv1a(&bytes)
    }
}

fn check_label(label: &str) -> Result<(), Error> {
    match label.len() {
        0..=LABEL_MAX => Ok(()),
        _ => Err(Error::Unformattable(format!("a label has at most {LABEL_MAX} bytes"))),
    }
}

/// The bits of [`Superblock::resized`] and [`Superblock::size`] with the number of blocks, and of
/// [`Superblock::branches`] with the number of an inode.
const LOW_HALF: u64 = u32::MAX as u64;

impl Format {
    /// Returns whether pools of a version record how they were last used.
    pub fn has_usage(&self, version: u32) -> bool {
        self.usage_since.is_some_and(|since| since <= version)
    }

    /// Computes the checksum of a superblock without the fields that change later.
    fn checksum(&self, sb: &Superblock) -> u64 {
        let mut s = *sb;
        s.checksum.set(0);
        s.inode_root.set(0);
        s.inode_size.set(0);
        s.resized.set(0);
        s.shared.set(0);
        s.snapshots.set(0);
        s.branches.set(0);
        s.size.set(0);
        if self.has_usage(sb.version.get()) {
            s.usage.set(0);
        }
        fnv1a(s.as_bytes())
    }

    /// Loads and checks the superblock of a pool. Its number of blocks is the current one.
    ///
    /// # Errors
    /// [`Error::NotAPool`], [`Error::Unusable`].
    pub fn load(&self, medium: &impl Medium) -> Result<Superblock, Error> {
        let none = |why: &str| Err(Error::NotAPool(why.to_owned()));
        let unusable = |why: &str| Err(Error::Unusable(why.to_owned()));
        let (least, most) = self.bytes;
        if medium.len() < least {
            return none(&format!("the region has {} bytes, too few for a pool", medium.len()));
        }
        let mut bytes = [0; size_of::<Superblock>()];
        medium.read(0, &mut bytes);
        let mut sb =
            Superblock::read_from_bytes(&bytes).expect("a superblock is exactly its bytes");
        if sb.magic != self.magic {
            return none(&format!("it does not start with {}", self.magic.escape_ascii()));
        }
        let version = sb.version.get();
        let is_known =
            (self.oldest..=self.version).contains(&version) || self.backed == Some(version);
        if !is_known || u64::from(sb.block_bytes.get()) != BLOCK {
            let backed = self.backed.map(|version| format!(" (of caches {version})"));
            return unusable(&format!(
                "its format has version {} and blocks of {} bytes, this program knows version {}{} and {BLOCK}; \
                 copy its files with the program that made it",
                sb.version,
                sb.block_bytes,
                self.version,
                backed.unwrap_or_default()
            ));
        }
        if sb.checksum.get() != self.checksum(&sb) {
            return unusable("the checksum of the superblock does not match");
        }
        if sb.flags.get() & !flags::ALL != 0 {
            return unusable(&format!(
                "it has properties that this program does not know ({:#x})",
                sb.flags
            ));
        }
        if sb.resized.get() != 0 {
            let blocks = sb.resized.get() & LOW_HALF;
            if sb.resized.get() != sb.resized_word(blocks) {
                return unusable("the word with its new size is damaged");
            }
            sb.blocks.set(blocks);
        }
        let shares = sb.shared.get() != 0;
        if shares && (!self.shares || sb.shared.get() != sb.shared_word()) {
            return unusable("the word that tells whether files share blocks is damaged");
        }
        if shares && self.backed == Some(version) {
            return unusable("files share blocks, which they cannot with a backing store");
        }
        let snapshots = sb.snapshots.get();
        let are_known = [0, sb.snapshots_word(), sb.old_snapshots_word()].contains(&snapshots);
        if !are_known || snapshots != 0 && !shares {
            return unusable("the word that tells whether it has snapshots is damaged");
        }
        let branches = sb.branches.get();
        if branches != 0 && (snapshots == 0 || branches != sb.branches_word(branches & LOW_HALF)) {
            return unusable("the word that leads to its branches is damaged");
        }
        let blocks = sb.blocks.get();
        if !(least / BLOCK..=most / BLOCK).contains(&blocks) || blocks * BLOCK > medium.len() {
            return unusable(&format!(
                "it has {blocks} blocks, but the region has {} bytes: if the file was cut off, it \
                 must be restored from a copy",
                medium.len()
            ));
        }
        let is_room_sound = match sb.is_resizable() {
            true => sb.length().expected >= least / BLOCK,
            false => sb.room() == 0,
        };
        if !is_room_sound {
            return unusable("its length does not suit its size");
        }
        let size = sb.size_in_blocks();
        let is_size_sound = match sb.is_resizable() {
            true => sb.size.get() == sb.size_word(size) && (least / BLOCK..=blocks).contains(&size),
            false => sb.size.get() == 0,
        };
        if !is_size_sound {
            return unusable("the word with its size is damaged");
        }
        Ok(sb)
    }

    /// Returns the superblock for a copy of a pool: with another UUID, and with a label if one is
    /// given. Nothing else in a pool depends on the UUID.
    ///
    /// # Errors
    /// As [`load`](Self::load), [`Error::Unformattable`] for a label that is too long.
    pub fn superblock_of_copy(
        &self,
        medium: &impl Medium,
        label: Option<&str>,
    ) -> Result<Vec<u8>, Error> {
        self.load(medium)?;
        let mut sb = superblock(&Pm(medium));
        sb.uuid = *uuid::Uuid::new_v4().as_bytes();
        if let Some(label) = label {
            check_label(label)?;
            sb.label = [0; LABEL_MAX];
            sb.label[..label.len()].copy_from_slice(label.as_bytes());
        }
        if sb.resized.get() != 0 {
            sb.resized.set(sb.resized_word(sb.resized.get() & LOW_HALF));
        }
        if sb.shared.get() != 0 {
            sb.shared.set(sb.shared_word());
        }
        if sb.snapshots.get() != 0 {
            sb.snapshots.set(sb.snapshots_word());
        }
        if sb.branches.get() != 0 {
            sb.branches.set(sb.branches_word(sb.branches.get() & LOW_HALF));
        }
        if sb.is_resizable() {
            sb.size.set(sb.size_word(sb.size_in_blocks()));
        }
        sb.checksum.set(self.checksum(&sb));
        Ok(sb.as_bytes().to_vec())
    }

    /// Describes a pool from its superblock.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn info(&self, medium: &impl Medium) -> Result<PoolInfo, Error> {
        let sb = self.load(medium)?;
        Ok(PoolInfo {
            layout: self.layout,
            uuid: uuid::Uuid::from_bytes(sb.uuid),
            label: pool::label(&sb.label),
            version: sb.version.get(),
            size_bytes: sb.size_in_blocks() * BLOCK,
            max_size_bytes: sb.is_resizable().then(|| sb.blocks.get() * BLOCK),
            created_ns: sb.created_ns.get(),
            block_bytes: sb.block_bytes.get(),
            has_backing_store: self.backed == Some(sb.version.get()),
            is_thin: sb.flags.get() & flags::THIN != 0,
        })
    }

    /// Formats a region with an empty root directory. The region's previous content is lost. The
    /// inodes are in the block at `inodes`, which the word `inode_root` names; each has
    /// `inode_bytes`. Bytes between the superblock and that block are zeros.
    ///
    /// The magic is the commit: it is cleared first and stored last, so that an interrupted format
    /// leaves no pool rather than half of one.
    ///
    /// # Errors
    /// [`Error::Unformattable`].
    pub fn write(
        &self,
        medium: &impl Medium,
        options: &FormatOptions,
        (inodes, inode_bytes): (BlockNo, u64),
        inode_root: u64,
    ) -> Result<PoolInfo, Error> {
        let (least, most) = self.bytes;
        let blocks = medium.len().min(most) / BLOCK;
        if medium.len() < least {
            return Err(Error::Unformattable(format!(
                "a pool needs at least {least} bytes, the region has {}",
                medium.len()
            )));
        }
        check_label(&options.label)?;
        let size = options.size.map(whole_units);
        if size.is_some_and(|size| !options.is_thin || !(least / BLOCK..=blocks).contains(&size)) {
            return Err(Error::Unformattable(format!(
                "the size of a thin pool in this region is between {least} and {} bytes",
                blocks * BLOCK
            )));
        }
        let version = match (options.is_backed, self.backed) {
            (false, _) => self.version,
            (true, Some(backed)) => backed,
            (true, None) => {
                let what = format!("a pool of {} has no backing store", self.layout);
                return Err(Error::Unformattable(what));
            }
        };
        if let Err(err) = medium.provision(0, inodes.at(BLOCK).get()) {
            return Err(Error::Unformattable(format!("there is no space for its start: {err}")));
        }
        let _ = medium.publish(0, 0, Fenced::not_needed("without a magic there is no pool"));

        let now = Timestamp::now().0;
        let mut root = InodeRecord::born(now);
        root.mode.set(vfs::FileKind::Dir.mode_bits() | 0o755);
        root.uid.set(options.owner.0);
        root.gid.set(options.owner.1);
        if options.is_backed {
            root.state.set(STATE_NAMES_ABSENT);
        }
        medium.zero_nt(0, inodes.at(BLOCK).get());
        // The following stores go to the same lines through the cache.
        let _ = medium.fence();
        let root_at = inodes.at(ROOT.0 * inode_bytes).get();
        medium.write(root_at, root.as_bytes());
        medium.flush(root_at, size_of::<InodeRecord>() as u64);

        let mut sb = Superblock::new_zeroed();
        sb.version.set(version);
        sb.block_bytes.set(BLOCK as u32);
        sb.blocks.set(blocks);
        sb.created_ns.set(now as u64);
        sb.uuid = *uuid::Uuid::new_v4().as_bytes();
        sb.label[..options.label.len()].copy_from_slice(options.label.as_bytes());
        let mut flags = if options.is_thin { flags::THIN } else { 0 };
        if let Some(size) = size {
            let room = u64::from((blocks / size).ilog2()).min(flags::ROOM_MAX);
            flags |= flags::RESIZABLE | room << flags::ROOM_SHIFT;
            sb.size.set(sb.size_word(size));
        }
        sb.flags.set(flags);
        sb.magic = self.magic;
        sb.checksum.set(self.checksum(&sb));
        sb.inode_root.set(inode_root);
        sb.inode_size.set(BLOCK);
        medium.write(8, &sb.as_bytes()[8..]);
        medium.flush(0, BLOCK);
        let ready = medium.fence();
        let _ = medium.publish(0, u64::from_le_bytes(self.magic), ready);
        self.info(medium)
    }
}
