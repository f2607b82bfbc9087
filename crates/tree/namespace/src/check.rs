//! Checks and repairs.

use crate::files::{Files, MediumOf};
use crate::mounted::open;
use crate::scan::{Scan, ScanOptions};
use crate::store::Storage;
use crate::superblock::INODE_SIZE;
use pmem::PmOff;
use pool::{CheckOptions, CheckReport, Error, MountOptions};
use std::sync::atomic::Ordering::Relaxed;

/// Checks a pool that is not mounted. With `repair`, stores the one word that repairs each problem
/// that has such a word, and marks the problem as repaired in the report. Check again to see what
/// that uncovered.
///
/// `progress` receives the number of inodes found, and the number there is room for.
///
/// # Errors
/// [`Error::NotAPool`] or [`Error::Unusable`] if the medium holds no usable pool.
pub fn check<F: Files>(
    medium: MediumOf<F>,
    options: &CheckOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<CheckReport, Error> {
    let mounting = MountOptions { read_only: !options.repair, ..MountOptions::default() };
    let files: F = open(medium, &mounting)?;
    let room = files.medium().load_u64(INODE_SIZE) / F::Storage::INODE;
    let scan: Scan = files.scan(&ScanOptions::fresh(options.threads), &|done| progress(done, room));
    let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
    let (inodes, names) = (scan.inodes.load(Relaxed), scan.names.load(Relaxed));
    let mut problems = scan.into_problems();
    if options.repair {
        for p in &mut problems {
            if let Some((at, value)) = p.fix {
                let at = PmOff::new(at);
                files.medium().store_u64(at, value);
                files.medium().flush(at, 8);
                p.repaired = true;
            }
        }
        files.clear_stale(&stale);
        let _ = files.medium().fence();
    }
    progress(room, room);
    Ok(CheckReport {
        inodes,
        names,
        blocks: files.tables().size_in_blocks(),
        blocks_used: files.blocks_used(),
        stale_words: stale.len() as u64,
        problems,
    })
}
