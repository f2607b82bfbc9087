//! A mounted pool: opening it, and everything that front ends need from it.

use crate::derived::{Mapper, PoolEvents, SharedPool as _};
use crate::files::{Files, MediumOf};
use crate::scan::ScanOptions;
use crate::store::Storage;
use crate::surplus::Surplus;
use crate::tables::Memory;
use crate::thin::Trim;
use arena::{Arena, Attached, Look};
use mounts::{HasMountEvents, MountEvents};
use os::caller;
use pmem::{Domain, Lock, Medium, PmOff, Region};
use pool::{
    DurabilityMode, Engine, Error, FreeSpace, MountOptions, MountReport, Place, ReadBuf, Snapshots,
    TreeSource,
};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use vfs::{
    Attr, Backed, Caller, Cloned, DirEntry, Durability, Entry, Errno, Extent, Fallocate,
    FileSystem, Ino, KernelCache, Limits, Mappings, NewNode, Openings, ROOT, RenameFlags, Result,
    Seek, SetAttr, SetXattr, StatFs,
};

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
    Ok(F::plan(is_shared, F::FORMAT.load(medium)?.length()))
}

/// Opens a pool that no other process uses; nothing is derived yet.
///
/// # Errors
/// [`Error::NotAPool`] or [`Error::Unusable`] if the medium holds no usable pool.
pub fn open<F: Files>(medium: MediumOf<F>, o: &MountOptions) -> std::result::Result<F, Error> {
    let mut plan = plan::<F>(&medium, false)?;
    let arena = Arena::anonymous(F::layout(&mut plan))?;
    Ok(with_fresh(medium, plan, arena, o))
}

fn with_fresh<F: Files>(medium: MediumOf<F>, plan: F::Plan, arena: Arena, o: &MountOptions) -> F {
    let files = F::with(medium, plan, Memory::fresh(arena, o), o);
    files.tables().note_size(&files.medium());
    files
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
                let files: F = with_fresh(medium, plan, arena, options);
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

    fn resize(&self, bytes: u64) -> Result<u64> {
        Self::resize(self, bytes)
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

    fn branches_dir(&self, creates: bool) -> Result<Option<Ino>> {
        Self::branches_dir(self, creates)
    }

    fn commit_branch(&self, name: &str, base: Option<&str>) -> Result<()> {
        self.commit_unmounted_branch(name, base)
    }

    fn copy_tree(&self, from: &TreeSource<'_>, to: (Ino, &[u8])) -> Result<Cloned> {
        Self::copy_tree(self, from, to)
    }

    fn clone_from_snapshot(&self, name: &str, from: Ino, to: Ino) -> Result<()> {
        Self::clone_from_snapshot(self, name, from, to)
    }

    fn content_id(&self, ino: Ino) -> Result<u64> {
        Self::content_id(self, ino)
    }

    fn put_read_buf(&self) {
        Self::put_read_buf(self);
    }

    fn backed(&self) -> Option<&dyn Backed> {
        self.files.is_backed().then_some(self)
    }
}
