//! Engines whose files are read without a copy while they change.
//!
//! Who changes or removes a file finds a reader counted who holds what the file was ([`arena::Pins`]). So engines copy where they
//! would store in place, and blocks that are replaced wait until the operation is over: that is what the explorer crashes here.
//! Where contents are atomic, the reader must also find what it held, but for a word that is overwritten in place. Its accesses
//! are not recorded, as they are none of the operation's.

use crate::{bpfs::Bpfs, mounted, scmfs::Scmfs};
use crashsim::sited::Sited;
use crashsim::target::{Mounted, Target};
use namespace::{Files, Pool};
use pmem::{Medium, PmOff};
use vfs::{Attr, Caller, Durability, Errno, Fallocate, FileSystem, Ino, RenameFlags, SetAttr};

/// A pool, and who reads from it where it lies.
struct Lending<'m, F: Files, M> {
    pool: Pool<F>,
    medium: &'m M,
}

impl<F: Files, M: Medium> Lending<'_, F, M> {
    /// What a reader finds.
    fn bytes(&self, (at, len): (Option<PmOff>, u64)) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        if let Some(at) = at {
            self.medium.read(at.get(), &mut bytes);
        }
        bytes
    }

    /// Does `change` while somebody reads a file, if it is one. `EIO`, which no operation is expected to end with, where the
    /// reader finds something else then.
    fn while_lent<T>(
        &self,
        ino: Ino,
        change: impl FnOnce(&Pool<F>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let Ok(lent) = self.pool.pin_content(ino, 0, u64::MAX) else { return change(&self.pool) };
        let before = self.bytes(lent);
        let changed = change(&self.pool);
        let after = self.bytes(lent);
        self.pool.put_read_buf();
        let words_changed = before.chunks(8).zip(after.chunks(8)).filter(|(a, b)| a != b).count();
        let is_atomic = self.pool.durability() == Durability::OnReturn;
        if is_atomic && words_changed > 1 { Err(Errno::IO) } else { changed }
    }

    /// The same of the file of a name.
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

impl<F: Files, M: Medium> FileSystem for Lending<'_, F, M> {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, forget, statfs, lookup, getattr, readlink, readdir,
        read, seek, getxattr, listxattr, create, tmpfile, rmdir, link, sync, setxattr, removexattr);

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> vfs::Result<Attr> {
        self.while_lent(ino, |pool| pool.setattr(caller, ino, set))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> vfs::Result<()> {
        self.while_lent_named(dir, name, |pool| pool.unlink(dir, name))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> vfs::Result<()> {
        self.while_lent_named(to.0, to.1, |pool| pool.rename(from, to, flags))
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

    fn fsync(&self, ino: Ino) -> vfs::Result<()> {
        self.while_lent(ino, |pool| pool.fsync(ino))
    }
}

fn mount<'m, M: Medium, F>(medium: &'m M) -> Result<Mounted<'m>, String>
where
    F: Files<Storage: namespace::Storage<Medium = Sited<&'m M>>> + 'm,
{
    let pool = Pool::<F>::mount(Sited(medium), &mounted::mount_options()).map_err(crate::text)?;
    pool.record_access(false, false, false);
    let blocks_used = pool.mount_report().blocks_used;
    Ok(Mounted { fs: Box::new(Lending { pool, medium }), blocks_used })
}

/// BPFS, whose files are read without a copy while they change.
#[derive(Clone, Copy, Debug, Default)]
pub struct LentBpfs;

/// But for how it is mounted as [`Bpfs`].
impl Target for LentBpfs {
    crashsim::forward_target!(Bpfs; strength, format, is_pool, check, blocks_of_fresh, repair, describe, harmless,
        may_stay_unflushed);

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        mount::<M, bpfs::Files<Sited<&'m M>>>(medium)
    }
}

/// SCMFS, whose files are read without a copy while they change.
#[derive(Clone, Copy, Debug, Default)]
pub struct LentScmfs;

/// But for how it is mounted as [`Scmfs`].
impl Target for LentScmfs {
    crashsim::forward_target!(Scmfs; strength, format, is_pool, check, blocks_of_fresh, repair, describe, harmless,
        may_stay_unflushed);

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        mount::<M, scmfs::Files<Sited<&'m M>>>(medium)
    }
}
