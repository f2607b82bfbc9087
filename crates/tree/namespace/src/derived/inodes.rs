//! The engine-independent derived state of inodes.
//!
//! - inodes-L1: an inode is live from its creation until its last name and last reference are gone.

use arena::atomic::{AtomicU32, AtomicU64};
use arena::{RwLock, Shared};
use std::ops::Deref;
use std::sync::atomic::Ordering::*;
use vfs::FileKind;

/// State bit of an inode: it lives.
pub const LIVE: u32 = 1;
/// State bit: it was made by `tmpfile` and never named.
pub const UNNAMED: u32 = 2;
/// State bit: it is a directory that was removed.
pub const REMOVED: u32 = 4;
/// The lowest state bit for engines, which may use those up to 128. The kind is above them.
pub const ENGINE_BITS: u32 = 8;
const KIND_SHIFT: u32 = 8;

/// Derived state of one inode, half a cache line; the engine's state is the other half.
#[derive(Default)]
#[repr(C)]
pub struct InodeState {
    /// Guards the inode in PM and this record. Taken in ascending inode order.
    pub lock: RwLock,
    /// [`LIVE`], [`UNNAMED`], [`REMOVED`], bits of the engine, and the kind.
    pub state: AtomicU32,
    /// Names; for a directory, its subdirectories (its link count is two more).
    pub links: AtomicU32,
    /// References of front ends (contract vfs-C4).
    pub refs: AtomicU64,
    /// The number of times that the kernel has it open to execute it ([`mounts::MountEvents`]).
    pub executions: AtomicU32,
    /// Its mappings: the sum of the counts of all processes.
    pub mappings: MappingCount,
}

/// The number of mappings of an inode: either the kernel's pages through the mount
/// ([`mounts::MountEvents`]), or direct mappings of its blocks ([`vfs::Mappings::map_range`]).
/// Never both, because stores through one are not visible through the other.
///
/// One word: `DIRECT` is set while there is a direct mapping. Then the lower bits count mappings
/// that only read, and mappings that store; otherwise they are the count of the kernel's.
#[derive(Default)]
#[repr(transparent)]
pub struct MappingCount(AtomicU32);

/// The kind of a mapping of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapper {
    /// The kernel, through the mount.
    Kernel,
    /// A direct mapping of its blocks that only reads.
    Reader,
    /// A direct mapping that stores.
    Writer,
}

impl Mapper {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Reader, Self::Writer];

    /// Makes a direct mapping that `stores`, or one that only reads.
    pub fn direct(stores: bool) -> Self {
        if stores { Self::Writer } else { Self::Reader }
    }

    /// Returns its part of the count of a process: the lowest bit, and the largest number.
    pub(crate) fn field(self) -> (u32, u64) {
        match self {
            Self::Kernel => (0, u32::MAX.into()),
            Self::Reader => (32, u16::MAX.into()),
            Self::Writer => (48, u16::MAX.into()),
        }
    }
}

impl MappingCount {
    const DIRECT: u32 = 1 << 31;
    const WRITER: u32 = 1 << 16;
    const READERS: u32 = Self::WRITER - 1;
    const WRITERS: u32 = Self::DIRECT - Self::WRITER;

    /// Returns whether the kernel may have pages.
    #[inline]
    pub fn are_kernels(&self) -> bool {
        (1..Self::DIRECT).contains(&self.0.load(Acquire))
    }

    /// Returns whether there are direct mappings.
    #[inline]
    pub fn are_direct(&self) -> bool {
        self.0.load(Acquire) & Self::DIRECT != 0
    }

    /// Returns whether there are direct mappings that store.
    #[inline]
    pub fn may_store(&self) -> bool {
        let word = self.0.load(Acquire);
        word & Self::DIRECT != 0 && word & Self::WRITERS != 0
    }

    /// Counts `n` mappings. Returns false if the inode has mappings of the other kind (by the
    /// kernel, or direct), or too many.
    #[must_use]
    pub fn add(&self, mapper: Mapper, n: u32) -> bool {
        let more = |word: u32| match mapper {
            Mapper::Kernel if word & Self::DIRECT != 0 => None,
            Mapper::Kernel => word.checked_add(n).filter(|word| *word < Self::DIRECT),
            _ if word & Self::DIRECT == 0 && word != 0 => None,
            Mapper::Reader => (n <= Self::READERS - (word & Self::READERS)).then(|| word + n),
            Mapper::Writer => {
                let room = (Self::WRITERS - (word & Self::WRITERS)) / Self::WRITER;
                (n <= room).then(|| word + n * Self::WRITER)
            }
        };
        let direct = if mapper == Mapper::Kernel { 0 } else { Self::DIRECT };
        // Sequentially consistent with accesses to the content: a process that does not see the
        // count made its change before the content is read for the mapping.
        self.0.fetch_update(SeqCst, Relaxed, |word| Some(more(word)? | direct)).is_ok()
    }

    /// Takes back `n` mappings; returns whether none is left.
    pub fn take(&self, mapper: Mapper, n: u32) -> bool {
        let less = |word: u32| {
            let n = match mapper {
                // The mappings are of the other kind.
                _ if (word & Self::DIRECT == 0) != (mapper == Mapper::Kernel) => 0,
                Mapper::Kernel => n.min(word),
                Mapper::Reader => n.min(word & Self::READERS),
                Mapper::Writer => n.min((word & Self::WRITERS) / Self::WRITER) * Self::WRITER,
            };
            let left = word - n;
            if left == Self::DIRECT { 0 } else { left }
        };
        let had = self.0.fetch_update(AcqRel, Relaxed, |word| Some(less(word)));
        had.is_ok_and(|word| word != 0 && less(word) == 0)
    }
}

const _: () = assert!(size_of::<InodeState>() == 32, "the engine has the other half of the line");

/// The derived state of an inode in an engine: this state and its own.
pub trait Inode: Shared + Deref<Target = InodeState> {}

impl<V: Shared + Deref<Target = InodeState>> Inode for V {}

impl InodeState {
    /// Returns the kind of object.
    #[inline]
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode((self.state.load(Relaxed) >> KIND_SHIFT) << 12)
            .unwrap_or(FileKind::File)
    }

    /// Starts a life: live, of this kind, with these flags, without names. The engine has
    /// initialised its own words. (References and mappings are not reset: a process may still give
    /// back a reference to the inode's previous life.)
    #[inline]
    pub fn begin(&self, kind: FileKind, flags: u32) {
        self.prepare(kind, LIVE | flags, 0);
    }

    /// Prepares a life, with these names. It begins when [`begin_prepared`](Self::begin_prepared)
    /// is called; until then no other thread finds the inode.
    pub fn prepare(&self, kind: FileKind, flags: u32, links: u32) {
        self.links.store(links, Relaxed);
        self.executions.store(0, Relaxed);
        self.state.store(flags | (kind.mode_bits() >> 12) << KIND_SHIFT, Release);
    }

    /// Begins a life that was prepared.
    pub fn begin_prepared(&self) {
        self.state.store(self.state.load(Relaxed) | LIVE, Release);
    }

    /// Returns whether it lives.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.load(Relaxed) & LIVE != 0
    }

    /// Ends a life, when neither name nor reference is left (inodes-L1).
    #[inline]
    pub fn end(&self) {
        self.state.store(0, Relaxed);
    }

    /// Returns whether its last name is gone.
    #[inline]
    pub fn has_no_name(&self) -> bool {
        match self.kind() {
            FileKind::Dir => self.state.load(Relaxed) & REMOVED != 0,
            _ => self.links.load(Relaxed) == 0,
        }
    }

    /// Returns the number of links that `stat` reports.
    #[inline]
    pub fn nlink(&self) -> u32 {
        let links = self.links.load(Relaxed);
        match self.kind() {
            FileKind::Dir if self.state.load(Relaxed) & REMOVED != 0 => 0,
            FileKind::Dir => links + 2,
            _ => links,
        }
    }

    /// Adds to the links; returns the new number. The caller holds the inode exclusively, so a load
    /// and a store suffice: an atomic addition would wait for the preceding writes to PM.
    #[inline]
    pub fn add_links(&self, n: i32) -> u32 {
        let links = self.links.load(Relaxed).wrapping_add_signed(n);
        self.links.store(links, Relaxed);
        links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_others_never_map_an_inode_together() {
        let mappings = MappingCount::default();
        assert!(mappings.add(Mapper::Kernel, 1) && mappings.are_kernels());
        assert!(!mappings.add(Mapper::Reader, 1) && !mappings.add(Mapper::Writer, 1));
        assert!(!mappings.take(Mapper::Reader, 1) && mappings.are_kernels());
        assert!(mappings.take(Mapper::Kernel, 1) && !mappings.are_kernels());
        assert!(mappings.add(Mapper::Reader, 2) && mappings.add(Mapper::Writer, 1));
        assert!(mappings.are_direct() && mappings.may_store() && !mappings.are_kernels());
        assert!(!mappings.add(Mapper::Kernel, 1));
        assert!(!mappings.take(Mapper::Writer, 1) && !mappings.may_store());
        assert!(!mappings.take(Mapper::Reader, 1) && mappings.take(Mapper::Reader, 7));
        assert!(!mappings.are_direct() && !mappings.take(Mapper::Reader, 1));
    }

    #[test]
    fn more_than_can_be_counted_are_refused() {
        let mappings = MappingCount::default();
        assert!(mappings.add(Mapper::Reader, 0xffff) && mappings.add(Mapper::Writer, 0x7fff));
        assert!(!mappings.add(Mapper::Reader, 1) && !mappings.add(Mapper::Writer, 1));
        assert!(!mappings.take(Mapper::Writer, 0x7fff) && mappings.add(Mapper::Writer, 1));
        assert!(!mappings.take(Mapper::Writer, 1) && mappings.take(Mapper::Reader, 0xffff));
    }
}
