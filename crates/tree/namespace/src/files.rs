//! The part of a mounted pool that an engine provides: [`Files`], the operations on contents.

use crate::fs::Core;
use crate::layout::BLOCK;
use crate::store::Storage;
use crate::superblock::Format;
use crate::tables::{Memory, PoolLength};
use arena::Layout;
use pmem::PmOff;
use pool::stream::ReceiveStep;
use pool::{DurabilityMode, Error, MountOptions, Snapshots, TreeSource};
use std::ops::{Deref, Range};
use vfs::{
    Cloned, Durability, Errno, Extent, Fallocate, Ino, KernelCache, Limits, LoadedObject, Result,
    Seek, StatFs,
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

    /// Plans the derived state of a pool of this length, for one process or several.
    fn plan(is_shared: bool, length: PoolLength) -> Self::Plan;

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
        self.tables().size_in_blocks() - self.blocks_to_get()
    }

    /// Returns the number of blocks that operations can get.
    fn blocks_to_get(&self) -> u64 {
        let tables = self.tables();
        let free = tables.free_blocks() + self.reclaimable() + tables.unprovisioned();
        free.min(tables.size_in_blocks())
    }

    /// Implements [`vfs::FileSystem::statfs`].
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
            blocks: tables.size_in_blocks(),
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

    /// Implements [`pool::Engine::maintain`], inside an operation.
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

    /// Implements [`vfs::FileSystem::read`].
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Implements [`vfs::FileSystem::write`].
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()>;

    /// Implements [`vfs::FileSystem::append`].
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64>;

    /// Implements [`vfs::FileSystem::fallocate`].
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()>;

    /// Implements [`vfs::FileSystem::seek`].
    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64>;

    /// Implements [`vfs::FileSystem::copy_range`].
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64>;

    /// Implements [`vfs::FileSystem::limits`].
    fn limits(&self) -> &'static Limits {
        Self::Storage::LIMITS
    }

    /// Implements [`vfs::FileSystem::clone_range`].
    fn clone_range(&self, _from: (Ino, u64), _to: (Ino, u64), _len: u64) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::snapshots`].
    fn snapshots(&self, _held: bool) -> Result<Snapshots> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::create_snapshot`], while no other thread is inside an operation.
    fn create_snapshot(&self, _name: &str) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::delete_snapshot`].
    fn delete_snapshot(&self, _name: &str) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::branches_dir`].
    fn branches_dir(&self, _creates: bool) -> Result<Option<Ino>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::commit_branch`], while no other thread is inside an operation.
    /// The derived state is wrong afterwards.
    fn commit_branch(&self, _name: &str, _base: Option<&str>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::copy_tree`]. Adds a reference to the copy, and returns it.
    fn copy_tree(&self, _from: &TreeSource<'_>, _to: (Ino, &[u8])) -> Result<(Ino, Cloned)> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`pool::Engine::clone_from_snapshot`].
    fn clone_from_snapshot(&self, _name: &str, _from: Ino, _to: Ino) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Does a step of receiving a snapshot. `EBADMSG` if records do not fit the snapshot, or its
    /// base.
    fn receive(&self, _step: &ReceiveStep<'_>) -> Result<()> {
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

    /// Implements [`vfs::Mappings::map_range`].
    fn map_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<Vec<Extent>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`vfs::Mappings::sync_range`].
    fn sync_range(&self, _ino: Ino, _range: Range<u64>, _stores: bool) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Finds the place in PM of the content of a file from `offset` on, up to `count` contiguous
    /// bytes. Returns the place (`None`: a hole, of a block at most) and the length, 0 at the end
    /// of the file. The caller has counted itself as a reader without a copy.
    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)>;
}

/// Returns the free blocks that one file can get: a block of pointers leads to 512 others, and a
/// file that grows copies some.
fn available(free: u64) -> u64 {
    const POINTERS: u64 = BLOCK / 8;
    const COPIES: u64 = 16;
    free.saturating_sub(free.div_ceil(POINTERS - 1) + COPIES)
}
