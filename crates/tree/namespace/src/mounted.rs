//! A mounted pool: opening it, and everything that front ends need from it.

use crate::derived::{Mapper, PoolEvents, SharedPool as _};
use crate::fs::Core;
use crate::layout::BLOCK;
use crate::scan::ScanOptions;
use crate::store::Storage;
use crate::superblock::Format;
use crate::tables::Memory;
use crate::thin::{Surplus, Trim};
use arena::{Arena, Attached, Layout, Look};
use mounts::{HasMountEvents, MountEvents};
use os::caller;
use pmem::{Domain, Lock, Medium, PmOff, Region};
use pool::{
    DurabilityMode, Engine, Error, FreeSpace, MountOptions, MountReport, Place, ReadBuf, Snapshots,
};
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use vfs::{
    Attr, Backed, Caller, DirEntry, Durability, Entry, Errno, Extent, Fallocate, FileSystem, Ino,
    KernelCache, Limits, LoadedObject, Mappings, NewNode, Openings, ROOT, RenameFlags, Result,
    Seek, SetAttr, SetXattr, StatFs,
};

/// The medium of an engine.
pub type MediumOf<F> = <<F as Files>::Storage as Storage>::Medium;

/// An opened engine: its operations on contents of files, which use those on names and attributes,
/// and the functions that open it. Operations run inside the gate
/// ([`crate::derived::SharedPool::op`]).
pub trait Files: Deref<Target = Core<Self::Storage>> + Sized + Send + Sync {
    /// The inodes, names and space under the operations.
    type Storage: Storage;

    /// The derived state before it has memory.
    type Plan;

    // --- opening --------------------------------------------------------------------------------

    /// The format of the engine's superblocks.
    const FORMAT: Format;

    /// Version of the derived state: only processes with the same version can share it. No two
    /// engines have the same.
    const STATE_FORMAT: u64;

    /// Plans the derived state of a pool with this number of blocks, for one process or several.
    fn plan(is_shared: bool, blocks: u64) -> Self::Plan;

    /// Returns the layout of the derived state.
    fn layout(plan: &mut Self::Plan) -> &Layout;

    /// Makes the pool with its derived state in this memory.
    fn with(medium: MediumOf<Self>, plan: Self::Plan, memory: Memory, o: &MountOptions) -> Self;

    /// Gives the medium back.
    fn into_medium(self) -> MediumOf<Self>;

    // --- space ----------------------------------------------------------------------------------

    /// Free blocks that are kept for operations that give space back, or that keep existing
    /// content.
    const KEPT_BLOCKS: u64;

    /// Returns the number of blocks in use. Blocks that can be freed by making space count as free.
    fn blocks_used(&self) -> u64 {
        self.tables().blocks.len().saturating_sub(self.blocks_to_get())
    }

    /// Returns the number of blocks that operations can get.
    fn blocks_to_get(&self) -> u64 {
        let tables = self.tables();
        tables.free_blocks() + self.reclaimable() + tables.unprovisioned()
    }

    /// Implements [`FileSystem::statfs`].
    fn statfs(&self) -> StatFs {
        let tables = self.tables();
        let (inodes, free) = tables.inode_counts();
        if self.is_snapshot() {
            let (blocks, inodes) = (self.blocks_used(), inodes - free);
            return StatFs {
                block_size: BLOCK as u32,
                blocks,
                blocks_free: 0,
                blocks_available: 0,
                inodes,
                inodes_free: 0,
            };
        }
        let blocks_free = self.blocks_to_get().saturating_sub(Self::KEPT_BLOCKS);
        let slots_free = tables.inode_slots().saturating_sub(inodes - free);
        let inodes_free =
            free.min(blocks_free * (BLOCK / <Self::Storage as Storage>::INODE) + slots_free);
        StatFs {
            block_size: BLOCK as u32,
            blocks: tables.blocks.len(),
            blocks_free,
            blocks_available: available(blocks_free),
            // The number of existing inodes, plus those that can be created.
            inodes: inodes - free + inodes_free,
            inodes_free,
        }
    }

    /// Begins to use a pool. Either nothing is derived yet, or other processes use it (`is_joined`)
    /// and nothing has been changed yet.
    ///
    /// # Errors
    /// [`Error::Unusable`], [`Error::Damaged`]: the pool cannot be used so, or by this engine.
    fn begin_use(&self, _o: &MountOptions, _is_joined: bool) -> std::result::Result<(), Error> {
        Ok(())
    }

    /// Returns whether a snapshot is mounted.
    fn is_snapshot(&self) -> bool {
        false
    }

    /// Refuses all further changes, in this process.
    fn refuse_changes(&self);

    /// Ends the use of a pool that no other process uses, after everything was written back;
    /// records that for its next user.
    fn end_use(&self) -> Result<()> {
        Ok(())
    }

    /// Implements [`Engine::maintain`], inside an operation.
    fn maintain(&self) -> Result<bool> {
        Ok(false)
    }

    // --- contents -------------------------------------------------------------------------------

    /// The time at which contents survive a crash, if fences take effect.
    const DURABILITY: Durability;

    /// The data that the kernel may cache.
    const KERNEL_CACHE: KernelCache = KernelCache::WhileAlone;

    /// Sets the mode of durability, for all processes that use the pool. `EOPNOTSUPP` if the engine
    /// does not have it.
    fn set_durability(&self, mode: DurabilityMode) -> Result<()> {
        if mode == DurabilityMode::default() { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    /// Returns the mode of durability.
    fn durability_mode(&self) -> DurabilityMode {
        DurabilityMode::default()
    }

    /// Makes the content of a file durable; does nothing if contents are durable on return.
    fn write_back(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    /// Makes the contents of all files durable.
    fn write_back_all(&self) -> Result<()> {
        Ok(())
    }

    /// Implements [`FileSystem::read`].
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Implements [`FileSystem::write`].
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;

    /// Implements [`FileSystem::append`].
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64>;

    /// Implements [`FileSystem::fallocate`].
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()>;

    /// Implements [`FileSystem::seek`].
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64>;

    /// Implements [`FileSystem::copy_range`].
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64>;

    /// Implements [`FileSystem::limits`].
    fn limits(&self) -> &'static Limits {
        Self::Storage::LIMITS
    }

    /// Implements [`FileSystem::clone_range`].
    fn clone_range(&self, _from: (Ino, u64), _to: (Ino, u64), _len: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`Engine::snapshots`].
    fn snapshots(&self, _held: bool) -> Result<Snapshots> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`Engine::create_snapshot`], while no other thread is inside an operation.
    fn create_snapshot(&self, _name: &str) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`Engine::delete_snapshot`].
    fn delete_snapshot(&self, _name: &str) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Makes the state of a pool that no other process uses the one of a snapshot. The derived
    /// state is wrong afterwards.
    fn roll_back(&self, _name: &str) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::absent_range`].
    fn absent_range(&self, _ino: Ino, _from: u64) -> Result<Option<Range<u64>>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::dirty_range`].
    fn dirty_range(&self, _ino: Ino, _from: u64) -> Result<Option<Range<u64>>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::clean_range`].
    fn clean_range(&self, _ino: Ino, _from: u64) -> Result<Option<Range<u64>>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::hole_range`].
    fn hole_range(&self, _ino: Ino, _from: u64) -> Result<Option<Range<u64>>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::load_content`].
    fn load_content(&self, _ino: Ino, _offset: u64, _data: &[u8]) -> Result<u64> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::load_hole`].
    fn load_hole(&self, _ino: Ino, _range: Range<u64>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::clean_content`].
    fn clean_content(&self, _ino: Ino, _range: Range<u64>, _version: u64) -> Result<Option<u64>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::evict_content`].
    fn evict_content(&self, _ino: Ino, _range: Range<u64>) -> Result<u64> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::reload`], and with `_is_forced` [`vfs::Backed::replace`].
    fn reload(
        &self,
        _ino: Ino,
        _object: &LoadedObject<'_>,
        _was: u32,
        _is_forced: bool,
    ) -> Result<bool> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Backed::make_dirty`].
    fn make_dirty(&self, _ino: Ino) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`Mappings::map_range`].
    fn map_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<Vec<Extent>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`Mappings::sync_range`].
    fn sync_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Finds the place in PM of the content of a file from `offset` on, up to `count` contiguous
    /// bytes. Returns the place (`None`: a hole, of a block at most) and the length, 0 at the end
    /// of the file. The caller has counted itself as a reader without a copy.
    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)>;
}

impl Memory {
    fn fresh(arena: Arena, o: &MountOptions) -> Self {
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self::Fresh { arena, seed: o.seed.unwrap_or(seed) }
    }
}

/// Returns the name and access rights of the shared state of the pool in `region`
/// ([`pool::place`]).
///
/// # Errors
/// [`Error::NotAPool`]; [`Error::Shared`] if the region lies in no file.
pub fn place<F: Files>(region: &Region) -> std::result::Result<Place, Error> {
    pool::place(region, F::FORMAT.info(region)?.uuid, F::STATE_FORMAT)
}

/// A mounted pool.
///
/// Any number of threads may call it. Operations on different inodes run in parallel; readers of
/// one inode run in parallel. Only the growth of the inode file and moves between directories take
/// a global lock.
pub struct Pool<F> {
    pub(crate) files: F,
    report: MountReport,
    pub(crate) surplus: Surplus,
}

/// Plans the derived state of the pool on a medium.
fn plan<F: Files>(medium: &MediumOf<F>, is_shared: bool) -> std::result::Result<F::Plan, Error> {
    Ok(F::plan(is_shared, F::FORMAT.load(medium)?.blocks.get()))
}

/// Opens a pool that no other process uses; nothing is derived yet.
///
/// # Errors
/// [`Error::NotAPool`] or [`Error::Unusable`] if the medium holds no usable pool.
pub fn open<F: Files>(medium: MediumOf<F>, o: &MountOptions) -> std::result::Result<F, Error> {
    let mut plan = plan::<F>(&medium, false)?;
    let arena = Arena::anonymous(F::layout(&mut plan))?;
    Ok(F::with(medium, plan, Memory::fresh(arena, o), o))
}

/// Returns the error of a read-only mount, if an interrupted operation must be finished by a mount
/// for writing.
pub fn interrupted() -> Error {
    let why = "a change was interrupted and has to be finished: mount it for writing once, or `keepstone check --repair` it";
    Error::Unusable(why.to_owned())
}

/// Scans the pool into the empty derived state.
fn derive<F: Files>(files: &F, o: &MountOptions) -> std::result::Result<MountReport, Error> {
    let start = Instant::now();
    files.begin_use(o, false)?;
    let scan = files.scan(&ScanOptions::fresh(o.threads), &|_| {});
    let stale = scan.stale.lock().map(|s| s.clone()).unwrap_or_default();
    let (inodes, names) = (scan.inodes.load(Relaxed), scan.names.load(Relaxed));
    let problems = scan.into_problems();
    if !problems.is_empty() && !o.read_only {
        return Err(Error::Damaged(problems));
    }
    if !o.read_only {
        files.clear_stale(&stale);
        files.begin_thin()?;
    }
    Ok(MountReport {
        inodes,
        names,
        blocks_used: files.blocks_used(),
        stale_cleared: if o.read_only { 0 } else { stale.len() as u64 },
        problems: problems.len() as u64,
        scan_us: start.elapsed().as_micros() as u64,
    })
}

impl<F: Files> Pool<F> {
    /// Mounts the pool on `medium`: scans it in parallel and derives the volatile state (§3.3).
    ///
    /// # Errors
    /// [`Error::NotAPool`] or [`Error::Unusable`] if the medium holds no usable pool.
    /// [`Error::Damaged`] if the scan finds a violated invariant, unless `read_only`: then damaged
    /// objects answer `EUCLEAN`.
    pub fn mount(medium: MediumOf<F>, options: &MountOptions) -> std::result::Result<Self, Error> {
        let files: F = open(medium, options)?;
        let report = derive(&files, options)?;
        Ok(Self::of(files, report))
    }

    /// Mounts the pool on `medium` together with other processes: the derived state is the one at
    /// `place`, which the first of them makes by a scan. The medium must be open to all of them
    /// ([`pmem::Lock::Shared`]).
    ///
    /// # Errors
    /// As [`mount`](Self::mount), and [`Error::Shared`].
    pub fn attach(
        medium: MediumOf<F>,
        place: &Place,
        options: &MountOptions,
    ) -> std::result::Result<Self, Error> {
        let mut plan = plan::<F>(&medium, true)?;
        match crate::derived::attach(&medium, place, F::layout(&mut plan)).map_err(Error::Shared)? {
            Attached::Joined(arena) => {
                let files: F = F::with(medium, plan, Memory::Joined(arena), options);
                files.begin_use(options, true)?;
                files.join()?;
                let report =
                    MountReport { blocks_used: files.blocks_used(), ..MountReport::default() };
                Ok(Self::of(files, report))
            }
            Attached::Fresh(arena) => {
                let files = F::with(medium, plan, Memory::fresh(arena, options), options);
                let report = derive(&files, options)?;
                files.tables().arena.publish().map_err(Error::Shared)?;
                Ok(Self::of(files, report))
            }
        }
    }

    fn of(files: F, report: MountReport) -> Self {
        Self { files, report, surplus: Surplus::default() }
    }

    /// As [`pool::Processes::reap_processes`].
    pub fn reap_processes(&self) -> Result<usize> {
        self.files.reap_processes(Look::Thorough)
    }

    /// Returns the number of times that a process died inside an operation, so that the derived
    /// state was derived again.
    pub fn recoveries(&self) -> u32 {
        self.files.tables().arena.recoveries()
    }

    /// For tests: derives the state again, as after a process has died inside an operation.
    pub fn rehearse_recovery(&self) -> vfs::Result<()> {
        self.files.rehearse_recovery()
    }

    /// As [`Engine::maintain`].
    ///
    /// # Errors
    /// Those of [`Engine::maintain`].
    pub fn maintain(&self) -> Result<bool> {
        if self.files.op(|_| self.files.maintain())? {
            return Ok(true);
        }
        self.maintain_thin()?;
        Ok(false)
    }

    /// As [`Engine::get_read_buf`], on a medium of any kind: returns the place of the bytes (`None`
    /// is a hole) and their number. They stay until [`put_read_buf`](Self::put_read_buf).
    ///
    /// # Errors
    /// Those of [`Engine::get_read_buf`].
    pub fn pin_content(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)> {
        self.files.pin(|| self.files.contiguous(ino, offset, count))
    }

    /// Gives back one pin of [`pin_content`](Self::pin_content).
    pub fn put_read_buf(&self) {
        self.files.put_read_buf();
    }

    /// As [`Engine::record_access`].
    pub fn record_access(&self, files: bool, dirs: bool, strictly: bool) {
        self.files.tables().record_access(files, dirs, strictly);
    }

    /// As [`Engine::set_durability`].
    ///
    /// # Errors
    /// Those of [`Engine::set_durability`].
    pub fn set_durability(&self, mode: DurabilityMode) -> Result<()> {
        self.files.set_durability(mode)?;
        match F::DURABILITY {
            // Another mode may have left a commit.
            Durability::OnReturn => self.files.op(|_| self.files.write_back_all()),
            _ => Ok(()),
        }
    }

    /// Returns the findings of the mount.
    pub fn mount_report(&self) -> &MountReport {
        &self.report
    }

    /// Returns the medium.
    pub fn medium(&self) -> &MediumOf<F> {
        self.files.medium().0
    }

    /// Checks, after a sync, whether the medium is healthy and still there; `EIO` if not.
    fn check_medium(&self) -> Result<()> {
        let medium = self.files.medium().0;
        if medium.is_lost() || medium.health().is_err() { Err(Errno::IO) } else { Ok(()) }
    }

    /// Ends the use of the pool if this process is its last user, and if nothing is left to be
    /// repaired. An exclusive lock of the medium proves that: all users take a shared lock before
    /// they look at the pool. The lock is kept, so a newcomer cannot join without looking at the
    /// pool again.
    fn end_use_if_last(&self) -> Result<()> {
        let (files, arena) = (&self.files, &self.files.tables().arena);
        if arena.descriptor().is_some() && files.medium().0.lock(Lock::Exclusive).is_err() {
            // The attempt may have cost the shared lock.
            let _ = files.medium().0.lock(Lock::Shared);
            return self.sync();
        }
        self.sync()?;
        // Other processes may have died meanwhile.
        if arena.has_died_inside() || files.tables().is_damaged() {
            return Ok(());
        }
        files.refuse_changes();
        files.end_use()
    }

    /// Ends the mount as if the process were killed, and gives the medium back. The caller decides
    /// what is synced before, and whether the pool is closed ([`FileSystem::close`]).
    pub fn into_medium(self) -> MediumOf<F> {
        self.files.into_medium()
    }
}

impl<F: Files> HasMountEvents for Pool<F> {
    fn mount_events(&self) -> impl MountEvents {
        PoolEvents(&*self.files)
    }
}

impl<F: Files> FileSystem for Pool<F> {
    fn root(&self) -> Ino {
        ROOT
    }
    fn durability(&self) -> Durability {
        match self.files.medium().0.domain() {
            // Fences can fail, which `fsync` reports.
            Domain::PageCache => Durability::OnSync,
            _ if self.files.durability_mode() == DurabilityMode::Ordered => Durability::OnSync,
            _ => F::DURABILITY,
        }
    }
    fn kernel_cache(&self) -> KernelCache {
        F::KERNEL_CACHE
    }
    fn limits(&self) -> &'static Limits {
        self.files.limits()
    }
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let mut entry = Entry::NONE;
        self.lookup_into(dir, name, &mut entry)?;
        Ok(entry)
    }
    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        self.files.op(|core| core.lookup(dir, name, entry))
    }
    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        loop {
            if let Some(seen) = self.files.op(|core| Ok(core.peek(dir, name, attr)))? {
                return seen;
            }
            self.lookup_into(dir, name, attr)?;
            self.forget(attr.ino, 1);
            // An inode without a link lost its name between the two steps of `lookup`: try again.
            if attr.nlink > 0 || matches!(name, b"." | b"..") {
                return Ok(());
            }
        }
    }
    fn version(&self, ino: Ino) -> Option<u64> {
        self.files.tables().version(ino)
    }
    fn forget(&self, ino: Ino, refs: u64) {
        caller::uninterrupted(|| self.files.forget(ino, refs));
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.files.op(|core| core.getattr(ino))
    }
    fn setattr(&self, _caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.files.op(|core| core.setattr(ino, set))
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.files.op(|core| core.create(caller, dir, name, node))
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.files.op(|core| core.tmpfile(caller, dir, mode, umask))
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.files.op(|core| core.readlink(ino))
    }
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.files.op(|core| core.unlink(dir, name))
    }
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.files.op(|core| core.rmdir(dir, name))
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.files.op(|core| core.link(ino, dir, name))
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.files.op(|core| core.rename(from, to, flags))
    }
    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.files.op(|core| core.rename_whiteout(caller, from, to, flags))
    }
    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.files.op(|core| core.readdir(dir, cookie, emit))
    }
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files.op(|_| self.files.read(ino, offset, buf))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.files.op(|_| self.files.write(ino, offset, data))
    }
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.files.op(|_| self.files.append(ino, data))
    }
    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.files.op(|core| core.drop_privileges(ino))
    }
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.files.op(|_| self.files.fallocate(ino, mode, offset, len))
    }
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.files.op(|_| self.files.seek(ino, offset, whence))
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.files.op(|_| self.files.copy_range(from, to, len))
    }
    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        self.files.op(|_| self.files.clone_range(from, to, len))
    }
    fn fsync(&self, ino: Ino) -> Result<()> {
        self.files.op(|core| core.getattr(ino).and_then(|_| self.files.write_back(ino)))?;
        self.check_medium()
    }
    fn sync(&self) -> Result<()> {
        self.files.op(|_| self.files.write_back_all())?;
        self.check_medium()
    }
    fn close(&self) -> Result<()> {
        if self.files.is_read_only() {
            return Ok(());
        }
        self.reap_processes()?;
        self.end_use_if_last()
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.files.op(|core| core.getxattr(ino, name))
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.files.op(|core| core.setxattr(ino, name, value, mode))
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.files.op(|core| core.listxattr(ino))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.files.op(|core| core.removexattr(ino, name))
    }
    fn statfs(&self) -> StatFs {
        self.files.statfs()
    }
}

impl<F: Files> Mappings for Pool<F> {
    fn map_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<Vec<Extent>> {
        self.files.op(|_| self.files.map_range(ino, range.clone(), stores))
    }
    fn map_again(&self, ino: Ino, stores: bool) -> Result<()> {
        self.files.op(|core| {
            let v = core.tables().vinode(ino)?;
            // Without a direct mapping the blocks may have moved.
            if !v.mappings.are_direct() {
                return Err(Errno::OPNOTSUPP);
            }
            core.tables().add_mapping(ino, v, Mapper::direct(stores))
        })
    }
    fn unmap_range(&self, ino: Ino, stores: bool, is_durable: bool) {
        if let Ok(process) = self.files.tables().arena.process() {
            let mapping = (Mapper::direct(stores), 1);
            let end =
                || crate::derived::end_mappings(&*self.files, process, ino, mapping, is_durable);
            // This fails only if the pool fails.
            let _ = caller::uninterrupted(end);
        }
    }
    fn sync_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<()> {
        self.files.op(|_| self.files.sync_range(ino, range.clone(), stores))?;
        self.check_medium()
    }
}

impl<F: Files> Openings for Pool<F> {}

impl<F: Files<Storage: Storage<Medium = Region>>> Engine for Pool<F> {
    fn region(&self) -> &Region {
        self.files.medium().0
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files
            .medium()
            .0
            .descriptor()
            .into_iter()
            .chain(self.files.tables().arena.descriptor())
            .collect()
    }

    fn mount_report(&self) -> &MountReport {
        &self.report
    }

    fn free_space(&self) -> FreeSpace {
        self.files.tables().free_space()
    }

    fn record_access(&self, files: bool, dirs: bool, strictly: bool) {
        Self::record_access(self, files, dirs, strictly);
    }

    fn set_durability(&self, mode: DurabilityMode) -> Result<()> {
        Self::set_durability(self, mode)
    }

    fn durability_mode(&self) -> DurabilityMode {
        self.files.durability_mode()
    }

    fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<ReadBuf<'_>> {
        Ok(ReadBuf::new(
            self,
            self.files.get_read_buf(|| self.files.contiguous(ino, offset, count))?,
        ))
    }

    fn maintain(&self) -> Result<bool> {
        Self::maintain(self)
    }

    fn trim(&self) -> Result<()> {
        Self::trim(self, Trim::All)
    }

    fn snapshots(&self, held: bool) -> Result<Snapshots> {
        Self::snapshots(self, held)
    }

    fn create_snapshot(&self, name: &str) -> Result<()> {
        Self::create_snapshot(self, name)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.delete_unmounted_snapshot(name)
    }

    fn put_read_buf(&self) {
        Self::put_read_buf(self);
    }

    fn backed(&self) -> Option<&dyn Backed> {
        self.files.is_backed().then_some(self)
    }
}

/// Returns the free blocks that one file can get: a block of pointers leads to 512 others, and a
/// file that grows copies some.
fn available(free: u64) -> u64 {
    const POINTERS: u64 = BLOCK / 8;
    const COPIES: u64 = 16;
    free.saturating_sub(free.div_ceil(POINTERS - 1) + COPIES)
}
