//! The operations on contents of files; [`namespace::Core`] has those on names and attributes.

use crate::journal;
use crate::layout::{self, BLOCK};
use crate::map::Maps;
use crate::space::KEEP;
use crate::store::Store;
use crate::usage;
use crate::volatile::Plan;
use arena::Layout;
use namespace::{Core, Format, Memory, PoolLength};
use pmem::{Medium, Pm, PmOff};
use pool::{Error, MountOptions};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::{Durability, Extent, Fallocate, Ino, Result, Seek};

/// Version of the derived state.
pub const STATE_FORMAT: u64 = (1 << 8 | 16) << 1;

/// The operations on contents. Each may use the store and the other operations.
pub struct ScmfsFiles<M>(pub(crate) Core<Store<M>>);

/// The operations use the methods of [`Core`] as their own.
impl<M> Deref for ScmfsFiles<M> {
    type Target = Core<Store<M>>;

    #[inline]
    fn deref(&self) -> &Core<Store<M>> {
        &self.0
    }
}

/// Each operation calls the one of the same name in `content`, `allocate`, `sync`, `pin` and
/// `mapping`.
impl<M: Medium> namespace::Files for ScmfsFiles<M> {
    type Storage = Store<M>;

    type Plan = Plan;
    const FORMAT: Format = layout::FORMAT;
    const STATE_FORMAT: u64 = STATE_FORMAT;

    fn plan(is_shared: bool, length: PoolLength) -> Plan {
        Plan::new(is_shared, length)
    }

    fn layout(plan: &mut Plan) -> &Layout {
        plan.layout()
    }

    fn with(medium: M, plan: Plan, memory: Memory, o: &MountOptions) -> Self {
        let v = plan.open(memory, medium.domain(), o);
        let medium = Pm(medium);
        let bytes = v.blocks.len() * BLOCK;
        Self(Core(Store {
            says_usage: usage::is_said(&medium),
            is_all_durable: AtomicBool::new(false),
            maps: Maps { medium, bytes },
            v,
            read_only: AtomicBool::new(o.read_only),
            clock: o.clock,
        }))
    }

    fn into_medium(self) -> M {
        self.0.0.maps.medium.0
    }

    const KEPT_BLOCKS: u64 = KEEP;

    /// Finishes interrupted operations before anything is read.
    fn begin_use(&self, o: &MountOptions, is_joined: bool) -> std::result::Result<(), Error> {
        if o.read_only && !journal::pending(&self.medium, self.bytes).is_empty() {
            return Err(namespace::interrupted());
        }
        self.0.0.begin_use(o, is_joined)
    }

    fn refuse_changes(&self) {
        self.read_only.store(true, Relaxed);
    }

    fn end_use(&self) -> Result<()> {
        self.0.0.end_use()
    }

    fn write_back(&self, ino: Ino) -> Result<()> {
        Self::write_back(self, ino)
    }

    fn write_back_all(&self) -> Result<()> {
        Self::write_back_all(self)
    }

    fn maintain(&self) -> Result<bool> {
        self.maintain_step()
    }

    const DURABILITY: Durability = Durability::MetadataOnReturn;

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

    fn map_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<Vec<Extent>> {
        Self::map_range(self, ino, range, stores)
    }

    fn sync_range(&self, ino: Ino, range: Range<u64>, stores: bool) -> Result<()> {
        Self::sync_range(self, ino, range, stores)
    }

    fn contiguous(&self, ino: Ino, offset: u64, count: u64) -> Result<(Option<PmOff>, u64)> {
        Self::contiguous(self, ino, offset, count)
    }
}
