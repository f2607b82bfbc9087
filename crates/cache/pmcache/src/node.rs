//! A regular file that somebody uses, or that has something which is not below yet.

use crate::options::Mode;
use crate::range::Blocks;
use crate::record::{Birth, Record};
use backing::Frozen;
use eviction::MarkSlot;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Mutex, RwLock};
use vfs::{Delegation, Errno, Ino, Timestamp};

/// No process.
pub const NOBODY: u32 = u32::MAX;

/// A regular file.
pub struct Node {
    /// Its number, which is the backing file's.
    pub ino: Ino,
    /// Held by who writes to the backing file, or cuts it.
    pub io: Mutex<Io>,
    /// Shared by readers, which also fetch missing blocks; exclusive for changes.
    pub state: RwLock<State>,
    /// Held while fetched blocks are stored in the shadow.
    pub keeping: Mutex<()>,
    /// Whether it is to be compared with what is below however young it is: an answer from there did not fit the fingerprint, or
    /// others have changed it.
    pub is_suspect: AtomicBool,
    /// Whether others are known to have changed its content, whatever its times say.
    pub is_changed: AtomicBool,
    /// How often it is open by the kernel so that it may be mapped.
    pub openings: AtomicU64,
    /// The last process that was refused to open it behind the cache since it was written back; [`NOBODY`].
    pub refused: AtomicU32,
    /// Where the last read ended, and how many bytes were read in a row before.
    pub read_end: AtomicU64,
    pub read_run: AtomicU64,
}

/// Shows that the backing file may be changed in ways that must not meet.
pub struct Io(());

/// What is known of a file.
#[derive(Default)]
pub struct State {
    /// Its shadow, once it was looked for and if there is one.
    pub cached: Option<Cnode>,
    /// Whether it is known to be durable that it exists: not so for a file that was forgotten and looked up again.
    pub is_named: bool,
    /// Where it was made, if that is neither durable below nor recorded in the pool.
    pub made: Option<EntryName>,
    /// What a write to it promises, once that was looked for.
    pub mode: Option<Mode>,
    /// Whether it has no capability that a write would have to take away.
    pub is_plain: bool,
    /// How the backing file is kept from being changed, once that was looked for since it changed last.
    pub frozen: Option<Frozen>,
    /// Whether its last name is gone.
    pub is_unlinked: bool,
    /// What makes programs read and write the shadow themselves.
    pub delegation: Option<Delegated>,
    /// Whether nobody has used it since it was made ready to be delegated (delegate-G4).
    pub is_offered: bool,
    /// Why it was not written back, for who syncs it next.
    pub error: Option<Errno>,
    /// Until when to wait before it is tried again, and how often it was.
    pub retry_at: Timestamp,
    pub retries: u32,
}

/// What makes programs read and write a shadow.
#[derive(Clone, Copy)]
pub struct Delegated {
    pub by: Delegation,
    /// The shadow's time before they did.
    pub mtime: Timestamp,
    /// So many blocks they may have marked themselves (delegate-G5).
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
    /// As the shadow's.
    pub size: u64,
    /// Last change of the inode, where the file has a bitmap.
    pub ctime: Timestamp,
    pub record: Record,
    /// Its creation, where that may not be durable below (births-N1).
    pub birth: Option<Birth>,
    /// Where hits are marked.
    pub slot: Option<MarkSlot>,
    /// When it was last compared with what is below.
    pub checked: AtomicI64,
    /// Whether the backing file was cut, which is not known to be durable: it has to be before the file grows (pmcache-C3).
    pub is_cut: bool,
    /// What is below may lack; `None`: nothing.
    pub dirty: Option<Dirty>,
}

/// What is not below yet.
pub struct Dirty {
    /// The bitmap, a file.
    pub bitmap: Ino,
    /// The same.
    pub blocks: Blocks,
    /// Of these, what was written while the others were being written back.
    pub again: Option<Blocks>,
    /// Whether its size, its times or a range of it changed since it was last written back.
    pub is_changed: bool,
    /// Where space is allocated up to, below.
    pub reserved: u64,
}

impl Node {
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

impl State {
    /// Its shadow, where that has, or may have, something which is not below yet.
    pub fn dirty(&self) -> Option<&Cnode> {
        self.cached.as_ref().filter(|cnode| cnode.dirty.is_some())
    }

    /// The same, to be changed.
    pub fn dirty_mut(&mut self) -> Option<&mut Cnode> {
        self.cached.as_mut().filter(|cnode| cnode.dirty.is_some())
    }

    /// Whether a range is still to become zeros, which failed before.
    pub fn has_intent(&self) -> bool {
        self.cached.as_ref().is_some_and(|cnode| cnode.record.intent.is_some())
    }

    /// Whether it has to be kept for what is not below, which is to be written back.
    pub fn is_needed(&self) -> bool {
        self.dirty().is_some() && !self.is_unlinked
    }
}

impl Cnode {
    /// Bytes that are only in the cache.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.as_ref().map_or(0, |dirty| dirty.blocks.count() * crate::BLOCK)
    }
}
