//! A regular file that is in use, or that has data which is not written back.

use crate::options::Mode;
use crate::range::Blocks;
use crate::record::{Birth, Record};
use backing::Frozen;
use eviction::MarkSlot;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Mutex, RwLock};
use vfs::{Delegation, Errno, Ino, Timestamp};

/// The value that stands for no process.
pub const NOBODY: u32 = u32::MAX;

/// A regular file.
pub struct CacheNode {
    /// Its inode number, which is the backing file's.
    pub ino: Ino,
    /// Held while the backing file is written to or truncated.
    pub io: Mutex<Io>,
    /// Shared by readers, which also fetch missing blocks; exclusive for changes.
    pub state: RwLock<CacheNodeState>,
    /// Held while fetched blocks are stored in the shadow.
    pub keeping: Mutex<()>,
    /// Whether the file has to be compared with the backing store regardless of the last
    /// comparison. It is set if an answer from there did not fit the fingerprint, or if other
    /// processes have changed the file.
    pub is_suspect: AtomicBool,
    /// Whether other processes are known to have changed its content, whatever its times are.
    pub is_changed: AtomicBool,
    /// The number of times that the kernel has it open such that it may be mapped.
    pub openings: AtomicU64,
    /// The last process whose opening behind the cache was refused since the file was written back;
    /// [`NOBODY`] if none.
    pub refused: AtomicU32,
    /// The end of the last read, and the number of bytes read sequentially before.
    pub read_end: AtomicU64,
    pub read_run: AtomicU64,
}

/// A proof that the lock for changes of the backing file is held.
pub struct Io(());

/// The state of a file.
#[derive(Default)]
pub struct CacheNodeState {
    /// Its shadow, if any, once it was looked up.
    pub cached: Option<Cnode>,
    /// Whether its existence is known to be durable; false for a file that was forgotten and looked
    /// up again.
    pub is_named: bool,
    /// The name under which it was created, if the creation is neither durable in the backing store
    /// nor recorded in the pool.
    pub made: Option<EntryName>,
    /// The guarantee for writes to it, once that was looked up.
    pub mode: Option<Mode>,
    /// Whether it has no capability that a write would have to remove.
    pub is_plain: bool,
    /// The protection of the backing file, once that was looked up since the file last changed.
    pub frozen: Option<Frozen>,
    /// Whether its last name was removed.
    pub is_unlinked: bool,
    /// The delegation under which programs read and write the shadow themselves.
    pub delegation: Option<Delegated>,
    /// Whether it was prepared for a delegation and has not been used since (delegate-G4).
    pub is_offered: bool,
    /// The error of writing back, to be returned by the next sync.
    pub error: Option<Errno>,
    /// The time of the next attempt to write it back, and the number of failed attempts.
    pub retry_at: Timestamp,
    pub retries: u32,
}

/// A delegation of a shadow to programs.
#[derive(Clone, Copy)]
pub struct Delegated {
    pub by: Delegation,
    /// The shadow's modification time before the delegation.
    pub mtime: Timestamp,
    /// The number of blocks that programs may have marked themselves (delegate-G5).
    pub credit: u64,
}

/// A name in a directory.
#[derive(Clone)]
pub struct EntryName {
    pub dir: Ino,
    pub name: Box<[u8]>,
}

/// A shadow file.
pub struct Cnode {
    /// Its name in the pool.
    pub name: Vec<u8>,
    /// The shadow file.
    pub shadow: Ino,
    /// The size of the shadow.
    pub size: u64,
    /// The time of the last change of the inode, if the file has a bitmap.
    pub ctime: Timestamp,
    pub record: Record,
    /// Its creation, if that may not be durable in the backing store (births-N1).
    pub birth: Option<Birth>,
    /// The slot where hits are marked.
    pub slot: Option<MarkSlot>,
    /// The time of the last comparison with the backing store.
    pub checked: AtomicI64,
    /// Whether the backing file was truncated and that is not known to be durable; it has to be
    /// before the file grows (pmcache-C3).
    pub is_cut: bool,
    /// The data that the backing file may lack; `None` if it lacks none.
    pub dirty: Option<Dirty>,
}

/// Data that is not written back yet.
pub struct Dirty {
    /// The file of the bitmap.
    pub bitmap: Ino,
    /// The marked blocks, as in that file.
    pub blocks: Blocks,
    /// The blocks written while the others were being written back; `None` if nothing is being
    /// written back.
    pub again: Option<Blocks>,
    /// Whether the size, the times or a range of the file changed since it was last written back.
    pub is_changed: bool,
    /// The offset up to which space is allocated in the backing file.
    pub reserved: u64,
}

impl CacheNode {
    pub fn new(ino: Ino) -> Self {
        Self {
            ino,
            io: Mutex::new(Io(())),
            state: RwLock::default(),
            is_suspect: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
            openings: AtomicU64::new(0),
            refused: AtomicU32::new(NOBODY),
            keeping: Mutex::new(()),
            read_end: AtomicU64::new(0),
            read_run: AtomicU64::new(0),
        }
    }
}

impl CacheNodeState {
    /// Returns its shadow if that has, or may have, data that is not written back.
    pub fn dirty(&self) -> Option<&Cnode> {
        self.cached.as_ref().filter(|cnode| cnode.dirty.is_some())
    }

    /// Returns the same shadow for changes.
    pub fn dirty_mut(&mut self) -> Option<&mut Cnode> {
        self.cached.as_mut().filter(|cnode| cnode.dirty.is_some())
    }

    /// Returns whether a range is still to become zeros after a failure.
    pub fn has_intent(&self) -> bool {
        self.cached.as_ref().is_some_and(|cnode| cnode.record.intent.is_some())
    }

    /// Returns whether the file has to be kept, as it has data to be written back.
    pub fn is_needed(&self) -> bool {
        self.dirty().is_some() && !self.is_unlinked
    }
}

impl Cnode {
    /// Returns the number of bytes that are only in the cache.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.as_ref().map_or(0, |dirty| dirty.blocks.count() * crate::BLOCK)
    }
}
