//! The operations on contents of files; [`namespace::Core`] has those on names and attributes.

use crate::blocks::KEEP;
use crate::crawler::Trees;
use crate::layout::{self, BLOCK};
use crate::redo;
use crate::scan::SharedScan;
use crate::snapshots::find_entry;
use crate::store::Store;
use crate::volatile::VolatilePlan;
use arena::Layout;
use namespace::{Core, Format, Memory, PoolLength, Storage as _};
use pmem::{Medium, Pm, PmOff};
use pool::stream::ReceiveStep;
use pool::{DurabilityMode, Error, MountOptions, Snapshots, TreeSource};
use std::ops::{Deref, Range};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::{Cloned, Durability, Errno, Fallocate, Ino, Limits, LoadedObject, Result, Seek};

/// Version of the derived state.
pub const STATE_FORMAT: u64 = 33 << 1;

/// The operations on contents. Each may use the store and the other operations.
pub struct Files<M>(pub(crate) Core<Store<M>>);

/// The operations use the methods of [`Core`] as their own.
impl<M> Deref for Files<M> {
    type Target = Core<Store<M>>;

    #[inline]
    fn deref(&self) -> &Core<Store<M>> {
        &self.0
    }
}

impl<M: Medium> Files<M> {
    /// Begins to use a snapshot. Interrupted operations of the pool do not concern it.
    fn begin_use_of_snapshot(
        &self,
        name: &str,
        o: &MountOptions,
    ) -> std::result::Result<(), Error> {
        if !o.read_only {
            return Err(Error::Unusable("a snapshot can be mounted only to be read".to_owned()));
        }
        let found = match o.is_incomplete {
            true => find_entry(&self.medium, self.bytes, name),
            false => self.find_snapshot(name),
        };
        let entry = found.map_err(|e| match e {
            Errno::NOENT => Error::NoSnapshot(name.to_owned()),
            _ => Error::Unusable(format!("the entry of its snapshot `{name}` is damaged")),
        })?;
        let _ = self.snapshot.set(entry);
        Ok(())
    }
}

/// Each operation calls the one of the same name in `file`, `space`, `backed` and `pin`.
impl<M: Medium> namespace::Files for Files<M> {
    type Storage = Store<M>;

    type Plan = VolatilePlan;
    const FORMAT: Format = layout::FORMAT;
    const STATE_FORMAT: u64 = STATE_FORMAT;

    fn plan(is_shared: bool, length: PoolLength) -> VolatilePlan {
        VolatilePlan::new(is_shared, length)
    }

    fn layout(plan: &mut VolatilePlan) -> &Layout {
        plan.layout()
    }

    fn with(medium: M, plan: VolatilePlan, memory: Memory, o: &MountOptions) -> Self {
        let v = plan.open(memory);
        let bytes = v.blocks.len() * BLOCK;
        let medium = Pm(medium);
        let is_backed = namespace::version(&medium) == layout::BACKED_VERSION;
        let marks = if is_backed { layout::Pointer::CLEAN } else { 0 };
        Self(Core(Store {
            trees: Trees { medium, bytes, marks },
            v,
            read_only: AtomicBool::new(o.read_only),
            clock: o.clock,
            shared_scan: SharedScan::default(),
            snapshot: OnceLock::new(),
        }))
    }

    fn into_medium(self) -> M {
        self.0.0.trees.medium.0
    }

    /// Finishes interrupted operations before anything is read.
    fn begin_use(&self, o: &MountOptions, _is_joined: bool) -> std::result::Result<(), Error> {
        if let Some(name) = &o.snapshot {
            return self.begin_use_of_snapshot(name, o);
        }
        if o.read_only && !redo::pending(&self.medium, self.bytes).is_empty() {
            return Err(namespace::interrupted());
        }
        Ok(())
    }

    fn is_snapshot(&self) -> bool {
        self.snapshot.get().is_some()
    }

    fn refuse_changes(&self) {
        self.read_only.store(true, Relaxed);
    }

    fn end_use(&self) -> Result<()> {
        self.end_sharing();
        Ok(())
    }

    const KEPT_BLOCKS: u64 = KEEP;

    const DURABILITY: Durability = Durability::OnReturn;

    fn set_durability(&self, mode: DurabilityMode) -> Result<()> {
        self.v.set_durability(mode);
        Ok(())
    }

    fn durability_mode(&self) -> DurabilityMode {
        match self.v.leaves_fences() {
            true => DurabilityMode::Ordered,
            false => DurabilityMode::Journal,
        }
    }

    /// Makes all operations durable that have returned: at most one is not (order-O1).
    fn write_back(&self, _ino: Ino) -> Result<()> {
        self.settle();
        Ok(())
    }

    fn write_back_all(&self) -> Result<()> {
        self.settle();
        Ok(())
    }

    #[inline]
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Self::read(self, ino, offset, buf)
    }

    #[inline]
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        Self::write(self, ino, offset, data)
    }

    #[inline]
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        Self::append(self, ino, data)
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        Self::fallocate(self, ino, mode, offset, len)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        Self::seek(self, ino, offset, whence)
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        Self::copy_range(self, from, to, len)
    }

    fn limits(&self) -> &'static Limits {
        // A mark of a shared block would belong to several files.
        const BACKED: &Limits = &Limits { clones: false, ..layout::LIMITS };
        if self.is_backed() { BACKED } else { &layout::LIMITS }
    }

    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        Self::clone_range(self, from, to, len)
    }

    fn snapshots(&self, held: bool) -> Result<Snapshots> {
        Self::snapshots(self, held)
    }

    fn create_snapshot(&self, name: &str) -> Result<()> {
        Self::create_snapshot(self, name)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        Self::delete_snapshot(self, name)
    }

    fn branches_dir(&self, creates: bool) -> Result<Option<Ino>> {
        self.branches_dir_of(creates)
    }

    fn commit_branch(&self, name: &str, base: Option<&str>) -> Result<()> {
        Self::commit_branch(self, name, base)
    }

    fn copy_tree(&self, from: &TreeSource<'_>, to: (Ino, &[u8])) -> Result<(Ino, Cloned)> {
        Self::copy_tree(self, from, to)
    }

    fn clone_from_snapshot(&self, name: &str, from: Ino, to: Ino) -> Result<()> {
        Self::clone_from_snapshot(self, name, from, to)
    }

    fn roll_back(&self, name: &str) -> Result<()> {
        Self::roll_back(self, name)
    }

    fn receive(&self, step: &ReceiveStep<'_>) -> Result<()> {
        Self::receive(self, step)
    }

    fn absent_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        Self::absent_range(self, ino, from)
    }

    fn dirty_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        Self::dirty_range(self, ino, from)
    }

    fn clean_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        Self::clean_range(self, ino, from)
    }

    fn hole_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        Self::hole_range(self, ino, from)
    }

    fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64> {
        Self::load_content(self, ino, offset, data)
    }

    fn load_hole(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        Self::load_hole(self, ino, range)
    }

    fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> Result<Option<u64>> {
        Self::clean_content(self, ino, range, version)
    }

    fn evict_content(&self, ino: Ino, range: Range<u64>) -> Result<u64> {
        Self::evict_content(self, ino, range)
    }

    fn reload(
        &self,
        ino: Ino,
        object: &LoadedObject<'_>,
        was: u32,
        is_forced: bool,
    ) -> Result<bool> {
        Self::reload(self, ino, object, was, is_forced)
    }

    fn make_dirty(&self, ino: Ino) -> Result<()> {
        Self::make_dirty(self, ino)
    }

    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)> {
        Self::contiguous(self, ino, offset, count)
    }
}
