//! Engines with readers that read file contents in place while operations change them.
//!
//! An operation that changes or removes a file finds a reader counted, which holds the old content
//! ([`arena::Pins`]). So engines copy where they would otherwise store in place, and keep replaced
//! blocks until the operation is over. The explorer crashes these paths.
//!
//! A reader must find what it held, except for words overwritten in place, if contents are atomic
//! or the file was removed. The accesses of readers are not recorded, as they do not belong to the
//! operation.

use crate::{bpfs::Bpfs, mounted, scmfs::Scmfs};
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, Target};
use namespace::{Files, Pool};
use pmem::{Medium, PmOff};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vfs::{
    Attr, Caller, Durability, Errno, Fallocate, FileSystem, Ino, Mappings, Openings, RenameFlags,
    SetAttr, StatFs,
};

/// The unit in which readers may see changes, in bytes.
const WORD: u64 = 8;

/// A reader of part of a file in place.
struct Reader {
    at: Option<PmOff>,
    /// The content when the reader began.
    held: Vec<u8>,
    /// The number of operations that have changed the file system since.
    changes: usize,
    /// The file is gone, so that no operation changes it any more.
    is_gone: bool,
}

/// A pool with readers that read files in place, from the start of a file and from its middle. A
/// reader begins before the operation that changes its file and stays to the end of the next one. A
/// call of `statfs` ends all readers, as the blocks that they read count as used.
struct Lending<'m, F: Files, M: Medium> {
    pool: Pool<F>,
    medium: &'m M,
    readers: Mutex<Vec<Reader>>,
}

impl<'m, F: Files, M: Medium> Lending<'m, F, M> {
    fn new(pool: Pool<F>, medium: &'m M) -> Self {
        pool.record_access(false, false, false);
        Self { pool, medium, readers: Mutex::default() }
    }

    /// Reads `len` bytes at `at`; zeros if there is no place (a hole).
    fn bytes(&self, at: Option<PmOff>, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if let Some(at) = at {
            self.medium.read(at.get(), &mut bytes);
        }
        bytes
    }

    /// Begins two readers of a file, at its start and at its middle. They read whole words, as one
    /// of these may be overwritten.
    fn begin_to_read(&self, ino: Ino) -> Vec<Reader> {
        let size = self.pool.getattr(ino).map_or(0, |attr| attr.size);
        let middle = (size / 2).next_multiple_of(WORD);
        let from = [0, middle].into_iter().filter(|from| *from < size);
        let pinned = from.filter_map(|from| self.pool.pin_content(ino, from, u64::MAX).ok());
        let reader = |(at, len)| {
            let held = self.bytes(at, len as usize);
            Reader { at, held, changes: 0, is_gone: false }
        };
        pinned.map(reader).collect()
    }

    /// Returns whether a reader still finds what it held after one more change; each change may
    /// have overwritten one word.
    fn finds_what_it_held(&self, reader: &mut Reader) -> bool {
        reader.changes += 1;
        let found = self.bytes(reader.at, reader.held.len());
        let words = |bytes| <[u8]>::chunks(bytes, WORD as usize);
        let changed = words(&reader.held).zip(words(&found)).filter(|(held, found)| held != found);
        changed.count() <= reader.changes
    }

    /// Runs `change` while readers read the file, if the inode is a file. Returns `EIO`, which the
    /// explorer never expects, if a reader finds other content afterwards than it must.
    fn while_lent<T>(
        &self,
        ino: Ino,
        change: impl FnOnce(&Pool<F>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let mut begun = self.begin_to_read(ino);
        let changed = change(&self.pool);
        let mut readers = lock(&self.readers);
        let is_atomic = self.pool.durability() == Durability::OnReturn;
        let is_gone = self.pool.getattr(ino).is_err();
        begun.iter_mut().for_each(|reader| reader.is_gone = is_gone);
        let mut is_intact = true;
        for reader in readers.iter_mut().chain(&mut begun) {
            let is_intact_now = self.finds_what_it_held(reader);
            is_intact &= is_intact_now || !is_atomic && !reader.is_gone;
        }
        let done = std::mem::replace(&mut *readers, begun);
        done.iter().for_each(|_| self.pool.put_read_buf());
        if is_intact { changed } else { Err(Errno::IO) }
    }

    /// Ends all readers, whose blocks then become free.
    fn end_readers(&self) {
        lock(&self.readers).drain(..).for_each(|_| self.pool.put_read_buf());
    }

    /// Runs `change` while readers read the file of this name.
    fn while_lent_named<T>(
        &self,
        dir: Ino,
        name: &[u8],
        change: impl FnOnce(&Pool<F>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        match self.pool.peek(dir, name) {
            Ok(attr) => self.while_lent(attr.ino, change),
            Err(_) => change(&self.pool),
        }
    }
}

impl<F: Files, M: Medium> Drop for Lending<'_, F, M> {
    fn drop(&mut self) {
        self.end_readers();
    }
}

fn lock(readers: &Mutex<Vec<Reader>>) -> MutexGuard<'_, Vec<Reader>> {
    readers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Files, M: Medium> SharingProcess for Lending<'_, F, M> {
    fn fs(&self) -> &dyn FileSystem {
        self
    }

    fn recover(&self) -> Result<(), String> {
        self.pool.rehearse_recovery().map_err(crate::text)
    }

    fn reap(&self) -> Result<(), String> {
        self.pool.reap_processes().map(drop).map_err(crate::text)
    }
}

impl<F: Files, M: Medium> FileSystem for Lending<'_, F, M> {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, forget, lookup,
        getattr, readlink, readdir, read, seek, getxattr, listxattr, create, tmpfile, rmdir, link,
        sync, setxattr, removexattr);

    fn statfs(&self) -> StatFs {
        self.end_readers();
        self.pool.statfs()
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> vfs::Result<Attr> {
        self.while_lent(ino, |pool| pool.setattr(caller, ino, set))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> vfs::Result<()> {
        self.while_lent_named(dir, name, |pool| pool.unlink(dir, name))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> vfs::Result<()> {
        self.while_lent_named(to.0, to.1, |pool| pool.rename(from, to, flags))
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> vfs::Result<()> {
        let (dir, name) = to;
        self.while_lent_named(dir, name, |pool| pool.rename_whiteout(caller, from, to, flags))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> vfs::Result<()> {
        self.while_lent(ino, |pool| pool.write(ino, offset, data))
    }

    fn append(&self, ino: Ino, data: &[u8]) -> vfs::Result<u64> {
        self.while_lent(ino, |pool| pool.append(ino, data))
    }

    fn drop_privileges(&self, ino: Ino) -> vfs::Result<()> {
        self.while_lent(ino, |pool| pool.drop_privileges(ino))
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> vfs::Result<()> {
        self.while_lent(ino, |pool| pool.fallocate(ino, mode, offset, len))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> vfs::Result<u64> {
        self.while_lent(to.0, |pool| pool.copy_range(from, to, len))
    }

    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> vfs::Result<()> {
        self.while_lent(to.0, |pool| pool.clone_range(from, to, len))
    }

    fn fsync(&self, ino: Ino) -> vfs::Result<()> {
        self.while_lent(ino, |pool| pool.fsync(ino))
    }
}

impl<F: Files, M: Medium> Mappings for Lending<'_, F, M> {
    vfs::forward!(self => self.pool; map_range, unmap_range, sync_range);
}

impl<F: Files, M: Medium> Openings for Lending<'_, F, M> {}

/// Mounts an engine with readers.
fn mount<'m, M: Medium, F>(medium: &'m M) -> Result<Mounted<'m>, String>
where
    F: Files<Storage: namespace::Storage<Medium = Sited<&'m M>>> + 'm,
{
    let pool = Pool::<F>::mount(Sited(medium), &mounted::mount_options()).map_err(crate::text)?;
    let blocks_used = pool.mount_report().blocks_used;
    Ok(Mounted { fs: Box::new(Lending::new(pool, medium)), blocks_used })
}

/// Attaches as one of several processes, with readers.
fn share<'m, M: Medium, F>(
    medium: &'m M,
    at: &Meeting,
) -> Result<Box<dyn SharingProcess + 'm>, String>
where
    F: Files<Storage: namespace::Storage<Medium = Sited<&'m M>>> + 'm,
{
    let pool = mounted::attach::<M, F>(medium, at, &mounted::mount_options())?;
    Ok(Box::new(Lending::new(pool, medium)))
}

/// BPFS, with readers that read files in place while they change.
#[derive(Clone, Copy, Debug, Default)]
pub struct LentBpfs;

/// Equals [`Bpfs`] except for how it is mounted.
impl Target for LentBpfs {
    crashsim::forward_target!(Bpfs; strength, format, is_pool, is_shared, check, blocks_of_fresh, repair, describe, harmless,
        may_stay_unflushed);

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        mount::<M, bpfs::Files<Sited<&'m M>>>(medium)
    }

    fn share<'m, M: Medium>(
        &self,
        medium: &'m M,
        at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        share::<M, bpfs::Files<Sited<&'m M>>>(medium, at)
    }
}

/// SCMFS, with readers that read files in place while they change.
#[derive(Clone, Copy, Debug, Default)]
pub struct LentScmfs;

/// Equals [`Scmfs`] except for how it is mounted.
impl Target for LentScmfs {
    crashsim::forward_target!(Scmfs; strength, format, is_pool, is_shared, check, blocks_of_fresh, repair, describe, harmless,
        may_stay_unflushed);

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        mount::<M, scmfs::ScmfsFiles<Sited<&'m M>>>(medium)
    }

    fn share<'m, M: Medium>(
        &self,
        medium: &'m M,
        at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        share::<M, scmfs::ScmfsFiles<Sited<&'m M>>>(medium, at)
    }
}
