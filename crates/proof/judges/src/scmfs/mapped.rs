//! SCMFS with stores to files through mappings. An overwrite of a file stores to the places that
//! [`map_range`](vfs::Mappings::map_range) returns. Half of the files are synced by
//! [`sync_range`](vfs::Mappings::sync_range); the mappings of the other half reach beyond the end
//! of the file. Mappings stay while the file grows and is truncated.
//!
//! To the explorer these are ordinary writes and syncs. After each change, and before a name is
//! removed, also after a crash, the target compares the mappings with the files (mapping-D1 and
//! mapping-D2 of the engine). A mapping must show the content of its file, at the same place as
//! before, and zeros behind the end of the file. Otherwise the change fails with [`FOREIGN`].

use super::Scmfs;
use crate::{mounted, text};
use crashsim::sited::Sited;
use crashsim::target::{Mounted, Strength, Target, Usage};
use namespace::{Files, Pool};
use pmem::Medium;
use pool::{MountOptions, Prealloc};
use std::collections::BTreeMap;
use std::sync::Mutex;
use vfs::script::Op;
use vfs::{Errno, Extent, Fallocate, FileKind, FileSystem, Ino, Mappings, Openings, Result};

/// SCMFS, with stores through mappings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapped;

/// The error of an operation after which a mapping shows bytes that do not belong to its file.
pub const FOREIGN: Errno = Errno::NOTRECOVERABLE;

/// The number of bytes mapped behind the end of every second file. The mappings of other files end
/// with their last block.
const BEHIND: u64 = 2 * BLOCK;
const BLOCK: u64 = 4096;
/// Files larger than this many bytes are not mapped, but written by the engine.
const MAPPED_MAX: u64 = 1 << 20;

/// Sequences in which files are mapped while they grow, are truncated, change and are removed.
const SEQUENCES: &str = "\
write /a 0 100; fsync /a; write /a 64 4096; fsync /a; unlink /a
write /o 0 100; write /o 10 20; fsync /o; write /h 10 4000; fsync /h
create /n; write /n 0 20000; truncate /n 100; write /n 0 50; append /n 9000; fsync /n
create /n; write /n 0 5000; write /n 10 100; append /n 5000; write /n 20 100; append /n 30000; write /n 30 10; fsync /n
write /a 0 100; truncate /a 10; write /a 5 5; truncate /a 9000; write /a 8990 10; append /a 20000; fsync /a
write /a 0 5000; create /n; write /n 0 9000; append /a 20000; write /a 15000 100; unlink /n; fsync /a
write /d/z 8192 10; punch /d/z 4096 8192; write /d/z 4090 100; zero /d/z 100 9000; fsync /d/z; truncate /d/z 0
create /n; write /n 0 100; write /n 73728 100; write /n 4096 9000; punch /n 4096 8192; write /n 20 30; fsync /n
write /a 0 5000; insert /a 4096 8192; fsync /a; write /a 100 9000; collapse /a 0 4096; fsync /a
write /h 0 5000; rename /h /a; write /a 0 4096; copy /a 0 /d/z 18000 5000; unlink /a; create /n; write /n 0 9000
create /n; write /n 0 12288; unlink /n; create /m; write /m 0 100; write /m 0 50; fsync /m; append /m 8000; write /m 7000 10";

/// Returns mount options with few pre-allocated blocks, so that a small pool has room for them.
fn options() -> MountOptions {
    let options = mounted::mount_options();
    MountOptions { prealloc: Prealloc { blocks_min: 4, ..options.prealloc.clone() }, ..options }
}

/// Parses the sequences.
pub fn sequences() -> Vec<Vec<Op>> {
    let parse = |line| vfs::script::parse(line).expect("the sequences are well-formed");
    SEQUENCES.lines().map(parse).collect()
}

/// A pool with its mapped files.
struct MappingFs<F: Files> {
    pool: Pool<F>,
    held: Mutex<BTreeMap<Ino, HeldMapping>>,
}

/// A file that is mapped from its start on.
struct HeldMapping {
    extents: Vec<Extent>,
    /// The number of references that the front end has given back since the file was mapped.
    refs: u64,
}

impl HeldMapping {
    fn len(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

impl<F: Files> MappingFs<F> {
    fn new(pool: Pool<F>) -> Self {
        Self { pool, held: Mutex::default() }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<Ino, HeldMapping>> {
        self.held.lock().expect("nobody panics while it is locked")
    }

    /// Maps a file up to or beyond its end, unless such a mapping exists. Returns whether the file
    /// is mapped.
    fn map(&self, ino: Ino) -> Result<bool> {
        let attr = self.pool.getattr(ino)?;
        if attr.kind != FileKind::File || attr.size > MAPPED_MAX {
            return Ok(false);
        }
        let end = attr.size.next_multiple_of(BLOCK) + BEHIND * (ino.0 % 2);
        let had = self.held().get(&ino).map(HeldMapping::len);
        if had.is_some_and(|had| had >= end) {
            return Ok(true);
        }
        let Ok(extents) = self.pool.map_range(ino, 0..end, true) else { return Ok(had.is_some()) };
        let old = {
            let mut held = self.held();
            let refs = held.get(&ino).map_or(0, |old| old.refs);
            held.insert(ino, HeldMapping { extents, refs })
        };
        if let Some(old) = old {
            self.pool.unmap_range(ino, true, false);
            // mapping-D1.
            let now = self.extents(ino)?;
            if !pieces(&old.extents).zip(pieces(&now)).all(|(old, now)| old == now) {
                return Err(FOREIGN);
            }
        }
        Ok(true)
    }

    /// Returns the places of a mapped file.
    fn extents(&self, ino: Ino) -> Result<Vec<Extent>> {
        self.held().get(&ino).map(|held| held.extents.clone()).ok_or(Errno::BADF)
    }

    /// Unmaps a file.
    fn unmap(&self, ino: Ino) {
        let Some(held) = self.held().remove(&ino) else { return };
        self.pool.unmap_range(ino, true, false);
        self.pool.forget(ino, held.refs);
    }

    fn unmap_all(&self) {
        let all: Vec<Ino> = self.held().keys().copied().collect();
        all.into_iter().for_each(|ino| self.unmap(ino));
    }

    /// Fails with [`FOREIGN`] unless each mapping shows the content of its file, and zeros behind
    /// its end.
    fn look(&self) -> Result<()> {
        let all: Vec<Ino> = self.held().keys().copied().collect();
        for ino in all {
            let extents = self.extents(ino)?;
            let len: u64 = extents.iter().map(|extent| extent.len).sum();
            let mut content = vec![0; len as usize];
            self.pool.read(ino, 0, &mut content)?;
            let blocks = pieces(&extents).zip(content.chunks(BLOCK as usize));
            if !blocks.into_iter().all(|(at, block)| self.pool.medium().equals(at, block)) {
                return Err(FOREIGN);
            }
        }
        Ok(())
    }

    /// Returns the result of a change if all mappings are correct after it.
    fn looked<T>(&self, done: Result<T>) -> Result<T> {
        self.look()?;
        done
    }

    /// Checks the mapping of a file that is about to lose a name, also behind the end of the file,
    /// and then unmaps it.
    fn look_behind(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let Ok(entry) = self.pool.lookup(dir, name) else { return Ok(()) };
        let looked = self.map(entry.ino).and_then(|_| self.look());
        self.unmap(entry.ino);
        self.pool.forget(entry.ino, 1);
        looked
    }
}

/// Returns the places of the blocks of extents, in order.
fn pieces(extents: &[Extent]) -> impl Iterator<Item = u64> {
    extents
        .iter()
        .flat_map(|extent| (extent.start..extent.start + extent.len).step_by(BLOCK as usize))
}

impl<F: Files> FileSystem for MappingFs<F> {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, statfs, lookup,
        getattr, readlink, readdir, read, seek, getxattr, listxattr, create, tmpfile, rmdir, link,
        rename, rename_whiteout, drop_privileges, setxattr, removexattr);

    fn forget(&self, ino: Ino, refs: u64) {
        if let Some(held) = self.held().get_mut(&ino) {
            held.refs += refs;
            return;
        }
        self.pool.forget(ino, refs);
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let is_inside = !data.is_empty() && end <= self.pool.getattr(ino)?.size;
        if !is_inside || !self.map(ino)? {
            return self.looked(self.pool.write(ino, offset, data));
        }
        // Drops the capabilities of the file, as a write does (vfs-C5).
        match self.pool.removexattr(ino, b"security.capability") {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => return Err(e),
        }
        let extents = self.extents(ino)?;
        for (base, at) in (0..).step_by(BLOCK as usize).zip(pieces(&extents)) {
            let (start, end) = (offset.max(base), end.min(base + BLOCK));
            if start < end {
                let bytes = &data[(start - offset) as usize..(end - offset) as usize];
                self.pool.medium().write(at + start - base, bytes);
            }
        }
        self.looked(Ok(()))
    }

    fn setattr(&self, caller: &vfs::Caller, ino: Ino, set: &vfs::SetAttr) -> Result<vfs::Attr> {
        self.looked(self.pool.setattr(caller, ino, set))
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.looked(self.pool.append(ino, data))
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        if matches!(mode, Fallocate::Collapse | Fallocate::Insert) {
            self.unmap(ino);
        }
        self.looked(self.pool.fallocate(ino, mode, offset, len))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.looked(self.pool.copy_range(from, to, len))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.look_behind(dir, name)?;
        self.pool.unlink(dir, name)
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        let is_mapped = self.held().contains_key(&ino);
        // Syncs half of the files through the mapping. `false`: times, which the explorer does not
        // compare, would need a fence of their own.
        match is_mapped && ino.0.is_multiple_of(2) {
            true => self.pool.sync_range(ino, 0..MAPPED_MAX, false),
            false => self.pool.fsync(ino),
        }
    }

    fn sync(&self) -> Result<()> {
        self.pool.sync()
    }

    fn close(&self) -> Result<()> {
        self.unmap_all();
        self.pool.close()
    }
}

impl<F: Files> Mappings for MappingFs<F> {}

impl<F: Files> Openings for MappingFs<F> {}

/// Equals [`Scmfs`] except for the stores to files.
impl Target for Mapped {
    fn strength(&self) -> Strength {
        Scmfs.strength()
    }

    fn format<M: Medium>(&self, medium: &M) -> std::result::Result<(), String> {
        Scmfs.format(medium)
    }

    fn is_pool<M: Medium>(&self, medium: &M) -> bool {
        Scmfs.is_pool(medium)
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> std::result::Result<Mounted<'m>, String> {
        let pool =
            Pool::<scmfs::ScmfsFiles<Sited<&M>>>::mount(Sited(medium), &options()).map_err(text)?;
        // Reads before a store through a mapping do not count as accesses.
        pool.record_access(false, true, false);
        let blocks_used = pool.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(MappingFs::new(pool)), blocks_used })
    }

    fn check<M: Medium>(&self, medium: &M) -> std::result::Result<Usage, String> {
        Scmfs.check(medium)
    }

    fn blocks_of_fresh(&self, image: &[u8]) -> u64 {
        Scmfs.blocks_of_fresh(image)
    }

    fn repair<M: Medium>(&self, medium: &M) -> std::result::Result<(), String> {
        Scmfs.repair(medium)
    }

    fn describe(&self, image: &[u8], word: u32) -> String {
        Scmfs.describe(image, word)
    }

    fn may_stay_unflushed(&self, site: &str) -> Option<&'static str> {
        let is_stored = site.starts_with("proof/judges/src/scmfs/mapped.rs");
        if is_stored { Some(super::UNSYNCED) } else { Scmfs.may_stay_unflushed(site) }
    }

    fn harmless(&self, word: &str) -> Option<&'static str> {
        Scmfs.harmless(word)
    }
}
