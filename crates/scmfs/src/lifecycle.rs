//! A pool as a whole: format, describe, mount, check.

use crate::LAYOUT;
use crate::fs::Files;
use crate::journal;
use crate::layout::*;
use crate::map::Maps;
use crate::overlay::Overlay;
use crate::store::Store;
use crate::volatile::{Plan, Volatile};
use arena::{Arena, Attached, Place};
use derived::SharedPool as _;
use namespace::layout::InodeRecord;
use namespace::{Core, Scan, ScanOptions};
use pmem::Medium;
use pool::{
    CheckOptions, CheckReport, Error, FormatOptions, LABEL_MAX, MountOptions, MountReport, PoolInfo,
};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use vfs::{ROOT, Timestamp};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn checksum(sb: &Superblock) -> u64 {
    let mut s = *sb;
    s.checksum.set(0);
    s.inode_map.set(0);
    s.inode_size.set(0);
    fnv1a(s.as_bytes())
}

fn load_superblock(medium: &impl Medium) -> Result<Superblock, Error> {
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

fn open<M: Medium>(medium: M, o: &MountOptions) -> Result<Files<M>, Error> {
    let sb = load_superblock(&medium)?;
    let mut plan = Plan::new(false, sb.blocks.get());
    let arena = Arena::anonymous(plan.layout())?;
    let (seed, secret) = random(o);
    Ok(core(medium, &sb, plan.begin(arena, seed, secret), o))
}

fn core<M>(medium: M, sb: &Superblock, v: Volatile, o: &MountOptions) -> Files<M> {
    let bytes = sb.blocks.get() * BLOCK;
    Files(Core(Store {
        maps: Maps { medium, bytes },
        v,
        read_only: AtomicBool::new(o.read_only),
        clock: o.clock,
    }))
}

/// The key of the name hash and the secret.
fn random(o: &MountOptions) -> (u64, u64) {
    let (seed, secret) = uuid::Uuid::new_v4().as_u64_pair();
    (o.seed.unwrap_or(seed), secret)
}

fn blocks_used<M: Medium>(core: &Files<M>) -> u64 {
    core.bytes / BLOCK - core.v.free_blocks()
}

/// Mounts a pool: derives the volatile state by a scan. See [`crate::Scmfs::mount`].
pub fn mount<M: Medium>(medium: M, o: &MountOptions) -> Result<(Files<M>, MountReport), Error> {
    let core = open(medium, o)?;
    let report = derive(&core, o)?;
    Ok((core, report))
}

/// Mounts a pool together with other processes. See [`crate::Scmfs::attach`].
pub fn attach<M: Medium>(
    medium: M,
    place: &Place,
    o: &MountOptions,
) -> Result<(Files<M>, MountReport), Error> {
    let sb = load_superblock(&medium)?;
    let mut plan = Plan::new(true, sb.blocks.get());
    match derived::attach(&medium, place, plan.layout()).map_err(Error::Shared)? {
        Attached::Joined(arena) => {
            let core = core(medium, &sb, plan.join(arena), o);
            core.join()?;
            let report = MountReport { blocks_used: blocks_used(&core), ..MountReport::default() };
            Ok((core, report))
        }
        Attached::Fresh(arena) => {
            let (seed, secret) = random(o);
            let v = plan.begin(arena, seed, secret);
            let core = core(medium, &sb, v, o);
            let report = derive(&core, o)?;
            core.v.arena.publish().map_err(Error::Shared)?;
            Ok((core, report))
        }
    }
}

/// Scans the pool into the empty derived state.
fn derive<M: Medium>(core: &Files<M>, o: &MountOptions) -> Result<MountReport, Error> {
    if o.read_only && !journal::pending(&core.medium, core.bytes).is_empty() {
        let why = "a change was interrupted and has to be finished: mount it for writing once, or `keepstone check \
                   --repair` it";
        return Err(Error::Unusable(why.to_owned()));
    }
    let start = Instant::now();
    let scan = core.scan(&ScanOptions::fresh(o.threads), &|_| {});
    let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
    let (inodes, names) = (scan.inodes.load(Relaxed), scan.names.load(Relaxed));
    let problems = scan.into_problems();
    if !problems.is_empty() && !o.read_only {
        return Err(Error::Damaged(problems));
    }
    if !o.read_only {
        core.clear_stale(&stale);
    }
    Ok(MountReport {
        inodes,
        names,
        blocks_used: blocks_used(core),
        stale_cleared: if o.read_only { 0 } else { stale.len() as u64 },
        problems: problems.len() as u64,
        scan_us: start.elapsed().as_micros() as u64,
    })
}

/// Checks a pool that is not mounted. With `repair`, finishes what was interrupted, stores the one word that repairs each
/// problem that has such a word, and says so in the report; check again to see what that uncovered.
///
/// `progress` is told how many inodes were found, and how many the inode table has room for.
pub fn check(
    medium: &impl Medium,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CheckReport, Error> {
    if options.repair {
        return check_on(medium, options, progress);
    }
    let sb = load_superblock(medium)?;
    check_on(&Overlay::new(medium, sb.blocks.get() * BLOCK), options, progress)
}

fn check_on(
    medium: &impl Medium,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CheckReport, Error> {
    let mounting = MountOptions { read_only: !options.repair, ..MountOptions::default() };
    let core = open(medium, &mounting)?;
    let room = medium.load_u64(INODE_SIZE) / INODE;
    let scan: Scan = core.scan(&ScanOptions::fresh(options.threads), &|done| progress(done, room));
    let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
    let (inodes, names) = (scan.inodes.load(Relaxed), scan.names.load(Relaxed));
    let mut problems = scan.into_problems();
    if options.repair {
        for p in &mut problems {
            if let Some((at, value)) = p.fix {
                medium.store_u64(at, value);
                medium.flush(at, 8);
                p.repaired = true;
            }
        }
        core.clear_stale(&stale);
        let _ = medium.fence();
    }
    progress(room, room);
    Ok(CheckReport {
        inodes,
        names,
        blocks: core.bytes / BLOCK,
        blocks_used: blocks_used(&core),
        stale_words: stale.len() as u64,
        problems,
    })
}
