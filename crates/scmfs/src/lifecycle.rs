//! A pool as a whole: format, describe, check.

use crate::LAYOUT;
use crate::fs::Files;
use crate::layout::*;
use crate::overlay::Overlay;
use namespace::layout::InodeRecord;
use pmem::Medium;
use pool::{CheckOptions, CheckReport, Error, FormatOptions, LABEL_MAX, PoolInfo};
use vfs::{ROOT, Timestamp};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn checksum(sb: &Superblock) -> u64 {
    let mut s = *sb;
    s.checksum.set(0);
    s.inode_map.set(0);
    s.inode_size.set(0);
    fnv1a(s.as_bytes())
}

pub fn load_superblock(medium: &impl Medium) -> Result<Superblock, Error> {
    let none = |why: &str| Err(Error::NotAPool(why.to_owned()));
    let unusable = |why: &str| Err(Error::Unusable(why.to_owned()));
    if medium.len() < POOL_MIN {
        return none(&format!("the region has {} bytes, too few for a pool", medium.len()));
    }
    let mut bytes = [0; size_of::<Superblock>()];
    medium.read(0, &mut bytes);
    let sb = Superblock::read_from_bytes(&bytes).expect("a superblock is exactly its bytes");
    if sb.magic != MAGIC {
        return none("it does not start with KSTNSCMF");
    }
    if sb.version.get() != VERSION || u64::from(sb.block_bytes.get()) != BLOCK {
        return unusable(&format!(
            "its format has version {} and blocks of {} bytes, this program knows version {VERSION} and \
             {BLOCK}; copy its files with the program that made it",
            sb.version, sb.block_bytes
        ));
    }
    if sb.checksum.get() != checksum(&sb) {
        return unusable("the checksum of the superblock does not match");
    }
    let blocks = sb.blocks.get();
    if !(POOL_MIN / BLOCK..=POOL_MAX / BLOCK).contains(&blocks) || blocks * BLOCK > medium.len() {
        return unusable(&format!(
            "it was formatted with {blocks} blocks, but the region has {} bytes: if the file was cut off, it \
             must be restored from a copy",
            medium.len()
        ));
    }
    Ok(sb)
}

/// Formats a region: an empty root directory and nothing else. What the region held is lost.
///
/// The magic is the commit: it is cleared first and stored last, so that an interrupted format
/// leaves no pool rather than half of one.
pub fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error> {
    let blocks = medium.len().min(POOL_MAX) / BLOCK;
    if medium.len() < POOL_MIN {
        return Err(Error::Unformattable(format!(
            "a pool needs at least {POOL_MIN} bytes, the region has {}",
            medium.len()
        )));
    }
    if options.label.len() > LABEL_MAX {
        return Err(Error::Unformattable(format!("a label has at most {LABEL_MAX} bytes")));
    }
    medium.store_u64(0, 0);
    medium.flush(0, 8);
    let _ = medium.fence();

    let now = Timestamp::now().0;
    let mut root = InodeRecord::born(now);
    root.mode.set(vfs::FileKind::Dir.mode_bits() | 0o755);
    root.uid.set(options.owner.0);
    root.gid.set(options.owner.1);
    let inodes = Run { start: FIRST_BLOCK, count: 1 };
    let root_at = inodes.at(ROOT.0 * INODE);
    medium.zero_nt(0, inodes.at(BLOCK));
    // The stores that follow go to the same lines through the cache.
    let _ = medium.fence();
    medium.write(root_at, root.as_bytes());
    medium.flush(root_at, INODE);

    let mut sb = Superblock::new_zeroed();
    sb.version.set(VERSION);
    sb.block_bytes.set(BLOCK as u32);
    sb.blocks.set(blocks);
    sb.created_ns.set(now as u64);
    sb.uuid = *uuid::Uuid::new_v4().as_bytes();
    sb.label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    sb.magic = MAGIC;
    sb.checksum.set(checksum(&sb));
    sb.inode_map.set(Map::Run(inodes).pack());
    sb.inode_size.set(BLOCK);
    medium.write(8, &sb.as_bytes()[8..]);
    medium.flush(0, BLOCK);
    let ready = medium.fence();
    let _ = medium.publish(0, u64::from_le_bytes(MAGIC), ready);
    info(medium)
}

/// Describes a pool from its superblock.
pub fn info(medium: &impl Medium) -> Result<PoolInfo, Error> {
    let sb = load_superblock(medium)?;
    Ok(PoolInfo {
        layout: LAYOUT,
        uuid: uuid::Uuid::from_bytes(sb.uuid),
        label: pool::label(&sb.label),
        version: sb.version.get(),
        size_bytes: sb.blocks.get() * BLOCK,
        created_ns: sb.created_ns.get(),
        block_bytes: sb.block_bytes.get(),
    })
}

/// Checks a pool that is not mounted, as [`namespace::check`]: with what was interrupted, finished.
///
/// # Errors
/// [`Error::NotAPool`] or [`Error::Unusable`] where there is none.
pub fn check(
    medium: &impl Medium,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CheckReport, Error> {
    if options.repair {
        return namespace::check::<Files<_>>(medium, options, progress);
    }
    let sb = load_superblock(medium)?;
    let view = Overlay::new(medium, sb.blocks.get() * BLOCK);
    namespace::check::<Files<_>>(&view, options, progress)
}
