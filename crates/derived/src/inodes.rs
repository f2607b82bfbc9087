//! What every inode has in derived state.
//!
//! - inodes-L1: an inode is live from its creation until its last name and last reference are gone.

use arena::{RwLock, Shared};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use vfs::FileKind;

/// Of an inode's state: it lives.
pub const LIVE: u32 = 1;
/// It was made by `tmpfile` and never named.
pub const UNNAMED: u32 = 2;
/// It is a directory that was removed.
pub const REMOVED: u32 = 4;
/// Engines may use the bits from here to 128: the kind is above.
pub const ENGINE_BITS: u32 = 8;
const KIND_SHIFT: u32 = 8;

/// Derived state of one inode, half a line; the engine's is the other half.
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
    /// How often the kernel has it open to execute it ([`mounts::MountEvents`]).
    pub executions: AtomicU32,
    /// How often somebody may map it through the mount ([`mounts::MountEvents`]): the sum of what processes count.
    pub mappings: AtomicU32,
}

const _: () = assert!(size_of::<InodeState>() == 32, "the engine has the other half of the line");

/// Derived state of an inode as an engine has it: this and its own.
pub trait Inode: Shared + Deref<Target = InodeState> {}

impl<V: Shared + Deref<Target = InodeState>> Inode for V {}

impl InodeState {
    /// Kind of object.
    #[inline]
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode((self.state.load(Relaxed) >> KIND_SHIFT) << 12)
            .unwrap_or(FileKind::File)
    }

    /// Starts a life: live, of this kind, with these flags, without names. The engine has put its own words in order.
    /// (References and mappings are counted on: somebody who holds an inode that he has just seen die gives that back
    /// yet.)
    #[inline]
    pub fn begin(&self, kind: FileKind, flags: u32) {
        self.links.store(0, Relaxed);
        self.executions.store(0, Relaxed);
        self.state.store(LIVE | flags | (kind.mode_bits() >> 12) << KIND_SHIFT, Release);
    }

    /// Whether it lives.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.load(Relaxed) & LIVE != 0
    }

    /// Ends a life.
    #[inline]
    pub fn end(&self) {
        self.state.store(0, Relaxed);
    }

    /// Whether its last name is gone.
    #[inline]
    pub fn has_no_name(&self) -> bool {
        match self.kind() {
            FileKind::Dir => self.state.load(Relaxed) & REMOVED != 0,
            _ => self.links.load(Relaxed) == 0,
        }
    }

    /// The number of links that `stat` tells.
    #[inline]
    pub fn nlink(&self) -> u32 {
        let links = self.links.load(Relaxed);
        match self.kind() {
            FileKind::Dir if self.state.load(Relaxed) & REMOVED != 0 => 0,
            FileKind::Dir => links + 2,
            _ => links,
        }
    }

    /// Adds to the links; how many there are then. For who has the inode exclusively: by a load and a store, as an atomic
    /// addition would wait for what was written to PM before.
    #[inline]
    pub fn add_links(&self, n: i32) -> u32 {
        let links = self.links.load(Relaxed).wrapping_add_signed(n);
        self.links.store(links, Relaxed);
        links
    }
}
