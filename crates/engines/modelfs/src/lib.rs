//! The contract's model as an engine: a file system in memory, saved whole by each sync.
//!
//! It is a second engine for testing everything above engines, and promises less than BPFS:
//! unsynced changes are lost in a crash ([`Durability::OnSync`]). It is the smallest possible
//! engine, for tests and to read first. It is no match for the others: a sync costs as much as the
//! whole tree, which has to fit in memory, and twice in the pool.
//!
//! Invariants:
//!
//! - **modelfs-S1** The half of the pool that the commit word's parity names holds a whole model. A
//!   save goes to the other half and is durable before the word is stored. Only this store makes it
//!   the pool's model.
//! - **modelfs-S2** A loaded model is checked as a whole before it is used.

#![forbid(unsafe_code)]

mod engine;
pub mod layout;

use layout::*;
use mounts::{HasMountEvents, MountEvents, NoMountEvents};
use pmem::{Fenced, Medium};
use pool::{
    Alone, CheckOptions, CheckReport, Error, FormatOptions, LABEL_MAX, MountOptions, MountReport,
    PoolInfo, Problem,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vfs::acl::ACL_DEFAULT;
use vfs::model::Model;
use vfs::{
    Attr, Caller, Durability, Entry, Errno, Fallocate, FileSystem, Ino, Mappings, NewKind, NewNode,
    Openings, ROOT, RenameFlags, Result, SetAttr, SetXattr, StatFs, Timestamp,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// The name of the layout.
pub const LAYOUT: &str = "model";

/// A mounted pool, of one process.
pub struct ModelFs<M: Medium> {
    medium: M,
    model: Model,
    size: u64,
    read_only: bool,
    last: Mutex<Saved>,
    /// A lower bound of the bytes that the model may still grow by.
    room: Mutex<u64>,
    report: MountReport,
}

/// The last save of the pool.
struct Saved {
    number: u64,
    bytes: Vec<u8>,
}

impl<M: Medium> ModelFs<M> {
    /// Mounts the pool: loads the last save.
    ///
    /// # Errors
    /// [`Error::NotAPool`] or [`Error::Unusable`] if the medium holds no usable pool,
    /// [`Error::Damaged`] if the save is not a valid model.
    pub fn mount(medium: M, options: &MountOptions) -> std::result::Result<Self, Error> {
        let sb = load_superblock(&medium)?;
        let (model, last) =
            load(&medium, &sb, options.clock).map_err(|p| Error::Damaged(vec![p]))?;
        let report = report(&model, &last.bytes);
        let (size, read_only) = (sb.size.get(), options.read_only);
        let (last, room) = (Mutex::new(last), Mutex::new(0));
        Ok(Self { medium, model, size, read_only, last, room, report })
    }

    /// Returns the findings of the mount.
    pub fn mount_report(&self) -> &MountReport {
        &self.report
    }

    /// Returns the medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Returns the model, for calls that do not make it larger.
    fn shrinking(&self) -> Result<&Model> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(&self.model) }
    }

    /// Makes a change that may make the saved model larger, by at most `most` bytes. If `room` does
    /// not guarantee the space, makes the change on a copy first.
    fn growing<T>(&self, most: usize, change: impl Fn(&Model) -> Result<T>) -> Result<T> {
        let model = self.shrinking()?;
        let mut room = lock(&self.room);
        let left = match room.checked_sub(most as u64) {
            Some(left) => left,
            None => {
                let copy = model.clone();
                change(&copy)?;
                capacity(self.size).checked_sub(copy.saved_len_with_held()).ok_or(Errno::NOSPC)?
            }
        };
        let changed = change(model)?;
        *room = left;
        Ok(changed)
    }

    /// Saves all calls that have returned (modelfs-S1), unless nothing has changed or the pool is
    /// read-only. `EIO` if the medium has lost data.
    fn save(&self) -> Result<()> {
        let mut last = lock(&self.last);
        // After the lock was taken, so that the save includes every call that had returned before.
        let bytes = self.model.save();
        if self.read_only || bytes == last.bytes {
            return Ok(());
        }
        assert!(bytes.len() as u64 <= capacity(self.size), "there was room for each change");
        let _ = store(&self.medium, self.size, last.number + 1, &bytes);
        if self.medium.is_lost() {
            return Err(Errno::IO);
        }
        *last = Saved { number: last.number + 1, bytes };
        Ok(())
    }
}

/// Takes a lock. A panic of another holder can only come from a bug; the guarded value is whole
/// then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unmounts: syncs the model.
impl<M: Medium> Drop for ModelFs<M> {
    fn drop(&mut self) {
        if let Err(err) = self.save() {
            tracing::error!("what was changed since the last sync is lost: {err}");
        }
    }
}

impl<M: Medium> FileSystem for ModelFs<M> {
    vfs::forward!(self => self.model; root, kernel_cache, limits, lookup, forget, getattr,
        readlink, readdir, read, seek, getxattr, listxattr);
    vfs::forward!(self => self.shrinking()?; unlink, rmdir, drop_privileges, removexattr);

    fn durability(&self) -> Durability {
        Durability::OnSync
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        self.model.getattr(ino)?;
        self.save()
    }

    fn sync(&self) -> Result<()> {
        self.save()
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.growing(SMALL, |model| model.setattr(caller, ino, set))
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        let target = if let NewKind::Symlink(target) = node.kind { target.len() } else { 0 };
        let most = SMALL + name.len() + target + self.inherited(dir);
        self.growing(most, |model| model.create(caller, dir, name, node))
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        let most = SMALL + self.inherited(dir);
        self.growing(most, |model| model.tmpfile(caller, dir, mode, umask))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.growing(SMALL + name.len(), |model| model.link(ino, dir, name))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.growing(SMALL + to.1.len(), |model| model.rename(from, to, flags))
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let most = 2 * SMALL + from.1.len() + to.1.len() + self.inherited(from.0);
        self.growing(most, |model| model.rename_whiteout(caller, from, to, flags))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.growing(of_content(data.len() as u64), |model| model.write(ino, offset, data))
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.growing(of_content(data.len() as u64), |model| model.append(ino, data))
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        // An insertion changes block numbers, any of which may need a byte more.
        self.growing(usize::MAX, |model| model.fallocate(ino, mode, offset, len))
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.growing(of_content(len), |model| model.copy_range(from, to, len))
    }

    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        // The length may stand for the rest of the source.
        self.growing(usize::MAX, |model| model.clone_range(from, to, len))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        let most = SMALL + name.len() + value.len();
        self.growing(most, |model| model.setxattr(ino, name, value, mode))
    }

    fn statfs(&self) -> StatFs {
        let blocks = half_bytes(self.size) / BLOCK;
        let used = blocks_used(self.model.saved_len_with_held());
        let blocks_free = blocks.saturating_sub(used);
        let blocks_available = blocks_free;
        StatFs { blocks, blocks_free, blocks_available, ..self.model.statfs() }
    }
}

impl<M: Medium> Mappings for ModelFs<M> {}

impl<M: Medium> Openings for ModelFs<M> {}

impl<M: Medium> ModelFs<M> {
    /// Returns the most bytes of access control that a new inode inherits from a directory.
    fn inherited(&self, dir: Ino) -> usize {
        self.model.getxattr(dir, ACL_DEFAULT).map_or(0, |acl| 2 * (acl.len() + SMALL))
    }
}

/// An upper bound of the bytes of an inode without its content and attributes, or of a name without
/// its letters.
const SMALL: usize = 256;

/// Returns the most bytes that content of this length takes: whole blocks, each with its number and
/// length.
fn of_content(len: u64) -> usize {
    let blocks = (len / BLOCK + 4) as usize;
    blocks.saturating_mul(BLOCK as usize + 16)
}

/// Returns the blocks that a model of this many saved bytes takes.
fn blocks_used(saved: u64) -> u64 {
    (HEADER + saved).div_ceil(BLOCK)
}

impl<M: Medium> Alone for ModelFs<M> {}

impl<M: Medium> HasMountEvents for ModelFs<M> {
    fn mount_events(&self) -> impl MountEvents {
        NoMountEvents
    }
}

/// Loads the superblock and checks it.
///
/// # Errors
/// [`Error::NotAPool`] without the magic; [`Error::Unusable`] for another version or an impossible
/// size.
fn load_superblock(medium: &impl Medium) -> std::result::Result<ModelSuperblock, Error> {
    let unusable = |why: String| Err(Error::Unusable(why));
    if medium.len() < POOL_MIN {
        return Err(Error::NotAPool(format!("the region has {} bytes, too few", medium.len())));
    }
    let mut bytes = [0; size_of::<ModelSuperblock>()];
    medium.read(0, &mut bytes);
    let sb = ModelSuperblock::read_from_bytes(&bytes).expect("a superblock is exactly its bytes");
    if sb.magic != MAGIC {
        return Err(Error::NotAPool("it does not start with KSTNMODL".to_owned()));
    }
    if sb.version.get() != VERSION {
        return unusable(format!(
            "its format has version {}, this program knows version {VERSION}",
            sb.version
        ));
    }
    let size = sb.size.get();
    if !(POOL_MIN..=POOL_MAX).contains(&size) || size > medium.len() {
        return unusable(format!(
            "it was formatted with {size} bytes, but the region has {}: if the file was cut off, it must be restored \
             from a copy",
            medium.len()
        ));
    }
    Ok(sb)
}

/// Loads and checks the last save (modelfs-S2).
fn load(
    medium: &impl Medium,
    sb: &ModelSuperblock,
    clock: fn() -> Timestamp,
) -> std::result::Result<(Model, Saved), Problem> {
    let problem = |what: String| Problem {
        object: "saved model".to_owned(),
        what,
        remedy: None,
        repaired: false,
        fix: None,
    };
    let (size, number) = (sb.size.get(), sb.saved.get());
    let at = half(size, number);
    let len = medium.load_u64(at);
    if len > capacity(size) {
        return Err(problem(format!("it is said to have {len} bytes, more than there is room")));
    }
    let mut bytes = vec![0; len as usize];
    medium.read(at + HEADER, &mut bytes);
    let model = Model::load(&bytes, clock).map_err(problem)?;
    Ok((model, Saved { number, bytes }))
}

/// Saves a model for the `number`th time (modelfs-S1). Two fences.
fn store(medium: &impl Medium, size: u64, number: u64, bytes: &[u8]) -> Fenced {
    let at = half(size, number);
    medium.write_nt(at + HEADER, bytes);
    medium.write_nt(at, &(bytes.len() as u64).to_le_bytes());
    let ready = medium.fence();
    medium.publish(SAVED, number, ready)
}

/// Makes the report of a mount from a model and its saved bytes.
fn report(model: &Model, saved: &[u8]) -> MountReport {
    let of_model = model.statfs();
    MountReport {
        inodes: of_model.inodes - of_model.inodes_free,
        names: model.names(),
        blocks_used: blocks_used(saved.len() as u64),
        ..MountReport::default()
    }
}

/// Formats a region with an empty root directory. The region's previous content is lost. The magic
/// is the commit: it is cleared first and stored last.
///
/// # Errors
/// [`Error::Unformattable`].
pub fn format(
    medium: &impl Medium,
    options: &FormatOptions,
) -> std::result::Result<PoolInfo, Error> {
    let size = medium.len().min(POOL_MAX);
    if size < POOL_MIN {
        let why = format!("a pool needs at least {POOL_MIN} bytes, the region has {size}");
        return Err(Error::Unformattable(why));
    }
    if options.label.len() > LABEL_MAX {
        return Err(Error::Unformattable(format!("a label has at most {LABEL_MAX} bytes")));
    }
    let _ = medium.publish(0, 0, Fenced::not_needed("without a magic there is no pool"));
    let model = Model::new();
    let (uid, gid) = options.owner;
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    model.setattr(&Caller::ROOT, ROOT, &owner)?;
    let uuid = *uuid::Uuid::new_v4().as_bytes();
    let now = Timestamp::now().0 as u64;
    let sb = ModelSuperblock::new(size, now, uuid, options.label.as_bytes());
    medium.write(8, &sb.as_bytes()[8..]);
    medium.flush(8, size_of::<ModelSuperblock>() as u64 - 8);
    let ready = store(medium, size, 1, &model.save());
    let _ = medium.publish(0, u64::from_le_bytes(MAGIC), ready);
    info(medium)
}

/// Describes the pool from its superblock.
///
/// # Errors
/// [`Error::NotAPool`], [`Error::Unusable`].
pub fn info(medium: &impl Medium) -> std::result::Result<PoolInfo, Error> {
    let sb = load_superblock(medium)?;
    Ok(PoolInfo {
        layout: LAYOUT,
        uuid: uuid::Uuid::from_bytes(sb.uuid),
        label: pool::label(&sb.label),
        version: sb.version.get(),
        size_bytes: sb.size.get(),
        max_size_bytes: None,
        created_ns: sb.created_ns.get(),
        block_bytes: BLOCK as u32,
        has_backing_store: false,
        is_thin: false,
    })
}

/// Checks a pool that is not mounted. Nothing can be repaired: the save is a single piece.
///
/// # Errors
/// As [`info`].
pub fn check(
    medium: &impl Medium,
    _options: &CheckOptions,
) -> std::result::Result<CheckReport, Error> {
    let sb = load_superblock(medium)?;
    let blocks = half_bytes(sb.size.get()) / BLOCK;
    let (of_model, problems) = match load(medium, &sb, Timestamp::now) {
        Ok((model, last)) => (report(&model, &last.bytes), Vec::new()),
        Err(problem) => (MountReport::default(), vec![problem]),
    };
    let MountReport { inodes, names, blocks_used, .. } = of_model;
    Ok(CheckReport { inodes, names, blocks, blocks_used, stale_words: 0, problems })
}
